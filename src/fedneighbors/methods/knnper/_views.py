"""What the coordinator finds of the clients' columns by sums: their frame, and discriminants."""

from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats
from fedneighbors.errors import DataError
from fedneighbors.federation._roles import Ask, Replies, total
from fedneighbors.methods.knnper._client import FIXED_POINT
from fedneighbors.methods.knnper._messages import MomentsRequest, ScatterRequest
from fedneighbors.methods.knnper.personal._discriminants import (
    Discriminants,
    RandomFeatures,
    Scatter,
    feature_rate,
    n_features_for,
    triangle,
)
from fedneighbors.tabular._schema import Moments, mean_and_deviation


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
    looked: tuple[Frame, int] | None, overall: Floats, n_rows: int, *, held_out: bool
) -> Generator[Ask, Replies, Discriminants | None]:
    """Find what tells classes apart at every client, by sums of scatter alone.

    Parameters
    ----------
    looked : tuple of Frame and int, or None
        Frame of the columns, and seed of random features; None if nothing is to be found.
    overall : float64 array of shape (n_classes,)
        Shares of the classes over all clients, with one row of each class added.
    n_rows : int
        Rows of all clients whose scatter is summed.
    held_out : bool
        Whether held-out rows are left out.
    """
    if looked is None:
        return None
    frame, seed = looked
    features = RandomFeatures(seed, frame.rate, n_features_for(n_rows))
    request = ScatterRequest(held_out, features.seed, features.rate, features.n_features)
    replies = yield total(request)
    found = replies.summed("the scatter of classes")
    within, between = (_whole(part, features.n_features) for part in (found.within, found.between))
    counts = overall * (n_rows + len(overall)) - 1
    n_present = int((counts > 0.5).sum())  # classes that may come later scatter nowhere
    return Discriminants.best(features, Scatter(within, between), n_present)


def _whole(upper: npt.NDArray[np.int64], n: int) -> Floats:
    """Return the symmetric matrix of an upper triangle in fixed point."""
    whole = np.zeros((n, n))
    whole[triangle(n)] = np.ldexp(upper.astype(np.float64), -FIXED_POINT)
    return whole + np.triu(whole, 1).T
