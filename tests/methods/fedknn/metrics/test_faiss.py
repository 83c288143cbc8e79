import sys
from unittest import mock

import numpy as np
import pytest

from fedneighbors import FederatedNeighbors
from fedneighbors.errors import MissingExtraError
from fedneighbors.methods.fedknn.metrics._faiss import ApproximateSession, FaissMetric

DISTANCES = np.array([3.0, 1.0, 2.0, 1.0, 0.0])
RANKS = np.array([0, 4, 1, 2, 3])


def session():
    """Return a search that misses object 2 and returns the others unsorted."""
    return ApproximateSession(
        RANKS,
        lambda positions: DISTANCES[positions],
        lambda k: np.array([1, 4, 3, 0][: max(0, k)]),
    )


def test_found_objects_are_ordered_and_uncertified():
    search = session()

    first, second, third = search.next(2), search.next(1), search.next(5)

    assert [found.positions.tolist() for found in (first, second, third)] == [[4, 1], [3], [0]]
    assert first.distances.tolist() == [0.0, 1.0]
    assert [found.n_certified for found in (first, second, third)] == [0, 0, 0]
    assert third.exhausted
    assert not search.exact
    assert search.n_verified == 4


def test_a_cutoff_loses_no_object():
    search = session()

    near = search.next(4, cutoff=0.5)
    rest = search.next(4)

    assert near.positions.tolist() == [4]
    assert near.exhausted
    assert rest.positions.tolist() == [3, 1, 0]


def test_counts_are_exact():
    assert [session().count(radius) for radius in (-1, 0, 1, 2.5, 9)] == [0, 1, 3, 4, 5]


def test_bounds_are_zero():
    assert session().bounds().tolist() == [0.0] * 5


def test_faiss_answers_are_marked_as_possibly_incomplete():
    rng = np.random.default_rng(3)
    x, owners = rng.normal(size=(3000, 16)), np.arange(3000) % 3
    exact = FederatedNeighbors().fit(x, parties=owners).kneighbors(x[:20], 10)[1]

    search = FederatedNeighbors(FaissMetric()).fit(x, parties=owners)
    found = search.kneighbors(x[:20], 10)[1]

    shared = [len(set(a) & set(b)) for a, b in zip(exact, found, strict=True)]
    assert sum(shared) >= 0.9 * 200
    assert not any(record.exact for record in search.query_records_)


def test_without_faiss_the_error_names_the_extra():
    with (
        mock.patch.dict(sys.modules, {"faiss": None}),
        pytest.raises(MissingExtraError, match=r"fedneighbors\[faiss\]"),
    ):
        FaissMetric()


def test_a_distance_without_faiss_index_is_refused():
    with pytest.raises(ValueError, match="euclidean"):
        FaissMetric("manhattan")


@pytest.mark.parametrize(
    "ask",
    [
        lambda search: search.next(-1),
        lambda search: search.next(1, cutoff=np.nan),
        lambda search: search.count(np.nan),
    ],
)
def test_invalid_arguments_are_refused(ask):
    with pytest.raises(ValueError, match="expected"):
        ask(session())
