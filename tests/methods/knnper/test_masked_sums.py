"""kNN-Per under masked sums: the bits of plain mode, and clients that drop out."""

import numpy as np
import pytest
from sklearn.datasets import load_wine

from fedneighbors.errors import AggregationError, PartyMissing
from fedneighbors.federation._loop import FrameTransport, run_rounds
from fedneighbors.federation._masked_sums import MaskedSums
from fedneighbors.federation._masking import (
    MaskInput,
    OpenSum,
    Unmask,
)
from fedneighbors.federation._messages import encode
from fedneighbors.methods.knnper import KNNPerClassifier
from tests.federation.masked_parties import enroll, lose_parties
from tests.methods.knnper.federations import build_coordinator, make_members

X, Y = load_wine(return_X_y=True)
PARTIES = np.arange(len(Y)) % 4
QUICK = {"hidden": (6,), "n_rounds": 2}


@pytest.mark.parametrize("combine", ["paper", "pool"])
def test_masked_sums_give_the_bits_of_plain_ones(combine):
    plain = KNNPerClassifier(**QUICK, combine=combine, trainer="reuse").fit(X, Y, parties=PARTIES)
    masked = KNNPerClassifier(**QUICK, combine=combine, sums="masked").fit(X, Y, parties=PARTIES)

    assert masked.weights_.tobytes() == plain.weights_.tobytes()
    assert masked.overall_.tobytes() == plain.overall_.tobytes()
    if combine == "pool":
        assert encode(masked.pool_) == encode(plain.pool_)
    assert (masked.predict(X, parties=PARTIES) == plain.predict(X, parties=PARTIES)).all()
    requests = {record.request for record in masked.run_record_.rounds if record.reduce == "masked"}
    kinds = {request.partition(":")[0] for request in requests}
    pool = {"ScatterRequest", "PoolRequest"} if combine == "pool" else set()
    assert kinds == {"ClientMomentsRequest", "CountsRequest", "TrainRequest"} | pool


def test_round_participants_are_those_of_its_masked_sum():
    options = {**QUICK, "participation": 0.75}

    plain = KNNPerClassifier(**options, trainer="reuse").fit(X, Y, parties=PARTIES)
    masked = KNNPerClassifier(**options, sums="masked").fit(X, Y, parties=PARTIES)

    assert masked.weights_.tobytes() == plain.weights_.tobytes()


def test_masked_sums_of_two_clients_are_refused():
    with pytest.raises(AggregationError, match="3"):
        KNNPerClassifier(**QUICK, sums="masked").fit(X, Y, parties=PARTIES % 2)


def test_masked_clients_cannot_be_trained_stacked():
    with pytest.raises(ValueError, match="use trainer='auto' or 'reuse'"):
        KNNPerClassifier(**QUICK, sums="masked", trainer="stacked").fit(X, Y, parties=PARTIES)


def test_an_unknown_kind_of_sum_is_refused():
    with pytest.raises(ValueError, match="expected sums 'plain' or 'masked', got 'hidden'"):
        KNNPerClassifier(**QUICK, sums="hidden").fit(X, Y, parties=PARTIES)


@pytest.mark.parametrize("step", [OpenSum, MaskInput])
def test_a_client_lost_before_its_sum_ends_the_training(step):
    clients = make_members()
    masked, roster = enroll(clients)
    by_name = {member.name: member for member in masked}
    stages = []

    with pytest.raises(PartyMissing, match="no reply to the changes of round 1") as caught:
        run_rounds(
            build_coordinator(clients, on_stage=stages.append),
            FrameTransport(lose_parties(by_name, step, {clients[4].name}, n_sum=2), tuple(by_name)),
            sums=MaskedSums(roster),
        )

    assert set(caught.value.missing) == {clients[4].name}
    assert stages == []
    assert [member.client_state for member in clients] == [None] * 5


def test_a_client_lost_after_its_sum_is_in_that_round():
    clients = make_members()
    masked, roster = enroll(clients)
    by_name = {member.name: member for member in masked}
    stages = []

    with pytest.raises(PartyMissing, match="no reply to the changes of round 2"):
        run_rounds(
            build_coordinator(clients, on_stage=stages.append),
            FrameTransport(
                lose_parties(by_name, Unmask, {clients[4].name}, n_sum=2), tuple(by_name)
            ),
            sums=MaskedSums(roster),
        )

    assert [stage.number for stage in stages] == [1]


def test_too_few_remaining_clients_give_no_sum():
    clients = make_members()
    masked, roster = enroll(clients)
    by_name = {member.name: member for member in masked}

    with pytest.raises(AggregationError):
        run_rounds(
            build_coordinator(clients),
            FrameTransport(
                lose_parties(by_name, MaskInput, {one.name for one in clients[2:]}, n_sum=2),
                tuple(by_name),
            ),
            sums=MaskedSums(roster),
        )
