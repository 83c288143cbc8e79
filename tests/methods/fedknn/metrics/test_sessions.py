"""A pool emits objects in ascending order, for any number and any ties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedneighbors.methods.fedknn.metrics._sessions import Pool

RNG = np.random.default_rng(2)
LARGE = {
    "spread": RNG.random(20_000),
    "few values": RNG.integers(0, 4, 20_000).astype(float),
    "one value": np.ones(20_000),
    "ascending": np.arange(20_000.0),
    "endless": np.where(RNG.random(20_000) < 0.9, np.inf, RNG.random(20_000)),
    "periodic": np.tile(np.append(np.zeros(18), 1.0), 1_100),  # a sample may see one value alone
}


def in_order(distances, ranks):
    return np.lexsort((ranks, distances)).tolist()


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("part", [3, 300, 7_000, 30_000])
def test_parts_of_many_objects_are_one_sorted_whole(name, part):
    distances = LARGE[name]
    ranks = RNG.permutation(len(distances))
    pool = Pool(ranks)
    pool.add(np.arange(len(distances)), distances)

    taken = [pool.take(part)[0] for _ in range(5)]

    assert np.concatenate(taken).tolist() == in_order(distances, ranks)[: 5 * part]
    assert len(pool) == max(0, len(distances) - 5 * part)


@given(st.lists(st.lists(st.integers(0, 5), max_size=12), max_size=5), st.integers(0, 6))
def test_objects_that_come_later_take_their_places(batches, k):
    distances = np.array([value for batch in batches for value in batch], np.float64)
    pool, left = Pool(np.arange(len(distances))[::-1].copy()), []
    start = 0
    for batch in batches:
        places = np.arange(start, start + len(batch))
        pool.add(places, distances[places])
        left = sorted([*left, *places.tolist()], key=lambda place: (distances[place], -place))
        start += len(batch)

        positions, near = pool.take(k)

        assert positions.tolist() == left[:k]
        assert near.tolist() == [distances[place] for place in left[:k]]
        left = left[k:]
        assert len(pool) == len(left)
        assert pool.n_within(3) == sum(distances[place] <= 3 for place in left)
