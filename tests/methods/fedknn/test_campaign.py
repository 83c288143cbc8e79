"""Comparison of all algorithms without noise with the naive search on random federations."""

from functools import partial

import numpy as np
import pytest

from fedneighbors.federation._loop import FrameTransport, run_rounds
from fedneighbors.federation._roles import serve
from fedneighbors.methods.fedknn._radius import hufu, hufu_plus
from fedneighbors.methods.fedknn.algorithm import expected_counts
from fedneighbors.methods.fedknn.protocol import baseline, dann
from tests.methods.fedknn.federations import KEY, random_federation
from tests.naive.fedknn import nearest

ALGORITHMS = {
    "baseline": baseline,
    "dann": dann,
    "dann, the paper's counts": partial(dann, estimate=expected_counts),
    "hufu": hufu,
    "hufu+": hufu_plus,
}


def run_search(federation, algorithm):
    """Return the answer of a search in one thread, with all messages encoded."""
    providers = {provider.name: provider for provider in federation.providers()}

    def exchange(frames):
        return {name: serve(providers[name], frame) for name, frame in frames.items()}, {}

    coordinator = algorithm(repr(federation.query).encode(), federation.k, name="q")
    return run_rounds(coordinator, FrameTransport(exchange, tuple(providers))).result


def find_errors(n_federations, *, seed):
    """Return (federation, algorithm) for each answer that differs from the naive search."""
    rng, errors = np.random.default_rng(seed), []
    for _ in range(n_federations):
        federation = random_federation(rng)
        expected = nearest(federation.tables, federation.query, federation.k, key=KEY)
        for name, algorithm in ALGORITHMS.items():
            merged = run_search(federation, algorithm).merged
            neighbors = zip(merged.distances.tolist(), merged.owners, merged.ids, strict=True)
            if list(neighbors) != expected:
                errors.append((federation, name))
    return errors


def test_150_random_federations_are_searched_exactly():
    assert find_errors(150, seed=1) == []


@pytest.mark.slow
def test_20_000_random_federations_are_searched_exactly():
    assert find_errors(20_000, seed=2026) == []
