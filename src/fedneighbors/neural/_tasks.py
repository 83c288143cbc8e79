"""What a client is to train."""

from dataclasses import dataclass

from fedneighbors._typing import Integers
from fedneighbors.neural._network import State


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
