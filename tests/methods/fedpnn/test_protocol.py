"""Federated training of FedPNN: order of parties, rounds, minimum counts, invalid replies."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.errors import DataError, PartyRefused, ProtocolError, SchemaMismatch
from fedneighbors.federation._inprocess import run
from fedneighbors.federation._messages import decode, encode
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.fedpnn._model import FedPNNModel
from fedneighbors.methods.fedpnn._party import CentersReply, CentersRequest, FedPNNParty
from fedneighbors.methods.fedpnn._scaling import (
    PointMomentsRequest,
    ScalingReply,
    ScalingRequest,
    TableScaling,
    column_constants,
    make_scaling,
)
from fedneighbors.methods.fedpnn.algorithm import SIGMAS
from fedneighbors.methods.fedpnn.protocol import (
    DEFAULT_SIGMA,
    FedPNNSettings,
    coordinate,
    median_sigma,
)
from fedneighbors.tabular._schema import Receipt

SETTINGS = [
    FedPNNSettings(),
    FedPNNSettings(metric=None, normalize="minmax", server_threshold=0.1),
    FedPNNSettings(0.2, 0.2, frame="local", metric=None, classwise=False, min_count=1, means=False),
    FedPNNSettings(normalize=None, metric=None, sigma=0.5),
]


def make_table(seed=0, n=120, n_features=4, n_classes=3, missing=0.05):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, n)
    x = rng.normal(size=(n, n_features)) + y[:, None]
    x[rng.random(x.shape) < missing] = np.nan
    return x, y


def make_parties(x, y, owner, **options):
    return [
        FedPNNParty(str(name), x[owner == name], y[owner == name], min_count=1, **options)
        for name in np.unique(owner)
    ]


@pytest.mark.parametrize("config", SETTINGS)
@pytest.mark.parametrize("seed", range(3))
def test_model_does_not_depend_on_the_order_of_parties(config, seed):
    x, y = make_table(seed)
    owner = np.random.default_rng(seed).integers(0, 4, len(y))
    renamed = np.array([2, 0, 3, 1])[owner]

    first, second = (
        run(coordinate(config), make_parties(x, y, names)).result for names in (owner, renamed)
    )

    assert first.to_bytes() == second.to_bytes()


@pytest.mark.parametrize("config", SETTINGS)
def test_every_party_holds_the_coordinators_model(config, tmp_path):
    x, y = make_table()
    members = make_parties(x, y, np.arange(len(y)) % 3)
    members[0]._path = tmp_path / "model"

    model = run(coordinate(config), members).result

    assert {member.model.to_bytes() for member in members} == {model.to_bytes()}
    assert FedPNNModel.load(tmp_path / "model").to_bytes() == model.to_bytes()


def test_rounds_match_the_settings():
    x, y = make_table()
    requests = {
        config: [r.request for r in run(coordinate(config), make_parties(x, y, y)).rounds]
        for config in (SETTINGS[0], SETTINGS[1], SETTINGS[2])
    }

    assert requests[SETTINGS[2]] == ["FedPNNSchemaRequest", "CentersRequest", "FedPNNModelRelease"]
    assert requests[SETTINGS[1]][1:-1] == ["ScalingRequest", "CentersRequest"]
    assert requests[SETTINGS[0]][1:-1] == [
        "ScalingRequest",
        "PointMomentsRequest",
        "CentersRequest",
    ]


class RecordingParty:
    """Party that records its replies."""

    def __init__(self, party):
        self.name, self.accepts = party.name, party.accepts
        self._party, self.replies = party, []

    def answer(self, request):
        self.replies.append(self._party.answer(request))
        return self.replies[-1]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from(SETTINGS[:2]),
    st.integers(2, 8),
    st.lists(st.integers(0, 12), min_size=1, max_size=4),
)
def test_replies_describe_at_least_min_count_records(seed, config, min_count, sizes):
    config = FedPNNSettings(**{**vars(config), "min_count": min_count})
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(len(sizes)), sizes)
    rare = RecordingParty(FedPNNParty("rare", rng.normal(size=(len(y), 3)), y, min_count=2))
    other = FedPNNParty("frequent", rng.normal(size=(60, 3)), np.arange(60) % 2, min_count=2)

    model = run(coordinate(config), [rare, other]).result

    (constants,) = (reply for reply in rare.replies if isinstance(reply, ScalingReply))
    (centers,) = (reply for reply in rare.replies if isinstance(reply, CentersReply))
    n_rows = np.bincount(y, minlength=10)[list(model.classes)]
    disclosed = np.isin(y, np.flatnonzero(np.bincount(y, minlength=10) >= min_count))
    assert (constants.sizes[constants.sizes > 0] >= min_count).all()
    assert (centers.counts.sum(axis=1) >= min_count).all()
    assert centers.suppressed.tolist() == (n_rows < min_count).tolist()
    assert centers.counts.sum(axis=0).tolist() == np.where(n_rows < min_count, 0, n_rows).tolist()
    assert (
        constants.sizes.sum(axis=1).tolist()
        == [disclosed.sum() if disclosed.sum() >= min_count else 0] * 3
    )
    assert ((centers.counts == 0) | (centers.counts >= min_count)).all()
    records = rare._party._x
    assert not np.isin(constants.knots[constants.sizes > 0], records).any()
    points = model.scaling.apply(records)
    assert not any((points == center).all(axis=1).any() for center in centers.centers)


def test_rows_of_a_rare_class_do_not_enter_replies():
    x, y = make_table(n_classes=2, missing=0.0)
    scaling = make_scaling("quantile", [column_constants(x, n_knots=20, min_count=5)], min_count=5)
    with_rare = np.vstack([x, [9.0, 9, 9, 9]])

    party, party_with_rare = FedPNNParty("a", x, y), FedPNNParty("a", with_rare, np.append(y, 2))

    for request in (
        PointMomentsRequest(scaling, (0, 1, 2), 5),
        ScalingRequest(20, 5),
        CentersRequest(
            scaling, "quantile", 20, np.zeros((0, 0)), (0, 1, 2), None, 2.0, True, 5,
            "gaussian", True,
        ),
    ):  # fmt: skip
        assert party_with_rare.answer(request) == party.answer(request)


def test_party_with_one_class_takes_part():
    x, y = make_table(n_classes=2)

    model = run(coordinate(FedPNNSettings()), make_parties(x, y, y)).result

    assert sorted(set(model.center_labels.tolist())) == [0, 1]


def test_class_without_rows_has_probability_0():
    x, y = make_table(n_classes=2)

    model = run(coordinate(FedPNNSettings(classes=(0, 1, 7))), make_parties(x, y, y % 2)).result

    assert model.classes == (0, 1, 7)
    assert np.isneginf(model.log_densities(x)[:, 2]).all()
    assert np.isfinite(model.log_densities(x)[:, :2]).all()


def test_parties_with_too_few_records_raise():
    x, y = make_table(n=6, n_classes=2)

    with pytest.raises(DataError, match="lower min_count"):
        run(coordinate(FedPNNSettings(min_count=50)), make_parties(x, y, np.arange(6) % 2))
    with pytest.raises(DataError, match="lower min_count"):
        run(coordinate(FedPNNSettings(min_count=50, metric=None)), make_parties(x, y, y * 0))


def test_different_names_and_infinite_values_are_reported():
    x, y = make_table()
    names = ("a", "b", "c", "d")
    others = [
        FedPNNParty("p0", x, y, feature_names=names),
        FedPNNParty("p1", x, y, feature_names=names[::-1]),
    ]
    with pytest.raises(SchemaMismatch, match="'p1'"):
        run(coordinate(FedPNNSettings()), others)

    x[3, 2] = np.inf
    with pytest.raises(PartyRefused, match=r"a value is infinite \(c\)"):
        run(coordinate(FedPNNSettings()), [FedPNNParty("p0", x, y, feature_names=names)])


def make_constants(knots, sizes):
    return ScalingReply(knots, sizes, np.zeros(2, np.int64), np.zeros(2, bool))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"counts": np.array([[4, 0]])}, "fewer than 5 rows"),
        ({"counts": np.array([[5]])}, "counts of 2 classes"),
        ({"sigma_index": 20}, "expected sigma_index from -1 to 19, got 20"),
        (
            {"constants": make_constants(np.zeros((2, 1)), np.array([[4], [5]]))},
            "fewer than 5 values",
        ),
        ({"constants": make_constants(np.zeros((2, 3)), np.full((2, 3), 5))}, "1 knots"),
        ({"constants": None}, "expected constants if and only if"),
    ],
)
def test_invalid_centers_are_rejected(change, words):
    request = CentersRequest(
        None, "minmax", 1, np.empty((0, 0)), (0, 1), None, 2.0, True, 5, "gaussian", True
    )
    valid = {
        "centers": np.zeros((1, 2)),
        "counts": np.array([[5, 0]]),
        "suppressed": np.array([False, True]),
        "sigma_index": -1,
        "constants": make_constants(np.zeros((2, 1)), np.array([[5], [6]])),
    }

    request.check("p0", CentersReply(**valid))
    with pytest.raises(ValueError, match=words):
        request.check("p0", CentersReply(**(valid | change)))


def test_centers_of_other_dimensions_are_rejected():
    constants = make_constants(np.zeros((2, 1)), np.array([[5], [6]]))
    scaling = make_scaling("minmax", [constants], min_count=5)
    request = CentersRequest(
        scaling, "minmax", 1, np.eye(2), (0, 1), None, 2.0, True, 5, "gaussian", True
    )
    others = np.array([[5, 0]]), np.array([False, True]), -1, None

    request.check("p0", CentersReply(np.zeros((1, 2)), *others))
    with pytest.raises(ValueError, match="centers of 2 dimensions"):
        request.check("p0", CentersReply(np.zeros((1, 3)), *others))


@pytest.mark.parametrize(
    "change",
    [
        {"knots": np.array([[np.nan]])},
        {"sizes": np.array([[-5]])},
        {"sizes": np.array([[5, 5]])},
        {"n_missing": np.array([-1])},
        {"n_missing": np.zeros(2, np.int64)},
    ],
)
def test_invalid_constants_raise(change):
    valid = {
        "knots": np.zeros((1, 1)),
        "sizes": np.array([[5]]),
        "n_missing": np.array([0]),
        "is_complete": np.array([False]),
    }

    ScalingRequest(1, 5).check("p0", ScalingReply(**valid))
    with pytest.raises(ValueError, match=r"knot|missing"):
        ScalingReply(**(valid | change))


def test_moments_of_wrong_shapes_are_rejected():
    class TamperingParty(FedPNNParty):
        def _compute_moments(self, request):
            reply = super()._compute_moments(request)
            return type(reply)(reply.counts, reply.sums[:, :-1], reply.products[:-1, :-1])

    x, y = make_table()

    with pytest.raises(ProtocolError, match="moments have shapes"):
        run(coordinate(FedPNNSettings()), [TamperingParty("p0", x, y)])


def test_party_refuses_unknown_requests():
    x, y = make_table()

    with pytest.raises(Refused, match="unknown request"):
        FedPNNParty("p0", x, y).answer(Receipt())
    with pytest.raises(ValueError, match="one label for each of 120 rows, got 119"):
        FedPNNParty("p0", x, y[:-1])


def test_scalings_survive_a_round_trip():
    x, _ = make_table(missing=0.2)
    for kind in ("quantile", "minmax", "none"):
        scaling = make_scaling(kind, [column_constants(x, n_knots=9, min_count=3)], min_count=3)

        decoded = decode(encode(scaling), (TableScaling,))

        assert (decoded.apply(x) == scaling.apply(x)).all()
        assert decoded.n_coordinates == 8


def test_median_sigma_weights_choices_by_records():
    assert median_sigma([3, 9, 9], [10, 1, 1]) == SIGMAS[3]
    assert median_sigma([3, 9, 12], [10, 11, 10]) == SIGMAS[9]
    assert median_sigma([9, 3], [5, 5]) == median_sigma([3, 9], [5, 5]) == SIGMAS[3]
    assert median_sigma([-1, 7], [1000, 1]) == SIGMAS[7]
    assert median_sigma([-1, -1], [5, 5]) == DEFAULT_SIGMA


def test_parties_of_one_class_get_the_default_sigma():
    x, y = make_table(n_classes=2)

    model = run(coordinate(FedPNNSettings()), make_parties(x, y, y)).result

    assert model.sigma == DEFAULT_SIGMA


@pytest.mark.parametrize("n_knots", [0, -1, 1001])
def test_numbers_of_groups_out_of_range_raise(n_knots):
    with pytest.raises(ValueError, match="1 to 1000 knots"):
        ScalingRequest(n_knots, 5)
    with pytest.raises(ValueError, match="of 1 or more values"):
        ScalingRequest(5, 0)


def test_party_refuses_a_min_count_below_its_own():
    x, y = make_table()
    party = FedPNNParty("p0", x, y, min_count=5)

    with pytest.raises(PartyRefused, match="below the min_count of this party"):
        run(coordinate(FedPNNSettings(min_count=4)), [party])
    assert run(coordinate(FedPNNSettings(min_count=5)), [party]).result.centers.size


def test_impossible_moments_are_rejected():
    class TamperingParty(FedPNNParty):
        def _compute_moments(self, request):
            reply = super()._compute_moments(request)
            return type(reply)(reply.counts, reply.sums, -reply.products)

    x, y = make_table()

    with pytest.raises(ProtocolError, match="moments contain negative counts"):
        run(coordinate(FedPNNSettings()), [TamperingParty("p0", x, y)])


def test_centers_of_wrong_dimensions_name_the_party():
    class TamperingParty(FedPNNParty):
        def _compute_centers(self, request):
            reply = super()._compute_centers(request)
            return replace(reply, centers=reply.centers[:, :-1])

    x, y = make_table()
    members = [FedPNNParty("p0", x, y), TamperingParty("p1", x, y)]

    with pytest.raises(ProtocolError, match="party 'p1': centers of the wrong number"):
        run(coordinate(FedPNNSettings(metric=None)), members)
