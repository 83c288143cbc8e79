"""The hash on real images and letters, at the sizes of the paper's Table 6."""

import numpy as np
import pytest
from scipy import sparse

from fedneighbors.datasets import load
from fedneighbors.methods.flynn.algorithm import draw_wiring, hash_rows

# data set, m / d, s, rho (Table 6); Fashion-MNIST's setting is tried on MNIST's images
TABLE_6 = [
    ("digits", 256, 19, 32),
    ("letter", 1447, 8, 221),
    ("mnist", 217, 19, 17),
    ("mnist", 138, 82, 8),
]


def by_sparse_product(x, wiring, n_active):
    """Hash by exact integer products and a stable sort."""
    n_units, n_inputs = wiring.shape
    ones = np.ones(wiring.size, np.int64)
    ends = np.arange(n_units + 1) * n_inputs
    lift = sparse.csr_array((ones, wiring.ravel().astype(np.int64), ends), (n_units, x.shape[1]))
    sums = (lift @ x.T.astype(np.int64)).T
    return np.sort(np.argsort(-sums, axis=1, kind="stable")[:, :n_active], axis=1)


def assert_equal_hashes(name, units_per_feature, n_inputs, n_active, n_rows):
    data = load(name)
    x = data.x[:: max(1, len(data.x) // n_rows)][:n_rows].astype(np.uint8)
    wiring = draw_wiring(x.shape[1], units_per_feature * x.shape[1], n_inputs, 0)

    hashes = hash_rows(x, wiring, n_active)

    for start in range(0, len(x), 50):
        part = slice(start, start + 50)
        assert (hashes[part] == by_sparse_product(x[part], wiring, n_active)).all()


@pytest.mark.usefixtures("data_folder")
@pytest.mark.parametrize("setting", TABLE_6)
def test_hashes_of_real_rows_equal_products_and_sorting(setting):
    assert_equal_hashes(*setting, n_rows=100)


@pytest.mark.slow
@pytest.mark.usefixtures("data_folder")
@pytest.mark.parametrize("setting", TABLE_6)
def test_hashes_of_many_real_rows_equal_products_and_sorting(setting):
    assert_equal_hashes(*setting, n_rows=3000)
