"""What the coordinator finds of the clients' columns by sums: their frame, and discriminants."""

from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedneighbors.errors import DataError
from fedneighbors.federation.roles import Ask, Replies, total
from fedneighbors.methods.knnper.client import FIXED_POINT
from fedneighbors.methods.knnper.messages import MomentsRequest, ScatterRequest
from fedneighbors.methods.knnper.personal.discriminants import (
    Discriminants,
    RandomFeatures,
    Scatter,
    feature_rate,
    n_features_for,
)
from fedneighbors.tables.moments import Moments, mean_and_deviation

__all__ = ["Frame", "discriminants", "framed"]

Floats = npt.NDArray[np.float64]


def _nothing() -> Floats:
    return np.empty(0)


@dataclass(frozen=True, eq=False)
class Frame:
    """How columns are brought to one scale.

    Parameters
    ----------
    center, scale : float64 array of shape (n_features,)
        Means and deviations; empty if columns are left as they are.
    rate : float
        Of random features of rows that are brought there.
    """

    center: Floats = field(default_factory=_nothing)
    scale: Floats = field(default_factory=_nothing)
    rate: float = 0.0


def framed(*, standardize: bool) -> Generator[Ask, Replies, Frame]:
    """Find mean and deviation of each column by exact sums.

    Parameters
    ----------
    standardize : bool
        Bring columns to mean 0 and deviation 1, constant ones to 0; otherwise they stay.

    Raises
    ------
    DataError
        If the clients hold no rows.
    """
    replies = yield total(MomentsRequest())
    found = replies.summed("the sums of columns")
    if found.n_rows < 1:
        raise DataError("the clients hold no rows to train on; give them rows")
    mean, deviation = mean_and_deviation(Moments(found.n_rows, found.sums, found.squares))
    if not standardize:
        return Frame(rate=feature_rate(deviation))
    scale = np.where(deviation > 0, deviation, 1.0)
    return Frame(mean, scale, feature_rate(deviation / scale))


def discriminants(
    frame: Frame, seed: int, n_rows: int, n_classes: int, *, held_out: bool
) -> Generator[Ask, Replies, Discriminants | None]:
    """Find what tells classes apart at every client, by sums of scatter alone.

    Parameters
    ----------
    frame : Frame
        Of the columns.
    seed : int
        Of random features.
    n_rows : int
        Rows of all clients whose scatter is summed.
    n_classes : int
        Of all clients; 0 if nothing is to be found.
    held_out : bool
        Whether held-out rows are left out.
    """
    if not n_classes:
        return None
    features = RandomFeatures(seed, frame.rate, n_features_for(n_rows))
    request = ScatterRequest(held_out, features.seed, features.rate, features.n_features)
    replies = yield total(request)
    found = replies.summed("the scatter of classes")
    within, between = (_whole(part, features.n_features) for part in (found.within, found.between))
    return Discriminants.best(features, Scatter(within, between), n_classes)


def _whole(triangle: npt.NDArray[np.int64], n: int) -> Floats:
    """Return the symmetric matrix of an upper triangle in fixed point."""
    whole = np.zeros((n, n))
    whole[np.triu_indices(n)] = np.ldexp(triangle.astype(np.float64), -FIXED_POINT)
    return whole + np.triu(whole, 1).T
