"""A pool emits objects in ascending order, in any batches and with any ties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedneighbors.kernels.vectors._lists import list_nearest
from fedneighbors.methods.fedknn.metrics._sessions import Pool

RNG = np.random.default_rng(2)
LARGE = {
    "spread": RNG.random(20_000),
    "few values": RNG.integers(0, 4, 20_000).astype(float),
    "one value": np.ones(20_000),
    "ascending": np.arange(20_000.0),
    "mostly infinite": np.where(RNG.random(20_000) < 0.9, np.inf, RNG.random(20_000)),
    "periodic": np.tile(np.append(np.zeros(18), 1.0), 1_100),  # a sample may contain one value only
}


SORTS = pytest.mark.parametrize("sort", [None, list_nearest], ids=["NumPy", "compiled"])


def sort_positions(distances, ranks):
    return np.lexsort((ranks, distances)).tolist()


@SORTS
@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("batch", [3, 50, 300, 7_000, 30_000])
def test_batches_of_many_objects_are_in_order(name, batch, sort):
    distances = LARGE[name]
    ranks = RNG.permutation(len(distances))
    pool = Pool(ranks, sort)
    pool.add(np.arange(len(distances)), distances)

    batches = [pool.take(batch)[0] for _ in range(5)]

    assert np.concatenate(batches).tolist() == sort_positions(distances, ranks)[: 5 * batch]
    assert len(pool) == max(0, len(distances) - 5 * batch)


@SORTS
@given(st.lists(st.lists(st.integers(0, 5), max_size=12), max_size=5), st.integers(0, 6))
def test_objects_added_later_are_in_order(sort, batches, k):
    distances = np.array([value for batch in batches for value in batch], np.float64)
    pool, remaining = Pool(np.arange(len(distances))[::-1].copy(), sort), []
    start = 0
    for batch in batches:
        positions = np.arange(start, start + len(batch))
        pool.add(positions, distances[positions])
        remaining = sorted([*remaining, *positions.tolist()], key=lambda i: (distances[i], -i))
        start += len(batch)

        positions, near = pool.take(k)

        assert positions.tolist() == remaining[:k]
        assert near.tolist() == [distances[position] for position in remaining[:k]]
        remaining = remaining[k:]
        assert len(pool) == len(remaining)
        assert pool.n_within(3) == sum(distances[position] <= 3 for position in remaining)
