"""Attacks that succeed on raw counts and fail on protected ones.

Every check on a protected release is one that raw counts, or less noise, fail. Chance: seeds are
fixed; for a fresh seed each limit on a rate or an AUC raises a false alarm in less than one of
1,000 runs (confidence .999), if the release keeps its promise.
"""

from contextlib import ExitStack
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from sklearn.datasets import load_digits

from experiments.attacks.counts import correlate_rows, reconstruct, record_evidence
from experiments.attacks.evidence import (
    exact_evidence,
    gaussian_evidence,
)
from experiments.attacks.limits import (
    largest_auc,
    largest_hit_rate,
)
from experiments.attacks.scores import auc, auc_margin, hit_rate_limit
from fedneighbors.federation._inprocess import run
from fedneighbors.federation._messages import encode
from fedneighbors.methods.flynn._features import FeatureMap
from fedneighbors.methods.flynn.algorithm import HashPlan, count_activations, hash_with_plan
from fedneighbors.methods.flynn.private._party import PrivateFlyNNParty
from fedneighbors.methods.flynn.private._release import (
    constants_levels,
    constants_sensitivity,
)
from fedneighbors.methods.flynn.private.protocol import NoisyCountReply, coordinate_private
from fedneighbors.methods.flynn.protocol import FlyNNSettings
from fedneighbors.privacy._guarantees import ApproxDP
from fedneighbors.privacy.ledger._ledger import Ledger
from tests.experiments.attacks.attack_trials import (
    DELTA,
    LOADERS,
    MECHANISMS,
    N_ACTIVE,
    N_CANDIDATES,
    N_TRIALS,
    Protection,
    Split,
    ask_for_counts,
    candidates,
    evidence_under,
    exact_sum,
    indicators,
    membership_from_a_sum,
    name_the_record,
    plan_for,
    released,
    released_models,
    tell_members,
)


@pytest.fixture(params=LOADERS)
def table(request):
    return LOADERS[request.param](return_X_y=True)


def keeps_linkage_down(hits, n_trials):
    return hit_rate_limit(hits, n_trials) <= 3 / N_CANDIDATES


def keeps_membership_down(members, outsiders, allowed):
    return auc(members, outsiders) <= allowed + auc_margin(len(members), len(outsiders))


@pytest.mark.parametrize("expansion", ["none", "mirror", "population"])
def test_raw_counts_of_a_one_record_class_reveal_the_record(table, expansion):
    x, _ = table
    plan = plan_for(x, expansion=expansion)
    rows, active = candidates(x, plan)

    likeness = correlate_rows(reconstruct(indicators(active, plan.n_units), plan), rows, plan)

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
def test_protected_counts_do_not_name_the_record(table, mechanism, neighbors):
    x, _ = table

    linked, reconstructed = name_the_record(Protection(mechanism, neighbors), x)

    assert keeps_linkage_down(linked, N_TRIALS)
    assert keeps_linkage_down(reconstructed, N_TRIALS)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_quarter_of_the_noise_would_name_the_record(table, mechanism):
    x, _ = table

    linked, _ = name_the_record(Protection(mechanism, noise_share=Fraction(1, 4)), x)

    assert not keeps_linkage_down(linked, N_TRIALS)


def test_epsilon_one_for_replaced_rows_forbids_tripled_hits():
    assert largest_hit_rate(ApproxDP(1, DELTA), N_CANDIDATES) < 3 / N_CANDIDATES


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_protected_counts_limit_membership_by_the_budget(mechanism):
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
def test_a_sixth_of_the_noise_would_exceed_the_budget(mechanism):
    members, outsiders = tell_members(Protection(mechanism, noise_share=Fraction(1, 6)))

    allowed = largest_auc(ApproxDP(1, DELTA))
    assert not keeps_membership_down(members, outsiders, allowed=allowed)


@pytest.mark.parametrize(
    ("mechanism", "n_columns"), [("local", 0), ("central pure", 0), ("central", 8)]
)
def test_private_constants_and_counts_together_keep_the_limit(mechanism, n_columns):
    protection, n_trials = Protection(mechanism), 10_000
    levels = constants_levels(protection.privacy, n_columns)
    one_row = constants_sensitivity(n_columns, levels, "add_remove")
    releases = [  # a row at the upper bounds moves each of the constants as far as a row can
        (one_row, "constants", 2 * n_columns + 1, one_row.linf),
        (protection.sensitivity, "counts", N_ACTIVE, 1),
    ]
    bits = np.random.default_rng(6).bytes

    scores = np.zeros((2, n_trials))
    for sensitivity, of, n_cells, step in releases:
        noise = protection.noise_on(sensitivity, of=of, constants_paid=True)
        for counted in (0, 1):
            excess = released(noise, np.full((n_trials, n_cells), step * counted), bits)
            scores[counted] += evidence_under(noise, excess, step).sum(axis=1)

    allowed = largest_auc(ApproxDP(1, DELTA))
    assert auc(scores[1], scores[0]) > 0.5
    assert keeps_membership_down(scores[1], scores[0], allowed=allowed)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_party_replies_limit_membership_by_their_noise(mechanism):
    protection = Protection(mechanism)

    members, outsiders = ask_for_counts(protection, n_trials=500)

    assert keeps_membership_down(members, outsiders, allowed=largest_auc(ApproxDP(1, DELTA)))
    assert keeps_membership_down(members, outsiders, allowed=protection.attainable_auc)


