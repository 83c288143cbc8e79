"""A private party releases only facts declared public or charged, and charges first."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from fedneighbors.federation._messages import decode, encode
from fedneighbors.federation._roles import MaskedRound, Refusal, Refused, serve
from fedneighbors.methods.flynn._features import FeatureMap
from fedneighbors.methods.flynn._model import FlyNNModel
from fedneighbors.methods.flynn.algorithm import HashPlan, count_activations, hash_with_plan
from fedneighbors.methods.flynn.private._release import (
    constants_levels,
    constants_sensitivity,
    count_sensitivity,
    release_budget,
)
from fedneighbors.methods.flynn.private.protocol import (
    ConstantsRequest,
    MaskedConstantsRequest,
    MaskedNoisyCountRequest,
    NoisyCountReply,
    NoisyCountRequest,
    PicksRequest,
)
from fedneighbors.methods.flynn.protocol import (
    CountRequest,
    Finish,
    ModelRelease,
    MomentsRequest,
    SchemaRequest,
)
from fedneighbors.privacy._guarantees import PureDP
from fedneighbors.privacy._policy import Privacy, terms
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.privacy.noise._calibration import shares
from fedneighbors.tabular._schema import PublicSchemaRequest
from tests.methods.flynn.private.tables import CENTRAL, LOCAL, PAPER, ledger_of, party, table

PLAN = HashPlan(FeatureMap(3, "none"), 40, 2, 5, 7)


MODEL = FlyNNModel(PLAN, (0, 1), np.zeros((40, 2), np.uint8), None, True)


def counts_request(privacy=LOCAL, run="a", **change):
    request = NoisyCountRequest(run, terms(privacy), 1, PLAN, (0, 1), False)
    return replace(request, **change)


def masked_request(privacy=CENTRAL, n_shares=2):
    return MaskedNoisyCountRequest("a", terms(privacy), n_shares, PLAN, (0, 1), False)


def exact_counts():
    x, y = table()
    return count_activations(hash_with_plan(x, PLAN), y, n_units=40, n_classes=2)


@pytest.mark.parametrize(
    "request_",
    [
        SchemaRequest(),
        MomentsRequest(True),
        CountRequest(PLAN, (0, 1), 16, {}),
        ModelRelease(MODEL),
        Finish(np.zeros(29, np.int64)),
    ],
    ids=lambda request: type(request).__name__,
)
def test_requests_of_the_exact_protocol_get_no_answer(request_):
    reply = decode(serve(party(), encode(request_)), (Refusal,))

    assert reply.code == "malformed request"


def test_counts_are_charged_before_their_noise_is_drawn():
    spent = []

    def bits(n):
        spent.append(north._gate.ledger.spent("table"))
        return np.random.default_rng(0).bytes(n)

    north = party(bits=bits)
    reply = north.answer(counts_request())

    assert set(spent) == {PureDP(1)}
    assert (reply.counts != exact_counts()).any()


def test_the_same_request_gets_the_same_answer_for_one_charge():
    north = party()

    first, second = (encode(north.answer(counts_request())) for _ in range(2))

    assert first == second
    assert north._gate.ledger.spent("table") == PureDP(1)


def test_a_restarted_party_sends_the_stored_answer(tmp_path):
    with ledger_of("north", PureDP(1), tmp_path / "north.db") as ledger:
        first = encode(party(ledger=ledger).answer(counts_request()))

    with Ledger(tmp_path / "north.db", party="north") as ledger:
        again = encode(party(ledger=ledger).answer(counts_request()))

    assert again == first


def test_another_run_is_refused_once_the_budget_is_spent():
    north = party(ledger=ledger_of("north", PureDP(2)))
    first, second = (north.answer(counts_request(run=run)) for run in ("a", "b"))

    with pytest.raises(Refused) as caught:
        north.answer(counts_request(run="c"))

    assert (first.counts != second.counts).any()
    assert caught.value.code == "its privacy budget does not allow this release"
    assert north._gate.ledger.spent("table") == PureDP(2)


def test_another_request_in_the_same_run_is_charged_too():
    north = party(ledger=ledger_of("north", PureDP(2)))
    larger = HashPlan(PLAN.features, 50, 2, 5, 7)

    north.answer(counts_request())
    north.answer(counts_request(plan=larger))

    assert north._gate.ledger.spent("table") == PureDP(2)


@pytest.mark.parametrize(
    "other",
    [
        replace(LOCAL, epsilon=2),
        replace(LOCAL, neighbors="replace_one"),
        replace(LOCAL, mechanism="central"),
        replace(LOCAL, constants_share=Fraction(1, 2)),
    ],
)
def test_terms_that_were_not_agreed_are_refused_without_a_charge(other):
    north = party()

    with pytest.raises(Refused, match="differ from the agreed ones"):
        north.answer(counts_request(other))

    assert north._gate.ledger.spent("table") == PureDP(0)


def test_picks_are_refused_under_another_mechanism():
    request = PicksRequest("a", terms(LOCAL), PLAN, (0, 1), False, 6)

    with pytest.raises(Refused, match="differ from the agreed ones"):
        party().answer(request)


def test_noise_shares_leave_only_inside_a_masked_sum():
    reply = decode(serve(party(privacy=CENTRAL), encode(masked_request())), (Refusal,))

    assert "masked sum" in reply.code


@pytest.mark.parametrize(("n_shares", "colluders"), [(4, 0), (3, 1), (0, 1), (-1, 1)])
def test_more_noise_shares_than_survivors_are_refused(n_shares, colluders):
    privacy = replace(CENTRAL, colluders=colluders)
    north = party(privacy=privacy)

    with pytest.raises(Refused, match="the number of noise shares guaranteed in the sum"):
        north.contribute(masked_request(privacy, n_shares), MaskedRound("ab", 4, 4, 3))


def test_each_attempt_at_a_masked_sum_is_charged():
    north = party(privacy=replace(LOCAL, mechanism="central"), ledger=ledger_of("n", PureDP(2)))
    request = masked_request(replace(LOCAL, mechanism="central"))

    first = north.contribute(request, MaskedRound("ab", 4, 4, 3))
    second = north.contribute(request, MaskedRound("cd", 4, 4, 3))

    assert (first.counts != second.counts).any()
    assert north._gate.ledger.spent("table") == PureDP(2)


def test_the_ledger_stores_no_reply_with_a_noise_share():
    privacy = replace(LOCAL, mechanism="central")
    north = party(privacy=privacy, ledger=ledger_of("n", PureDP(2)))
    round_ = MaskedRound("ab", 4, 4, 3)

    sent = north.contribute(masked_request(privacy), round_)
    with pytest.raises(Refused, match="this masked sum was answered before"):
        north.contribute(masked_request(privacy), round_)

    stored = north._gate.ledger._file.rows("SELECT content FROM answer")
    assert [len(content) for (content,) in stored] == [16]
    assert len(encode(sent)) > 16
    assert north._gate.ledger.spent("table") == PureDP(1)


def test_a_schema_reveals_no_labels():
    schema = party().answer(PublicSchemaRequest())

    assert (schema.labels, schema.label_kind) == ((), "none")


def test_a_failure_after_the_charge_reveals_no_detail():
    def bits(n):
        raise OSError("the operating system has no entropy")

    north = party(bits=bits)

    with pytest.raises(Refused) as caught:
        north.answer(counts_request())

    assert caught.value.code == (
        "a release failed; if it was charged, it stays charged; see the party's log"
    )
    assert caught.value.detail == ""
    assert north._gate.ledger.spent("table") == PureDP(1)


def test_noise_does_not_come_from_the_public_seed():
    replies = [party().answer(counts_request()).counts for _ in range(2)]

    assert (replies[0] != replies[1]).any()


@pytest.mark.parametrize(
    ("privacy", "request_"),
    [
        (LOCAL, ConstantsRequest("a", terms(LOCAL), 1, np.zeros(2), np.ones(2))),
        (
            LOCAL,
            counts_request(plan=HashPlan(FeatureMap(2, "none"), 4, 1, 1, 0)),
        ),
        (
            PAPER,
            PicksRequest(
                "a",
                terms(PAPER),
                HashPlan(FeatureMap(2, "none"), 4, 1, 1, 0),
                (0, 1),
                False,
                2,
            ),
        ),
    ],
    ids=["constants", "counts", "picks"],
)
def test_another_number_of_columns_is_refused_without_a_charge(privacy, request_):
    north = party(privacy=privacy)

    with pytest.raises(Refused, match="number of columns"):
        north.answer(request_)

    assert north._gate.ledger.spent("table") == PureDP(0)


def test_rows_of_unknown_labels_are_dropped_silently():
    x, y = table()
    policy = replace(LOCAL, classes=(0, 1))
    with_unknown = y.copy()
    with_unknown[3] = 9
    known = np.delete(np.arange(len(y)), 3)

    answers = [
        party(privacy=policy, rows=rows, noise_seed=4).answer(counts_request(policy)).counts
        for rows in ((x, with_unknown), (x[known], y[known]))
    ]

    assert (answers[0] == answers[1]).all()


def test_a_plan_without_an_agreed_class_is_always_refused():
    policy = replace(LOCAL, classes=(0, 1, 2))
    north = party(privacy=policy)

    with pytest.raises(Refused, match="a declared class is missing"):
        north.answer(counts_request(policy))

    assert north._gate.ledger.spent("table") == PureDP(0)


def test_data_sets_of_one_ledger_are_charged_separately():
    ledger = ledger_of("north", PureDP(1))
    ledger.set_budget("visits", PureDP(1))

    answers = [
        party(ledger=ledger, dataset=name).answer(counts_request()).counts
        for name in ("table", "visits")
    ]

    assert (answers[0] != answers[1]).any()
    assert ledger.spent("table") == ledger.spent("visits") == PureDP(1)


def test_a_reply_is_exact_counts_plus_the_stated_noise():
    noise = np.concatenate(
        [
            party(noise_seed=seed).answer(counts_request()).counts.ravel() - exact_counts().ravel()
            for seed in range(60)
        ]
    )
    scale = 5.0  # rho / epsilon
    chances = np.tanh(1 / (2 * scale)) * np.exp(-np.abs(np.arange(-40, 41)) / scale)

    observed = np.array([(noise == k).sum() for k in range(-40, 41)])

    # Normal bounds at 7 deviations on 81 frequencies: false alarms below 1e-9, seeds are fixed.
    spread = np.sqrt(len(noise) * chances * (1 - chances)) + 1
    assert (np.abs(observed - len(noise) * chances) < 7 * spread).all()
    assert abs(noise.mean()) < 7 * np.sqrt(2) * scale / np.sqrt(len(noise))


def test_count_requests_get_a_noisy_count_reply():
    assert isinstance(party().answer(counts_request()), NoisyCountReply)


# Attacks by a dishonest coordinator.


FAR = 4.0


def rows_with_and_without_a_far_value():
    x, y = table()
    far = x.copy()
    far[7, 1] = FAR * 10
    return (x, y), (far, y)


def probe(**change):
    """Return a plan whose constants scale far values of a column to the limits of floats."""
    features = FeatureMap(3, "mirror", np.zeros(3), np.full(3, 1.0) * change.pop("scale"))
    return HashPlan(features, 20, 2, 3, 7)


@pytest.mark.parametrize("scale", [1e-300, FAR / 1.7e308, 5e-324, 1e308])
def test_no_constants_make_a_party_fail_because_of_a_row(scale):
    for rows in rows_with_and_without_a_far_value():
        north = party(rows=rows)

        reply = north.answer(counts_request(plan=probe(scale=scale)))

        assert isinstance(reply, NoisyCountReply)
        assert north._gate.ledger.spent("table") == PureDP(1)


@pytest.mark.parametrize("expansion", ["none", "mirror", "population", "thermometer", "fourier"])
@pytest.mark.parametrize("value", [1.7e308, -1.7e308, 5e-324, np.inf, np.nan])
def test_no_value_makes_a_party_fail(expansion, value):
    x, y = table()
    x[3, 2] = value
    plan = HashPlan(FeatureMap(3, expansion), 20, 2, 3, 7)
    north = party(rows=(x, y))

    assert isinstance(north.answer(counts_request(plan=plan)), NoisyCountReply)


def test_invalid_rows_are_ignored_in_every_reply():
    x, y = table()
    policy = replace(LOCAL, classes=(0, 1))
    with_nan = x.copy()
    with_nan[5, 0] = np.nan
    valid = np.delete(np.arange(len(y)), 5)

    answers = [
        party(privacy=policy, rows=rows, noise_seed=4).answer(counts_request(policy)).counts
        for rows in ((with_nan, y), (x[valid], y[valid]))
    ]

    assert (answers[0] == answers[1]).all()


def test_a_missing_label_is_not_revealed():
    x, y = table()
    labels = y.astype(object)
    labels[2] = None
    policy = replace(LOCAL, classes=(0, 1))

    schema = party(privacy=policy, rows=(x, labels)).answer(PublicSchemaRequest())

    assert schema == party(privacy=policy).answer(PublicSchemaRequest())


@pytest.mark.parametrize("n_picks", [0, 81, 10**12])
def test_more_picks_than_cells_are_refused_without_a_charge(n_picks):
    north = party(privacy=PAPER)

    with pytest.raises(Refused, match="the number of cells to pick is out of range"):
        north.answer(PicksRequest("a", terms(PAPER), PLAN, (0, 1), False, n_picks))

    assert north._gate.ledger.spent("table") == PureDP(0)


def test_a_share_of_epsilon_that_is_too_small_for_noise_is_refused_without_a_charge():
    north = party(privacy=PAPER)

    with pytest.raises(Refused, match="the share of epsilon is too small"):
        north.answer(PicksRequest("a", terms(PAPER), PLAN, (0, 1), False, 5, share=1e-290))

    assert north._gate.ledger.spent("table") == PureDP(0)


def test_oversized_replies_are_refused_without_a_charge():
    wide = HashPlan(PLAN.features, 1 << 23, 2, 5, 7)
    north = party()

    with pytest.raises(Refused, match="too many for a reply"):
        north.answer(counts_request(plan=wide))

    assert north._gate.ledger.spent("table") == PureDP(0)


@pytest.mark.parametrize(("n_invited", "threshold", "colluders"), [(6, 4, 2), (9, 7, 5), (2, 1, 1)])
def test_masks_too_weak_for_colluders_get_no_noise_share(n_invited, threshold, colluders):
    policy = replace(CENTRAL, colluders=colluders)
    north = party(privacy=policy)

    with pytest.raises(Refused, match="do not protect against that many colluders"):
        north.contribute(
            masked_request(policy, 1), MaskedRound("ab", n_invited, n_invited, threshold)
        )

    assert float(north._gate.ledger.spent("table").epsilon) == 0


def test_bounds_with_infinite_range_are_refused():
    with pytest.raises(ValueError, match="a range is not finite"):
        ConstantsRequest("a", terms(LOCAL), 1, np.full(3, -1.7e308), np.full(3, 1.7e308))


def test_a_party_needs_declared_classes():
    with pytest.raises(ValueError, match=r"Privacy\(classes="):
        party(privacy=replace(LOCAL, classes=None))


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": 2},
        {"delta": "1e-5"},
        {"neighbors": "replace_one"},
        {"constants_share": Fraction(1, 2)},
        {"accounting": "paper"},
        {"n_parties": 3},
        {"classes": (0, 1, 2)},
        {"bounds": (0.0, 1.0)},
        {"colluders": 2},
    ],
    ids=lambda change: next(iter(change)),
)
def test_each_term_must_equal_the_agreed_one(change):
    north = party(privacy=CENTRAL)

    with pytest.raises(Refused, match="differ from the agreed ones"):
        north.answer(counts_request(replace(CENTRAL, **change)))

    assert [entry.kind for entry in north._gate.ledger.entries()] == ["budget"]


def test_without_a_usable_ledger_a_party_answers_nothing():
    ledger = ledger_of("north", PureDP(1))
    ledger.close()

    with pytest.raises(Refused, match="its ledger cannot be used"):
        party(ledger=ledger).answer(counts_request())


def test_noise_shares_are_sized_and_charged_for_all_cells():
    policy = replace(CENTRAL, epsilon=20)  # so little noise that the number of cells matters
    north = party(privacy=policy)
    sensitivity = count_sensitivity(PLAN.n_active, "add_remove")
    budget = release_budget(policy, of="counts", constants_paid=False)
    noise = shares(budget, sensitivity, n_shares=3, n_cells=80)

    north.contribute(masked_request(policy, n_shares=3), MaskedRound("ab", 5, 5, 4))

    (charge,) = (x.guarantee for x in north._gate.ledger.entries() if x.kind == "released")
    assert charge == noise.guarantee(sensitivity, 80) != noise.guarantee(sensitivity, 1)
    assert charge.rho <= budget.rho


@pytest.mark.parametrize("mechanism", ["local", "central"])
def test_a_row_moves_constants_at_most_by_the_sensitivity(mechanism):
    policy = Privacy(epsilon=1, mechanism=mechanism, classes=(0, 1), bounds=(-4.0, 4.0))
    levels = constants_levels(policy, 3)
    x, y = table()
    x[0] = 9.0  # clipped to the upper bounds, where a row changes every cell the most
    arguments = (terms(policy), 2, np.full(3, -4.0), np.full(3, 4.0))

    def moments(rows):
        north = party(privacy=policy, rows=rows, noise_seed=4)
        if mechanism == "local":
            return north.answer(ConstantsRequest("a", *arguments)).moments
        return north.contribute(
            MaskedConstantsRequest("a", *arguments), MaskedRound("ab", 4, 4, 3)
        ).moments

    difference = moments((x, y)) - moments((x[1:], y[1:]))  # the noise is the same in both

    assert levels < 1024
    assert difference.tolist() == [levels] * 7
    assert difference.sum() == constants_sensitivity(3, levels, "add_remove").l1


def test_missing_parties_count_for_secret_shares():
    policy = replace(CENTRAL, colluders=4)

    with pytest.raises(Refused, match="do not protect against that many colluders"):
        party(privacy=policy).contribute(masked_request(policy, 1), MaskedRound("ab", 7, 8, 6))


def test_noise_beyond_32_bits_is_clipped_not_wrapped():
    policy = replace(LOCAL, epsilon="1e-9")  # noise of scale 5e9

    counts = party(privacy=policy).answer(counts_request(policy)).counts

    # A cell is clipped with probability .65; fewer than 10 of 80 are with probability below 1e-20.
    assert (np.abs(counts.astype(np.int64)) == np.iinfo(np.int32).max).sum() >= 10


def test_a_plan_without_public_classes_is_refused_uncharged():
    north = party()

    with pytest.raises(Refused, match="a declared class is missing"):
        north.answer(counts_request(classes=(0, 2)))

    assert north._gate.ledger.spent("table") == PureDP(0)
