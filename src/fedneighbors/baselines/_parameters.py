"""Checks of the baselines' parameters."""

import math
from numbers import Integral, Real
from typing import Any


def refuse_negative(name: str, value: Any) -> None:
    """Raise ValueError unless a parameter is a finite number of 0 or more."""
    if not (_is_number(value) and 0 <= value < math.inf):
        raise ValueError(f"expected {name} of 0 or more, got {value!r}")


def refuse_share(name: str, value: Any) -> None:
    """Raise ValueError unless a parameter is a number from 0 to 1."""
    if not (_is_number(value) and 0 <= value <= 1):
        raise ValueError(f"expected {name} from 0 to 1, got {value!r}")


def refuse_count(name: str, value: Any, *, least: int = 1) -> None:
    """Raise ValueError unless a parameter is a whole number of so much or more."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise ValueError(f"expected {name} as an integer of {least} or more, got {value!r}")


def refuse_rate(name: str, value: Any, *, optional: bool = False) -> None:
    """Raise ValueError unless a parameter is a finite number above 0, or None where it may be."""
    if optional and value is None:
        return
    if not (_is_number(value) and 0 < value < math.inf):
        raise ValueError(f"expected {name} above 0, got {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
