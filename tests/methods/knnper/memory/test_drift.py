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

MIDDLES = np.random.default_rng(0).normal(size=(6, 8)) * 1.5

rates = st.integers(0, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def rows(rng, shares, n, meaning=None):
    labels = rng.choice(6, n, p=shares)
    keys = MIDDLES[labels] + rng.normal(size=(n, 8))
    return keys, labels if meaning is None else meaning[labels]


def stream(seed, change, n_steps=20, at=20):
    """Return a memory after steps of 6 rows, changed from ``at`` on, and when it noticed one."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.full(6, 0.5))
    memory = Datastore(8, strategy="drift", n_classes=6).add(*rows(rng, shares, 100))
    noticed = []
    for step in range(n_steps):
        batch = rows(rng, shares, 6) if step < at else change(rng, shares)
        before = memory.n_evictions + memory.n_reweighings
        memory.add(*batch)
        if memory.n_evictions + memory.n_reweighings > before:
            noticed.append(step)
    return memory, noticed


def one_after_another(seen, weights):
    """Return the log-probability of draws, each given those before it."""
    weights, whole = list(weights), 0.0
    for kind, n in enumerate(seen):
        for _ in range(n):
            whole += log(weights[kind] / sum(weights))
            weights[kind] += 1
    return whole


def splits(together, n):
    """Yield all samples of ``n`` rows that can be drawn from rows of some kinds."""
    for since in product(*(range(held + 1) for held in together)):
        if sum(since) == n:
            yield since


def orders(counts):
    """Return the number of orders of rows of some kinds."""
    return prod(comb(sum(counts[: k + 1]), n) for k, n in enumerate(counts))


pairs = st.integers(1, 4).flatmap(
    lambda k: st.tuples(*[st.lists(st.integers(0, 4), min_size=k, max_size=k)] * 2)
)


@given(pairs)
def test_label_evidence_equals_the_sum_over_all_splits(pair):
    before, since = pair
    prior = [1 / len(before)] * len(before)
    together = [b + s for b, s in zip(before, since, strict=True)]

    def apart(part):
        rest = [n - m for n, m in zip(together, part, strict=True)]
        return (
            orders(part) * exp(one_after_another(part, prior))
            * orders(rest) * exp(one_after_another(rest, prior))
        )  # fmt: skip

    alike = prod(comb(n, m) for n, m in zip(together, since, strict=True))
    alike /= comb(sum(together), sum(since))
    whole = sum(apart(part) for part in splits(together, sum(since)))

    found = label_evidence(np.array(before), np.array(since))

    assert found == pytest.approx(log(apart(since) / whole / alike), abs=1e-9)


@given(pairs)
def test_the_ratio_is_one_in_the_mean_while_nothing_changes(pair):
    before, since = pair
    together = [b + s for b, s in zip(before, since, strict=True)]

    mean = 0.0
    for part in splits(together, sum(since)):
        drawn = prod(comb(n, m) for n, m in zip(together, part, strict=True))
        rest = np.array(together) - part
        mean += drawn * exp(label_evidence(rest, np.array(part)))

    assert mean / comb(sum(together), sum(since)) == pytest.approx(1, abs=1e-9)


@given(rates, rates)
def test_evidence_of_errors_is_that_of_labels_right_and_wrong(before, since):
    found = error_rise_evidence(before, since)

    if since[0] * before[1] <= before[0] * since[1]:
        assert found == -inf
        return
    split = np.array([since[0], since[1] - since[0]])
    assert found == label_evidence(np.array([before[0], before[1] - before[0]]), split)


@given(rates, rates)
def test_doubt_is_that_of_errors_one_after_another(before, since):
    found = excess_error_evidence(before, since)

    if since[0] * before[1] <= before[0] * since[1]:
        assert found == -inf
        return
    split = (since[0], since[1] - since[0])
    known = (0.5 + before[0], 0.5 + before[1] - before[0])
    expected = one_after_another(split, (0.5, 0.5)) - one_after_another(split, known)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("n_classes", [2, 10, 100])
def test_alarms_are_as_rare_among_many_classes(n_classes):
    """With equal shares, at most 1 in 200 steps raises an alarm: 6 in 300 have a chance of 1 %."""
    rng = np.random.default_rng(n_classes)
    middles, told = rng.normal(size=(n_classes, 8)), 0
    for _ in range(15):
        memory = Datastore(8, strategy="drift", n_classes=n_classes)
        for n in (60, *[10] * 20):
            labels = rng.integers(n_classes, size=n)
            memory.add(middles[labels] + rng.normal(size=(n, 8)), labels)
        told += memory.n_evictions + memory.n_reweighings

    assert told <= 5


EASY = np.eye(10)[0] * 0.9 + np.isin(np.arange(10), [3, 5, 8, 9]) * 0.025
HARD = np.isin(np.arange(10), [3, 5, 8, 9]) / 4


@pytest.mark.parametrize(("before", "after"), [(EASY, HARD), (HARD, np.full(10, 0.1))])
def test_harder_classes_are_not_forgotten(before, after):
    """Noisy digits whose labels keep their meaning."""
    x, y = load_digits(return_X_y=True)
    x = x / 16 + np.random.default_rng(5).normal(size=x.shape) * 0.45
    found = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        memory = Datastore(64, strategy="drift", n_classes=10)
        for n, shares in ((150, before), *[(20, after)] * 6):
            drawn = [rng.choice(np.flatnonzero(y == c)) for c in rng.choice(10, n, p=shares)]
            memory.add(x[drawn], y[drawn])
        found.append((memory.n_reweighings > 0, memory.n_evictions))

    assert found == [(True, 0)] * 10


def test_a_memory_of_the_same_rows_is_rarely_thrown_away():
    """60 clients of 20 steps: at most 1 in 200 of 1,200 client-steps is an eviction."""
    false = sum(len(stream(seed, None)[1]) for seed in range(60))

    assert false <= 6


def test_changed_label_meanings_are_noticed_in_two_steps():
    meaning = np.array([1, 2, 3, 4, 5, 0])
    noticed, behind = [], []

    for seed in range(20):
        memory, steps = stream(seed, lambda rng, s: rows(rng, s, 6, meaning), n_steps=20, at=10)
        late = [step - 10 for step in steps if step >= 10]
        assert late, seed
        noticed.append(late[0])
        shares = np.random.default_rng(seed).dirichlet(np.full(6, 0.5))
        keys, labels = rows(np.random.default_rng(99), shares, 300, meaning)
        fresh = Datastore(8, n_classes=6).add(memory.keys[-60:], memory.labels[-60:])
        right = [
            (each.votes(keys, 6, n_neighbors=10).argmax(axis=1) == labels).mean()
            for each in (fresh, memory)
        ]
        behind.append(right[0] - right[1])

    assert np.median(noticed) <= 1
    assert max(behind) < 0.03  # newer rows outweigh rows not known to be outdated


def test_after_an_eviction_no_row_from_before_the_change_stays():
    def change(rng, _):
        return rows(rng, np.eye(6)[0], 6, np.array([5, 4, 3, 2, 1, 0]))

    memory, evicted = stream(3, change, n_steps=12, at=10)

    assert evicted == [10]
    assert memory.n_evictions == 1
    assert set(memory.labels.tolist()) == {5}
    assert len(memory) == 2 * 6


def test_a_late_detected_change_is_cut_at_its_start():
    rng = np.random.default_rng(5)
    keys, labels = rows(rng, np.array([0.5, 0.5, 0, 0, 0, 0]), 100)
    memory = Datastore(8, strategy="drift", n_classes=6).add(keys, labels)

    for step in range(4):  # one row at a time: no single one is evidence enough
        had = memory.n_evictions
        memory.add(*rows(rng, np.eye(6)[0], 1, np.ones(6, int)), ids=[f"new {step}"])
        if memory.n_evictions > had:
            break

    assert memory.n_evictions == 1
    assert step > 0
    assert memory.ids == [f"new {place}" for place in range(step + 1)]


SKEWED = np.array([0.45, 0.45, 0.1, 0, 0, 0])
TURNED = np.array([0.05, 0.05, 0.9, 0, 0, 0])


def changed_shares(seed=0, n_steps=3, **settings):
    """Return a memory whose class shares change while labels keep their meaning."""
    rng = np.random.default_rng(seed)
    memory = Datastore(8, strategy="drift", n_classes=6, **settings)
    memory.add(*rows(rng, SKEWED, 100))
    for _ in range(n_steps):
        memory.add(*rows(rng, TURNED, 6))
    return memory


def test_rows_stay_if_only_shares_changed():
    found = [changed_shares(seed) for seed in range(20)]

    assert sum(memory.n_reweighings > 0 for memory in found) >= 18
    assert sum(memory.n_evictions for memory in found) == 0
    assert {len(memory) for memory in found} == {118}


def test_a_class_that_was_never_seen_is_a_change_of_shares():
    rng = np.random.default_rng(5)
    memory = Datastore(8, strategy="drift", n_classes=6)
    memory.add(*rows(rng, np.array([0.5, 0.5, 0, 0, 0, 0]), 100))

    memory.add(*rows(rng, np.eye(6)[3], 6))

    assert (memory.n_reweighings, memory.n_evictions, len(memory)) == (1, 0, 106)
    assert memory.recent_labels.tolist() == [3] * 6


def test_votes_weigh_current_shares_over_stored_ones():
    memory, plain = changed_shares(), Datastore(8, n_classes=6)
    plain.add(memory.keys, memory.labels)
    asked, _ = rows(np.random.default_rng(9), np.full(6, 1 / 6), 30)

    found = memory.votes(asked, 6, n_neighbors=10)

    held = [(memory.labels == c).sum() + 1 / 6 for c in range(6)]
    now = [(memory.recent_labels == c).sum() + 1 / 6 for c in range(6)]
    for votes, before in zip(found, plain.votes(asked, 6, n_neighbors=10), strict=True):
        weighed = [before[c] * (now[c] / sum(now)) / (held[c] / sum(held)) for c in range(6)]
        np.testing.assert_allclose(votes, np.array(weighed) / sum(weighed), rtol=1e-12)


def test_class_shares_of_a_pool_are_those_since_the_change():
    memory, overall = changed_shares(), np.full(6, 1 / 6)
    assert memory.n_reweighings == 1
    prior_alone = np.array([0.0, 0, 1, 0, 0, 0])
    personal = ClientState(memory, 0.5, overall, prior_alone, MemorySettings(combine="pool"))

    found = personal.predict(RowFeatures(MIDDLES[:2]), np.zeros((2, 6)))

    counts = [memory.recent_labels.tolist().count(c) for c in range(6)]
    expected = [(n + 1 / 6) / (sum(counts) + 1) for n in counts]
    np.testing.assert_allclose(found, [expected, expected], rtol=1e-9)


def test_outdated_rows_are_dropped_later():
    rng, swapped = np.random.default_rng(7), np.array([1, 0, 2, 3, 4, 5])
    memory = Datastore(8, strategy="drift", n_classes=6).add(*rows(rng, SKEWED, 100))
    memory.add(*rows(rng, np.eye(6)[3], 6))
    stayed = len(memory), memory.n_reweighings

    for _ in range(4):
        memory.add(*rows(rng, SKEWED, 6, swapped))

    assert stayed == (106, 1)
    assert memory.n_evictions >= 1
    asked = MIDDLES[:2]
    assert memory.votes(asked, 6, n_neighbors=5).argmax(axis=1).tolist() == [1, 0]


def test_rows_since_a_change_survive_deletion():
    memory = changed_shares(capacity=112)
    recent = memory.recent_labels.tolist()
    assert memory.n_reweighings == 1
    assert 0 < len(recent) < len(memory) == 112

    memory.forget([*memory.ids[:10], memory.ids[-1]])
    left = memory.recent_labels.tolist()
    memory.forget(memory.ids[: len(memory) - len(recent) + 2])

    assert left == recent[:-1]
    assert memory.recent_labels.tolist() == recent[1:-1]


def test_rows_since_a_change_stay_when_the_oldest_leave():
    rng, memory = np.random.default_rng(3), changed_shares(capacity=112)
    recent = memory.recent_labels.tolist()

    keys, labels = rows(rng, TURNED, 30)
    memory.add(keys, labels)

    assert memory.n_reweighings == 1
    assert len(memory) == 112
    assert memory.recent_labels.tolist() == recent + labels.tolist()


def test_a_memory_from_its_parts_weighs_votes_as_it_did():
    memory = changed_shares()
    asked, _ = rows(np.random.default_rng(9), np.full(6, 1 / 6), 30)

    again = Datastore(8, strategy="drift", n_classes=6)
    again.restore(memory.keys, memory.labels, memory.ids, json.loads(json.dumps(memory.state())))

    votes = memory.votes(asked, 6, n_neighbors=10)
    assert again.votes(asked, 6, n_neighbors=10).tobytes() == votes.tobytes()
    assert again.state() == memory.state()
    for strategy, past, words in (
        ("drift", 119, "more keys from before a change than keys"),
        ("fifo", 1, "more keys from before a change than keys"),
        ("drift", 2.7, "expected the state of a memory"),
        ("drift", -1, "expected the state of a memory"),
    ):
        other = Datastore(8, strategy=strategy, n_classes=6)
        with pytest.raises(ValueError, match=words):
            other.restore(memory.keys, memory.labels, memory.ids, memory.state() | {"past": past})


def test_rows_that_are_forgotten_leave_no_count_behind():
    rng = np.random.default_rng(6)
    memory = Datastore(8, strategy="drift", n_classes=6).add(*rows(rng, np.full(6, 1 / 6), 60))
    memory.add(*rows(rng, np.full(6, 1 / 6), 2), ids=["a", "b"])

    memory.forget(["a"])

    assert memory.state()["surprises"] == []


def test_constant_errors_are_not_drift():
    watch, one = DriftDetector(3, window=1), np.zeros((30, 2))
    labels = np.tile([0, 1, 2], 10)

    assert watch.detect(one, labels, 0, np.zeros((4, 2)), np.array([0, 1, 2, 0])) is None


def test_the_classes_are_needed():
    with pytest.raises(ValueError, match="expected n_classes"):
        Datastore(2, strategy="drift")
