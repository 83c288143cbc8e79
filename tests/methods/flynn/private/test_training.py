"""Private training: the models of all parties, their noise, the cost and refusals."""

from dataclasses import replace

import numpy as np
import pytest

from fedneighbors.errors import DataError, PartyMissing, PartyRefused, PrivacyError, ProtocolError
from fedneighbors.federation._loop import FrameTransport, run_rounds
from fedneighbors.federation._masked_sums import MaskedSums
from fedneighbors.federation._masking import (
    MaskInput,
    OpenSum,
    Unmask,
)
from fedneighbors.methods.flynn._features import FeatureMap
from fedneighbors.methods.flynn._settings import FlyNNSettings
from fedneighbors.methods.flynn.algorithm import HashPlan, count_activations, hash_with_plan
from fedneighbors.methods.flynn.private.protocol import (
    ConstantsReply,
    NoisyCountReply,
    NoisyCountRequest,
    PicksReply,
    PicksRequest,
    coordinate_private,
)
from fedneighbors.privacy._accounting import fits
from fedneighbors.privacy._guarantees import PureDP
from fedneighbors.privacy._policy import Privacy, terms
from fedneighbors.privacy.audit._certificates import certified_epsilon
from tests.federation.masked_parties import enroll, lose_parties
from tests.methods.flynn.private.tables import (
    CENTRAL,
    LOCAL,
    PAPER,
    SETTINGS,
    ledger_of,
    parties,
    party,
    table,
    train,
)

EACH_MECHANISM = pytest.mark.parametrize(
    "privacy", [LOCAL, CENTRAL, PAPER], ids=lambda p: p.mechanism
)


def pooled_counts(plan, n):
    rows = [table(seed=k) for k in range(n)]
    return sum(
        count_activations(hash_with_plan(x, plan), y, n_units=plan.n_units, n_classes=2)
        for x, y in rows
    )


@EACH_MECHANISM
def test_every_party_ends_with_the_model_of_the_coordinator(privacy):
    members = parties(4, privacy)

    model = train(members, privacy).result

    assert {member.model.to_bytes() for member in members} == {model.to_bytes()}
    assert model.guarantee.endswith(f"add_remove of one row; {privacy.mechanism}")


@EACH_MECHANISM
def test_every_party_pays_its_budget_and_not_more(privacy):
    members = parties(4, privacy)

    train(members, privacy)

    with pytest.raises(PartyRefused, match="privacy budget"):
        train(members, privacy, run_name="again")
    for member in members:
        spent = member._gate.ledger.spent("table")
        assert 0.999 < float(spent.epsilon) <= 1
        assert fits([spent], privacy.total)


@pytest.mark.parametrize("privacy", [LOCAL, CENTRAL], ids=lambda p: p.mechanism)
def test_noise_of_the_sum_has_the_variance_that_the_model_states(privacy):
    settings = replace(SETTINGS, n_units=4000)
    model = train(parties(4, privacy), privacy, settings).result

    noise = (model.counts - pooled_counts(model.plan, 4)).ravel()

    # 8,000 seeded cells of kurtosis up to 6 (a Laplace alone): the variance of the mean square
    # is below 5 / 8000 of its square; 7 deviations, false alarms below 1e-9.
    assert np.mean(noise.astype(float) ** 2) == pytest.approx(
        model.noise_variance, rel=7 * np.sqrt(5 / 8000)
    )
    assert abs(noise.mean()) < 7 * np.sqrt(model.noise_variance / noise.size)


def test_local_noise_is_five_times_the_central_noise():
    variances = {
        privacy.mechanism: train(parties(8, privacy), privacy).result.noise_variance
        for privacy in (LOCAL, replace(LOCAL, mechanism="central"))
    }

    # At least 6 of 8 parties survive and a colluder knows one share, so 5 shares must suffice.
    assert variances["local"] == pytest.approx(5 * variances["central"], rel=1e-9)


def test_replace_one_doubles_sensitivity_quadruples_variance():
    one, two = (
        train(parties(1, policy), policy).result.noise_variance
        for policy in (LOCAL, replace(LOCAL, neighbors="replace_one"))
    )

    assert two == pytest.approx(4 * one, rel=0.02)


