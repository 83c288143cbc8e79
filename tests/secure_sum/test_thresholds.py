import pytest

from fedneighbors.errors import AggregationError
from fedneighbors.secure_sum._shares import (
    MAX_PARTIES,
    check_threshold,
    default_threshold,
)


@pytest.mark.parametrize("n", range(3, MAX_PARTIES + 1))
def test_default_threshold_resists_a_third_of_colluders(n):
    threshold = default_threshold(n)

    check_threshold(n, threshold, noised=False)

    assert threshold == 2 * n // 3 + 1
    assert 2 * threshold - n > n // 3
    assert 3 * threshold >= 2 * n


@pytest.mark.parametrize("n", range(3, 40))
def test_thresholds_below_two_thirds_are_refused(n):
    for threshold in range(0, n + 3):
        is_allowed = 3 * threshold >= 2 * n and 3 <= threshold <= n
        if is_allowed:
            check_threshold(n, threshold, noised=False)
            continue
        with pytest.raises(AggregationError, match="expected a threshold"):
            check_threshold(n, threshold, noised=False)


@pytest.mark.parametrize(("n", "noised"), [(0, False), (2, False), (1, True), (129, False)])
def test_too_few_or_too_many_parties_are_refused(n, noised):
    with pytest.raises(AggregationError, match="to 128 parties"):
        check_threshold(n, n, noised=noised)


def test_threshold_of_two_parties_with_noise_is_two():
    check_threshold(2, 2, noised=True)

    with pytest.raises(AggregationError, match="expected a threshold of 2 to 2"):
        check_threshold(2, 1, noised=True)
