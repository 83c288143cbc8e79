"""What each of the three releases may cost and how far a row moves it, the same at both ends.

A party and the coordinator derive it from what they agreed on, so that no message states a
sensitivity or a part of the budget.
"""

from dataclasses import dataclass
from functools import partial

from fedneighbors.methods.fedpnn.private._release import (
    N_CELLS,
    cell_sensitivity,
    class_sums_sensitivity,
    levels_of,
    origin_sensitivity,
    part,
)
from fedneighbors.privacy._guarantees import ZCDP, PureDP, Sensitivity
from fedneighbors.privacy._policy import Privacy


@dataclass(frozen=True)
class Release:
    """A vector that is released.

    Parameters
    ----------
    allowed : PureDP or ZCDP
        What it may cost.
    moved : Sensitivity
        How far a row moves it.
    levels : int
        Integer steps that stand for 1.
    n_cells : int
        Its length.
    """

    allowed: PureDP | ZCDP
    moved: Sensitivity
    levels: int
    n_cells: int


def origin(privacy: Privacy, n_features: int, n_classes: int) -> Release:
    """Return the release of number and sum of rows."""
    allowed = part(privacy, of="origin", n_classes=n_classes)
    moved = partial(origin_sensitivity, n_features, neighbors=privacy.neighbors)
    levels = levels_of(allowed, moved)
    return Release(allowed, moved(levels), levels, 1 + n_features)


def class_sums_of(privacy: Privacy, n_features: int, n_classes: int) -> Release:
    """Return the release of numbers and sums of unit vectors of the classes."""
    allowed = part(privacy, of="class sums", n_classes=n_classes)
    moved = partial(class_sums_sensitivity, n_features, neighbors=privacy.neighbors)
    levels = levels_of(allowed, moved)
    return Release(allowed, moved(levels), levels, n_classes * (1 + n_features))


def cells(privacy: Privacy) -> Release:
    """Return the release of the cells of two classes."""
    allowed = part(privacy, of="cells", n_classes=2)
    return Release(allowed, cell_sensitivity(privacy.neighbors), 1, 2 * N_CELLS)
