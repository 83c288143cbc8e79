"""Detectable invalid replies are errors that name the provider."""

import math
from functools import partial

import numpy as np
import pytest

from fedneighbors.errors import ProtocolError, WireError
from fedneighbors.federation._inprocess import run
from fedneighbors.methods.fedknn._batch import NearestBatchReply, nearest_batch
from fedneighbors.methods.fedknn._eager import Pace, eager
from fedneighbors.methods.fedknn._names import Names
from fedneighbors.methods.fedknn._provider import Provider
from fedneighbors.methods.fedknn._queries import check_ids, recheck_distances
from fedneighbors.methods.fedknn._radius import hufu, hufu_plus
from fedneighbors.methods.fedknn.algorithm import (
    Merged,
    Part,
    check_distances_against_bounds,
    is_certified,
    merge,
)
from fedneighbors.methods.fedknn.metrics import metric_of
from fedneighbors.methods.fedknn.protocol import (
    ActiveProviders,
    BoundReply,
    NearestReply,
    RangeCountReply,
    baseline,
    certify_answer,
    dann,
)
from tests.methods.fedknn.federations import BoundedLine, Federation

TABLES = {"p0": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "p1": [1.5, 2.5, 3.5, 4.5, 7.5]}
K = 5
ALGORITHMS = {"baseline": baseline, "dann": dann, "hufu": hufu, "hufu+": hufu_plus}


class Liar:
    """A provider that changes its replies of one kind, except the first ``after``."""

    def __init__(self, inner, kind, change, *, after=0):
        self._inner, self._kind, self._change, self._n_unchanged = inner, kind, change, after
        self.name, self.accepts = inner.name, inner.accepts

    def answer(self, request):
        reply = self._inner.answer(request)
        if not isinstance(reply, self._kind):
            return reply
        self._n_unchanged -= 1
        return reply if self._n_unchanged >= 0 else self._change(reply, request)


def alter(reply, **change):
    """Return a changed copy of a reply, without the checks of its class."""
    result = object.__new__(type(reply))
    for name in type(reply).__dataclass_fields__:
        object.__setattr__(result, name, change.get(name, getattr(reply, name)))
    return result


def select(reply, indices, **change):
    return alter(
        reply,
        distances=reply.distances[indices],
        ties=reply.ties[indices],
        ids=Names.pack(np.array([*reply.ids])[indices].tolist()),
        **change,
    )


def run_with_liar(algorithm, kind, change, *, after=0, k=K, tables=TABLES, looseness=0.0):
    honest = Federation(tables, 0.0, k, BoundedLine(looseness, 1)).providers()
    providers = [Liar(honest[0], kind, change, after=after), *honest[1:]]
    return run(algorithm(b"0.0", k, name="q"), providers).result


def add_object(reply, _):
    far = reply.distances[-1:] + 1
    return alter(
        reply,
        distances=np.concatenate([reply.distances, far]),
        ties=np.concatenate([reply.ties, reply.ties[-1:]]),
        ids=Names.pack([*reply.ids, "one more"]),
    )


