"""Tables that differ in one row are hashed by the same code in the same shapes."""

import numpy as np
import pytest
import scipy.sparse

from fedneighbors.kernels.flyhash import _hash
from fedneighbors.methods.flynn._features import FeatureMap
from fedneighbors.methods.flynn.algorithm import HashPlan, hash_with_plan
from fedneighbors.methods.flynn.private._party import PrivateFlyNNParty
from fedneighbors.methods.flynn.private.protocol import NoisyCountRequest
from fedneighbors.privacy._guarantees import PureDP
from fedneighbors.privacy._policy import Privacy, terms
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.tabular._private import flush_subnormal
from fedneighbors.tabular._schema import BLOCK_ROWS

PRIVACY = Privacy(epsilon=1, classes=(0, 1), bounds=(-4.0, 4.0))
PLAN = HashPlan(FeatureMap(3, "none"), 40, 2, 5, 7)
REQUEST = NoisyCountRequest("a", terms(PRIVACY), 1, PLAN, (0, 1), False)
WHOLE = np.random.default_rng(0).integers(0, 5, (30, 3)).astype(float)
LABELS = np.arange(30) % 2
ROWS = {"fraction": 0.3, "huge": 1e300, "negative": -7.0, "subnormal": 1e-310, "not finite": np.nan}


@pytest.fixture
def calls(monkeypatch):
    """Record what each call of the kernel depends on apart from values."""
    recorded, kernel = [], _hash.hash_rows

    def record(rows, inputs, zero, n_stored, units):
        recorded.append((rows.dtype, rows.shape, rows.flags.c_contiguous, type(zero), n_stored))
        kernel(rows, inputs, zero, n_stored, units)

    monkeypatch.setattr(_hash, "hash_rows", record)
    return recorded


def work(calls, rows, labels):
    """Return the kernel's calls for the reply of a private party."""
    calls.clear()
    with Ledger(":memory:", party="north") as ledger:
        ledger.set_budget("table", PureDP(1))
        PrivateFlyNNParty("north", rows, labels, privacy=PRIVACY, ledger=ledger).answer(REQUEST)
    return list(calls)


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("form", [np.asarray, scipy.sparse.csr_array], ids=["dense", "sparse"])
def test_a_replaced_row_does_not_change_the_kernels_work(calls, kind, form):
    other = WHOLE.copy()
    other[7] = ROWS[kind]

    first = work(calls, form(WHOLE), LABELS)

    assert first[0][:2] == (np.float64, (BLOCK_ROWS, 3))
    assert work(calls, form(other), LABELS) == first


def test_added_or_unlabelled_rows_do_not_change_the_work(calls):
    first = work(calls, WHOLE, LABELS)

    assert work(calls, np.vstack([WHOLE, WHOLE[:1]]), np.append(LABELS, 1)) == first
    assert work(calls, WHOLE, np.array(["none", *LABELS[1:]], object)) == first


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32, np.float64])
@pytest.mark.parametrize("n_rows", [0, 1, BLOCK_ROWS - 1, BLOCK_ROWS, BLOCK_ROWS + 1])
def test_the_same_work_gives_the_same_hashes(dtype, n_rows):
    rows = np.random.default_rng(n_rows).integers(0, 200, (n_rows, 3)).astype(dtype)

    expected = hash_with_plan(rows, PLAN)

    np.testing.assert_array_equal(hash_with_plan(rows, PLAN, same_work=True), expected)


def test_only_subnormal_values_become_zero():
    values = np.array([0.0, -1e-310, 1e-39, 1.2e-38, -2.0, np.inf])

    np.testing.assert_array_equal(flush_subnormal(values), [0, 0, 0, 1.2e-38, -2, np.inf])
    assert flush_subnormal(values.astype(np.float32)).dtype == np.float32
