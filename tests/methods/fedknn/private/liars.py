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


def alter(reply, **change):
    """Return a changed copy of a reply, without the checks of its class."""
    result = object.__new__(type(reply))
    for name in type(reply).__dataclass_fields__:
        object.__setattr__(result, name, change.get(name, getattr(reply, name)))
    return result


def nearest_only(change):
    return lambda reply: change(reply) if isinstance(reply, PaddedNearestReply) else reply


def bounds_only(change):
    return lambda reply: change(reply) if isinstance(reply, PaddedBoundReply) else reply


def reverse(reply):
    n = int(reply.numbers[0])
    order = np.r_[np.arange(n)[::-1], np.arange(n, len(reply.ties))]
    return alter(reply, distances=reply.distances[order], ties=reply.ties[order])


def repeat_first(reply):
    names, lengths = reply.names.copy(), reply.lengths.copy()
    names[1], lengths[1] = names[0], lengths[0]
    return alter(reply, names=names, lengths=lengths)


def write_padding(**values):
    """Return a change that writes into the padding of a reply."""

    def change(reply):
        n = int(reply.numbers[0])
        if n == len(reply.ties):
            return reply
        fields = {name: getattr(reply, name).copy() for name in values}
        for name, value in values.items():
            fields[name][n] = value
        return alter(reply, **fields)

    return nearest_only(change)


def tie_first_two(reply):
    """Give two objects one distance, and tie keys whose difference overflows."""
    if reply.numbers[0] < 2:
        return reply
    distances, ties = reply.distances.copy(), reply.ties.copy()
    distances[1], ties[:2] = distances[0], [2**63 - 1, -(2**63)]
    return alter(reply, distances=distances, ties=ties)


def return_nothing(reply):
    """Return no objects, and report exhaustion."""
    return alter(
        reply,
        **{name: np.zeros_like(getattr(reply, name)) for name in ("ties", "names", "lengths")},
        distances=np.full(len(reply.ties), np.inf),
        numbers=np.array([0, 0]),
        flags=np.array([1, 1], np.uint8),
    )


LIES = {
    "another size": nearest_only(lambda r: alter(r, distances=r.distances[:-1])),
    "too many objects": nearest_only(lambda r: alter(r, numbers=r.numbers * 0 + 99)),
    "descending": nearest_only(reverse),
    "an object twice": nearest_only(repeat_first),
    "negative distances": nearest_only(lambda r: alter(r, distances=r.distances - 100)),
    "not a number": nearest_only(lambda r: alter(r, distances=r.distances * np.nan)),
    "too long names": nearest_only(lambda r: alter(r, lengths=r.lengths + 1000)),
    "flags other than 0 and 1": nearest_only(lambda r: alter(r, flags=r.flags + 7)),
    "too few objects": nearest_only(
        lambda r: alter(return_nothing(r), flags=np.array([0, 1], np.uint8))
    ),
    "an object behind the last": write_padding(distances=0.0),
    "no number behind the last": write_padding(distances=np.nan),
    "minus infinity behind the last": write_padding(distances=-np.inf),
    "a name behind the last": write_padding(names=255, lengths=64),
    "invalid UTF-8": nearest_only(lambda r: alter(r, names=r.names | np.uint8(128))),
    "a tie behind the last": write_padding(ties=1),
    "ties whose difference overflows": nearest_only(tie_first_two),
    "no objects, but bounds": nearest_only(return_nothing),
    "exhausted, but more objects in the second round": nearest_only(
        lambda r: alter(r, flags=np.array([1, 1], np.uint8))
    ),
    "objects nearer than their bounds": bounds_only(lambda r: alter(r, bounds=r.bounds + 100)),
    "bounds padded with minus infinity": bounds_only(
        lambda r: alter(r, bounds=np.append(r.bounds[:-1], -np.inf))
    ),
    "too few bounds": bounds_only(lambda r: alter(r, bounds=r.bounds[:-1])),
}


def stop_early(reply):
    """Return no objects, although more are left."""
    if isinstance(reply, PaddedNearestReply):
        return alter(return_nothing(reply), flags=np.array([0, 1], np.uint8))
    return reply
