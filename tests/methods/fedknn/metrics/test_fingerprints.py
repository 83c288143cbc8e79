import sys
from fractions import Fraction
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedneighbors.datasets._molecules import fingerprint_from_smiles
from fedneighbors.errors import DataError, MissingExtraError
from fedneighbors.methods.fedknn.metrics import _fingerprints as module
from fedneighbors.methods.fedknn.metrics._fingerprints import TanimotoMetric
from tests.methods.fedknn.metrics.brute_force import Search, Step, searches
from tests.seeds import cases

BYTES = st.sampled_from([0, 0, 0, 1, 3, 128, 255]) | st.integers(0, 255)


def fingerprints(n_bytes):
    return arrays(np.uint8, n_bytes, elements=BYTES)


@settings(max_examples=cases(200), deadline=None)
@given(st.integers(1, 20).flatmap(lambda n: searches(objects=fingerprints(n))))
def test_a_search_without_sketches_equals_brute_force(search):
    search.assert_equals_brute_force(TanimotoMetric())


def sparse_bits(n_bits, *, size):
    """Return a strategy of packed bits of which few are set."""

    def pack(positions):
        bits = np.zeros(n_bits, np.uint8)
        bits[positions] = 1
        return np.packbits(bits)

    return st.lists(st.integers(0, n_bits - 1), max_size=size).map(pack)


@settings(max_examples=cases(300), deadline=None)
@given(searches(objects=sparse_bits(320, size=20), queries=sparse_bits(320, size=40), max_size=30))
def test_a_search_with_sketches_equals_brute_force(search):
    with (
        mock.patch.object(module, "_MIN_BATCH", 1),
        mock.patch.object(module, "_ROWS_AT_ONCE", module.BLOCK_ROWS),
    ):
        search.assert_equals_brute_force(TanimotoMetric())


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 9).flatmap(lambda n: st.tuples(fingerprints(n), fingerprints(n))))
def test_a_distance_is_the_nearest_number_to_its_fraction(pair):
    first, second = ({i for i, bit in enumerate(np.unpackbits(row)) if bit} for row in pair)
    union = len(first | second)

    exact = 1 - Fraction(len(first & second), union) if union else Fraction(0)

    assert TanimotoMetric().distance(*pair) == exact.numerator / exact.denominator
    assert TanimotoMetric().distance(*reversed(pair)) == TanimotoMetric().distance(*pair)