OBJECTS = {
    "too few": lambda r, _: select(r, slice(0, 1), exhausted=False),
    "too many": add_object,
    "descending": lambda r, _: select(r, slice(None, None, -1)),
    "an object twice": lambda r, _: select(r, [0, 0, *range(2, len(r.ids))]),
    "NaN": lambda r, _: alter(r, distances=r.distances * np.nan),
    "infinite": lambda r, _: alter(r, distances=r.distances + np.inf),
    "minus infinite": lambda r, _: alter(r, distances=r.distances - np.inf),
    "a name missing": lambda r, _: alter(r, ids=Names.pack([*r.ids][:-1])),
    "a tie key missing": lambda r, _: alter(r, ties=r.ties[:-1]),
    "descending tie keys": lambda r, _: alter(r, distances=r.distances * 0, ties=-r.ties),
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("lie", OBJECTS)
def test_invalid_objects_are_refused(algorithm, lie):
    with pytest.raises((ProtocolError, WireError), match="party 'p0'"):
        run_with_liar(ALGORITHMS[algorithm], NearestReply, OBJECTS[lie])


BOUNDS = {
    "descending": lambda r, _: alter(r, bounds=r.bounds[::-1].copy()),
    "NaN": lambda r, _: alter(r, bounds=r.bounds * np.nan),
    "infinite": lambda r, _: alter(r, bounds=r.bounds + np.inf),
    "minus infinite": lambda r, _: alter(r, bounds=r.bounds - np.inf),
    "too many": lambda r, _: alter(r, bounds=np.append(r.bounds, 99.0)),
    "two-dimensional": lambda r, _: alter(r, bounds=r.bounds[np.newaxis]),
}


@pytest.mark.parametrize("lie", sorted(set(OBJECTS) - {"too few"}))
def test_invalid_objects_are_refused_by_eager(lie):
    with pytest.raises((ProtocolError, WireError), match="party 'p0'"):
        run_with_liar(eager, NearestReply, OBJECTS[lie])


def test_eager_refuses_too_few_objects_without_a_budget():
    with pytest.raises((ProtocolError, WireError), match=r"party 'p0'.*although more are left"):
        run_with_liar(partial(eager, pace=Pace(math.inf)), NearestReply, OBJECTS["too few"])


@pytest.mark.parametrize("algorithm", ["dann", "hufu+"])
@pytest.mark.parametrize("lie", BOUNDS)
def test_invalid_bounds_are_refused(algorithm, lie):
    with pytest.raises((ProtocolError, WireError), match="party 'p0'"):
        run_with_liar(ALGORITHMS[algorithm], BoundReply, BOUNDS[lie])


def test_bounds_above_the_distances_are_refused():
    with pytest.raises(ProtocolError, match=r"party 'p0': .* nearer than its lower bounds"):
        run_with_liar(dann, BoundReply, lambda r, _: alter(r, bounds=r.bounds + 0.5))


def test_understated_distances_are_refused():
    def understate(reply, _):
        return alter(reply, distances=reply.distances - 0.75)

    with pytest.raises(ProtocolError, match=r"party 'p0': .* nearer than its lower bounds"):
        run_with_liar(dann, NearestReply, understate)


def test_an_exhausted_provider_with_further_bounds_is_refused():
    def hide_all_but_one(reply, _):
        return select(reply, slice(0, 1), exhausted=True)

    with pytest.raises(ProtocolError, match="party 'p0': it has no more than 1 objects"):
        run_with_liar(dann, NearestReply, hide_all_but_one)


def test_more_objects_than_bounds_are_refused():
    part = Part(np.arange(3.0), np.arange(3), Names.pack("abc"), exhausted=True)

    with pytest.raises(ProtocolError, match="party 'p0': returned 3 objects, but sent 2 bounds"):
        check_distances_against_bounds({"p0": part}, {"p0": np.zeros(2)}, k=5)


def test_a_distance_is_at_least_its_bound():
    part = Part(np.arange(3.0), np.arange(3), Names.pack("abc"), exhausted=True)
    honest, above = np.array([0.0, 1.0, 2.0]), np.array([0.0, np.nextafter(1.0, 2), 2.0])

    check_distances_against_bounds({"p0": part}, {"p0": honest}, k=5)
    with pytest.raises(ProtocolError, match="party 'p0'"):
        check_distances_against_bounds({"p0": part}, {"p0": above}, k=5)


COUNTS = {
    "one less": lambda r, _: RangeCountReply(max(r.count - 1, 0)),
    "one more": lambda r, _: RangeCountReply(r.count + 1),
    "negative": lambda r, _: RangeCountReply(-1),
    "too large for a request": lambda r, _: RangeCountReply(2**63 - 1),
    "fewer within a larger radius": lambda r, q: RangeCountReply(
        0 if (q.radius or 99) > 2.9 else r.count
    ),
}


@pytest.mark.parametrize("algorithm", ["hufu", "hufu+"])
@pytest.mark.parametrize("lie", COUNTS)
def test_counts_that_contradict_objects_are_refused(algorithm, lie):
    with pytest.raises((ProtocolError, WireError), match="party 'p0'"):
        run_with_liar(ALGORITHMS[algorithm], RangeCountReply, COUNTS[lie])


def test_counts_that_contradict_the_bounds_are_refused():
    with pytest.raises(ProtocolError, match="party 'p0': it counts 0 objects in total"):
        run_with_liar(hufu_plus, RangeCountReply, lambda r, _: RangeCountReply(0), k=8)


# Bounds of 0 for far objects: p0 is asked for one object, and for more in the second round.
SECOND_ROUND_TABLES = {"p0": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "p1": [3.5, 4.5, 5.5, 6.5, 7.5, 8.5]}


class MisleadingBounds(BoundedLine):
    """A metric with exact bounds of objects nearer than 3.5, and bounds of 0 of all others."""

    def __init__(self):
        super().__init__(0.0, 1)

    def index(self, objects, *, ranks):
        index, values = super().index(objects, ranks=ranks), np.array(objects, float)
        open_session = index.open

        def open_misleading(query):
            session = open_session(query)
            session.bounds = lambda deadline_s=None: np.where(values < 3.5, values, 0.0)
            return session

        index.open = open_misleading
        return index


def run_second_round(change):
    federation = Federation(SECOND_ROUND_TABLES, 0.0, 4, MisleadingBounds())
    honest = federation.providers()
    counts = {"p0": 1, "p1": 3}
    search = dann(b"0.0", 4, name="q", estimate=lambda bounds, k: counts)
    return run(search, [Liar(honest[0], NearestReply, change, after=1), honest[1]]).result


def test_the_second_round_is_reached():
    answer = run_second_round(lambda r, _: r)

    assert answer.n_returned == {"p0": 4, "p1": 3}
    assert answer.merged.owners == ("p0", "p0", "p0", "p1")
    assert answer.merged.distances.tolist() == [1.0, 2.0, 3.0, 3.5]


SECOND_ROUND = {
    "nearer than the first reply": lambda r, _: alter(r, distances=r.distances / 10),
    "an object of the first reply": lambda r, _: alter(r, ids=Names.pack(["0", *[*r.ids][1:]])),
    "beyond the cutoff": lambda r, _: alter(r, distances=r.distances + 50),
    "too few": lambda r, _: select(r, slice(0, 1), exhausted=False),
    "none, and more are left": lambda r, _: select(r, slice(0, 0), exhausted=False),
}


@pytest.mark.parametrize("lie", SECOND_ROUND)
def test_a_second_reply_that_contradicts_the_first_is_refused(lie):
    with pytest.raises(ProtocolError, match="party 'p0'"):
        run_second_round(SECOND_ROUND[lie])


@pytest.mark.parametrize("n_removed", [1, 2, 3])
def test_an_answer_from_truncated_replies_is_not_certified(n_removed):
    objects = {
        "p0": Part(np.arange(5.0), np.arange(5), Names.pack("abcde"), exhausted=False),
        "p1": Part(np.arange(5.0) + 0.5, np.arange(5) + 9, Names.pack("fghij"), exhausted=False),
    }
    honest = objects["p0"]
    n = 3 - n_removed
    truncated = Part(
        honest.distances[:n], honest.ties[:n], Names.pack(honest.ids.first(n)), exhausted=False
    )
    parts = objects | {"p0": truncated}

    assert is_certified(objects, merge(objects, 5), 5)
    assert not is_certified(parts, merge(parts, 5), 5)

    with pytest.raises(ProtocolError, match="not certified"):
        certify_answer(parts, {"p0": n, "p1": 5}, 5, algorithm="baseline", active=ActiveProviders())


# Returned objects.


def test_an_unknown_name_is_refused_and_its_provider_named():
    merged = Merged(np.array([1.0, 2.0]), ("p0", "p1"), ("a", "z"), {})

    check_ids(merged, {"p0": {"a"}, "p1": {"z"}})
    with pytest.raises(ProtocolError, match="party 'p1'"):
        check_ids(merged, {"p0": {"a", "z"}, "p1": {"b"}})
    with pytest.raises(ProtocolError, match="party 'p0'"):
        check_ids(merged, {})


CORRECT = {
    "edit": ("abc", ["abc", "abd", "xyz"], [0.0, 1.0, 3.0]),
    "manhattan": ([0.0, 0.0], [[0.0, 1.0], [2.0, 2.0]], [1.0, 4.0]),
    "jaccard": ({"a"}, [{"a"}, {"b"}], [0.0, 1.0]),
    "tanimoto": ("CCO", ["OCC", "C"], [0.0, 1.0]),
}


@pytest.mark.parametrize("name", CORRECT)
def test_a_changed_distance_names_its_provider(name):
    query, objects, distances = CORRECT[name]
    owners = [f"p{i}" for i in range(len(objects))]
    check = partial(recheck_distances, metric_of(name), query, objects)

    check(np.array(distances), owners)
    for i, owner in enumerate(owners):
        changed = np.array(distances)
        changed[i] = np.nextafter(changed[i], 9.0)
        with pytest.raises(ProtocolError, match=f"party '{owner}': the distance"):
            check(changed, owners)


def test_an_invalid_object_names_its_provider():
    with pytest.raises(ProtocolError, match=r"party 'p1': .* invalid for 'edit'"):
        recheck_distances(metric_of("edit"), "a", ["a", 7], np.zeros(2), ["p0", "p1"])


def test_owners_and_distances_must_match_the_objects():
    with pytest.raises(ValueError, match="expected one distance and one owner"):
        recheck_distances(metric_of("edit"), "a", ["a"], np.zeros(2), ["p0"])


class BatchLiar(Provider):
    """A provider that changes its replies to batches of queries."""

    change = None

    def answer(self, request):
        reply = super().answer(request)
        distances, positions = reply.distances.copy(), reply.positions.copy()
        return NearestBatchReply(*self.change(distances, positions))


def repeat_first(distances, positions):
    positions[0, 1] = positions[0, 0]
    return distances, positions


def invent_object(distances, positions):
    positions[1, 0] = 9
    return distances, positions


def reverse_order(distances, positions):
    return distances[:, ::-1], positions[:, ::-1]


def hide_object(distances, positions):
    return distances[:, :1], positions[:, :1]


def hide_query(distances, positions):
    return distances[:1], positions[:1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (repeat_first, "an object is returned twice"),
        (invent_object, "an object that it does not have"),
        (reverse_order, "not in ascending order"),
        (hide_object, "expected 2 objects of a query, got 1"),
        (hide_query, "expected 2 queries"),
    ],
)
def test_invalid_replies_to_batches_name_their_provider(change, message):
    points = np.arange(8.0).reshape(4, 2)
    parties = [
        kind.of(name, points, metric_of("euclidean"), decode=bytes)
        for name, kind in [("a", Provider), ("b", BatchLiar)]
    ]
    parties[1].change = change
    coordinator = nearest_batch(
        points[:2] + 0.1,
        2,
        objects_of={
            party.name: (np.arange(4) + first, party.source.ties)
            for party, first in zip(parties, (0, 4), strict=True)
        },
    )

    with pytest.raises(ProtocolError, match=f"party 'b': .*{message}"):
        run(coordinator, parties)
