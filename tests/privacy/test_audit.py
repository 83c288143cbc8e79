import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from fedneighbors.privacy._guarantees import ZCDP, ApproxDP, PureDP, Sensitivity
from fedneighbors.privacy.audit._certificates import certified_epsilon, certified_rho
from fedneighbors.privacy.audit._enumeration import enumerate_outputs, exact_delta, exact_epsilon
from fedneighbors.privacy.audit._releases import audit_release, neighboring_pairs
from fedneighbors.privacy.noise._mechanisms import DiscreteGaussian, DiscreteLaplace
from fedneighbors.privacy.noise._top_picks import TopPicks
from tests.privacy import planted
from tests.privacy.campaign import (
    N_AUDITS,
    PICKS_EPSILON,
    audit_with_seeds,
    distribution_of_picks,
    exact_epsilon_of_picks,
)

RECORD = Path(__file__).parents[2] / "docs/results/privacy/audit.json"


@pytest.mark.parametrize("name", planted.PLANTED)
def test_a_planted_bug_is_found_in_samples(name):
    (verdict,) = audit_with_seeds(planted.PLANTED[name], 1)

    assert verdict.disproved


@pytest.mark.parametrize("name", planted.CORRECT)
def test_a_correct_mechanism_is_not_accused(name):
    verdicts = audit_with_seeds(planted.CORRECT[name], 1, share_of_samples=0.5)

    assert not any(verdict.disproved for verdict in verdicts)
    assert all(verdict.loss > 0 for verdict in verdicts)  # the audits found something


@pytest.mark.slow
@pytest.mark.parametrize("name", planted.CORRECT)
def test_a_correct_mechanism_passes_twenty_audits(name):
    verdicts = audit_with_seeds(planted.CORRECT[name], N_AUDITS)

    assert not any(verdict.disproved for verdict in verdicts)


@pytest.mark.parametrize("bug", planted.PICKS_BUGS)
def test_a_planted_bug_of_the_picks_is_found_by_enumeration(bug):
    epsilon = exact_epsilon_of_picks(
        lambda n_picks: planted.BuggyPicks(PICKS_EPSILON, n_picks, bug)
    )

    assert epsilon > PICKS_EPSILON


def test_picks_have_exactly_their_epsilon():
    epsilon = exact_epsilon_of_picks(lambda n_picks: TopPicks(PICKS_EPSILON, n_picks))

    assert PICKS_EPSILON / 2 < epsilon <= PICKS_EPSILON


@pytest.mark.parametrize("bug", ["", *planted.PICKS_BUGS, *planted.PICKS_DEVIATIONS])
def test_each_bug_of_the_picks_changes_the_distribution(bug):
    counts = (3, 1, 0)
    n_picks = 1 if bug in ("half the noise", "selection without the factor 2") else 2

    printed = distribution_of_picks(TopPicks(PICKS_EPSILON, n_picks), counts)
    actual = distribution_of_picks(planted.BuggyPicks(PICKS_EPSILON, n_picks, bug), counts)

    assert (exact_delta(printed, actual, 0) > 0.001) == (bug != "")


def test_the_recorded_campaign_found_every_bug_and_accused_none():
    record = json.loads(RECORD.read_text())

    accused, found = (
        {each["mechanism"]: (each["audits"], each["accused"]) for each in record[kind]}
        for kind in ("correct", "planted")
    )
    assert accused == dict.fromkeys(planted.CORRECT, (N_AUDITS, 0))
    assert found == dict.fromkeys(planted.PLANTED, (N_AUDITS, N_AUDITS))


def test_the_campaign_has_enough_bugs_and_mechanisms():
    assert len(planted.PLANTED) >= 18
    assert len(planted.CORRECT) >= 10


@pytest.mark.parametrize(
    "name", ["noise repeated for a neighbor", "noise repeated in the next run"]
)
def test_noise_that_repeats_is_found_in_differences_only(name):
    case = planted.PLANTED[name]
    release = case.seeded(1)
    rows = np.tile(np.array(case.pairs[0]), (8_000, 1))  # both inputs take turns

    verdict = audit_release(release, case.claim, case.pairs, n_samples=8_000)
    outputs = release(rows)
    single = certified_epsilon(outputs[::2], release(rows)[1::2])

    assert single.epsilon() <= 1
    assert verdict.certificate.event.startswith("difference of ")


def test_the_exact_epsilon_of_laplace_noise_is_its_claim():
    scale = Fraction(5, 2)

    distributions = [
        enumerate_outputs(lambda d, c=c: c + d.laplace(scale), reach=120) for c in (3, 4)
    ]

    # the probability left beyond the reach is added to either side of each ratio
    assert 0.399 < exact_epsilon(*distributions) <= 0.4


def test_the_exact_delta_of_laplace_noise_is_the_known_one():
    scale, epsilon = Fraction(2), 0.2
    a = math.exp(-0.5)

    distributions = [
        enumerate_outputs(lambda d, c=c: c + d.laplace(scale), reach=80) for c in (0, 1)
    ]

    # outputs of 0 and below have the ratio exp(1 / 2), all others exp(-1 / 2)
    below = 1 / (1 + a)
    assert math.isclose(
        exact_delta(*distributions, epsilon), below - math.exp(epsilon) * below * a, rel_tol=1e-9
    )
    assert exact_delta(*distributions, 0.5) <= 1e-15


def test_a_randomized_response_certificate_is_nearly_tight():
    rng = np.random.default_rng(3)
    truth = math.log(3)

    first, second = (rng.random(100_000) < p for p in (0.75, 0.25))
    certificate = certified_epsilon(first, second)

    assert truth - 0.05 < certificate.epsilon() <= truth


