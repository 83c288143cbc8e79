"""Private party: everything that it sends is public or was charged to its ledger."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from fedneighbors.errors import WireError
from fedneighbors.federation._messages import decode, encode
from fedneighbors.federation._roles import MaskedRound, Refusal, Refused, serve
from fedneighbors.methods.fedpnn._model import FedPNNModel
from fedneighbors.methods.fedpnn._party import FedPNNModelRelease, FedPNNSchemaRequest
from fedneighbors.methods.fedpnn._scaling import (
    ScalingRequest,
    TableScaling,
)
from fedneighbors.methods.fedpnn.private import _party as party_module
from fedneighbors.methods.fedpnn.private._release import (
    class_sums,
    class_sums_release,
    directions,
    scale_to_cube,
)
from fedneighbors.methods.fedpnn.private.protocol import (
    CellsRequest,
    ClassSumsRequest,
    MaskedClassSumsRequest,
    MaskedOriginRequest,
    NoisyReply,
    OriginRequest,
)
from fedneighbors.privacy._guarantees import PureDP
from fedneighbors.privacy._policy import Privacy, terms
from fedneighbors.privacy.audit._certificates import certified_epsilon
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.privacy.noise._calibration import calibrate_noise, shares
from fedneighbors.tabular._schema import PublicSchemaRequest
from tests.methods.fedpnn.private.tables import (
    BOUNDS,
    CENTRAL,
    LOCAL,
    make_party,
    make_table,
    open_ledger,
)

ORIGIN = np.array([0.25, 0.0, -0.25, 0.0])
AXIS = np.array([0.5, 0.5, -0.5, 0.5])


def make_origin_request(privacy=LOCAL, run="a", classes=(0, 1)):
    return OriginRequest(run, terms(privacy), 1, classes)


def make_sums_request(privacy=LOCAL, run="a", classes=(0, 1), origin=ORIGIN):
    return ClassSumsRequest(run, terms(privacy), 1, classes, origin)


def make_cells_request(privacy=LOCAL, run="a", classes=(0, 1), origin=ORIGIN, axis=AXIS):
    return CellsRequest(run, terms(privacy), 1, classes, origin, axis)


def make_masked_request(privacy=CENTRAL, n_shares=2):
    return MaskedClassSumsRequest("a", terms(privacy), n_shares, (0, 1), ORIGIN)


ALL_REQUESTS = pytest.mark.parametrize(
    "make_request", [make_origin_request, make_sums_request, make_cells_request]
)
COST = {
    make_origin_request: Fraction(1, 5),
    make_sums_request: Fraction(1, 2),
    make_cells_request: Fraction(3, 10),
}


MODEL = FedPNNModel(
    scaling=TableScaling("none", *np.zeros((2, 1, 0)), np.zeros(1), *np.zeros((2, 0), np.int64)),
    linear_map=np.eye(1),
    classes=(0,),
    centers=np.zeros((1, 1)),
    counts=np.ones((1, 1), np.int64),
    sigma=0.1,
)


def compute_exact_sums(levels):
    x, y = make_table()
    bounds = np.full(4, BOUNDS[0]), np.full(4, BOUNDS[1])
    return class_sums(directions(scale_to_cube(x, bounds), ORIGIN), y, 2, levels)


def read_spent(member):
    return member._gate.ledger.spent("table")


@pytest.mark.parametrize(
    "request_",
    [FedPNNSchemaRequest(5), ScalingRequest(5, 5), FedPNNModelRelease(MODEL)],
    ids=lambda request: type(request).__name__,
)
def test_requests_of_training_without_privacy_are_refused(request_):
    reply = decode(serve(make_party(), encode(request_)), (Refusal,))

    assert reply.code == "malformed request"


@ALL_REQUESTS
def test_release_is_charged_before_its_noise_is_drawn(make_request):
    spent_at_draws = []

    def bits(n):
        spent_at_draws.append(read_spent(north))
        return np.random.default_rng(0).bytes(n)

    north = make_party(bits=bits)
    north.answer(make_request())

    assert set(spent_at_draws) == {PureDP(COST[make_request])}


def test_three_releases_exhaust_the_budget():
    north = make_party()
    for make_request in COST:
        north.answer(make_request())

    with pytest.raises(Refused, match="privacy budget does not allow"):
        north.answer(make_sums_request(origin=-ORIGIN))

    assert read_spent(north) == PureDP(1)


@ALL_REQUESTS
def test_repeated_request_is_idempotent(make_request):
    north = make_party()

    first, second = (encode(north.answer(make_request())) for _ in range(2))

    assert first == second
    assert read_spent(north) == PureDP(COST[make_request])


def test_stored_reply_survives_a_restart(tmp_path):
    with open_ledger("north", PureDP(1), tmp_path / "north.db") as ledger:
        first = encode(make_party(ledger=ledger).answer(make_sums_request()))

    with Ledger(tmp_path / "north.db", party="north") as ledger:
        second = encode(make_party(ledger=ledger).answer(make_sums_request()))

    assert second == first


def test_other_runs_are_charged_until_the_budget_is_spent():
    north = make_party()
    first, second = (north.answer(make_sums_request(run=run)) for run in ("a", "b"))

    with pytest.raises(Refused, match="privacy budget does not allow"):
        north.answer(make_sums_request(run="c"))

    assert (first.values != second.values).any()
    assert read_spent(north) == PureDP(1)


def test_two_data_sets_of_one_ledger_are_charged_separately():
    ledger = open_ledger("north", PureDP(1))
    ledger.set_budget("visits", PureDP(1))

    answers = [
        make_party(ledger=ledger, dataset=name).answer(make_sums_request()).values
        for name in ("table", "visits")
    ]

    assert (answers[0] != answers[1]).any()
    assert ledger.spent("table") == ledger.spent("visits") == PureDP(Fraction(1, 2))


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": 2},
        {"delta": "1e-5"},
        {"neighbors": "replace_one"},
        {"mechanism": "central"},
        {"bounds": (-5.0, 5.0)},
        {"classes": (0, 1, 2)},
        {"colluders": 2},
        {"n_parties": 3},
    ],
    ids=lambda change: next(iter(change)),
)
@ALL_REQUESTS
def test_terms_not_agreed_are_refused_without_a_charge(make_request, change):
    north = make_party()

    with pytest.raises(Refused, match="differ from the agreed ones"):
        north.answer(make_request(replace(LOCAL, **change)))

    assert [entry.kind for entry in north._gate.ledger.entries()] == ["budget"]


def test_noise_shares_are_sent_only_in_masked_sums():
    reply = decode(serve(make_party(privacy=CENTRAL), encode(make_masked_request())), (Refusal,))

    assert "masked sum" in reply.code


@pytest.mark.parametrize(("n_shares", "colluders"), [(4, 0), (3, 1), (0, 1), (-1, 1)])
def test_more_noise_shares_than_survivors_are_refused(n_shares, colluders):
    privacy = replace(CENTRAL, colluders=colluders)

    with pytest.raises(Refused, match="the number of noise shares guaranteed in the sum"):
        make_party(privacy=privacy).contribute(
            make_masked_request(privacy, n_shares), MaskedRound("ab", 4, 4, 3)
        )


@pytest.mark.parametrize(("n_invited", "threshold", "colluders"), [(6, 4, 2), (9, 7, 5), (2, 1, 1)])
def test_masks_too_weak_for_the_colluders_are_refused(n_invited, threshold, colluders):
    policy = replace(CENTRAL, colluders=colluders)

    with pytest.raises(Refused, match="do not protect against that many colluders"):
        make_party(privacy=policy).contribute(
            make_masked_request(policy, 1), MaskedRound("ab", n_invited, n_invited, threshold)
        )


def test_each_attempt_at_a_masked_sum_is_charged_again():
    policy = replace(LOCAL, mechanism="central")
    north = make_party(privacy=policy)

    first, second = (
        north.contribute(make_masked_request(policy), MaskedRound(attempt, 4, 4, 3))
        for attempt in ("ab", "cd")
    )

    assert (first.values != second.values).any()
    assert read_spent(north) == PureDP(1)


def test_noise_shares_are_charged_for_all_cells_of_the_sum():
    policy = replace(CENTRAL, epsilon=20)
    north = make_party(privacy=policy)
    release = class_sums_release(policy, 4, 2)
    noise = shares(release.budget, release.sensitivity, n_shares=3, n_cells=10)

    north.contribute(make_masked_request(policy, 3), MaskedRound("ab", 5, 5, 4))

    (charged,) = (x.guarantee for x in north._gate.ledger.entries() if x.kind == "released")
    assert charged == noise.guarantee(release.sensitivity, 10)
    assert charged.rho <= release.budget.rho


def test_labels_are_not_disclosed():
    schema = make_party().answer(PublicSchemaRequest())

    assert (schema.labels, schema.label_kind) == ((), "none")


@ALL_REQUESTS
def test_failure_after_the_charge_stays_charged_without_details(make_request):
    def bits(n):
        raise OSError("the operating system has no entropy")

    north = make_party(bits=bits)

    with pytest.raises(Refused) as caught:
        north.answer(make_request())

    assert caught.value.code == (
        "a release failed; if it was charged, it stays charged; see the party's log"
    )
    assert caught.value.detail == ""
    assert read_spent(north) == PureDP(COST[make_request])


def test_party_with_an_unusable_ledger_refuses_requests():
    ledger = open_ledger("north", PureDP(1))
    ledger.close()

    with pytest.raises(Refused, match="its ledger cannot be used"):
        make_party(ledger=ledger).answer(make_sums_request())


@ALL_REQUESTS
def test_noise_differs_between_processes(make_request):
    replies = [make_party().answer(make_request()).values for _ in range(2)]

    assert (replies[0] != replies[1]).any()


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (make_sums_request(origin=np.zeros(3)), "number of columns"),
        (make_cells_request(origin=np.zeros(3), axis=np.zeros(3)), "number of columns"),
        (make_cells_request(axis=np.full(4, 0.6)), "axis is longer than 1"),
        (make_cells_request(classes=(0, 1, 2)), "exactly two classes"),
        (make_origin_request(classes=(0,)), "a declared class is missing"),
        (make_origin_request(classes=(0, 2)), "a declared class is missing"),
    ],
)
def test_invalid_requests_are_refused_without_a_charge(request_, words):
    north = make_party()

    with pytest.raises(Refused, match=words):
        north.answer(request_)

    assert read_spent(north) == PureDP(0)


@pytest.mark.parametrize(
    "origin", [np.array([np.nan, 0, 0, 0]), np.array([2.0, 0, 0, 0]), np.zeros((2, 2))]
)
def test_origins_outside_the_cube_raise(origin):
    with pytest.raises((ValueError, WireError), match="finite vectors within"):
        make_sums_request(origin=origin)


def test_axis_of_other_columns_raises():
    with pytest.raises(ValueError, match="differ in their number of columns"):
        make_cells_request(axis=np.zeros(3))


@ALL_REQUESTS
@pytest.mark.parametrize("value", [1.7e308, -1.7e308, 5e-324, np.inf, -np.inf, np.nan])
def test_extreme_values_do_not_make_a_party_fail(make_request, value):
    x, y = make_table()
    x[3, 2] = value
    north = make_party(rows=(x, y))

    assert isinstance(north.answer(make_request()), NoisyReply)
    assert north.answer(PublicSchemaRequest()).labels == ()


@ALL_REQUESTS
def test_rows_with_labels_not_agreed_are_dropped_silently(make_request):
    x, y = make_table()
    policy = replace(LOCAL, classes=(0, 1))
    other_labels = y.copy()
    other_labels[3] = 9
    agreed = np.delete(np.arange(len(y)), 3)

    answers = [
        make_party(privacy=policy, rows=rows, bits_seed=4).answer(make_request(policy)).values
        for rows in ((x, other_labels), (x[agreed], y[agreed]))
    ]

    assert (answers[0] == answers[1]).all()


def test_party_without_rows_replies_with_noise():
    x, y = make_table()
    policy = replace(LOCAL, classes=(0, 1))
    empty = make_party(privacy=policy, rows=(x[:0], y[:0]))

    for make_request in COST:
        assert empty.answer(make_request(policy)).values.any()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bounds": None}, "give bounds, an array of shape"),
        ({"bounds": ((0.0,) * 3, (1.0,) * 3)}, "one or 4 of them"),
        ({"classes": None}, r"Privacy\(classes="),
    ],
)
def test_party_needs_declared_bounds_and_classes(change, words):
    with pytest.raises(ValueError, match=words):
        make_party(privacy=replace(LOCAL, **change))


def test_reply_is_exact_sums_plus_laplace_noise():
    release = class_sums_release(LOCAL, 4, 2)
    noise = np.concatenate(
        [
            make_party(bits_seed=seed).answer(make_sums_request()).values
            - compute_exact_sums(release.levels)
            for seed in range(400)
        ]
    )
    scale = float(release.sensitivity.l1 / release.budget.epsilon)

    share_below = np.mean(np.abs(noise) < scale * np.log(2))  # the median of abs(noise)

    # 4,000 seeded cells: bounds at 7 deviations, false alarms below 1e-9.
    assert abs(share_below - 0.5) < 7 * 0.5 / np.sqrt(len(noise))
    assert abs(np.abs(noise).mean() / scale - 1) < 7 / np.sqrt(len(noise))
    assert abs(noise.mean()) < 7 * np.sqrt(2) * scale / np.sqrt(len(noise))


# An audit of a party's releases, and faults that it must find.

LOOSE = Privacy(epsilon=4, classes=(0, 1), bounds=BOUNDS)
CLAIM = {make_sums_request: 2.0, make_cells_request: 1.2}


def halve_noise(budget, sensitivity, **options):
    """Draw noise for twice the budget, charged as the budget itself."""
    cost, _ = calibrate_noise(budget, sensitivity, **options)
    _, add_noise = calibrate_noise(PureDP(2 * budget.epsilon), sensitivity, **options)
    return cost, add_noise


def send_bare_counts(budget, sensitivity, **options):
    """Add noise to the sums only, not to the class counts."""
    cost, add_noise = calibrate_noise(budget, sensitivity, **options)
    return cost, lambda values: np.concatenate([values[:2], add_noise(values)[2:]])


def scale_cells_to_the_farthest_row(units, labels, axis):
    distances = np.abs(units @ axis)
    return honest_cells(units / max(distances.max(), 1e-9), labels, axis)


honest_cells = party_module.cell_counts


def draw_releases(rows, make_request, n, seed):
    """Draw many releases of a small table from parties."""
    bits = np.random.default_rng(seed).bytes
    answers = []
    for start in range(0, n, 50):  # a ledger adds up all its releases, so that few are fast
        member = make_party(
            privacy=LOOSE, rows=rows, bits=bits, ledger=open_ledger("n", PureDP(500))
        )
        for k in range(start, start + 50):
            answers.append(member.answer(make_request(LOOSE, run=str(k))).values)
    return np.stack(answers)


@pytest.mark.parametrize(
    ("make_request", "name", "fault"),
    [
        (make_sums_request, None, None),
        (make_cells_request, None, None),
        (make_cells_request, "calibrate_noise", halve_noise),
        (make_sums_request, "calibrate_noise", send_bare_counts),
        (make_cells_request, "cell_counts", scale_cells_to_the_farthest_row),
    ],
)
def test_audit_of_releases_finds_exactly_the_faults(monkeypatch, make_request, name, fault):
    if fault is not None:
        monkeypatch.setattr(party_module, name, fault)
    rng = np.random.default_rng(3)
    x = np.vstack([ORIGIN * 4 + 4 * AXIS, ORIGIN * 4 + 0.3 * rng.normal(size=(12, 4))])
    x[1:] -= np.outer((x[1:] - ORIGIN * 4) @ AXIS * 0.8, AXIS)  # the first row is the farthest
    y = np.arange(13) % 2

    with_row = draw_releases((x, y), make_request, 600, seed=1)
    without = draw_releases((x[1:], y[1:]), make_request, 600, seed=2)

    # 99.9 % confidence and fixed seeds.
    epsilon = certified_epsilon(with_row, without).epsilon()
    assert (epsilon > CLAIM[make_request]) == (fault is not None), epsilon


def test_masked_origin_request_is_answered():
    policy = replace(LOCAL, mechanism="central")
    request = MaskedOriginRequest("a", terms(policy), 2, (0, 1))

    reply = make_party(privacy=policy).contribute(request, MaskedRound("ab", 4, 4, 3))

    assert reply.values.shape == (5,)
