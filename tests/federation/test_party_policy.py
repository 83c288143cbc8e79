"""Requests that a party refuses because of earlier answers, and quoted replies."""

from dataclasses import replace

import numpy as np
import pytest

from fedneighbors.errors import AggregationError, ProtocolError
from fedneighbors.federation._inprocess import run
from fedneighbors.federation._masking import MaskInput, OpenSum, Unmask
from fedneighbors.federation._party_policy import SingleUseParty
from fedneighbors.federation._roles import Refused, make_refusal
from fedneighbors.federation._stores import FolderStore, MemoryStore
from fedneighbors.methods.fedpnn._party import CentersRequest, FedPNNParty, FedPNNSchemaRequest
from fedneighbors.methods.fedpnn._scaling import ScalingRequest, make_scaling
from fedneighbors.methods.fedpnn._selection import SelectionRequest
from fedneighbors.methods.fedpnn.protocol import FedPNNSettings, coordinate
from fedneighbors.methods.flynn.protocol import FlyNNParty, MomentsRequest
from fedneighbors.methods.knnper.flower_app import NodeParty, OpeningRequest
from tests.federation.masked_parties import (
    SingleUseRequest,
    ValuesRequest,
    Wire,
    enroll,
    make_parties,
    run_masked_sum,
)


@pytest.mark.parametrize("request_class", [ValuesRequest, SingleUseRequest])
def test_second_sum_over_other_parties_is_refused(request_class):
    masked, roster = enroll(make_parties(5))
    run_masked_sum(Wire(masked), roster, request=request_class())

    wire = Wire(masked, silent={MaskInput: ("p4",)})
    with pytest.raises(AggregationError, match="another sum of this kind was unmasked before"):
        run_masked_sum(wire, roster, request=request_class())

    assert wire.get_messages(Unmask) == []


@pytest.mark.parametrize("request_class", [ValuesRequest, SingleUseRequest])
def test_sum_over_the_same_parties_can_be_repeated(request_class):
    masked, roster = enroll(make_parties(4))

    first, second = (
        run_masked_sum(Wire(masked), roster, request=request_class())[0].total for _ in range(2)
    )

    assert first == second


def test_single_use_sum_refuses_another_request():
    masked, roster = enroll(make_parties(4))
    run_masked_sum(Wire(masked), roster, request=SingleUseRequest())

    remedy = r"before; delete policy\.\* in mask-state to allow it$"
    with pytest.raises(AggregationError, match=f"another sum of this kind was unmasked {remedy}"):
        run_masked_sum(Wire(masked), roster, request=SingleUseRequest(page=1))
    run_masked_sum(Wire(masked), roster, request=ValuesRequest())
    run_masked_sum(Wire(masked), roster, request=ValuesRequest(page=1))


@pytest.mark.parametrize("request_class", [ValuesRequest, SingleUseRequest])
def test_sum_refuses_a_changed_table(request_class):
    parties = make_parties(4)
    masked, roster = enroll(parties)
    run_masked_sum(Wire(masked), roster, request=request_class())
    parties[2].items = parties[2].items + 1

    with pytest.raises(AggregationError, match=r"'p2': .*another sum of this kind was unmasked"):
        run_masked_sum(Wire(masked), roster, request=request_class())


def test_sum_without_noise_over_a_minority_is_refused():
    masked, roster = enroll(make_parties(9))
    requests = {name: ValuesRequest() for name in ("p1", "p3", "p4")}

    with pytest.raises(AggregationError, match="needs 6 of the 9 enrolled parties, got 3"):
        run_masked_sum(Wire(masked), roster, request=requests)


def test_party_refuses_a_sum_without_noise_over_a_minority():
    masked, _ = enroll(make_parties(9))
    names = ("p1", "p3", "p4")
    opening = OpenSum("0" * 32, names, 3, ValuesRequest.__name__, b"0" * 32)

    with pytest.raises(Refused, match="this step failed") as refused:
        masked[1].answer(opening)
    assert refused.value.detail == "expected a threshold of 6 to 9 for 9 parties, got 3"


