"""Searches up to a limit that consists of a distance and a tie key."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.methods.fedknn._sources import IndexedObjects, MemoryQuery, next_until
from fedneighbors.methods.fedknn.algorithm import rank_objects
from fedneighbors.methods.fedknn.metrics import metric_of
from fedneighbors.methods.fedknn.protocol import dann
from tests.methods.fedknn.federations import BoundedLine, Federation


def open_query(values, ties):
    metric = metric_of("manhattan")
    rows = np.array(values, float).reshape(-1, 1)
    index = metric.index(rows, ranks=rank_objects(ties))
    rows = np.arange(len(values))
    found = IndexedObjects(index, ties, rows.astype(str).astype(object), rows)
    return MemoryQuery(index.open([0.0]), found, b"")


def positions(found):
    return list(map(int, found.ids))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.integers(0, 45),
    st.integers(0, 3),
    st.integers(-1, 41),
    st.integers(0, 10),
    st.randoms(use_true_random=False),
)
def test_objects_up_to_a_limit_are_in_order(values, k, cutoff, tie, n_before, random):
    keys = list(range(len(values)))
    random.shuffle(keys)
    ties = np.array(keys, np.int64)
    order = sorted(range(len(values)), key=lambda i: (values[i], keys[i]))
    query = open_query(values, ties)
    emitted_before = positions(query.next(n_before))

    batch = next_until(query, k, cutoff=float(cutoff), tie=tie)

    remaining = order[len(emitted_before) :]
    within = [i for i in remaining if (values[i], keys[i]) <= (cutoff, tie)]
    emitted = positions(batch)
    assert batch.ties.tolist() == ties[emitted].tolist()
    assert emitted == remaining[: len(emitted)]
    assert emitted[: len(within)] == within[:k]
    assert len(emitted) <= k
    assert all(values[i] <= cutoff for i in emitted)
    assert batch.n_certified == len(emitted)
    if batch.exhausted:
        assert len(emitted) >= len(within)
    else:
        assert len(emitted) == k
    rest = positions(query.next(len(values)))
    assert [*emitted_before, *emitted, *rest] == order


def test_few_tied_objects_beyond_the_limit_are_returned():
    ties = np.arange(1000)
    query = open_query([5] * 1000, ties)

    batch = next_until(query, 900, cutoff=5.0, tie=10)

    assert batch.exhausted
    assert 11 <= len(batch.ids) <= 31


def test_the_second_round_returns_few_of_many_tied_objects():
    tables = {f"p{i}": [0.0] * 3 + [7.0] * 400 for i in range(4)}
    federation = Federation(tables, 0.0, 40, BoundedLine(1.0, 1))
    counts = dict.fromkeys(tables, 9) | {"p0": 13}

    answer = federation.search(dann, estimate=lambda bounds, k: counts)

    assert answer.exact
    assert sum(answer.n_returned.values()) <= 60
