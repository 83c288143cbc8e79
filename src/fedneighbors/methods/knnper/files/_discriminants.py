"""Discriminants of rows as fields of a file."""

import numpy as np
import numpy.typing as npt

from fedneighbors.federation._messages import decode, encode, message
from fedneighbors.methods.knnper.personal._discriminants import (
    MOST_FEATURES,
    Discriminants,
    RandomFeatures,
)


@message
class SeenParts:
    """Random features, and the directions of them that are looked along."""

    seed: int
    rate: float
    directions: npt.NDArray[np.float64]

    def __post_init__(self) -> None:
        if not (self.seed >= 0 and 0 <= self.rate < np.inf):
            raise ValueError("seed or rate of random features is out of range")
        if self.directions.ndim != 2 or not 0 < self.directions.shape[1] <= len(self.directions):
            raise ValueError("directions are no table of discriminants")
        if len(self.directions) > MOST_FEATURES:
            raise ValueError(f"directions are of more than {MOST_FEATURES} random features")
        if not np.isfinite(self.directions).all():
            raise ValueError("directions are not finite")


def seen_bytes(seen: Discriminants) -> bytes:
    """Return discriminants as bytes.

    Parameters
    ----------
    seen : Discriminants
        What all clients' scatter tells of a row.
    """
    return encode(SeenParts(seen.features.seed, seen.features.rate, seen.directions))


def read_seen(raw: bytes) -> Discriminants:
    """Return the discriminants that :func:`seen_bytes` wrote.

    Parameters
    ----------
    raw : bytes
        Its bytes.

    Raises
    ------
    WireError, ValueError
        If they are none.
    """
    parts = decode(raw, (SeenParts,))
    drawn = RandomFeatures(parts.seed, parts.rate, len(parts.directions))
    return Discriminants(drawn, parts.directions)