def make_table(seed=0, n=60):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 3)), np.arange(n) % 2


def single_use_party(store, *, seed=0):
    return SingleUseParty(FedPNNParty("p0", *make_table(seed)), store=store)


def centers_request(**changes):
    """Return a request for centers, by default in each party's own scaling."""
    parameters = {
        "scaling": None,
        "scaling_kind": "minmax",
        "n_knots": 10,
        "linear_map": np.zeros((0, 0)),
        "classes": (0, 1),
        "threshold": None,
        "factor": 2.0,
        "classwise": True,
        "min_count": 5,
        "activation": "gaussian",
        "means": True,
    }
    return CentersRequest(**{**parameters, **changes})


REQUESTS = {
    "schema": (FedPNNSchemaRequest(5), FedPNNSchemaRequest(6)),
    "knots": (ScalingRequest(10, 5), ScalingRequest(11, 5)),
    "columns": (ScalingRequest(10, 5), ScalingRequest(10, 5, np.array([0]))),
    "sums": (SelectionRequest((0, 1), 3, 5), SelectionRequest((0, 1, 2), 3, 5)),
    "centers": (centers_request(), centers_request(classwise=False)),
    "centers after constants": (ScalingRequest(11, 5), centers_request()),
    "constants after centers": (centers_request(), ScalingRequest(11, 5)),
    "columns after centers": (centers_request(), ScalingRequest(10, 5, np.array([0]))),
    "sums with clusters of several classes": (
        SelectionRequest((0, 1), 3, 5),
        centers_request(classwise=False),
    ),
    "clusters of several classes with sums": (
        centers_request(classwise=False),
        SelectionRequest((0, 1), 3, 5),
    ),
}


@pytest.mark.parametrize(("first", "other"), REQUESTS.values(), ids=REQUESTS)
def test_second_request_of_a_kind_is_refused(first, other, tmp_path):
    reply = single_use_party(FolderStore(tmp_path)).answer(first)

    restarted = single_use_party(FolderStore(tmp_path))
    with pytest.raises(Refused, match=r"another|excludes"):
        restarted.answer(other)

    assert restarted.answer(first) == reply


@pytest.mark.parametrize(
    "refused",
    [FedPNNSchemaRequest(4), ScalingRequest(10, 4), ScalingRequest(9, 5, np.array([3]))],
)
def test_refused_request_does_not_count(refused):
    party = single_use_party(MemoryStore())
    with pytest.raises(Refused, match=r"min_count of this party|not in the table"):
        party.answer(refused)

    party.answer(FedPNNSchemaRequest(6))
    party.answer(ScalingRequest(10, 6))


def test_refusals_fit_into_a_message():
    party = single_use_party(MemoryStore())
    party.answer(ScalingRequest(10, 5))

    for request in (ScalingRequest(9, 5), SelectionRequest((0, 1), 3, 6)):
        with pytest.raises(Refused, match="; delete the folder answers to allow it") as refused:
            party.answer(request)
        assert make_refusal(refused.value).code == refused.value.code


def test_requests_of_two_minimums_are_refused():
    party = single_use_party(MemoryStore())
    party.answer(ScalingRequest(10, 5))

    with pytest.raises(Refused, match="another min_count"):
        party.answer(SelectionRequest((0, 1), 3, 6))


def test_changed_table_is_refused(tmp_path):
    single_use_party(FolderStore(tmp_path)).answer(ScalingRequest(10, 5))

    with pytest.raises(Refused, match="about another table"):
        single_use_party(FolderStore(tmp_path), seed=1).answer(ScalingRequest(10, 5))


