"""What a client is to train."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedneighbors.methods.knnper.networks.network import State

__all__ = ["LocalTask"]

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LocalTask:
    """What one client is to train.

    Parameters
    ----------
    rows : int64 array of shape (n_rows,)
        The client's rows in the trainer's table.
    start : State
        Where its weights begin.
    words : tuple
        What the order of its rows follows from: seed, client, round.
    anchor : State, optional
        Where the proximal term pulls to; by default where the weights begin.
    """

    rows: Integers
    start: State
    words: tuple[object, ...]
    anchor: State | None = None
