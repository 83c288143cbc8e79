"""A client's own part of a model: a memory, how much it weighs, and what follows from it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.methods.knnper.memory.compression.kinds import Memory
from fedneighbors.methods.knnper.personal.choosing import in_metric
from fedneighbors.methods.knnper.settings import MemorySettings

__all__ = ["OwnPart"]

Floats = npt.NDArray[np.float64]


@dataclass(eq=False)
class OwnPart(ABC):
    """What one client has for itself.

    Parameters
    ----------
    memory : Memory
        Its rows, as the shared model sees them.
    weight : float
        Of the memory by Eq 7 (lambda).
    overall : float64 array
        What is known of all clients: shares of the classes, of shape (n_classes,), or means and
        deviations of the targets, of shape (2, n_outputs).
    pool : float64 array of shape (n_experts,) or None
        Weights of the experts; None for the paper's mixture.
    settings : MemorySettings
        How the memory is asked, with the k and the metric that the client chose.
    """

    memory: Memory
    weight: float
    overall: Floats
    pool: Floats | None
    settings: MemorySettings

    def __post_init__(self) -> None:
        self._refit()

    def add(self, keys: Floats, labels: npt.NDArray[Any], ids: Any = None) -> None:
        """Let rows into the memory."""
        near = in_metric(keys, self.settings.metrics[0], self.settings.n_beside)
        self.memory.add(near, labels, ids)
        self._refit()

    def forget(self, ids: Any) -> None:
        """Delete rows from the memory and from all that was made of it."""
        self.memory.forget(ids)
        self._refit()

    @abstractmethod
    def _refit(self) -> None:
        """Make anew what follows from the rows of the memory."""
