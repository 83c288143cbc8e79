"""The numbers that the coordinator receives from a party are uniformly distributed.

Masks are random numbers of the operating system, so the tests fix no seed. Each test of uniformity
raises a false alarm with a probability of at most ``FALSE_ALARM``.
"""

import numpy as np
import pytest
from scipy.stats import chi2

from fedneighbors.federation._masking import (
    DealShares,
    MaskedInput,
    MaskInput,
    OpenSum,
    Revealed,
    keys_context,
    sum_context,
)
from fedneighbors.secure_sum._masks import unmask
from fedneighbors.secure_sum._shares import combine
from tests.federation.masked_parties import NoisedRequest, ValueParty, Wire, enroll, run_masked_sum

FALSE_ALARM = 1e-9
LENGTH = 50_000
N = 5


def count_bytes(cells):
    """Count each byte value at each position of a word."""
    columns = cells.view(np.uint8).reshape(len(cells), -1).T
    return np.array([np.bincount(column, minlength=256) for column in columns])


def largest_statistic(n_positions):
    return chi2.isf(FALSE_ALARM / n_positions, 255)


def is_uniform(cells):
    counts = count_bytes(cells)
    expected = len(cells) / 256
    statistics = ((counts - expected) ** 2 / expected).sum(axis=1)
    return bool((statistics < largest_statistic(len(counts))).all())


def have_same_distribution(first, second):
    a, b = count_bytes(first), count_bytes(second)
    statistics = ((a - b) ** 2 / np.maximum(a + b, 1)).sum(
        axis=1
    )  # the vectors have the same length
    return bool((statistics < largest_statistic(len(a))).all())


def sample_numbers(kind, dtype):
    """Return a party's numbers, whose distribution is far from uniform."""
    if kind == "zeros":
        return np.zeros(LENGTH, dtype)
    if kind == "counts":
        return (np.arange(LENGTH) % 300).astype(dtype)
    return np.full(LENGTH, np.iinfo(dtype).max // (2 * N), dtype)


def collect_masked_numbers(kind, dtype):
    """Run a sum; return p1's masked numbers with and without the stream of its seed."""
    masked, roster = enroll([ValueParty(f"p{k}", sample_numbers(kind, dtype)) for k in range(N)])
    wire = Wire(masked)
    run_masked_sum(wire, roster, request=NoisedRequest())
    (reply,) = wire.get_messages(MaskedInput, "p1")
    shares = {k: wire.get_messages(Revealed, f"p{k}")[0].seed_shares["p1"] for k in range(N)}
    opening, dealing = wire.get_messages(OpenSum)[0], wire.get_messages(DealShares)[0]
    context = sum_context(
        keys_context(opening, dealing.adverts), wire.get_messages(MaskInput, "p1")[0].members
    )
    without_seed_stream = reply.cells.copy()
    seeds = {"p1": combine(shares, threshold=opening.threshold)}
    unmask(without_seed_stream, seeds=seeds, dropped={}, public_keys={}, context=context)
    return reply.cells, without_seed_stream


@pytest.mark.parametrize("dtype", ["u4", "i8"])
@pytest.mark.parametrize("kind", ["zeros", "counts", "large"])
def test_masked_numbers_are_uniform_even_with_known_seed(kind, dtype):
    cells, without_seed_stream = collect_masked_numbers(kind, dtype)

    assert not np.array_equal(cells, without_seed_stream)
    assert is_uniform(cells)
    assert is_uniform(without_seed_stream)


@pytest.mark.parametrize("dtype", ["u4", "i8"])
def test_masked_numbers_do_not_depend_on_the_values(dtype):
    zeros, zeros_without_seed = collect_masked_numbers("zeros", dtype)
    large, large_without_seed = collect_masked_numbers("large", dtype)

    assert have_same_distribution(zeros, large)
    assert have_same_distribution(zeros_without_seed, large_without_seed)


def test_masks_of_two_rounds_are_independent():
    first, _ = collect_masked_numbers("counts", "u4")
    second, _ = collect_masked_numbers("counts", "u4")

    assert is_uniform(first - second)


@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.1])
@pytest.mark.parametrize("kind", ["zeros", "counts", "large"])
def test_uniformity_test_detects_partial_masking(fraction, kind):
    masked, _ = collect_masked_numbers(kind, "u4")
    plain = sample_numbers(kind, "u4")

    n_plain = round(fraction * LENGTH)
    leaking = np.concatenate([plain[:n_plain], masked[n_plain:]])

    assert not is_uniform(leaking)
    assert not have_same_distribution(leaking, collect_masked_numbers("zeros", "u4")[0])


def test_uniformity_test_detects_an_unmasked_high_bit():
    masked, _ = collect_masked_numbers("zeros", "u4")

    assert not is_uniform(masked & np.uint32(0x7FFFFFFF))