def mixed_fingerprints(n, *, n_bits=1024, seed=0):
    """Return mixtures of a few fingerprints with frequent and rare bits, and repeated rows."""
    rng = np.random.default_rng(seed)
    probabilities = rng.permutation(0.9 / np.arange(1, n_bits + 1) ** 0.8)
    parents = rng.random((40, n_bits)) < probabilities
    bits = np.where(rng.random((n, n_bits)) < 0.8, parents[rng.integers(0, 40, n)], False)
    bits[n // 2 : n // 2 + 30] = bits[:30]
    bits[-1] = False
    return np.packbits(bits, axis=1)


@pytest.mark.parametrize("n_bits", [1024, 72])
@pytest.mark.parametrize("case", [0, 1, 2999, "full"])
def test_a_large_table_equals_brute_force(case, n_bits):
    table = mixed_fingerprints(3000, n_bits=n_bits)
    query = np.full(n_bits // 8, 255, np.uint8) if case == "full" else table[case]
    steps = [
        Step("next", 20, "none", 0),
        Step("count", 0, "at", 50),
        Step("bounds", 0, "none", 0),
        Step("next", 200, "at", 300),
        Step("deadline", 500, "none", 0),
        Step("count", 0, "at", 2900),
        Step("next", 1000, "none", 0),
    ]
    search = Search(list(table), query, np.random.default_rng(0).permutation(3000).tolist(), steps)

    with mock.patch.object(module, "_ROWS_AT_ONCE", module.BLOCK_ROWS):
        search.assert_equals_brute_force(TanimotoMetric())

    assert (TanimotoMetric().index(table, ranks=np.arange(3000)).sketch is None) == (n_bits == 72)


def test_few_objects_are_verified():
    table = mixed_fingerprints(20_000)
    session = TanimotoMetric().index(table, ranks=np.arange(20_000)).open(table[3])

    session.next(10)

    assert 10 <= session.n_verified <= 400


def test_the_deadline_interrupts_a_scan():
    table = mixed_fingerprints(3000)
    with mock.patch.object(module, "_ROWS_AT_ONCE", module.BLOCK_ROWS):
        session = TanimotoMetric().index(table, ranks=np.arange(3000)).open(table[0])

        late = session.next(5, deadline_s=0.0)
        complete = session.next(5)

    assert (late.n_certified, late.exhausted) == (0, False)
    assert complete.n_certified == 5


def test_smiles_and_their_packed_bits_are_the_same_objects():
    smiles = ["CCO", "c1ccccc1O", "CC(=O)Oc1ccccc1C(=O)O", "CCN"]
    rdkit = pytest.importorskip("rdkit")
    from rdkit import Chem, DataStructs
    from rdkit.Chem import rdFingerprintGenerator

    generator = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=2048)
    vectors = [generator.GetFingerprint(Chem.MolFromSmiles(text)) for text in smiles]
    packed = [np.frombuffer(DataStructs.BitVectToBinaryText(v), np.uint8) for v in vectors]

    batches = [
        TanimotoMetric().index(objects, ranks=np.arange(4)).open(query).next(4)
        for objects in (smiles, packed, [smiles[0], *packed[1:]])
        for query in (smiles[2], packed[2])
    ]

    similarities = DataStructs.BulkTanimotoSimilarity(vectors[2], vectors)
    assert rdkit.__version__
    for batch in batches:
        assert batch.positions.tolist() == batches[0].positions.tolist()
        expected = [1 - similarities[i] for i in batch.positions]
        np.testing.assert_allclose(batch.distances, expected, rtol=0, atol=1e-15)


BITS = np.array([1, 2], np.uint8)


@pytest.mark.parametrize(
    ("item", "error", "reason"),
    [
        ([1, 2], TypeError, "expected packed bits, .* got list"),
        (np.array([1, 2]), TypeError, r"expected packed bits, .* got int64 of shape \(2,\)"),
        (np.array([True, False]), TypeError, "got bool"),
        (BITS[None], TypeError, r"of shape \(1, 2\)"),
        ({1}, TypeError, "got set"),
        (np.array([1, 2, 3], np.uint8), ValueError, "expected 2 bytes of packed bits, got 3"),
        (np.empty(0, np.uint8), ValueError, "expected 1 to 8191 bytes, got 0"),
        (np.empty(8192, np.uint8), ValueError, "expected 1 to 8191 bytes, got 8192"),
        ("C", ValueError, "expected 2 bytes of packed bits, got 256"),
        ("C((", DataError, r"expected SMILES, got 'C\(\('"),
        ("", DataError, "expected SMILES, got ''"),
        ("CN(C)(C)(C)C", DataError, "RDKit rejects the SMILES 'CN.*valence"),
    ],
)
def test_an_error_of_an_invalid_object_gives_its_position(item, error, reason):
    with pytest.raises(error, match=f"object 1: .*{reason}"):
        TanimotoMetric().index([BITS, item], ranks=np.arange(2))
    with pytest.raises(error, match=f"the query: .*{reason}"):
        TanimotoMetric().index([BITS], ranks=np.arange(1)).open(item)


def test_a_table_of_other_numbers_is_refused():
    with pytest.raises(TypeError, match=r"object 0: expected packed bits, .*float64"):
        TanimotoMetric().index(np.eye(8), ranks=np.arange(8))


def test_without_rdkit_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit", None)

    with pytest.raises(MissingExtraError, match=r"fedneighbors\[chem\]"):
        fingerprint_from_smiles("C")
