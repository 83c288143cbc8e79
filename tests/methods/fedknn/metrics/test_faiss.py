import sys
from unittest import mock

import numpy as np
import pytest

from fedneighbors import FederatedNeighbors
from fedneighbors.errors import MissingExtraError
from fedneighbors.methods.fedknn.metrics._faiss import ApproximateSession, FaissMetric

DISTANCES = np.array([3.0, 1.0, 2.0, 1.0, 0.0])
RANKS = np.array([0, 4, 1, 2, 3])


def open_session():
    """Return a session whose index misses object 2 and returns the others unsorted."""
    return ApproximateSession(
        RANKS,
        lambda positions: DISTANCES[positions],
        lambda k: np.array([1, 4, 3, 0][: max(0, k)]),
    )


def test_found_objects_are_ordered_and_uncertified():
    session = open_session()

    first, second, third = session.next(2), session.next(1), session.next(5)

    assert [batch.positions.tolist() for batch in (first, second, third)] == [[4, 1], [3], [0]]
    assert first.distances.tolist() == [0.0, 1.0]
    assert [batch.n_certified for batch in (first, second, third)] == [0, 0, 0]
    assert third.exhausted
    assert not session.exact
    assert session.n_verified == 4


def test_objects_beyond_a_cutoff_are_returned_later():
    session = open_session()

    near = session.next(4, cutoff=0.5)
    rest = session.next(4)

    assert near.positions.tolist() == [4]
    assert near.exhausted
    assert rest.positions.tolist() == [3, 1, 0]


def test_counts_are_exact():
    assert [open_session().count(radius) for radius in (-1, 0, 1, 2.5, 9)] == [0, 1, 3, 4, 5]


def test_bounds_are_zero():
    assert open_session().bounds().tolist() == [0.0] * 5


def test_faiss_answers_are_marked_as_possibly_incomplete():
    rng = np.random.default_rng(3)
    x, owners = rng.normal(size=(3000, 16)), np.arange(3000) % 3
    exact = FederatedNeighbors().fit(x, parties=owners).kneighbors(x[:20], 10)[1]

    search = FederatedNeighbors(FaissMetric()).fit(x, parties=owners)
    approximate = search.kneighbors(x[:20], 10)[1]

    n_common = [len(set(a) & set(b)) for a, b in zip(exact, approximate, strict=True)]
    assert sum(n_common) >= 0.9 * 200
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
    "call",
    [
        lambda session: session.next(-1),
        lambda session: session.next(1, cutoff=np.nan),
        lambda session: session.count(np.nan),
    ],
)
def test_invalid_arguments_are_refused(call):
    with pytest.raises(ValueError, match="expected"):
        call(open_session())