@pytest.mark.parametrize(
    ("make", "request_"),
    [
        (FlyNNParty, MomentsRequest(with_columns=True)),
        (NodeParty, OpeningRequest()),
    ],
)
def test_run_is_answered_about_one_table(make, request_, tmp_path):
    def start(run, seed):
        party = make("p0", *make_table(seed), model_path=tmp_path / "model")
        return SingleUseParty(party, store=FolderStore(tmp_path / "answers"), run=run)

    reply = start("1", seed=0).answer(request_)

    with pytest.raises(Refused, match=r"another table were answered before; delete the folder"):
        start("1", seed=1).answer(request_)
    assert start("1", seed=0).answer(request_) == reply
    start("2", seed=1).answer(request_)


def fedpnn_parties(n=3):
    return [FedPNNParty(f"p{k}", *make_table(k)) for k in range(n)]


class Enrolled:
    """Masked parties, their signed constants, and the scaling that follows from these."""

    def __init__(self, request=None):
        self.parties, _ = enroll(fedpnn_parties())
        request = request or ScalingRequest(10, 5)
        self.constants = {p.name: p.answer(request) for p in self.parties}
        self.scaling = make_scaling("minmax", list(self.constants.values()), min_count=5)

    def request(self, *, scaling=None, constants=None, **changes):
        return centers_request(
            scaling=scaling or self.scaling,
            constants=self.constants if constants is None else constants,
            **changes,
        )


def test_party_accepts_the_scaling_of_signed_constants():
    enrolled = Enrolled()

    for party in enrolled.parties:
        assert len(party.answer(enrolled.request()).centers)


def test_invented_scaling_is_refused():
    enrolled = Enrolled()
    values = enrolled.scaling.values.copy()
    values[0] = [0.0, 1e-9]

    with pytest.raises(Refused, match="does not follow from the replies"):
        enrolled.parties[0].answer(
            enrolled.request(scaling=replace(enrolled.scaling, values=values))
        )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: {}, "does not quote the reply of this party"),
        (lambda c: {"p0": c["p0"]}, "fewer than two thirds"),
        (lambda c: {**c, "p1": replace(c["p1"], signature=b"")}, "not signed"),
        (lambda c: {**c, "p1": c["p2"]}, "not signed"),
        (lambda c: {**c, "eve": c["p2"]}, "not signed"),
        (lambda c: {**c, "p1": replace(c["p1"], sizes=c["p1"].sizes * 9)}, "not signed"),
    ],
)
def test_invented_constants_are_refused(change, words):
    enrolled = Enrolled()

    with pytest.raises(Refused, match=words):
        enrolled.parties[0].answer(enrolled.request(constants=change(enrolled.constants)))


@pytest.mark.parametrize(
    ("signed", "changes"),
    [
        (ScalingRequest(10, 6), {}),
        (ScalingRequest(10, 5), {"min_count": 6}),
        (ScalingRequest(10, 5, np.array([0, 1])), {"columns": np.array([0, 2])}),
        (ScalingRequest(10, 5, np.array([0, 1, 2])), {}),
    ],
)
def test_constants_of_another_request_are_refused(signed, changes):
    enrolled = Enrolled(signed)

    with pytest.raises(Refused, match="not signed"):
        enrolled.parties[0].answer(enrolled.request(**changes))


def test_constants_of_two_requests_are_refused():
    enrolled = Enrolled()
    other = Enrolled(ScalingRequest(9, 5)).constants["p1"]

    with pytest.raises(Refused, match="does not follow from the replies"):
        enrolled.parties[0].answer(enrolled.request(constants={**enrolled.constants, "p1": other}))


def test_parties_without_a_signature_are_named():
    masked, _ = enroll(fedpnn_parties(4))
    parties = [masked[0], *fedpnn_parties(4)[1:3], masked[3]]

    with pytest.raises(ProtocolError, match=r"some parties sign .* 'p1', 'p2' did not"):
        run(coordinate(FedPNNSettings()), parties)


def test_model_does_not_depend_on_signatures():
    plain, signed = (
        run(coordinate(FedPNNSettings()), fedpnn_parties(), sums=sums).result
        for sums in ("plain", "masked")
    )

    assert plain.to_bytes() == signed.to_bytes()