def test_delta_is_subtracted_before_the_ratio():
    rng = np.random.default_rng(3)
    revealed = rng.random(50_000) < 0.02

    certificate = certified_epsilon(revealed, np.zeros(50_000, int), delta=0.03)

    assert certificate.epsilon(0.03) == 0
    assert certified_epsilon(revealed, np.zeros(50_000, int)).epsilon() > 3
    assert not certificate.refutes(ApproxDP(Fraction(0), Fraction(3, 100)))


def test_a_certified_gaussian_rho_is_nearly_tight():
    rho = 1 / 2
    noise = DiscreteGaussian(16).noise(400_000, bits=np.random.default_rng(2).bytes)

    certificate = certified_rho(noise[:200_000] + 4, noise[200_000:])

    assert 0.5 * rho < certificate.rho() <= rho
    assert not certificate.refutes(ZCDP(Fraction(1, 2)))
    assert certificate.refutes(ZCDP(Fraction(1, 4)))


def test_equal_distributions_certify_nothing():
    noise = DiscreteLaplace(4).noise(40_000, bits=np.random.default_rng(5).bytes).reshape(-1, 2)

    assert certified_epsilon(noise[:10_000], noise[10_000:]).epsilon() == 0


def test_bounds_hold_with_their_confidence():
    rng = np.random.default_rng(11)
    n_audits, confidence = 300, 0.9

    wrong = sum(
        certified_epsilon(
            rng.random(400) < 0.6, rng.random(400) < 0.4, confidence=confidence
        ).epsilon()
        > math.log(1.5)
        for _ in range(n_audits)
    )

    assert wrong <= (1 - confidence) * n_audits  # the seed is fixed; Clopper-Pearson is cautious


def test_pairs_attain_the_sensitivity():
    for sensitivity in (planted.ROW, planted.EXCHANGED):
        for first, second in neighboring_pairs(sensitivity, 7):
            difference = np.subtract(first, second)

            assert abs(difference).sum() == sensitivity.l1
            assert (difference**2).sum() == sensitivity.l2_squared
            assert abs(difference).max() == sensitivity.linf
            assert (difference.min() < 0) == (sensitivity.neighbors == "replace_one")
    with pytest.raises(ValueError, match="expected n_cells of 6 or more"):
        neighboring_pairs(planted.EXCHANGED, 5)


def test_outputs_may_be_numbers_booleans_or_unsigned():
    claim, pairs = PureDP(Fraction(1)), [((3,), (2,))]
    releases = [
        lambda rows: rows[:, 0] > 2,
        lambda rows: rows > 2,
        lambda rows: rows.astype(np.uint8),
        lambda rows: rows[:, 0].astype(np.uint64),
    ]

    verdicts = [audit_release(each, claim, pairs, n_samples=200) for each in releases]

    assert all(verdict.disproved for verdict in verdicts)
    assert not audit_release(releases[0], claim, pairs, n_samples=32).disproved  # too few


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_samples": 31}, "n_samples of at least 32, got 31"),
        ({"pairs": []}, "at least one pair"),
        ({"confidence": 1.0}, "confidence between 0 and 1"),
        ({"release": lambda rows: rows / 2}, "rows of integers, got float64"),
        ({"release": lambda rows: rows[:, :, None]}, "rows of integers, got int64 of shape"),
        ({"release": lambda rows: rows[1:]}, "expected 32 outputs, got 31 and 31"),
        ({"release": lambda rows: rows.astype(np.uint64) << 63}, "outputs within int64"),
    ],
)
def test_an_audit_refuses_unsuitable_outputs_and_settings(change, message):
    arguments = {"release": lambda rows: rows, "pairs": [((3,), (2,))], "n_samples": 32} | change

    with pytest.raises(ValueError, match=message):
        audit_release(claim=PureDP(Fraction(1)), **arguments)


def test_samples_that_cannot_be_compared_are_refused():
    row = np.zeros((10, 2), int)
    with pytest.raises(ValueError, match="outputs of one width"):
        certified_epsilon(row, np.zeros((10, 3), int))
    with pytest.raises(ValueError, match="at least eight rows of integers"):
        certified_epsilon(row[:7], row)
    with pytest.raises(ValueError, match="confidence between 0 and 1"):
        certified_epsilon(row, row, confidence=1)


def test_a_verdict_names_the_pair_and_the_event():
    sensitivity = Sensitivity("row", "add_remove", l1=1, l2_squared=1, linf=1)
    bits = np.random.default_rng(0).bytes

    verdict = audit_release(
        lambda rows: DiscreteLaplace(1).release(rows, sensitivity, bits=bits),
        PureDP(Fraction(1, 10)),
        [((5,), (4,))],
        n_samples=4_000,
    )

    assert verdict.disproved
    assert verdict.pair == ((5,), (4,))
    assert verdict.certificate.event.startswith(("cell", "sum", "support", "extreme", "evidence"))
    assert 0.5 < verdict.loss <= 1


@pytest.mark.parametrize("neighbors", ["add_remove", "replace_one"])
@pytest.mark.parametrize(
    ("l1", "l2_squared", "linf"), [(6, 9, 2), (6, 12, 2), (5, 5, 1), (9, 4, 2)]
)
def test_audited_pairs_stay_within_all_norms(l1, l2_squared, linf, neighbors):
    sensitivity = Sensitivity("row", neighbors, l1, l2_squared, linf)

    for first, second in neighboring_pairs(sensitivity, 7):
        difference = np.abs(np.subtract(first, second))
        assert difference.max() == linf
        assert difference.sum() <= l1
        assert (difference**2).sum() <= l2_squared
