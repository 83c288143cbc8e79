"""Type aliases shared by the package."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]

Progress = Callable[[int, int, str], None]
"""Called with the steps done, the total steps and a description of the current step."""


def silent(done: int, total: int, message: str) -> None:
    """Ignore a progress report."""
