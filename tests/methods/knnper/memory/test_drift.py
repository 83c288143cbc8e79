"""Drift is noticed where it is, and rarely where it is not."""

import numpy as np
import pytest

from fedneighbors.methods.knnper.memory.datastore import Datastore
from fedneighbors.methods.knnper.memory.drift import DriftWatch, label_surprise, vote_surprise

MIDDLES = np.random.default_rng(0).normal(size=(6, 8)) * 1.5


def rows(rng, shares, n, meaning=None):
    labels = rng.choice(6, n, p=shares)
    keys = MIDDLES[labels] + rng.normal(size=(n, 8))
    return keys, labels if meaning is None else meaning[labels]


def stream(seed, change, n_steps=20, at=20):
    """Return a memory after steps of 6 rows of which those from ``at`` on are changed."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(6, 0.5))
    memory = Datastore(8, strategy="drift", n_classes=6).add(*rows(rng, shares, 100))
    evicted = []
    for step in range(n_steps):
        batch = rows(rng, shares, 6) if step < at else change(rng, shares)
        before = memory.n_evictions
        memory.add(*batch)
        if memory.n_evictions > before:
            evicted.append(step)
    return memory, evicted


def test_a_memory_of_the_same_rows_is_rarely_thrown_away():
    """60 clients of 20 steps: fewer than 1 in 100 of 1,200 client-steps is an eviction."""
    false = sum(len(stream(seed, None)[1]) for seed in range(60))

    assert false <= 12


def test_labels_that_come_to_mean_something_else_are_noticed_within_steps():
    meaning = np.array([1, 2, 3, 4, 5, 0])

    def change(rng, shares):
        return rows(rng, shares, 6, meaning)

    noticed = [stream(seed, change, n_steps=20, at=10)[1] for seed in range(20)]

    late = [next((step - 10 for step in steps if step >= 10), None) for steps in noticed]
    assert None not in late
    assert np.median(late) <= 3


def test_after_an_eviction_only_the_last_batches_stay():
    def change(rng, _):
        return rows(rng, np.eye(6)[rng.integers(6)], 6, np.array([5, 4, 3, 2, 1, 0]))

    memory, evicted = stream(3, change, n_steps=12, at=10)

    assert evicted
    assert len(memory) <= 3 * 6 + 6 * (12 - evicted[-1])


def test_new_labels_that_are_those_of_the_memory_are_no_surprise():
    known = np.repeat(np.arange(4), 25)

    same, other = label_surprise(known, known, 4), label_surprise(known, np.zeros(8, int), 4)

    assert abs(same.excess) < 1e-9
    assert other.excess == pytest.approx(0, abs=1e-9)  # equal shares: every label is as likely


def test_a_rare_label_is_a_surprise_of_its_log_loss():
    known = np.array([0] * 99 + [1])

    found = label_surprise(known, np.array([1, 1]), 2)

    shares = np.array([99.5, 1.5]) / 101
    mean = -(shares * np.log(shares)).sum()
    assert found.excess == pytest.approx(2 * (-np.log(shares[1]) - mean))


def test_votes_on_rows_of_the_memory_itself_are_no_worse_than_expected():
    rng = np.random.default_rng(1)
    keys, labels = rows(rng, np.full(6, 1 / 6), 80)

    found = vote_surprise(keys, labels, keys, labels, 6)

    assert found.excess <= 0  # every row finds itself


def test_losses_that_are_all_alike_are_no_drift():
    watch, one = DriftWatch(3, window=1), np.zeros((30, 2))

    assert not watch.notices(one, np.zeros(30, int), np.zeros((4, 2)), np.zeros(4, int))


def test_the_classes_are_needed_and_settings_checked():
    with pytest.raises(ValueError, match="expected n_classes"):
        Datastore(2, strategy="drift")
    with pytest.raises(ValueError, match="expected a window"):
        DriftWatch(3, window=0)
