"""The nearest objects of a list are those of a sort of all."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.kernels.vectors._lists import list_nearest
from tests.naive.vectors import lists as naive
from tests.seeds import cases

ORDERS = {
    "random": lambda values: values,
    "ascending": np.sort,
    "descending": lambda values: np.sort(values)[::-1].copy(),
    "nearest outside a sample": lambda values: np.where(
        np.arange(len(values)) % 4, values, np.abs(values) + 100
    ),
    "nearest in a sample": lambda values: np.where(
        np.arange(len(values)) % 4, np.abs(values) + 100, values
    ),
}


def check(distances, rng, k):
    n = len(distances)
    positions = rng.permutation(2 * n)[:n]
    ranks = rng.permutation(2 * n)

    found, items = list_nearest(distances, positions, ranks, k)

    assert (found.tolist(), items.tolist()) == naive.list_nearest(
        distances.tolist(), positions.tolist(), ranks, k
    )


@settings(max_examples=cases(600), deadline=None)
@given(st.lists(st.integers(-3, 9), min_size=1, max_size=200), st.integers(0, 2**32), st.data())
def test_the_nearest_of_few_tied_objects_are_listed(values, seed, data):
    k = data.draw(st.integers(1, len(values)))

    check(np.array(values, np.float64), np.random.default_rng(seed), k)


@pytest.mark.parametrize("k", [1, 10, 64, 200])
@pytest.mark.parametrize("n_values", [1, 3, 1000, 10**9])
@pytest.mark.parametrize("order", ORDERS)
def test_the_nearest_of_many_objects_are_listed_in_any_order(order, n_values, k):
    rng = np.random.default_rng(k)
    distances = ORDERS[order](rng.integers(n_values, size=5000) - 0.5)

    check(distances, rng, k)
