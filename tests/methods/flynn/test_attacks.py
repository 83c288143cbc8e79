"""Attacks that succeed on raw counts and fail on protected ones.

Every check on a protected release is one that raw counts, or less noise, fail. Chance: seeds are
fixed; for a fresh seed each limit on a rate or an AUC raises a false alarm in less than one of
1,000 runs (confidence .999), if the release keeps its promise.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits

from fedneighbors import FlyNNClassifier
from fedneighbors.methods.flynn.algorithm import HashPlan, count_rows, hash_table
from fedneighbors.methods.flynn.attacks import alikeness, rebuild, record_evidence, sum_evidence
from fedneighbors.methods.flynn.features import FeatureMap, column_moments, standardizer
from fedneighbors.privacy.accounting import largest_zcdp, zcdp_to_approx
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
from fedneighbors.privacy.guarantees import ApproxDP, PureDP, Sensitivity
from fedneighbors.privacy.mechanisms import DiscreteLaplace
from fedneighbors.privacy.shares import GaussianShares, LaplaceShares

N_ACTIVE = 32
DELTA = "1e-6"
MECHANISMS = ["local", "central", "central pure"]
N_CANDIDATES = 100
N_TRIALS = 10_000
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
    """Noise on counts of which a row raises 32, for privacy of epsilon = 1, delta = 1e-6.

    ``local``: Laplace noise on each party's counts. ``central`` and ``central pure``: Gaussian and
    Laplace noise on the sum, of which the attacker holds all but the shares of three parties.
    """

    mechanism: str
    neighbors: str = "add_remove"
    noise_share: Fraction = Fraction(1)
    """Less than 1 keeps the promise badly: so much of the standard deviation is left."""

    @property
    def sensitivity(self):
        n = N_ACTIVE if self.neighbors == "add_remove" else 2 * N_ACTIVE
        return Sensitivity("row", self.neighbors, l1=n, l2_squared=n, linf=1)

    @cached_property
    def noise(self):
        variance = self.sensitivity.l2_squared / (2 * largest_zcdp(1, DELTA))
        match self.mechanism:
            case "local":
                return DiscreteLaplace(self.sensitivity.l1 * self.noise_share)
            case "central pure":
                return LaplaceShares(self.sensitivity.l1 * self.noise_share, n_shares=3)
        return GaussianShares(variance * self.noise_share**2, n_shares=3)

    def evidence(self, excess):
        if self.mechanism == "central":
            return gaussian_evidence(excess, float(self.noise.variance))
        return laplace_evidence(excess, float(self.noise.scale))

    @property
    def attainable_auc(self):
        """What the best test on whether a row was counted attains against this noise."""
        if self.mechanism == "central":
            return gaussian_auc((N_ACTIVE / float(self.noise.variance)) ** 0.5)
        return laplace_auc(float(self.noise.scale), N_ACTIVE)


def released_counts(protection, counts, bits):
    """What the coordinator and all other parties hold of counts in the end, own parts taken off."""
    if protection.mechanism == "local":
        return protection.noise.release(counts, protection.sensitivity, bits=bits)
    shares = [protection.noise.share(counts.size, bits=bits) for _ in range(3)]
    return counts + sum(shares).reshape(counts.shape)


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

    excess = released_counts(protection, indicators(active, plan.n_units)[secret], rng.bytes)

    linked = record_evidence(protection.evidence(excess), active).argmax(axis=1)
    rebuilt = alikeness(rebuild(excess, plan), rows, plan).argmax(axis=1)
    return (linked == secret).sum(), (rebuilt == secret).sum()


def tell_members(protection, *, n_trials=20_000):
    """Return the evidence for a row that was counted in half of the releases.

    Only the cells that the row raises are drawn; the attacker knows all other rows, and the other
    cells have the same law with the row as without it.
    """
    bits = np.random.default_rng(3).bytes
    with_row = released_counts(protection, np.ones((n_trials, N_ACTIVE), np.int64), bits)
    without = released_counts(protection, np.zeros((n_trials, N_ACTIVE), np.int64), bits)
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


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("neighbors", ["add_remove", "replace_one"])
def test_noise_costs_what_the_attacks_are_held_to(mechanism, neighbors):
    protection = Protection(mechanism, neighbors)
    noise, one_row = protection.noise, protection.sensitivity

    if mechanism == "central":
        cost = noise.guarantee(one_row, n_cells=1_000)
        assert zcdp_to_approx(cost.rho, DELTA) <= Fraction(1001, 1000)  # shares cost a little
    else:
        assert noise.guarantee(one_row) == PureDP(1)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("neighbors", ["add_remove", "replace_one"])
def test_protected_counts_do_not_name_the_record(table, mechanism, neighbors):
    x, _ = table

    linked, rebuilt = name_the_record(Protection(mechanism, neighbors), x)

    assert keeps_linkage_down(linked, N_TRIALS)
    assert keeps_linkage_down(rebuilt, N_TRIALS)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_quarter_of_the_noise_would_name_the_record(table, mechanism):
    x, _ = table

    linked, _ = name_the_record(Protection(mechanism, noise_share=Fraction(1, 4)), x)

    assert not keeps_linkage_down(linked, N_TRIALS)


def test_an_epsilon_of_one_for_exchanged_rows_never_allows_three_times_guessing():
    assert largest_hit_rate(ApproxDP(1, DELTA), N_CANDIDATES) < 3 / N_CANDIDATES


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_protected_counts_tell_membership_no_better_than_epsilon_and_delta_allow(mechanism):
    protection = Protection(mechanism)

    members, outsiders = tell_members(protection)

    assert protection.attainable_auc <= largest_auc(ApproxDP(1, DELTA))
    assert keeps_membership_down(members, outsiders, allowed=largest_auc(ApproxDP(1, DELTA)))
    assert keeps_membership_down(members, outsiders, allowed=protection.attainable_auc)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_half_the_noise_would_tell_more_than_the_noise_allows(mechanism):
    members, outsiders = tell_members(Protection(mechanism, noise_share=Fraction(1, 2)))

    allowed = Protection(mechanism).attainable_auc
    assert not keeps_membership_down(members, outsiders, allowed=allowed)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_sixth_of_the_noise_would_tell_more_than_epsilon_and_delta_allow(mechanism):
    members, outsiders = tell_members(Protection(mechanism, noise_share=Fraction(1, 6)))

    allowed = largest_auc(ApproxDP(1, DELTA))
    assert not keeps_membership_down(members, outsiders, allowed=allowed)


def test_raw_counts_tell_membership_surely(table):
    x, _ = table
    plan = plan_for(x)
    _, active = candidates(x, plan)
    hashes = indicators(active, plan.n_units)
    others = hashes.sum(axis=0) - hashes  # each record, taken out of a class of 100

    excess = hashes.sum(axis=0) - others
    members = np.diag(record_evidence(exact_evidence(excess), active))
    outsiders = np.diag(record_evidence(exact_evidence(np.zeros_like(excess)), active))

    assert auc(members, outsiders) == 1.0
    assert not keeps_membership_down(members, outsiders, allowed=largest_auc(ApproxDP(1, DELTA)))


@dataclass(frozen=True)
class Split:
    """Rows of the attacker's own, rows that were counted, and rows that were not."""

    own: np.ndarray
    members: np.ndarray
    outsiders: np.ndarray

    @classmethod
    def of(cls, y):
        order = np.random.default_rng(4).permutation(len(y))
        return cls(*np.array_split(order, [len(y) // 4, 3 * len(y) // 4]))


def membership_from_a_sum(x, y, plan, split, released):
    """AUC of an attacker who knows no other row, only how often units are active in the mean."""
    active = hash_table(x, plan)
    own = count_rows(active[split.own], y[split.own], n_units=plan.n_units, n_classes=y.max() + 1)
    usual = (own + 0.5) / (np.bincount(y[split.own]) + 1)
    sizes = np.bincount(y[split.members])
    per_unit = released(sizes, usual)
    scores = [
        np.concatenate(
            [record_evidence(per_unit[:, c], active[rows[y[rows] == c]]) for c in np.unique(y)]
        )
        for rows in (split.members, split.outsiders)
    ]
    return auc(*scores)


@pytest.mark.parametrize(("name", "reached"), [("digits", 0.95), ("breast cancer", 0.85)])
def test_an_exact_sum_over_all_parties_still_tells_membership(name, reached):
    x, y = LOADERS[name](return_X_y=True)
    split = Split.of(y)
    parties = np.arange(len(split.members)) % 8
    model = FlyNNClassifier().fit(x[split.members], y[split.members], parties=parties).model_

    found = membership_from_a_sum(
        x, y, model.plan, split, lambda sizes, usual: sum_evidence(model.counts, sizes, usual)
    )

    assert found >= reached


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_protected_sum_tells_membership_no_longer(table, mechanism):
    x, y = table
    split, protection = Split.of(y), Protection(mechanism)
    plan = plan_for(x, n_units=20_000, n_inputs=24)
    active = hash_table(x[split.members], plan)
    n_classes = int(y.max()) + 1
    counts = count_rows(active, y[split.members], n_units=plan.n_units, n_classes=n_classes)
    bits = np.random.default_rng(5).bytes
    released = released_counts(protection, counts.astype(np.int64), bits)
    variance = 2 * N_ACTIVE**2 if mechanism != "central" else float(protection.noise.variance)

    found = membership_from_a_sum(
        x,
        y,
        plan,
        split,
        lambda sizes, usual: gaussian_evidence(
            released - sizes * usual, sizes * usual * (1 - usual) + variance
        ),
    )

    assert found <= largest_auc(ApproxDP(1, DELTA))


@pytest.mark.parametrize("expansion", ["thermometer", "fourier"])
def test_an_expansion_that_mixes_features_is_not_rebuilt(expansion):
    plan = HashPlan(FeatureMap(4, expansion), n_units=8, n_inputs=2, n_active=2, seed=0)

    with pytest.raises(ValueError, match="'mirror' or 'population', got '" + expansion):
        rebuild(np.ones(8), plan)
