"""Faiss returns the same neighbors as the exact search."""

import sys
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedneighbors.errors import MissingExtraError
from fedneighbors.methods.knnper.algorithm import nearest
from fedneighbors.methods.knnper.memory import _datastore
from fedneighbors.methods.knnper.memory._datastore import Datastore, nearest_by_faiss


@st.composite
def tables(draw):
    """Return so many keys that Faiss does not check all of them, with many ties."""
    random = np.random.default_rng(draw(st.integers(0, 99)))
    n, width = draw(st.integers(20, 60)), draw(st.integers(1, 9))
    keys = draw(
        st.sampled_from(
            [
                random.integers(-1, 2, size=(n, width)).astype(float),
                random.normal(size=(n, width)),
                1e8 + random.integers(0, 3, size=(n, width)),
                random.normal(size=(n, width)) * 1e-30,
                random.normal(size=(n, width)) * 1e150,
                np.zeros((n, width)),
            ]
        )
    )
    return keys, random.permutation(keys)[:5] + draw(st.sampled_from([0.0, 0.5]))


@given(tables(), st.integers(1, 8))
def test_faiss_neighbors_equal_the_exact_ones(case, k):
    keys, queries = case

    neighbors, exact = nearest_by_faiss(keys, queries, k), nearest(keys, queries, k)

    assert neighbors.positions.tolist() == exact.positions.tolist()
    assert neighbors.distances.tolist() == exact.distances.tolist()


@given(tables(), st.integers(1, 8))
def test_a_query_can_exclude_its_own_key(case, k):
    keys, _ = case
    places = np.arange(len(keys))[::3].copy()

    neighbors = nearest_by_faiss(keys, keys[places], k, skip=places)

    exact = nearest(keys, keys[places], k, skip=places)
    assert neighbors.positions.tolist() == exact.positions.tolist()
    assert neighbors.distances.tolist() == exact.distances.tolist()


def test_faiss_candidates_are_used_if_certain(monkeypatch):
    keys = np.random.default_rng(0).normal(size=(500, 16))
    expected = nearest(keys, keys[:50] + 0.01, 5)

    monkeypatch.setattr(_datastore, "nearest", None)  # it would be called for uncertain candidates
    neighbors = nearest_by_faiss(keys, keys[:50] + 0.01, 5)

    assert neighbors.positions.tolist() == expected.positions.tolist()


def test_large_memories_use_faiss(monkeypatch):
    sizes = []
    monkeypatch.setattr(_datastore, "MIN_FAISS_KEYS", 30)
    monkeypatch.setattr(
        _datastore,
        "nearest_by_faiss",
        lambda *args, skip: sizes.append(len(args[0])) or nearest(*args),
    )
    keys = np.random.default_rng(0).normal(size=(30, 2))

    for n in (29, 30):
        Datastore(2).add(keys[:n], np.zeros(n, int)).nearest(keys[:1], 1)

    assert sizes == [30]


def test_a_missing_faiss_is_replaced_unless_called(monkeypatch):
    monkeypatch.setattr(_datastore, "MIN_FAISS_KEYS", 1)
    keys = np.arange(4.0)[:, None]

    with mock.patch.dict(sys.modules, {"faiss": None}):
        neighbors = Datastore(1).add(keys, np.zeros(4, int)).nearest(keys[:1], 2)
        with pytest.raises(MissingExtraError, match=r"fedneighbors\[faiss\]"):
            nearest_by_faiss(keys, keys[:1], 2)

    assert neighbors.positions.tolist() == [[0, 1]]
