"""A request cannot make a party allocate much or work without end: sizes are checked first."""

import tracemalloc

import numpy as np
import pytest

from fedneighbors._limits import MAX_CELLS, MAX_CLASSES
from fedneighbors.federation._messages import decode, encode
from fedneighbors.federation._roles import Refusal, serve
from fedneighbors.methods.fedknn import _provider
from fedneighbors.methods.fedknn._batch import NearestBatchRequest
from fedneighbors.methods.fedknn._eager import EagerRequest
from fedneighbors.methods.fedknn._payloads import PayloadRequest
from fedneighbors.methods.fedknn._provider import Provider
from fedneighbors.methods.fedknn.algorithm import MAX_K, MAX_NAME_LENGTH, MAX_QUERY_BYTES
from fedneighbors.methods.fedknn.metrics._function import FunctionMetric
from fedneighbors.methods.fedknn.private._padding import (
    MAX_PADDED_K,
    PaddedBoundRequest,
    PaddedNearestRequest,
)
from fedneighbors.methods.fedknn.protocol import (
    BoundRequest,
    NearestRequest,
    RangeCountRequest,
)
from fedneighbors.methods.fedpnn._party import CentersRequest, FedPNNParty
from fedneighbors.methods.fedpnn._scaling import (
    MAX_COORDINATES,
    MAX_KNOTS,
    PointMomentsRequest,
    ScalingRequest,
    TableScaling,
)
from fedneighbors.methods.fedpnn._selection import SelectionRequest
from fedneighbors.methods.fedpnn.private._party import PrivateFedPNNParty
from fedneighbors.methods.fedpnn.private.protocol import (
    CellsRequest,
    ClassSumsRequest,
    OriginRequest,
)
from fedneighbors.methods.flynn._features import FeatureMap
from fedneighbors.methods.flynn._model import FlyNNModel
from fedneighbors.methods.flynn._scoring import HitRequest
from fedneighbors.methods.flynn._search import FoldCountRequest, FoldHitRequest, SearchParty
from fedneighbors.methods.flynn.algorithm import MAX_UNITS, HashPlan
from fedneighbors.methods.flynn.private._party import PrivateFlyNNParty
from fedneighbors.methods.flynn.private.protocol import (
    ConstantsRequest,
    NoisyCountRequest,
    PicksRequest,
)
from fedneighbors.methods.flynn.protocol import CountRequest, FlyNNParty
from fedneighbors.methods.knnper._client import KNNPerParty
from fedneighbors.methods.knnper._frozen import ClassMomentsRequest
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper._task import CLASSIFICATION, REGRESSION
from fedneighbors.methods.knnper.flower_app import MAX_CANDIDATES, NodeParty, PlanRequest
from fedneighbors.methods.knnper.personal._discriminants import MAX_FEATURES, RandomFeatures
from fedneighbors.methods.knnper.private import _party as private_knnper
from fedneighbors.methods.knnper.private.protocol import (
    MAX_ROUNDS,
    BeginRequest,
    NoisedCountsRequest,
    PrivateTrainRequest,
)
from fedneighbors.methods.knnper.protocol import (
    MAX_EPOCHS,
    CountsRequest,
    ScatterRequest,
    TrainRequest,
    UnitsRequest,
)
from fedneighbors.neural._blueprint import MAX_LAYERS, Blueprint, perceptron
from fedneighbors.neural._schedule import Regime

EMPTY, ONE = np.empty(0), np.ones(1)
WIDE = HashPlan(FeatureMap(3, "none"), MAX_UNITS, 1, 2, 0)
PLAN = HashPlan(FeatureMap(3, "none"), 8, 1, 2, 0)
MODEL = FlyNNModel(PLAN, (0, 1), np.zeros((8, 2), np.uint8), 0.5, True)
MANY = tuple(range(MAX_CLASSES + 1))
LONG = "n" * 1000
NO_COLUMNS = np.zeros(0, np.int64)
PLAIN = TableScaling("none", np.zeros((3, 0)), np.zeros((3, 0)), np.zeros(3), *[NO_COLUMNS] * 2)
FEW_UNITS = Blueprint("perceptron", (3,), 2, hidden=(4,))


