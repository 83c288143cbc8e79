"""Messages of DANN*, whose sizes do not depend on the objects."""

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.federation._messages import message
from fedneighbors.federation._reply_grid import MAX_GRID_S
from fedneighbors.methods.fedknn._names import Names
from fedneighbors.methods.fedknn.algorithm import check_ascending, check_query
from fedneighbors.methods.fedknn.protocol import NearestReply

MAX_NAME_BYTES = 64
"""Maximum length of an object's name in bytes of UTF-8; shorter names are padded."""

EPOCH_BYTES = 16
"""Length of the id of a version of a provider's objects."""

MAX_PADDED_K = 1 << 17
"""Maximum number of neighbours of a private search; a reply then has 12 MB for any provider."""

MIN_GRID_S = 1e-6


@message
class PaddedBoundReply:
    """The k lowest bounds of a provider, padded with infinity, and its epoch.

    The epoch looks random, and is another one when the objects of the provider change.
    """

    bounds: Floats
    epoch: bytes

    def __post_init__(self) -> None:
        known = self.bounds[np.isfinite(self.bounds)]
        check_ascending("bounds", known)
        if self.bounds.ndim != 1 or not np.isposinf(self.bounds[len(known) :]).all():
            raise ValueError("bounds are not padded at the end")
        if len(self.epoch) != EPOCH_BYTES:
            raise ValueError(f"an epoch has {EPOCH_BYTES} bytes")


@message
class PaddedBoundRequest:
    """New query and request for the ``k`` lowest bounds, to be answered on a time grid."""

    reply: ClassVar[type] = PaddedBoundReply
    name: str
    query: bytes
    k: int
    grid_s: float

    def __post_init__(self) -> None:
        _check_request(self)

    def check(self, party: str, reply: PaddedBoundReply) -> None:  # noqa: ARG002 - passed by runtimes
        """Raise for a reply of another size."""
        if reply.bounds.shape != (self.k,):
            raise ValueError(f"expected {self.k} bounds, got {len(reply.bounds)}")


@message
class PaddedNearestReply:
    """The next objects of a provider, padded to ``k``.

    Arrays of ``k`` rows: ``distances`` (padded with infinity), ``ties`` (padded with 0), the bytes
    of ``names`` (padded with zeros) and their ``lengths``. ``numbers`` are the number of objects
    and ``n_verified``; ``flags`` are ``exhausted`` and ``exact``, as in
    :class:`~fedneighbors.methods.fedknn.protocol.NearestReply`.
    """

    distances: Floats
    ties: Integers
    names: npt.NDArray[np.uint8]
    lengths: Integers
    numbers: Integers
    flags: npt.NDArray[np.uint8]


@message
class PaddedNearestRequest:
    """Request for the next objects of a query; its size does not depend on ``count``."""

    reply: ClassVar[type] = PaddedNearestReply
    name: str
    query: bytes
    count: Integers
    k: int
    grid_s: float

    def __post_init__(self) -> None:
        _check_request(self)
        if self.count.shape != (1,) or not 0 <= self.count[0] <= self.k:
            raise ValueError(f"expected one count from 0 to {self.k}, got {self.count}")

    def check(self, party: str, reply: PaddedNearestReply) -> None:  # noqa: ARG002 - passed by runtimes
        """Raise for a reply with a wrong size, invalid objects or padding."""
        unpad_nearest(reply, self.k).check_n_objects(int(self.count[0]))


def _check_request(request: "PaddedBoundRequest | PaddedNearestRequest") -> None:
    check_query(request.query, request.name, request.k, max_k=MAX_PADDED_K)
    if request.grid_s and not MIN_GRID_S <= request.grid_s <= MAX_GRID_S:
        raise ValueError(
            f"expected a grid of 0 or {MIN_GRID_S} to {MAX_GRID_S} seconds, got {request.grid_s}"
        )


def pad_bounds(bounds: Floats, k: int, epoch: bytes) -> PaddedBoundReply:
    """Return a provider's ``k`` lowest bounds as a reply of fixed size."""
    padded = np.full(k, np.inf)
    lowest = np.sort(bounds)[:k]
    padded[: len(lowest)] = lowest
    return PaddedBoundReply(padded, epoch)


def pad_nearest(reply: NearestReply, k: int) -> PaddedNearestReply:
    """Return a reply of at most ``k`` objects padded to ``k``.

    Raises
    ------
    ValueError
        If a name is longer than ``MAX_NAME_BYTES``.
    """
    n = len(reply.ids)
    distances, ties = np.full(k, np.inf), np.zeros(k, np.int64)
    distances[:n], ties[:n] = reply.distances, reply.ties
    names, lengths = np.zeros((k, MAX_NAME_BYTES), np.uint8), np.zeros(k, np.int64)
    for i, name in enumerate(reply.ids):
        raw = name.encode()
        if len(raw) > MAX_NAME_BYTES:
            raise ValueError(
                f"expected names of at most {MAX_NAME_BYTES} bytes, got one of {len(raw)}"
            )
        names[i, : len(raw)] = np.frombuffer(raw, np.uint8)
        lengths[i] = len(raw)
    return PaddedNearestReply(
        distances=distances,
        ties=ties,
        names=names,
        lengths=lengths,
        numbers=np.array([n, reply.n_verified], np.int64),
        flags=np.array([reply.exhausted, reply.exact], np.uint8),
    )


def unpad_nearest(reply: PaddedNearestReply, k: int) -> NearestReply:
    """Return the objects of a padded reply.

    Raises
    ------
    ValueError
        If it is not a reply of ``k`` rows, or its objects are invalid for
        :class:`~fedneighbors.methods.fedknn.protocol.NearestReply`.
    """
    shapes = (reply.distances.shape, reply.ties.shape, reply.names.shape, reply.lengths.shape)
    if shapes != ((k,), (k,), (k, MAX_NAME_BYTES), (k,)):
        raise ValueError(f"expected a reply of {k} rows, got arrays of shapes {shapes}")
    if reply.numbers.shape != (2,) or reply.flags.shape != (2,) or (reply.flags > 1).any():
        raise ValueError("expected two numbers and two flags")
    n, n_verified = reply.numbers.tolist()
    if not 0 <= n <= k or n_verified < 0:
        raise ValueError(f"expected 0 to {k} objects, got {n}, with {n_verified} verified")
    lengths = reply.lengths[:n]
    if ((lengths < 0) | (lengths > MAX_NAME_BYTES)).any():
        raise ValueError(f"expected names of at most {MAX_NAME_BYTES} bytes")
    _check_padding(reply, n)
    is_name = np.arange(MAX_NAME_BYTES) < lengths[:, np.newaxis]
    return NearestReply(
        distances=reply.distances[:n],
        ties=reply.ties[:n],
        ids=Names(reply.names[:n][is_name].tobytes(), lengths.cumsum().astype(np.uint32)),
        exhausted=bool(reply.flags[0]),
        exact=bool(reply.flags[1]),
        n_verified=n_verified,
    )


def _check_padding(reply: PaddedNearestReply, n: int) -> None:
    """Raise if padding is not empty, because the merge reads it unchecked."""
    is_padding = np.arange(MAX_NAME_BYTES) >= reply.lengths[:, np.newaxis]
    nonzero = reply.ties[n:].any() or reply.lengths[n:].any() or reply.names[is_padding].any()
    if nonzero or not np.isposinf(reply.distances[n:]).all():
        raise ValueError("the padding of a reply is not empty")
