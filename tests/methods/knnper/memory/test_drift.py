"""Drift is detected when present, and false alarms are rare."""

import json
from itertools import product
from math import comb, exp, inf, log, prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper.memory._datastore import Datastore
from fedneighbors.methods.knnper.memory._drift import (
    DriftDetector,
    error_rise_evidence,
    excess_error_evidence,
    label_evidence,
)
from fedneighbors.methods.knnper.memory._rows import RowFeatures
from fedneighbors.methods.knnper.personal._client_state import ClientState

CENTERS = np.random.default_rng(0).normal(size=(6, 8)) * 1.5

rates = st.integers(0, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def draw_rows(rng, shares, n, meaning=None):
    labels = rng.choice(6, n, p=shares)
    keys = CENTERS[labels] + rng.normal(size=(n, 8))
    return keys, labels if meaning is None else meaning[labels]


def run_stream(seed, change, n_steps=20, at=20):
    """Return a memory after steps of 6 rows that change at step ``at``, and its alarms."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(6, 0.5))
    memory = Datastore(8, strategy="drift", n_classes=6).add(*draw_rows(rng, shares, 100))
    alarms = []
    for step in range(n_steps):
        batch = draw_rows(rng, shares, 6) if step < at else change(rng, shares)
        before = memory.n_evictions + memory.n_reweighings
        memory.add(*batch)
        if memory.n_evictions + memory.n_reweighings > before:
            alarms.append(step)
    return memory, alarms


def compute_log_probability(counts, weights):
    """Return the log-probability of draws, each given those before it."""
    weights, total = list(weights), 0.0
    for kind, n in enumerate(counts):
        for _ in range(n):
            total += log(weights[kind] / sum(weights))
            weights[kind] += 1
    return total


def list_splits(counts, n):
    """Yield all samples of ``n`` rows, as numbers of rows by kind."""
    for sample in product(*(range(count + 1) for count in counts)):
        if sum(sample) == n:
            yield sample


def count_orders(counts):
    """Return the number of distinct orders of rows with these counts by kind."""
    return prod(comb(sum(counts[: k + 1]), n) for k, n in enumerate(counts))


pairs = st.integers(1, 4).flatmap(
    lambda k: st.tuples(*[st.lists(st.integers(0, 4), min_size=k, max_size=k)] * 2)
)


@given(pairs)
def test_label_evidence_equals_the_sum_over_all_splits(samples):
    before, after = samples
    prior = [1 / len(before)] * len(before)
    counts = [b + s for b, s in zip(before, after, strict=True)]

    def probability(sample):
        remaining = [n - m for n, m in zip(counts, sample, strict=True)]
        return (
            count_orders(sample) * exp(compute_log_probability(sample, prior))
            * count_orders(remaining) * exp(compute_log_probability(remaining, prior))
        )  # fmt: skip

    random_draw = prod(comb(n, m) for n, m in zip(counts, after, strict=True))
    random_draw /= comb(sum(counts), sum(after))
    total = sum(probability(sample) for sample in list_splits(counts, sum(after)))

    evidence = label_evidence(np.array(before), np.array(after))

    assert evidence == pytest.approx(log(probability(after) / total / random_draw), abs=1e-9)


@given(pairs)
def test_the_mean_likelihood_ratio_is_one_without_drift(samples):
    before, after = samples
    counts = [b + s for b, s in zip(before, after, strict=True)]

    mean = 0.0
    for sample in list_splits(counts, sum(after)):
        n_draws = prod(comb(n, m) for n, m in zip(counts, sample, strict=True))
        remaining = np.array(counts) - sample
        mean += n_draws * exp(label_evidence(remaining, np.array(sample)))

    assert mean / comb(sum(counts), sum(after)) == pytest.approx(1, abs=1e-9)


@given(rates, rates)
def test_evidence_of_errors_is_that_of_labels_right_and_wrong(before, after):
    evidence = error_rise_evidence(before, after)

    if after[0] * before[1] <= before[0] * after[1]:
        assert evidence == -inf
        return
    split = np.array([after[0], after[1] - after[0]])
    assert evidence == label_evidence(np.array([before[0], before[1] - before[0]]), split)


@given(rates, rates)
def test_excess_evidence_is_that_of_sequential_errors(before, after):
    evidence = excess_error_evidence(before, after)

    if after[0] * before[1] <= before[0] * after[1]:
        assert evidence == -inf
        return
    outcomes = (after[0], after[1] - after[0])
    prior = (0.5 + before[0], 0.5 + before[1] - before[0])
    expected = compute_log_probability(outcomes, (0.5, 0.5)) - compute_log_probability(
        outcomes, prior
    )
    assert evidence == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("n_classes", [2, 10, 100])
def test_alarms_are_rare_for_any_number_of_classes(n_classes):
    """With equal shares, at most 1 in 200 steps raises an alarm: 6 in 300 have a chance of 1 %."""
    rng = np.random.default_rng(n_classes)
    centers, n_alarms = rng.normal(size=(n_classes, 8)), 0
    for _ in range(15):
        memory = Datastore(8, strategy="drift", n_classes=n_classes)
        for n in (60, *[10] * 20):
            labels = rng.integers(n_classes, size=n)
            memory.add(centers[labels] + rng.normal(size=(n, 8)), labels)
        n_alarms += memory.n_evictions + memory.n_reweighings

    assert n_alarms <= 5


EASY = np.eye(10)[0] * 0.9 + np.isin(np.arange(10), [3, 5, 8, 9]) * 0.025
HARD = np.isin(np.arange(10), [3, 5, 8, 9]) / 4


@pytest.mark.parametrize(("before", "after"), [(EASY, HARD), (HARD, np.full(10, 0.1))])
def test_harder_classes_are_not_forgotten(before, after):
    """Noisy digits whose labels keep their meaning."""
    x, y = load_digits(return_X_y=True)
    x = x / 16 + np.random.default_rng(5).normal(size=x.shape) * 0.45
    outcomes = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        memory = Datastore(64, strategy="drift", n_classes=10)
        for n, shares in ((150, before), *[(20, after)] * 6):
            indices = [rng.choice(np.flatnonzero(y == c)) for c in rng.choice(10, n, p=shares)]
            memory.add(x[indices], y[indices])
        outcomes.append((memory.n_reweighings > 0, memory.n_evictions))

    assert outcomes == [(True, 0)] * 10


def test_false_alarms_are_rare():
    """60 clients of 20 steps: at most 1 in 200 of 1,200 client-steps is an eviction."""
    n_false_alarms = sum(len(run_stream(seed, None)[1]) for seed in range(60))

    assert n_false_alarms <= 6


def test_changed_label_meanings_are_detected_in_two_steps():
    meaning = np.array([1, 2, 3, 4, 5, 0])
    delays, losses = [], []

    for seed in range(20):
        memory, steps = run_stream(
            seed, lambda rng, s: draw_rows(rng, s, 6, meaning), n_steps=20, at=10
        )
        delays_of_seed = [step - 10 for step in steps if step >= 10]
        assert delays_of_seed, seed
        delays.append(delays_of_seed[0])
        shares = np.random.default_rng(seed).dirichlet(np.full(6, 0.5))
        keys, labels = draw_rows(np.random.default_rng(99), shares, 300, meaning)
        fresh = Datastore(8, n_classes=6).add(memory.keys[-60:], memory.labels[-60:])
        accuracies = [
            (instance.votes(keys, 6, n_neighbors=10).argmax(axis=1) == labels).mean()
            for instance in (fresh, memory)
        ]
        losses.append(accuracies[0] - accuracies[1])

    assert np.median(delays) <= 1
    assert max(losses) < 0.03  # newer rows outweigh rows not known to be outdated


def test_after_an_eviction_no_row_from_before_the_change_stays():
    def change(rng, _):
        return draw_rows(rng, np.eye(6)[0], 6, np.array([5, 4, 3, 2, 1, 0]))

    memory, evicted = run_stream(3, change, n_steps=12, at=10)

    assert evicted == [10]
    assert memory.n_evictions == 1
    assert set(memory.labels.tolist()) == {5}
    assert len(memory) == 2 * 6


def test_a_late_detected_change_is_cut_at_its_start():
    rng = np.random.default_rng(5)
    keys, labels = draw_rows(rng, np.array([0.5, 0.5, 0, 0, 0, 0]), 100)
    memory = Datastore(8, strategy="drift", n_classes=6).add(keys, labels)

    for step in range(4):  # one row at a time: a single row is not enough evidence
        n_before = memory.n_evictions
        memory.add(*draw_rows(rng, np.eye(6)[0], 1, np.ones(6, int)), ids=[f"new {step}"])
        if memory.n_evictions > n_before:
            break

    assert memory.n_evictions == 1
    assert step > 0
    assert memory.ids == [f"new {place}" for place in range(step + 1)]


SKEWED = np.array([0.45, 0.45, 0.1, 0, 0, 0])
CHANGED = np.array([0.05, 0.05, 0.9, 0, 0, 0])


def change_shares(seed=0, n_steps=3, **settings):
    """Return a memory whose class shares change while labels keep their meaning."""
    rng = np.random.default_rng(seed)
    memory = Datastore(8, strategy="drift", n_classes=6, **settings)
    memory.add(*draw_rows(rng, SKEWED, 100))
    for _ in range(n_steps):
        memory.add(*draw_rows(rng, CHANGED, 6))
    return memory


def test_rows_stay_if_only_shares_changed():
    memories = [change_shares(seed) for seed in range(20)]

    assert sum(memory.n_reweighings > 0 for memory in memories) >= 18
    assert sum(memory.n_evictions for memory in memories) == 0
    assert {len(memory) for memory in memories} == {118}


def test_a_new_class_is_a_change_of_shares():
    rng = np.random.default_rng(5)
    memory = Datastore(8, strategy="drift", n_classes=6)
    memory.add(*draw_rows(rng, np.array([0.5, 0.5, 0, 0, 0, 0]), 100))

    memory.add(*draw_rows(rng, np.eye(6)[3], 6))

    assert (memory.n_reweighings, memory.n_evictions, len(memory)) == (1, 0, 106)
    assert memory.recent_labels.tolist() == [3] * 6


def test_votes_weigh_current_shares_over_stored_ones():
    memory, plain = change_shares(), Datastore(8, n_classes=6)
    plain.add(memory.keys, memory.labels)
    queries, _ = draw_rows(np.random.default_rng(9), np.full(6, 1 / 6), 30)

    reweighted = memory.votes(queries, 6, n_neighbors=10)

    stored = [(memory.labels == c).sum() + 1 / 6 for c in range(6)]
    current = [(memory.recent_labels == c).sum() + 1 / 6 for c in range(6)]
    for votes, before in zip(reweighted, plain.votes(queries, 6, n_neighbors=10), strict=True):
        expected = [
            before[c] * (current[c] / sum(current)) / (stored[c] / sum(stored)) for c in range(6)
        ]
        np.testing.assert_allclose(votes, np.array(expected) / sum(expected), rtol=1e-12)


def test_class_shares_of_a_pool_are_those_since_the_change():
    memory, overall = change_shares(), np.full(6, 1 / 6)
    assert memory.n_reweighings == 1
    prior_only = np.array([0.0, 0, 1, 0, 0, 0])
    state = ClientState(memory, 0.5, overall, prior_only, MemorySettings(combine="pool"))

    probabilities = state.predict(RowFeatures(CENTERS[:2]), np.zeros((2, 6)))

    counts = [memory.recent_labels.tolist().count(c) for c in range(6)]
    expected = [(n + 1 / 6) / (sum(counts) + 1) for n in counts]
    np.testing.assert_allclose(probabilities, [expected, expected], rtol=1e-9)


def test_outdated_rows_are_dropped_later():
    rng, swapped = np.random.default_rng(7), np.array([1, 0, 2, 3, 4, 5])
    memory = Datastore(8, strategy="drift", n_classes=6).add(*draw_rows(rng, SKEWED, 100))
    memory.add(*draw_rows(rng, np.eye(6)[3], 6))
    before = len(memory), memory.n_reweighings

    for _ in range(4):
        memory.add(*draw_rows(rng, SKEWED, 6, swapped))

    assert before == (106, 1)
    assert memory.n_evictions >= 1
    queries = CENTERS[:2]
    assert memory.votes(queries, 6, n_neighbors=5).argmax(axis=1).tolist() == [1, 0]


def test_rows_since_a_change_survive_deletion():
    memory = change_shares(capacity=112)
    recent = memory.recent_labels.tolist()
    assert memory.n_reweighings == 1
    assert 0 < len(recent) < len(memory) == 112

    memory.forget([*memory.ids[:10], memory.ids[-1]])
    remaining = memory.recent_labels.tolist()
    memory.forget(memory.ids[: len(memory) - len(recent) + 2])

    assert remaining == recent[:-1]
    assert memory.recent_labels.tolist() == recent[1:-1]


def test_rows_since_a_change_stay_when_old_ones_are_evicted():
    rng, memory = np.random.default_rng(3), change_shares(capacity=112)
    recent = memory.recent_labels.tolist()

    keys, labels = draw_rows(rng, CHANGED, 30)
    memory.add(keys, labels)

    assert memory.n_reweighings == 1
    assert len(memory) == 112
    assert memory.recent_labels.tolist() == recent + labels.tolist()


def test_a_restored_drift_memory_gives_the_same_votes():
    memory = change_shares()
    queries, _ = draw_rows(np.random.default_rng(9), np.full(6, 1 / 6), 30)

    restored = Datastore(8, strategy="drift", n_classes=6)
    restored.restore(memory.keys, memory.labels, memory.ids, json.loads(json.dumps(memory.state())))

    votes = memory.votes(queries, 6, n_neighbors=10)
    assert restored.votes(queries, 6, n_neighbors=10).tobytes() == votes.tobytes()
    assert restored.state() == memory.state()
    for strategy, past, words in (
        ("drift", 119, "more keys from before a change than keys"),
        ("fifo", 1, "more keys from before a change than keys"),
        ("drift", 2.7, "expected the state of a memory"),
        ("drift", -1, "expected the state of a memory"),
    ):
        other = Datastore(8, strategy=strategy, n_classes=6)
        with pytest.raises(ValueError, match=words):
            other.restore(memory.keys, memory.labels, memory.ids, memory.state() | {"past": past})


def test_forgotten_rows_leave_no_error_counts():
    rng = np.random.default_rng(6)
    memory = Datastore(8, strategy="drift", n_classes=6).add(*draw_rows(rng, np.full(6, 1 / 6), 60))
    memory.add(*draw_rows(rng, np.full(6, 1 / 6), 2), ids=["a", "b"])

    memory.forget(["a"])

    assert memory.state()["surprises"] == []


def test_constant_errors_are_not_drift():
    detector, keys = DriftDetector(3, window=1), np.zeros((30, 2))
    labels = np.tile([0, 1, 2], 10)

    assert detector.detect(keys, labels, 0, np.zeros((4, 2)), np.array([0, 1, 2, 0])) is None


def test_the_classes_are_needed():
    with pytest.raises(ValueError, match="expected n_classes"):
        Datastore(2, strategy="drift")
