"""Log scores of noised counts: weights, class sizes, noise and decision boundaries."""

import numpy as np
import pytest

from fedneighbors.methods.flynn.algorithm import clip_counts, compute_novelty, log_score_table


def activation_chances(rng, n_units, n_active, strength):
    """Return the chance of each unit to be active; the chances add up to n_active."""
    raw = np.exp(strength * rng.normal(size=n_units))
    return np.minimum(raw / raw.sum() * n_active, 1.0)


def test_the_table_is_a_clipped_log_up_to_class_constants():
    counts = np.array([[9, 4], [6, 8], [7, 6], [-3, 2]], np.int32)

    table = log_score_table(counts, variance=0.25, n_active=2)

    pseudocount = 0.5 * 0.5 + 0.5
    for label, largest in enumerate([9, 8]):
        weights = table.weights[table.starts[label] : table.starts[label] + largest + 1]
        expected = -np.log(np.arange(largest + 1) + pseudocount)
        np.testing.assert_allclose(weights - weights[0], expected - expected[0], rtol=1e-12)
    assert table.weights.min() == 0


def test_a_frequent_class_does_not_win_by_its_size():
    rng = np.random.default_rng(1)
    chances = np.stack([activation_chances(rng, 400, 20, 1.0) for _ in range(2)], axis=1)
    exact = np.rint(chances * np.array([20_000, 1_000]))
    noisy = (exact + rng.normal(0, 12, exact.shape)).round().astype(np.int32)
    samples = [
        np.argsort(-np.log(chances[:, k]) - rng.gumbel(size=(500, 400)))[:, :20] for k in (0, 1)
    ]

    table = log_score_table(noisy, variance=144.0, n_active=20)
    accuracies = [
        float(
            (
                compute_novelty(np.sort(rows).astype(np.int32), clip_counts(noisy), table).argmin(1)
                == k
            ).mean()
        )
        for k, rows in enumerate(samples)
    ]

    assert min(accuracies) > 0.8, accuracies


def test_a_class_within_the_noise_is_never_predicted():
    rng = np.random.default_rng(2)
    counts = rng.normal([400, 300, 0], 30, (200, 3)).round().astype(np.int32)

    table = log_score_table(counts, variance=900.0, n_active=10)
    rows = rng.permuted(np.tile(np.arange(200), (300, 1)), axis=1)[:, :10].astype(np.int32)
    predicted = compute_novelty(rows, clip_counts(counts), table).argmin(axis=1)

    assert set(predicted.tolist()) == {0, 1}


@pytest.mark.parametrize("fill", [0, -7])
def test_counts_that_are_all_noise_still_give_finite_scores(fill):
    counts = np.full((30, 4), fill, np.int32)

    table = log_score_table(counts, variance=100.0, n_active=5)

    assert np.isfinite(table.weights).all()
    scores = compute_novelty(np.arange(5, dtype=np.int32)[None], clip_counts(counts), table)
    assert scores.tolist() == [[0.0] * 4]


def test_the_boundary_is_half_way_between_mean_scores():
    rng = np.random.default_rng(3)
    chances = np.stack([activation_chances(rng, 4000, 20, 0.5) for _ in range(2)], axis=1)
    exact = chances * np.array([200_000, 10_000])
    noisy = (exact + rng.normal(0, 12, exact.shape)).round().astype(np.int32)

    table = log_score_table(noisy, variance=144.0, n_active=20)

    novelty = table.weights[np.asarray(table.starts[:2]) + clip_counts(noisy)]
    mean = chances.T @ novelty  # [k, l]: novelty of class l, summed over the units of a row of k
    margins = mean[0, 1] - mean[0, 0], mean[1, 0] - mean[1, 1]
    # Noise compared with itself would set them 1.2 apart; all other effects are about 0.1.
    assert margins[0] == pytest.approx(margins[1], abs=0.5)
    assert min(margins) > 1


@pytest.mark.parametrize(("total", "is_predicted"), [(1272, False), (1274, True)])
def test_a_class_needs_more_than_three_deviations(total, is_predicted):
    counts = np.full((200, 2), [400, total // 200], np.int32)
    counts[: total % 200, 1] += 1  # the noise on the sum has deviation 30 sqrt(200) = 424.3

    table = log_score_table(counts, variance=900.0, n_active=10)

    first, second = np.split(table.weights, [table.starts[1]])
    assert (second.min() < first.max()) == is_predicted  # otherwise no row can get the class
