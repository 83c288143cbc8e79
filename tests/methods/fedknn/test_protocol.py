"""Every algorithm returns the k nearest of all objects, ties included."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.errors import PartyRefused, ProtocolError, WireError
from fedneighbors.federation._inprocess import run
from fedneighbors.methods.fedknn._eager import eager
from fedneighbors.methods.fedknn._names import Names
from fedneighbors.methods.fedknn._radius import hufu, hufu_plus
from fedneighbors.methods.fedknn.algorithm import Part, expected_counts, merge, remaining_counts
from fedneighbors.methods.fedknn.protocol import (
    BoundReply,
    NearestReply,
    baseline,
    close_queries,
    dann,
)
from tests.methods.fedknn.federations import KEY, BoundedLine, Federation, federations
from tests.naive.fedknn import nearest
from tests.seeds import cases

ALGORITHMS = [baseline, dann, eager, hufu, hufu_plus]


def result_of(answer):
    merged = answer.merged
    return list(zip(merged.distances.tolist(), merged.owners, merged.ids, strict=True))


@settings(max_examples=cases(1500), deadline=None)
@given(federations(), st.sampled_from(ALGORITHMS))
def test_every_algorithm_equals_the_naive_search(federation, algorithm):
    answer = federation.search(algorithm)

    expected = nearest(federation.tables, federation.query, federation.k, key=KEY)
    assert result_of(answer) == expected
    assert answer.exact


@settings(max_examples=cases(500), deadline=None)
@given(federations(), st.integers(1, 12), st.booleans())
def test_at_least_and_cutoff_of_dann_change_no_answer(federation, at_least, with_cutoff):
    answer = federation.search(dann, at_least=at_least, with_cutoff=with_cutoff)

    assert result_of(answer) == nearest(federation.tables, federation.query, federation.k, key=KEY)


@settings(max_examples=cases(300), deadline=None)
@given(federations())
def test_dann_requests_at_most_as_much_as_the_baseline(federation):
    n_dann, n_baseline = (
        federation.search(dann).n_returned,
        federation.search(baseline).n_returned,
    )

    assert all(n_dann[name] <= max(n_baseline[name], 1) for name in n_dann)


# Examples 4.1 to 4.9 of the paper: three providers, k = 3.

BOUNDS = {"P1": [2.0, 8.0, 8.0], "P2": [3.0, 6.0, 9.0], "P3": [7.0, 8.0, 10.0]}
OBJECTS = {
    "P1": [(8.0, "d1"), (9.0, "d2"), (11.0, "d3")],
    "P2": [(6.0, "d4"), (10.0, "d5"), (12.0, "d6")],
    "P3": [(12.0, "d7"), (13.0, "d8"), (14.0, "d9")],
}


def make_part(provider, n):
    rows = OBJECTS[provider][:n]
    return Part(
        np.array([d for d, _ in rows]),
        np.array([int(name[1:]) for _, name in rows]),
        Names.pack(name for _, name in rows),
        exhausted=False,
    )


def test_counts_and_answers_equal_those_of_the_paper():
    counts = expected_counts({name: np.array(bounds) for name, bounds in BOUNDS.items()}, 3)
    assert counts == {"P1": 1, "P2": 2, "P3": 1}  # Example 4.4

    first = {name: make_part(name, n) for name, n in counts.items()}
    merged = merge(first, 3)
    assert merged.ids == ("d4", "d1", "d5")  # Example 4.6
    assert remaining_counts(first, merged, 3) == {"P1": 1}  # k_1' = 2, k_2' = 2

    second = first | {"P1": make_part("P1", 2)}
    assert merge(second, 3).ids == ("d4", "d1", "d2")  # Example 4.9
    all_objects = {name: make_part(name, 3) for name in OBJECTS}
    assert merge(all_objects, 3).ids == ("d4", "d1", "d2")  # Example 4.1


# Providers that send invalid replies.


class Liar:
    """A provider that changes its replies of one kind."""

    def __init__(self, inner, kind, change):
        self._inner, self._kind, self._change = inner, kind, change
        self.name, self.accepts = inner.name, inner.accepts

    def answer(self, request):
        reply = self._inner.answer(request)
        return self._change(reply) if isinstance(reply, self._kind) else reply


def alter(reply, **change):
    result = object.__new__(type(reply))
    for name in type(reply).__dataclass_fields__:
        object.__setattr__(result, name, change.get(name, getattr(reply, name)))
    return result


INVALID_REPLIES = {
    "fewer objects": (NearestReply, lambda r: select(r, slice(0, 1), exhausted=False)),
    "more objects": (NearestReply, lambda r: add_object(r)),
    "descending": (NearestReply, lambda r: select(r, slice(None, None, -1))),
    "an object twice": (NearestReply, lambda r: select(r, [0, 0, *range(2, len(r.ids))])),
    "negative distances": (
        NearestReply,
        lambda r: alter(r, distances=r.distances - 100),
    ),
    "not a number": (NearestReply, lambda r: alter(r, distances=r.distances * np.nan)),
    "descending bounds": (BoundReply, lambda r: alter(r, bounds=-np.sort(-r.bounds))),
}


def select(reply, indices, **change):
    ids = np.array([*reply.ids])[indices].tolist()
    return alter(
        reply,
        distances=reply.distances[indices],
        ties=reply.ties[indices],
        ids=Names.pack(ids),
        **change,
    )


def add_object(reply):
    far = reply.distances[-1:] + 1
    return alter(
        reply,
        distances=np.concatenate([reply.distances, far]),
        ties=np.concatenate([reply.ties, reply.ties[-1:]]),
        ids=Names.pack([*reply.ids, "one more"]),
    )


@pytest.mark.parametrize("case", sorted(INVALID_REPLIES))
def test_a_provider_that_breaks_the_protocol_is_named(case):
    tables = {"p0": [1.0, 2.0, 3.0, 4.0, 5.0], "p1": [1.5, 2.5, 3.5, 4.5]}
    honest = Federation(tables, 0.0, 4, BoundedLine(0.0, 1)).providers()
    providers = [Liar(honest[0], *INVALID_REPLIES[case]), honest[1]]

    with pytest.raises((ProtocolError, WireError), match="party 'p0'"):
        run(dann(b"0.0", 4, name="q"), providers)


def test_consistently_hidden_objects_are_not_detected():
    tables = {"p0": [1.0, 2.0, 3.0], "p1": [10.0, 11.0]}
    honest = Federation(tables, 0.0, 3, BoundedLine(0.0, 1)).providers()
    hiding = Liar(honest[0], NearestReply, lambda r: select(r, slice(0, 1), exhausted=True))

    answer = run(baseline(b"0.0", 3, name="q"), [hiding, honest[1]]).result

    assert result_of(answer) == [(1.0, "p0", "0"), (10.0, "p1", "0"), (11.0, "p1", "1")]


def test_another_query_under_an_open_name_is_refused():
    federation = Federation({"p0": [1.0]}, 0.0, 1, BoundedLine(0.0, 1))
    (provider,) = federation.providers()
    run(dann(b"0.0", 1, name="q"), [provider])

    with pytest.raises(PartyRefused, match="another query has this name"):
        run(dann(b"5.0", 1, name="q"), [provider])
    run(close_queries(["q", "never opened"]), [provider])
    again = run(dann(b"5.0", 1, name="q"), [provider]).result

    assert again.merged.distances.tolist() == [4.0]