def wide_scaling():
    n = MAX_COORDINATES + 1
    return TableScaling("none", np.zeros((n, 0)), np.zeros((n, 0)), np.zeros(n), *[NO_COLUMNS] * 2)


def centers(**change):
    fields = {
        "scaling": PLAIN,
        "scaling_kind": "none",
        "n_knots": 1,
        "linear_map": np.zeros((0, 0)),
        "classes": (0, 1),
        "threshold": None,
        "factor": 1.0,
        "classwise": True,
        "min_count": 1,
        "activation": "gaussian",
        "means": True,
    }
    return CentersRequest(**{**fields, **change})


def fold_hits(counts, decays=((0.5,),), normalized=(True,)):
    return FoldHitRequest(counts, np.ones((1, 2), np.int64), decays, normalized)


HOSTILE = [
    (BoundRequest, lambda: BoundRequest("q", b"", MAX_K + 1)),
    (BoundRequest, lambda: BoundRequest("n" * (MAX_NAME_LENGTH + 1), b"", 1)),
    (BoundRequest, lambda: BoundRequest("q", bytes(MAX_QUERY_BYTES + 1), 1)),
    (NearestRequest, lambda: NearestRequest(LONG, b"", 1, None)),
    (NearestRequest, lambda: NearestRequest("q", b"", -1, None)),
    (NearestBatchRequest, lambda: NearestBatchRequest(np.zeros((1, 2)), MAX_K + 1)),
    (NearestBatchRequest, lambda: NearestBatchRequest(np.zeros((1, 2)), 0)),
    (NearestBatchRequest, lambda: NearestBatchRequest(np.zeros((MAX_K, 0)), MAX_K)),
    (NearestBatchRequest, lambda: NearestBatchRequest(np.zeros(3), 1)),
    (RangeCountRequest, lambda: RangeCountRequest(LONG, b"", 1.0)),
    (PayloadRequest, lambda: PayloadRequest("q", b"", ("a",) * (MAX_K + 1))),
    (PayloadRequest, lambda: PayloadRequest(LONG, b"", ("a",))),
    (PaddedBoundRequest, lambda: PaddedBoundRequest("q", b"", MAX_PADDED_K + 1, 0.0)),
    (PaddedBoundRequest, lambda: PaddedBoundRequest("q", b"", 1, 1e-300)),
    (PaddedBoundRequest, lambda: PaddedBoundRequest("q", b"", 1, 1e9)),
    (
        PaddedNearestRequest,
        lambda: PaddedNearestRequest("q", b"", np.array([1]), MAX_PADDED_K + 1, 0.0),
    ),
    (EagerRequest, lambda: EagerRequest("q", b"", 1, None, None, -1.0)),
    (EagerRequest, lambda: EagerRequest("q", b"", 1, None, enough=0)),
    (EagerRequest, lambda: EagerRequest("q", b"", 1, None, grace_s=-1.0)),
    (CountRequest, lambda: CountRequest(WIDE, tuple(range(32)), 16, {})),
    (CountRequest, lambda: CountRequest(PLAN, (0, 1), 64, {})),
    (
        CountRequest,
        lambda: CountRequest(HashPlan(FeatureMap(99, "none"), MAX_UNITS, 32, 1, 0), (0, 1), 16, {}),
    ),
    (
        CountRequest,
        lambda: CountRequest(HashPlan(FeatureMap(2**40, "none"), 8, 1, 1, 0), (0, 1), 16, {}),
    ),
    (CountRequest, lambda: CountRequest(PLAN, (0, 1), 16, {}, (PLAN,))),
    (HitRequest, lambda: HitRequest((MODEL,), ((0.5,) * 9,), (True,) * 9)),
    (HitRequest, lambda: HitRequest((MODEL,), ((2.0,),), (True,))),
    (HitRequest, lambda: HitRequest((MODEL,) * 99, ((0.5,),) * 99, (True,))),
    (FoldCountRequest, lambda: FoldCountRequest(WIDE, (0, 1), 16, (1,), 2**40)),
    (FoldCountRequest, lambda: FoldCountRequest(PLAN, (0, 1), 16, (2**40,), 2)),
    (FoldHitRequest, lambda: fold_hits(np.full((1, 8, 2), 2**32 - 1, np.uint32))),
    (FoldHitRequest, lambda: fold_hits(np.full((1, 8, 2), 2**28, np.uint32))),
    (FoldHitRequest, lambda: fold_hits(np.ones((1, 8, 2), np.uint32), ((0.5, 0.5),))),
    (ConstantsRequest, lambda: ConstantsRequest(LONG, {}, 1, EMPTY, EMPTY)),
    (NoisyCountRequest, lambda: NoisyCountRequest("r", {}, 1, WIDE, tuple(range(32)), False)),
    (PicksRequest, lambda: PicksRequest("r", {}, WIDE, tuple(range(32)), False, 1)),
    (PicksRequest, lambda: PicksRequest("r", {}, PLAN, (0, 1), False, 1, share=1.5)),
    (SelectionRequest, lambda: SelectionRequest((0, 1), 2**24, 1)),
    (SelectionRequest, lambda: SelectionRequest((0, 1), 2**40, 1)),
    (ScalingRequest, lambda: ScalingRequest(MAX_KNOTS + 1, 1)),
    (PointMomentsRequest, lambda: PointMomentsRequest(wide_scaling(), (0, 1), 1)),
    (PointMomentsRequest, lambda: PointMomentsRequest(PLAIN, MANY, 1)),
    (CentersRequest, lambda: centers(classes=MANY)),
    (CentersRequest, lambda: centers(n_knots=MAX_KNOTS + 1)),
    (CentersRequest, lambda: centers(activation="no kernel")),
    (CentersRequest, lambda: centers(threshold=0.0)),
    (OriginRequest, lambda: OriginRequest("r", {}, 1, MANY)),
    (OriginRequest, lambda: OriginRequest(LONG, {}, 1, (0, 1))),
    (ClassSumsRequest, lambda: ClassSumsRequest("r", {}, 1, MANY, np.zeros(2**13))),
    (CellsRequest, lambda: CellsRequest(LONG, {}, 1, (0, 1), ONE, ONE)),
    (CountsRequest, lambda: CountsRequest(MANY, False, EMPTY, EMPTY)),
    (CountsRequest, lambda: CountsRequest((0, 1), False, np.zeros((2, 1)), np.ones((2, 1)))),
    (CountsRequest, lambda: CountsRequest((0, 1), False, ONE, np.zeros(1))),
    (UnitsRequest, lambda: UnitsRequest(EMPTY, EMPTY, np.full(1, np.nan), ONE)),
    (TrainRequest, lambda: TrainRequest(0, False, Regime(epochs=MAX_EPOCHS + 1), 0, 1, ONE)),
    (TrainRequest, lambda: TrainRequest(0, False, Regime(), 0, 2**40, ONE)),
    (ScatterRequest, lambda: ScatterRequest(False, RandomFeatures(0, 1.0, MAX_FEATURES + 1))),
    (
        ClassMomentsRequest,
        lambda: ClassMomentsRequest(False, EMPTY, EMPTY, RandomFeatures(0, 1.0, MAX_FEATURES + 1)),
    ),
    (ClassMomentsRequest, lambda: ClassMomentsRequest(False, ONE, np.zeros(1))),
    (PlanRequest, lambda: PlanRequest(FEW_UNITS, "", MemorySettings((1,) * (MAX_CANDIDATES + 1)))),
    (PlanRequest, lambda: PlanRequest(Blueprint("cnn", (2**20, 2**20), 2), "", MemorySettings())),
    (
        PlanRequest,
        lambda: PlanRequest(
            Blueprint("perceptron", (3,), 2, hidden=(1,) * (MAX_LAYERS + 1)), "", MemorySettings()
        ),
    ),
    (NoisedCountsRequest, lambda: NoisedCountsRequest("r", {}, MANY, EMPTY, EMPTY)),
    (BeginRequest, lambda: BeginRequest("r", {}, (0,), 2**40, 1, 1.0)),
    (BeginRequest, lambda: BeginRequest("r", {}, (0, 0), 1, 1, 1.0)),
    (BeginRequest, lambda: BeginRequest("r", {}, (0,), 1, 1, 0.0)),
    (BeginRequest, lambda: BeginRequest("r", {}, tuple(range(MAX_ROUNDS + 1)), 1, 1, 1.0)),
    (
        PrivateTrainRequest,
        lambda: PrivateTrainRequest("r", 0, Regime(epochs=MAX_EPOCHS + 1), 1, ONE),
    ),
]
IN_PROPORTION = {
    # a fixed multiple of the request's bytes or of the table's
    *("FinishRequest", "SchemaRequest", "MomentsRequest", "PublicSchemaRequest"),
    *("ModelRelease", "Finish", "PrivateModelRelease", "FedPNNSchemaRequest", "FedPNNModelRelease"),
    *("PrivateFedPNNRelease", "ClientSchemaRequest", "ClientMomentsRequest", "TargetsRequest"),
    *(
        "ReleaseRequest",
        "PoolRequest",
        "OpeningRequest",
        "LossRequest",
        "PublicClientSchemaRequest",
    ),
}