@pytest.mark.parametrize("mechanism", ["local", "central"])
@pytest.mark.parametrize("n_trials", [100, pytest.param(1_500, marks=pytest.mark.slow)])
def test_released_models_limit_membership_by_the_budget(mechanism, n_trials):
    members, outsiders = released_models(Protection(mechanism), n_trials=n_trials)

    assert keeps_membership_down(members, outsiders, allowed=largest_auc(ApproxDP(1, DELTA)))


class Witness(PrivateFlyNNParty):
    """A party that records its replies with noisy counts."""

    def answer(self, request):
        reply = super().answer(request)
        if not isinstance(reply, NoisyCountReply):
            self.outputs = [*getattr(self, "outputs", []), encode(reply)]
        return reply


def train_before_witnesses(protection, x, y, *, rows_of_first):
    """Train over three parties; return counts, the rest of the model, and all other replies."""
    privacy = protection.privacy
    settings = FlyNNSettings(n_units=300, n_inputs=8, n_active=N_ACTIVE, standardize=False)
    sums = "masked" if protection.mechanism == "central" else "plain"
    with ExitStack() as stack:
        parties = []
        for name, rows in zip("abc", (rows_of_first, slice(4, 8), slice(8, 12)), strict=True):
            ledger = stack.enter_context(Ledger(":memory:", party=name))
            ledger.set_budget("table", privacy.total)
            parties.append(Witness(name, x[rows], y[rows], privacy=privacy, ledger=ledger))
        model = run(coordinate_private(settings, privacy), parties, sums=sums).result
    blank = replace(model, counts=np.zeros_like(model.counts))
    return model.counts, blank.to_bytes(), [party.outputs for party in parties]


@pytest.mark.parametrize("mechanism", ["local", "central"])
def test_only_the_noisy_counts_depend_on_the_row(mechanism):
    x, y = load_digits(return_X_y=True)
    x, y = x[:12], y[:12] % 2

    with_row = train_before_witnesses(Protection(mechanism), x, y, rows_of_first=slice(4))
    without = train_before_witnesses(Protection(mechanism), x, y, rows_of_first=slice(1, 4))

    assert (with_row[0] != without[0]).any()
    assert with_row[1:] == without[1:]  # the model in all other bytes, and every other reply


def test_raw_counts_tell_membership_surely(table):
    x, _ = table
    plan = plan_for(x)
    _, active = candidates(x, plan)
    hashes = indicators(active, plan.n_units)
    others = hashes.sum(axis=0) - hashes  # the class of 100 without each record

    excess = hashes.sum(axis=0) - others
    members = np.diag(record_evidence(exact_evidence(excess), active))
    outsiders = np.diag(record_evidence(exact_evidence(np.zeros_like(excess)), active))

    assert auc(members, outsiders) == 1.0
    assert not keeps_membership_down(members, outsiders, allowed=largest_auc(ApproxDP(1, DELTA)))


@pytest.mark.parametrize(("name", "reached"), [("digits", 0.95), ("breast cancer", 0.85)])
def test_an_exact_sum_reveals_membership(name, reached):
    x, y = LOADERS[name](return_X_y=True)
    split = Split.of(y)

    found = exact_sum(x, y, split)

    assert found >= reached


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_protected_sum_hides_membership(table, mechanism):
    x, y = table
    split, protection = Split.of(y), Protection(mechanism)
    plan = plan_for(x, n_units=20_000, n_inputs=24)
    active = hash_with_plan(x[split.members], plan)
    n_classes = int(y.max()) + 1
    counts = count_activations(active, y[split.members], n_units=plan.n_units, n_classes=n_classes)
    bits = np.random.default_rng(5).bytes
    noised = released(protection.noise, counts.astype(np.int64), bits)
    variance = 2 * N_ACTIVE**2 if mechanism != "central" else float(protection.noise.variance)

    found = membership_from_a_sum(
        x,
        y,
        plan,
        split,
        lambda sizes, frequencies: gaussian_evidence(
            noised - sizes * frequencies, sizes * frequencies * (1 - frequencies) + variance
        ),
    )

    assert found <= largest_auc(ApproxDP(1, DELTA))


@pytest.mark.parametrize("expansion", ["thermometer", "fourier"])
def test_an_expansion_that_mixes_features_is_not_rebuilt(expansion):
    plan = HashPlan(FeatureMap(4, expansion), n_units=8, n_inputs=2, n_active=2, seed=0)

    with pytest.raises(ValueError, match="'mirror' or 'population', got '" + expansion):
        reconstruct(np.ones(8), plan)
