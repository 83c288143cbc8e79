"""The public seed of a federation."""

import numpy as np

from fedneighbors.tabular._ownership import public_seed


def test_public_seeds_are_unchanged_or_reproducible():
    assert public_seed(0) == 0
    assert public_seed(np.int64(2**63 - 1)) == 2**63 - 1
    assert public_seed(np.random.RandomState(1)) == public_seed(np.random.RandomState(1))
