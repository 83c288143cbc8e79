"""Numbers of random cases, and Hypothesis tests over the seeds of small random tables."""

import os

import numpy as np
from hypothesis import given, note, settings
from hypothesis import strategies as st

_SEEDS_PER_EXAMPLE = 20  # Hypothesis' overhead per example is that of several small tables


def cases(n_cases):
    """Return ``n_cases`` in ``make test-slow``, a third of it in ``make test``."""
    return n_cases if os.environ.get("FEDNEIGHBORS_ALL_CASES") else n_cases // 3


def over_seeds(n_seeds):
    """Return a decorator that runs a check for many seeds."""

    def decorate(check):
        @settings(max_examples=cases(n_seeds) // _SEEDS_PER_EXAMPLE, deadline=None)
        @given(st.integers(0, 2**64 - 1))
        def run(root):
            seeds = np.random.SeedSequence(root).generate_state(_SEEDS_PER_EXAMPLE, np.uint64)
            for seed in seeds.tolist():
                note(f"seed={seed}")
                check(seed)

        return run

    return decorate