@pytest.mark.parametrize(("step", "n_summed"), [(OpenSum, 6), (MaskInput, 6), (Unmask, 8)])
def test_dropouts_of_a_masked_sum_leave_enough_noise(step, n_summed):
    policy = CENTRAL
    settings = replace(SETTINGS, standardize=False, n_units=4000)
    members = parties(8, policy)
    masked, roster = enroll(members)
    by_name = {member.name: member for member in masked}
    coordinator = coordinate_private(settings, policy, run="a")

    with pytest.raises(PartyMissing) as caught:  # the model cannot reach the lost parties
        run_rounds(
            coordinator,
            FrameTransport(lose_parties(by_name, step, ("p6", "p7")), tuple(by_name)),
            sums=MaskedSums(roster),
        )

    model = members[0].model
    assert set(caught.value.missing) == {"p6", "p7"}
    noise = (model.counts - pooled_counts(model.plan, n_summed)).ravel()
    one_table = 5 / (2 * 0.02435597)  # rho / (2 rho'), rho' of (1, 1e-6)
    assert model.noise_variance == pytest.approx(one_table * n_summed / 5, rel=0.01)
    assert np.mean(noise.astype(float) ** 2) > one_table * (1 - 7 * np.sqrt(2 / noise.size))


def test_classes_and_bounds_must_be_declared():
    members = parties(2, LOCAL)

    with pytest.raises(ValueError, match=r"Privacy\(classes="):
        train(members, replace(LOCAL, classes=None))
    with pytest.raises(ValueError, match=r"Privacy\(bounds="):
        train(members, replace(LOCAL, bounds=None), FlyNNSettings())


@pytest.mark.parametrize("privacy", [LOCAL, CENTRAL, PAPER], ids=lambda p: p.mechanism)
def test_scaling_constants_are_released_and_charged(privacy):
    policy = replace(privacy, classes=(0, 1), bounds=(-4.0, 4.0), epsilon=1000)
    members = parties(4, policy)

    model = train(members, policy, FlyNNSettings()).result

    x = np.concatenate([table(seed=k)[0] for k in range(4)])
    np.testing.assert_allclose(model.plan.features.mean, x.mean(axis=0), atol=0.25)
    np.testing.assert_allclose(model.plan.features.scale, x.std(), rtol=0.25)
    for member in members:
        notes = [entry.note for entry in member._gate.ledger.entries() if entry.kind == "released"]
        assert len(notes) == 2, notes


def test_without_scaling_only_counts_are_charged():
    policy = LOCAL
    members = parties(2, policy)

    outcome = train(members, policy, replace(SETTINGS, standardize=False))

    requests = [record.request for record in outcome.rounds]
    assert requests == ["PublicSchemaRequest", "NoisyCountRequest", "PrivateModelRelease"]
    assert members[0]._gate.ledger.spent("table") == PureDP(1)


def test_a_single_party_adds_its_own_noise_under_central():
    outcome = train(parties(1, CENTRAL), CENTRAL)

    assert outcome.result.noise_variance == pytest.approx(5 / (2 * 0.02435597), rel=0.01)


def test_more_colluders_than_survivors_are_refused():
    policy = replace(CENTRAL, colluders=3)

    with pytest.raises(PrivacyError, match="do not protect against colluders=3"):
        train(parties(4, policy), policy)


def test_each_of_two_parties_adds_all_of_the_noise():
    one, two = (train(parties(n, CENTRAL), CENTRAL).result.noise_variance for n in (1, 2))

    assert two == pytest.approx(2 * one, rel=0.01)


def test_picks_travel_as_cells_and_leave_the_rest_at_zero():
    settings = replace(SETTINGS, n_units=5000)
    outcome = train(parties(3, PAPER), PAPER, settings)

    picks_round = next(r for r in outcome.rounds if r.request == "PicksRequest")
    assert np.count_nonzero(outcome.result.counts) <= 3 * PAPER.n_picks
    assert max(picks_round.upload_bytes.values()) < 200
    assert outcome.result.noise_variance == 0


STANDARDIZED = replace(SETTINGS, standardize=True)


class Liar:
    """A private party that answers one kind of request with altered fields."""

    def __init__(self, privacy, kind, change):
        self._inner = party("liar", privacy=privacy, noise_seed=1)
        self.name, self.accepts = "liar", self._inner.accepts
        self._kind, self._change = kind, change

    def answer(self, request):
        reply = self._inner.answer(request)
        return self._change(reply) if isinstance(reply, self._kind) else reply


