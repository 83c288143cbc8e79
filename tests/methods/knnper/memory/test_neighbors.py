import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedneighbors.methods.knnper.memory._search import nearest
from tests.naive import knnper as naive

HOSTILE = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.1, 1e-160, 3e7, 1e150, -1e200])
TIES = st.integers(-2, 2).map(float)


@st.composite
def tables(draw):
    cells = draw(st.sampled_from([HOSTILE, TIES, st.floats(-1e3, 1e3)]))
    width = draw(st.integers(1, 20))
    row = st.lists(cells, min_size=width, max_size=width)
    keys = draw(st.lists(row, min_size=1, max_size=12))
    queries = draw(st.lists(st.one_of(row, st.sampled_from(keys)), min_size=1, max_size=4))
    return np.array(keys), np.array(queries), draw(st.integers(1, 14))


@given(tables())
def test_neighbors_are_those_of_the_slow_twin(case):
    keys, queries, k = case

    found = nearest(keys, queries, k)

    positions, distances = naive.nearest(keys, queries, k)
    assert found.positions.tolist() == positions
    assert found.distances.tolist() == distances


@given(tables())
def test_a_query_that_is_a_key_may_leave_itself_out(case):
    keys, _, k = case
    own = np.arange(len(keys))[::-1].copy()

    found = nearest(keys, keys[::-1].copy(), k, own=own)

    positions, distances = naive.nearest(keys, keys[::-1], k, own)
    assert found.positions.tolist() == positions
    assert found.distances.tolist() == distances


def test_equally_near_keys_come_in_the_order_of_their_rows():
    keys = np.zeros((50, 3))

    found = nearest(keys, np.zeros((2, 3)), 4)

    assert found.positions.tolist() == [[0, 1, 2, 3]] * 2


def test_far_away_keys_that_differ_by_little_are_told_apart():
    """Squares of lengths of 1e16 hide differences of 1; the products alone would mix them up."""
    keys = 1e8 + np.arange(64.0)[::-1, None] * np.ones(8)

    found = nearest(keys, np.full((1, 8), 1e8), 64)

    assert found.positions.tolist() == [list(range(64))[::-1]]


def test_many_queries_are_answered_block_after_block_as_at_once(monkeypatch):
    random = np.random.default_rng(0)
    keys, queries = random.normal(size=(30, 5)), random.normal(size=(17, 5))
    at_once = nearest(keys, queries, 3)

    monkeypatch.setattr("fedneighbors.methods.knnper.memory._search._BLOCK", 60)
    in_blocks = nearest(keys, queries, 3)

    assert in_blocks.positions.tolist() == at_once.positions.tolist()
    assert in_blocks.distances.tolist() == at_once.distances.tolist()


def test_no_keys_give_no_neighbors():
    assert nearest(np.empty((0, 3)), np.zeros((2, 3)), 5).positions.shape == (2, 0)
    assert nearest(np.zeros((1, 3)), np.zeros((1, 3)), 5, own=np.zeros(1, int)).positions.shape == (
        1,
        0,
    )


@pytest.mark.parametrize("k", [0, -1])
def test_fewer_than_one_neighbor_cannot_be_asked_for(k):
    with pytest.raises(ValueError, match=f"k of 1 or more, got {k}"):
        nearest(np.zeros((2, 2)), np.zeros((1, 2)), k)


def test_keys_and_queries_must_be_of_one_width():
    with pytest.raises(ValueError, match=r"\(2, 2\) and \(1, 3\)"):
        nearest(np.zeros((2, 2)), np.zeros((1, 3)), 1)
