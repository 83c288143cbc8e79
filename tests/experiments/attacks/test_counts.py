"""Attacks that succeed on raw counts and fail on protected ones.

Raw counts, or less noise, fail every check that protected releases pass. Seeds are fixed; with a
random seed, each limit on a rate or an AUC would fail in less than one of 1,000 runs (confidence
.999) although the guarantee holds.
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
from fedneighbors.methods.flynn._settings import FlyNNSettings
from fedneighbors.methods.flynn.algorithm import HashPlan, count_activations, hash_with_plan
from fedneighbors.methods.flynn.private._party import PrivateFlyNNParty
from fedneighbors.methods.flynn.private._release import (
    constants_levels,
    constants_sensitivity,
)
from fedneighbors.methods.flynn.private.protocol import NoisyCountReply, coordinate_private
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
    add_noise,
    attack_exact_sum,
    attack_models,
    attack_replies,
    attack_sum,
    compute_evidence,
    draw_candidates,
    identify_records,
    infer_membership,
    make_plan,
    one_row_counts,
)


@pytest.fixture(params=LOADERS)
def table(request):
    return LOADERS[request.param](return_X_y=True)


def is_linkage_limited(hits, n_trials):
    return hit_rate_limit(hits, n_trials) <= 3 / N_CANDIDATES


def is_membership_limited(members, outsiders, allowed):
    return auc(members, outsiders) <= allowed + auc_margin(len(members), len(outsiders))


@pytest.mark.parametrize("expansion", ["none", "mirror", "population"])
def test_raw_counts_of_a_one_record_class_reveal_the_record(table, expansion):
    x, _ = table
    plan = make_plan(x, expansion=expansion)
    rows, active = draw_candidates(x, plan)

    similarities = correlate_rows(
        reconstruct(one_row_counts(active, plan.n_units), plan), rows, plan
    )

    hits = similarities.argmax(axis=1) == np.arange(N_CANDIDATES)
    assert hits.mean() >= 0.6
    assert np.diag(similarities).mean() >= 0.6
    assert not is_linkage_limited(hits.sum(), N_CANDIDATES)


def test_raw_counts_identify_the_record(table):
    x, _ = table
    plan = make_plan(x)
    _, active = draw_candidates(x, plan)
    hashes = one_row_counts(active, plan.n_units)

    evidence = record_evidence(exact_evidence(hashes), active)

    possible = evidence == 0
    assert (possible == np.eye(N_CANDIDATES, dtype=bool)).all()  # all others are excluded


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("neighbors", ["add_remove", "replace_one"])
def test_protected_counts_do_not_identify_the_record(table, mechanism, neighbors):
    x, _ = table

    n_linked, n_reconstructed = identify_records(Protection(mechanism, neighbors), x)

    assert is_linkage_limited(n_linked, N_TRIALS)
    assert is_linkage_limited(n_reconstructed, N_TRIALS)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_quarter_of_the_noise_identifies_the_record(table, mechanism):
    x, _ = table

    n_linked, _ = identify_records(Protection(mechanism, noise_fraction=Fraction(1, 4)), x)

    assert not is_linkage_limited(n_linked, N_TRIALS)


def test_epsilon_one_for_replaced_rows_forbids_tripled_hits():
    assert largest_hit_rate(ApproxDP(1, DELTA), N_CANDIDATES) < 3 / N_CANDIDATES


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_protected_counts_limit_membership_by_the_budget(mechanism):
    protection = Protection(mechanism)

    members, outsiders = infer_membership(protection)

    assert protection.attainable_auc <= largest_auc(ApproxDP(1, DELTA))
    assert is_membership_limited(members, outsiders, allowed=largest_auc(ApproxDP(1, DELTA)))
    assert is_membership_limited(members, outsiders, allowed=protection.attainable_auc)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_half_the_noise_exceeds_the_limit_of_the_noise(mechanism):
    members, outsiders = infer_membership(Protection(mechanism, noise_fraction=Fraction(1, 2)))

    allowed = Protection(mechanism).attainable_auc
    assert not is_membership_limited(members, outsiders, allowed=allowed)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_sixth_of_the_noise_exceeds_the_budget(mechanism):
    members, outsiders = infer_membership(Protection(mechanism, noise_fraction=Fraction(1, 6)))

    allowed = largest_auc(ApproxDP(1, DELTA))
    assert not is_membership_limited(members, outsiders, allowed=allowed)


@pytest.mark.parametrize(
    ("mechanism", "n_columns"), [("local", 0), ("central pure", 0), ("central", 8)]
)
def test_private_constants_and_counts_together_keep_the_limit(mechanism, n_columns):
    protection, n_trials = Protection(mechanism), 10_000
    levels = constants_levels(protection.privacy, n_columns)
    sensitivity_of_constants = constants_sensitivity(n_columns, levels, "add_remove")
    releases = [  # a row at the upper bounds changes every constant by the maximum
        (sensitivity_of_constants, "constants", 2 * n_columns + 1, sensitivity_of_constants.linf),
        (protection.sensitivity, "counts", N_ACTIVE, 1),
    ]
    bits = np.random.default_rng(6).bytes

    scores = np.zeros((2, n_trials))
    for sensitivity, of, n_cells, step in releases:
        noise = protection.noise_on(sensitivity, of=of, constants_paid=True)
        for counted in (0, 1):
            excess = add_noise(noise, np.full((n_trials, n_cells), step * counted), bits)
            scores[counted] += compute_evidence(noise, excess, step).sum(axis=1)

    allowed = largest_auc(ApproxDP(1, DELTA))
    assert auc(scores[1], scores[0]) > 0.5
    assert is_membership_limited(scores[1], scores[0], allowed=allowed)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("n_trials", [150, pytest.param(500, marks=pytest.mark.slow)])
def test_party_replies_limit_membership_by_their_noise(mechanism, n_trials):
    protection = Protection(mechanism)

    members, outsiders = attack_replies(protection, n_trials=n_trials)

    assert is_membership_limited(members, outsiders, allowed=largest_auc(ApproxDP(1, DELTA)))
    assert is_membership_limited(members, outsiders, allowed=protection.attainable_auc)


@pytest.mark.parametrize("mechanism", ["local", "central"])
@pytest.mark.parametrize("n_trials", [50, pytest.param(1_500, marks=pytest.mark.slow)])
def test_released_models_limit_membership_by_the_budget(mechanism, n_trials):
    members, outsiders = attack_models(Protection(mechanism), n_trials=n_trials)

    assert is_membership_limited(members, outsiders, allowed=largest_auc(ApproxDP(1, DELTA)))


class RecordingParty(PrivateFlyNNParty):
    """A party that records its replies with noisy counts."""

    def answer(self, request):
        reply = super().answer(request)
        if not isinstance(reply, NoisyCountReply):
            self.replies = [*getattr(self, "replies", []), encode(reply)]
        return reply


def train_with_recording(protection, x, y, *, rows_of_first):
    """Train over three parties; return counts, the rest of the model, and other replies."""
    privacy = protection.privacy
    settings = FlyNNSettings(n_units=300, n_inputs=8, n_active=N_ACTIVE, standardize=False)
    sums = "masked" if protection.mechanism == "central" else "plain"
    with ExitStack() as stack:
        parties = []
        for name, rows in zip("abc", (rows_of_first, slice(4, 8), slice(8, 12)), strict=True):
            ledger = stack.enter_context(Ledger(":memory:", party=name))
            ledger.set_budget("table", privacy.total)
            parties.append(RecordingParty(name, x[rows], y[rows], privacy=privacy, ledger=ledger))
        model = run(coordinate_private(settings, privacy), parties, sums=sums).result
    # one dtype for all runs: the model's is the narrowest one for its noisy counts
    without_counts = replace(model, counts=np.zeros(model.counts.shape, np.int64))
    return model.counts, without_counts.to_bytes(), [party.replies for party in parties]


@pytest.mark.parametrize("mechanism", ["local", "central"])
def test_only_the_noisy_counts_depend_on_the_row(mechanism):
    x, y = load_digits(return_X_y=True)
    x, y = x[:12], y[:12] % 2

    with_row = train_with_recording(Protection(mechanism), x, y, rows_of_first=slice(4))
    without = train_with_recording(Protection(mechanism), x, y, rows_of_first=slice(1, 4))

    assert (with_row[0] != without[0]).any()
    assert with_row[1:] == without[1:]  # all other bytes of the model, and all other replies


def test_raw_counts_reveal_membership_with_certainty(table):
    x, _ = table
    plan = make_plan(x)
    _, active = draw_candidates(x, plan)
    hashes = one_row_counts(active, plan.n_units)
    others = hashes.sum(axis=0) - hashes  # counts of the class of 100 without each record

    excess = hashes.sum(axis=0) - others
    members = np.diag(record_evidence(exact_evidence(excess), active))
    outsiders = np.diag(record_evidence(exact_evidence(np.zeros_like(excess)), active))

    assert auc(members, outsiders) == 1.0
    assert not is_membership_limited(members, outsiders, allowed=largest_auc(ApproxDP(1, DELTA)))


@pytest.mark.parametrize(("name", "minimum"), [("digits", 0.95), ("breast cancer", 0.85)])
def test_an_exact_sum_reveals_membership(name, minimum):
    x, y = LOADERS[name](return_X_y=True)
    split = Split.of(y)

    measured_auc = attack_exact_sum(x, y, split)

    assert measured_auc >= minimum


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_protected_sum_hides_membership(table, mechanism):
    x, y = table
    split, protection = Split.of(y), Protection(mechanism)
    plan = make_plan(x, n_units=20_000, n_inputs=24)
    active = hash_with_plan(x[split.members], plan)
    n_classes = int(y.max()) + 1
    counts = count_activations(active, y[split.members], n_units=plan.n_units, n_classes=n_classes)
    bits = np.random.default_rng(5).bytes
    noised = add_noise(protection.noise, counts.astype(np.int64), bits)
    variance = 2 * N_ACTIVE**2 if mechanism != "central" else float(protection.noise.variance)

    measured_auc = attack_sum(
        x,
        y,
        plan,
        split,
        lambda sizes, frequencies: gaussian_evidence(
            noised - sizes * frequencies, sizes * frequencies * (1 - frequencies) + variance
        ),
    )

    assert measured_auc <= largest_auc(ApproxDP(1, DELTA))


@pytest.mark.parametrize("expansion", ["thermometer", "fourier"])
def test_an_expansion_that_mixes_features_is_refused(expansion):
    plan = HashPlan(FeatureMap(4, expansion), n_units=8, n_inputs=2, n_active=2, seed=0)

    with pytest.raises(ValueError, match="'mirror' or 'population', got '" + expansion):
        reconstruct(np.ones(8), plan)
