"""Attacks that succeed on raw counts and fail on protected ones.

Every check on a protected release is one that raw counts, or less noise, fail. Chance: seeds are
fixed; for a fresh seed each limit on a rate or an AUC raises a false alarm in less than one of
1,000 runs (confidence .999), if the release keeps its promise.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits

from fedneighbors.methods.flynn.algorithm import HashPlan, hash_table
from fedneighbors.methods.flynn.attacks import alikeness, rebuild, record_evidence
from fedneighbors.methods.flynn.features import FeatureMap, column_moments, standardizer
from fedneighbors.privacy.attacks.evidence import (
    exact_evidence,
    gaussian_evidence,
    laplace_evidence,
)
from fedneighbors.privacy.attacks.limits import (
    gaussian_auc,
    laplace_auc,
    largest_auc,
    largest_hit_rate,
)
from fedneighbors.privacy.attacks.scores import auc, auc_margin, hit_rate_limit
from fedneighbors.privacy.guarantees import ApproxDP, Guarantee, PureDP

N_ACTIVE = 32
N_CANDIDATES = 100
N_TRIALS = 4_000
LOADERS = {"digits": load_digits, "breast cancer": load_breast_cancer}


@pytest.fixture(params=LOADERS)
def table(request):
    return LOADERS[request.param](return_X_y=True)


def plan_for(x, *, expansion="mirror", n_units=1_000, n_inputs=8, n_active=N_ACTIVE):
    mean, scale = standardizer(column_moments(x))
    features = FeatureMap(x.shape[1], expansion, mean, scale)
    return HashPlan(features, n_units, min(n_inputs, features.n_outputs), n_active, seed=0)


def indicators(active, n_units):
    """Counts of classes of one row each, shape (n_rows, n_units)."""
    counts = np.zeros((len(active), n_units), np.int64)
    np.put_along_axis(counts, active.astype(np.int64), 1, axis=1)
    return counts


def candidates(x, plan):
    rows = np.random.default_rng(1).choice(len(x), N_CANDIDATES, replace=False)
    return x[rows], hash_table(x[rows], plan)


@dataclass(frozen=True)
class Protection:
    """A release as the attacker knows it: the law of its noise and what that law promises."""

    mechanism: str
    neighbors: str
    guarantee: Guarantee
    spread: float
    """Scale of Laplace noise, standard deviation of Gaussian noise."""

    def evidence(self, excess):
        if self.mechanism == "local":
            return laplace_evidence(excess, self.spread)
        return gaussian_evidence(excess, self.spread**2)

    @property
    def attainable_auc(self):
        """What the best test on whether a row was counted attains against this noise."""
        if self.mechanism == "local":
            return laplace_auc(self.spread, N_ACTIVE)
        return gaussian_auc(N_ACTIVE**0.5 / self.spread)

    def with_noise_times(self, factor):
        """The same promise, kept badly."""
        return replace(self, spread=self.spread * factor)


def protection(mechanism, neighbors="add_remove"):
    """Privacy(epsilon=1, delta=1e-6) for counts of which a row raises 32."""
    rows = 1 if neighbors == "add_remove" else 2
    if mechanism == "local":
        return Protection(mechanism, neighbors, PureDP(1), rows * N_ACTIVE)
    rho = 0.0179
    deviation = (rows * N_ACTIVE / (2 * rho)) ** 0.5
    return Protection(mechanism, neighbors, ApproxDP(1, "1e-6"), deviation)


def released_counts(protection, counts, rng):
    """What the coordinator and all other parties hold of counts in the end, own parts taken off."""
    if protection.mechanism == "local":
        p = 1 - np.exp(-1 / protection.spread)
        return counts + rng.geometric(p, counts.shape) - rng.geometric(p, counts.shape)
    return counts + np.rint(rng.normal(0, protection.spread, counts.shape)).astype(int)


def keeps_linkage_down(hits, n_trials):
    return hit_rate_limit(hits, n_trials) <= 3 / N_CANDIDATES


def keeps_membership_down(members, outsiders, allowed):
    return auc(members, outsiders) <= allowed + auc_margin(len(members), len(outsiders))


def name_the_record(protection, x, *, n_trials=N_TRIALS):
    """Release secret records, one a trial; return how often each attack names the right one.

    The strongest attacker knows all other rows of the class, so that what is left of the counts
    is the secret record's hash and the noise.
    """
    plan, rng = plan_for(x), np.random.default_rng(2)
    rows, active = candidates(x, plan)
    secret = rng.integers(0, N_CANDIDATES, n_trials)

    excess = released_counts(protection, indicators(active, plan.n_units)[secret], rng)

    linked = record_evidence(protection.evidence(excess), active).argmax(axis=1)
    rebuilt = alikeness(rebuild(excess, plan), rows, plan).argmax(axis=1)
    return (linked == secret).sum(), (rebuilt == secret).sum()


def tell_members(protection, *, n_trials=20_000):
    """Return the evidence for a row that was counted in half of the releases.

    Only the cells that the row raises are drawn; the attacker knows all other rows, and the other
    cells have the same law with the row as without it.
    """
    rng = np.random.default_rng(3)
    with_row = released_counts(protection, np.ones((n_trials, N_ACTIVE), np.int64), rng)
    without = released_counts(protection, np.zeros((n_trials, N_ACTIVE), np.int64), rng)
    return protection.evidence(with_row).sum(axis=1), protection.evidence(without).sum(axis=1)


@pytest.mark.parametrize("expansion", ["none", "mirror", "population"])
def test_raw_counts_of_a_class_of_one_record_give_the_record_away(table, expansion):
    x, _ = table
    plan = plan_for(x, expansion=expansion)
    rows, active = candidates(x, plan)

    likeness = alikeness(rebuild(indicators(active, plan.n_units), plan), rows, plan)

    hits = likeness.argmax(axis=1) == np.arange(N_CANDIDATES)
    assert hits.mean() >= 0.6
    assert np.diag(likeness).mean() >= 0.6
    assert not keeps_linkage_down(hits.sum(), N_CANDIDATES)


def test_raw_counts_name_the_record_on_a_list(table):
    x, _ = table
    plan = plan_for(x)
    _, active = candidates(x, plan)
    hashes = indicators(active, plan.n_units)

    evidence = record_evidence(exact_evidence(hashes), active)

    possible = evidence == 0
    assert (possible == np.eye(N_CANDIDATES, dtype=bool)).all()  # all others are excluded surely


@pytest.mark.parametrize("mechanism", ["local", "central"])
@pytest.mark.parametrize("neighbors", ["add_remove", "replace_one"])
def test_protected_counts_do_not_name_the_record_on_a_list(table, mechanism, neighbors):
    x, _ = table
    kept = protection(mechanism, neighbors)

    linked, rebuilt = name_the_record(kept, x)

    assert keeps_linkage_down(linked, N_TRIALS)
    assert keeps_linkage_down(rebuilt, N_TRIALS)


@pytest.mark.parametrize("mechanism", ["local", "central"])
def test_a_quarter_of_the_noise_would_name_the_record(table, mechanism):
    x, _ = table
    broken = protection(mechanism).with_noise_times(1 / 4)

    linked, _ = name_the_record(broken, x)

    assert not keeps_linkage_down(linked, N_TRIALS)


def test_an_epsilon_of_one_for_exchanged_rows_never_allows_three_times_guessing():
    assert largest_hit_rate(ApproxDP(1, "1e-6"), N_CANDIDATES) < 3 / N_CANDIDATES


@pytest.mark.parametrize("mechanism", ["local", "central"])
def test_protected_counts_tell_membership_no_better_than_epsilon_and_delta_allow(mechanism):
    kept = protection(mechanism)

    members, outsiders = tell_members(kept)

    assert kept.attainable_auc <= largest_auc(kept.guarantee)
    assert keeps_membership_down(members, outsiders, allowed=largest_auc(kept.guarantee))
    assert keeps_membership_down(members, outsiders, allowed=kept.attainable_auc)


@pytest.mark.parametrize("mechanism", ["local", "central"])
def test_half_the_noise_would_tell_more_than_the_noise_allows(mechanism):
    kept = protection(mechanism)

    members, outsiders = tell_members(kept.with_noise_times(1 / 2))

    assert not keeps_membership_down(members, outsiders, allowed=kept.attainable_auc)


@pytest.mark.parametrize("mechanism", ["local", "central"])
def test_a_sixth_of_the_noise_would_tell_more_than_epsilon_and_delta_allow(mechanism):
    kept = protection(mechanism)

    members, outsiders = tell_members(kept.with_noise_times(1 / 6))

    assert not keeps_membership_down(members, outsiders, allowed=largest_auc(kept.guarantee))