@pytest.mark.parametrize(
    ("privacy", "kind", "change", "words"),
    [
        (
            LOCAL,
            NoisyCountReply,
            lambda r: replace(r, counts=r.counts + np.int32(1_000_000)),
            "more than the .* rows that the parties announced",
        ),
        (LOCAL, NoisyCountReply, lambda r: replace(r, counts=r.counts[:9]), "others sent|of shape"),
        (
            PAPER,
            PicksReply,
            lambda r: replace(r, cells=r.cells + 1000),
            "party 'liar' sent cells that it cannot have picked",
        ),
        (
            PAPER,
            PicksReply,
            lambda r: PicksReply(np.arange(9), np.ones(9, np.int64)),
            "party 'liar' sent cells that it cannot have picked",
        ),
        (
            PAPER,
            PicksReply,
            lambda r: PicksReply(np.arange(1), np.array([1 << 31])),
            "does not fit into 32 bits",
        ),
    ],
)
def test_impossible_replies_are_refused(privacy, kind, change, words):
    with pytest.raises(ProtocolError, match=words):
        train([Liar(privacy, kind, change), *parties(2, privacy)], privacy, STANDARDIZED)


def test_one_class_is_refused_as_without_privacy():
    policy = replace(LOCAL, classes=(0,))

    with pytest.raises(DataError, match="at least two classes"):
        train(parties(2, policy), policy)


def test_bounds_that_do_not_fit_the_columns_are_refused():
    policy = replace(LOCAL, bounds=((0.0, 0.0), (1.0, 1.0)))

    with pytest.raises(ValueError, match="one or 3 of them"):
        train(parties(2, policy), policy, STANDARDIZED)


def collect_releases(rows, epsilon, n, seed):
    """Return many releases of a tiny table's counts, as they leave a party."""
    policy = Privacy(epsilon=epsilon, mechanism="local", classes=(0, 1))
    plan = HashPlan(FeatureMap(3, "none"), 3, 2, 1, 7)
    bits = np.random.default_rng(seed).bytes
    answers = []
    for start in range(0, n, 50):  # a ledger adds up all its releases; short ones are quick
        member = party(privacy=policy, rows=rows, bits=bits, ledger=ledger_of("north", PureDP(500)))
        for k in range(start, start + 50):
            request = NoisyCountRequest(str(k), terms(policy), 1, plan, (0, 1), False)
            answers.append(member.answer(request).counts.ravel())
    return np.stack(answers)


@pytest.mark.parametrize(("epsilon", "holds"), [(1, True), (3, False)])
def test_an_audit_of_replies_finds_only_planted_breaches(epsilon, holds):
    x, y = table(6)
    with_row = collect_releases((x, y), epsilon, 1000, seed=1)
    without = collect_releases((x[1:], y[1:]), epsilon, 1000, seed=2)

    certificate = certified_epsilon(with_row, without)

    # 99.9 % confidence and fixed seeds; a party that spends 3 instead of 1 is detected.
    assert (certificate.epsilon() <= 1) == holds


@pytest.mark.parametrize(
    ("privacy", "request_"), [(LOCAL, NoisyCountRequest), (PAPER, PicksRequest)]
)
def test_a_party_missing_from_plain_counts_ends_the_training(privacy, request_):
    members = {member.name: member for member in parties(3, privacy)}

    with pytest.raises(PartyMissing, match="no reply to the counts") as caught:
        run_rounds(
            coordinate_private(SETTINGS, privacy, run="a"),
            FrameTransport(lose_parties(members, request_, ("p2",)), tuple(members)),
        )

    assert set(caught.value.missing) == {"p2"}
    assert [member.model for member in members.values()] == [None] * 3


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        (ConstantsReply, lambda r: ConstantsReply(r.moments[:-1]), "expected 7 noised moments"),
        (
            NoisyCountReply,
            lambda r: replace(r, counts=r.counts[:9]),
            r"expected noised counts of shape \(40, 2\), got \(9, 2\)",
        ),
    ],
)
def test_replies_of_wrong_shape_are_refused_even_if_all_agree(kind, change, words):
    policy = replace(LOCAL, classes=(0, 1), bounds=(-4.0, 4.0))

    with pytest.raises(ProtocolError, match=words):
        train([Liar(policy, kind, change)], policy, STANDARDIZED)


def test_masked_sums_are_requested_with_noise_shares():
    policy = replace(CENTRAL, classes=(0, 1), bounds=(-4.0, 4.0))

    rounds = train(parties(4, policy), policy, FlyNNSettings()).rounds

    assert {record.request.partition(":")[0] for record in rounds} == {
        "PublicSchemaRequest",
        "MaskedConstantsRequest",
        "MaskedNoisyCountRequest",
        "PrivateModelRelease",
    }


def test_another_number_of_parties_than_privacy_names_is_refused():
    policy = replace(LOCAL, n_parties=4)

    with pytest.raises(ValueError, match="expected the 4 parties that privacy names, got 3"):
        train(parties(3, policy), policy)
