"""Providers that violate the padded protocol, in one way each."""

import numpy as np

from fedneighbors.methods.fedknn.private._padding import PaddedBoundReply, PaddedNearestReply


class Liar:
    """A provider that changes its replies."""

    def __init__(self, inner, change):
        self._inner, self._change = inner, change
        self.name, self.accepts = inner.name, inner.accepts

    def answer(self, request):
        return self._change(self._inner.answer(request))


def forged(reply, **change):
    """Return a copy with other fields, past all checks."""
    result = object.__new__(type(reply))
    for name in type(reply).__dataclass_fields__:
        object.__setattr__(result, name, change.get(name, getattr(reply, name)))
    return result


def nearest_only(change):
    return lambda reply: change(reply) if isinstance(reply, PaddedNearestReply) else reply


def bounds_only(change):
    return lambda reply: change(reply) if isinstance(reply, PaddedBoundReply) else reply


def reordered(reply):
    n = int(reply.numbers[0])
    order = np.r_[np.arange(n)[::-1], np.arange(n, len(reply.ties))]
    return forged(reply, distances=reply.distances[order], ties=reply.ties[order])


def doubled(reply):
    names, lengths = reply.names.copy(), reply.lengths.copy()
    names[1], lengths[1] = names[0], lengths[0]
    return forged(reply, names=names, lengths=lengths)


def behind(**values):
    """Add data after the last object of a reply that is not full."""

    def change(reply):
        n = int(reply.numbers[0])
        if n == len(reply.ties):
            return reply
        fields = {name: getattr(reply, name).copy() for name in values}
        for name, value in values.items():
            fields[name][n] = value
        return forged(reply, **fields)

    return nearest_only(change)


def tied(reply):
    """Return two objects at one distance, with tie keys whose difference overflows."""
    if reply.numbers[0] < 2:
        return reply
    distances, ties = reply.distances.copy(), reply.ties.copy()
    distances[1], ties[:2] = distances[0], [2**63 - 1, -(2**63)]
    return forged(reply, distances=distances, ties=ties)


def nothing(reply):
    """Return no objects, and report exhaustion."""
    return forged(
        reply,
        **{name: np.zeros_like(getattr(reply, name)) for name in ("ties", "names", "lengths")},
        distances=np.full(len(reply.ties), np.inf),
        numbers=np.array([0, 0]),
        flags=np.array([1, 1], np.uint8),
    )


LIES = {
    "another size": nearest_only(lambda r: forged(r, distances=r.distances[:-1])),
    "more than were asked for": nearest_only(lambda r: forged(r, numbers=r.numbers * 0 + 99)),
    "descending": nearest_only(reordered),
    "an object twice": nearest_only(doubled),
    "negative distances": nearest_only(lambda r: forged(r, distances=r.distances - 100)),
    "not a number": nearest_only(lambda r: forged(r, distances=r.distances * np.nan)),
    "names beyond their size": nearest_only(lambda r: forged(r, lengths=r.lengths + 1000)),
    "flags that are none": nearest_only(lambda r: forged(r, flags=r.flags + 7)),
    "fewer, and more left": nearest_only(
        lambda r: forged(nothing(r), flags=np.array([0, 1], np.uint8))
    ),
    "an object behind the last": behind(distances=0.0),
    "no number behind the last": behind(distances=np.nan),
    "less than nothing behind the last": behind(distances=-np.inf),
    "a name behind the last": behind(names=255, lengths=64),
    "a name that is no text": nearest_only(lambda r: forged(r, names=r.names | np.uint8(128))),
    "a tie behind the last": behind(ties=1),
    "ties that descend by more than 64 bits hold": nearest_only(tied),
    "no objects, and bounds of some": nearest_only(nothing),
    "no more objects, and then some": nearest_only(
        lambda r: forged(r, flags=np.array([1, 1], np.uint8))
    ),
    "objects nearer than their bounds": bounds_only(lambda r: forged(r, bounds=r.bounds + 100)),
    "bounds that end below all": bounds_only(
        lambda r: forged(r, bounds=np.append(r.bounds[:-1], -np.inf))
    ),
    "bounds of another number": bounds_only(lambda r: forged(r, bounds=r.bounds[:-1])),
}


def cut_short(reply):
    """Return no object, and the claim that there are more."""
    if isinstance(reply, PaddedNearestReply):
        return forged(nothing(reply), flags=np.array([0, 1], np.uint8))
    return reply