@pytest.mark.parametrize(
    ("kind", "make"), HOSTILE, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_request_beyond_a_limit_is_not_decoded(kind, make):
    # decoding calls the same constructor and converts its ValueError to WireError
    with pytest.raises(ValueError, match=r"expected|limit|out of range|not|differ|unknown|must"):
        make()


def test_every_request_of_all_parties_has_its_limit_tested():
    accepted = [
        *Provider.accepts,
        *SearchParty.accepts,
        *PrivateFlyNNParty.accepts,
        *FedPNNParty.accepts,
        *PrivateFedPNNParty.accepts,
        *NodeParty.accepts,
        *private_knnper._REQUESTS,
        *KNNPerParty("p", np.zeros((2, 3)), np.arange(2), perceptron(3, 2, hidden=(2,))).accepts,
        *REGRESSION.requests,
        *CLASSIFICATION.requests,
    ]

    tested = {kind.__name__ for kind, _ in HOSTILE} | IN_PROPORTION

    assert {kind.__name__.removeprefix("Masked") for kind in accepted} == tested


def refusal(party, request):
    """Return the code of a party's refusal, and check the memory that it took."""
    frame = encode(request)
    tracemalloc.start()
    try:
        reply = serve(party, frame)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    return decode(reply, (Refusal,)).code


X, Y = np.zeros((30, 3)), np.arange(30) % 2


def test_a_hash_of_too_many_units_per_row_is_refused():
    plan = HashPlan(FeatureMap(3, "none"), MAX_UNITS, 1, MAX_UNITS, 0)
    assert len(X) * MAX_UNITS > MAX_CELLS

    code = refusal(FlyNNParty("p", X, Y), CountRequest(plan, (0, 1), 16, {}))

    assert code == "hashing would take too much memory or time: lower n_active or n_units"


def test_a_plan_for_another_table_is_refused():
    plan = HashPlan(FeatureMap(2**20, "fourier"), 8, 1, 2, 0)

    code = refusal(FlyNNParty("p", X, Y), CountRequest(plan, (0, 1), 16, {}))

    assert code == "the number of columns is not the announced one"


def test_a_scaling_that_would_repeat_columns_is_refused():
    party = KNNPerParty("p", X[:, :1], Y, perceptron(1, 2, hidden=(2,)))

    code = refusal(party, CountsRequest((0, 1), False, np.zeros(1000), np.ones(1000)))

    assert code == "the scaling has another number of columns"


def test_a_network_of_too_many_weights_is_not_built(tmp_path):
    party = NodeParty("p", X, Y, model_path=tmp_path / "m")
    blueprint = Blueprint("perceptron", (3,), 2, hidden=(2**23, 2**23))

    code = refusal(party, PlanRequest(blueprint, "", MemorySettings()))

    assert code == "the network cannot be built or is too large"


def test_open_queries_have_a_limit_of_bytes(monkeypatch):
    monkeypatch.setattr(_provider, "MAX_OPEN_BYTES", 5)
    line = FunctionMetric(lambda a, b: abs(a - b))
    provider = Provider.of("p", [1.0, 2.0], line, decode=float)
    serve(provider, encode(BoundRequest("a", b"1.5", 1)))

    assert refusal(provider, BoundRequest("b", b"1.25", 1)) == (
        "too many queries are open; close some"
    )
