"""kNN-Per under masked sums: the bits of plain mode, and clients that drop out."""

import numpy as np
import pytest
from sklearn.datasets import load_wine

from fedneighbors.errors import AggregationError, PartyMissing
from fedneighbors.federation._loop import FrameTransport, run_rounds
from fedneighbors.federation._masked_sums import MaskedSums
from fedneighbors.federation._masking import MaskInput, OpenSum, Unmask
from fedneighbors.federation._roles import serve
from fedneighbors.methods.knnper import KNNPerClassifier
from tests.federation.masked_parties import enroll
from tests.methods.knnper.federations import members, training

X, Y = load_wine(return_X_y=True)
CELLAR = np.arange(len(Y)) % 4
QUICK = {"hidden": (6,), "n_rounds": 2}


@pytest.mark.parametrize("combine", ["paper", "pool"])
def test_masked_sums_give_the_bits_of_plain_ones(combine):
    plain = KNNPerClassifier(**QUICK, combine=combine, trainer="reuse").fit(X, Y, parties=CELLAR)
    masked = KNNPerClassifier(**QUICK, combine=combine, sums="masked").fit(X, Y, parties=CELLAR)

    assert masked.weights_.tobytes() == plain.weights_.tobytes()
    assert masked.overall_.tobytes() == plain.overall_.tobytes()
    assert masked.pool_ == plain.pool_
    assert (masked.predict(X, parties=CELLAR) == plain.predict(X, parties=CELLAR)).all()
    asked = {record.request for record in masked.run_record_.rounds if record.reduce == "masked"}
    kinds = {request.partition(":")[0] for request in asked}
    pool = {"ScatterRequest", "PoolRequest"} if combine == "pool" else set()
    assert kinds == {"ClientMomentsRequest", "CountsRequest", "TrainRequest"} | pool


def test_round_participants_are_those_of_its_masked_sum():
    some = {**QUICK, "participation": 0.75}

    plain = KNNPerClassifier(**some, trainer="reuse").fit(X, Y, parties=CELLAR)
    masked = KNNPerClassifier(**some, sums="masked").fit(X, Y, parties=CELLAR)

    assert masked.weights_.tobytes() == plain.weights_.tobytes()


def test_two_clients_would_tell_each_other_and_are_refused():
    with pytest.raises(AggregationError, match="3"):
        KNNPerClassifier(**QUICK, sums="masked").fit(X, Y, parties=CELLAR % 2)


def test_clients_under_masks_cannot_be_trained_side_by_side():
    with pytest.raises(ValueError, match="use trainer='auto' or 'reuse'"):
        KNNPerClassifier(**QUICK, sums="masked", trainer="stacked").fit(X, Y, parties=CELLAR)


def test_an_unknown_way_to_add_up_is_refused():
    with pytest.raises(ValueError, match="expected sums 'plain' or 'masked', got 'hidden'"):
        KNNPerClassifier(**QUICK, sums="hidden").fit(X, Y, parties=CELLAR)


def leaving(fleet, step, lost):
    """Return an exchange that loses clients at a step of the second masked sum."""
    gone, opened = set(), []

    def exchange(frames):
        if any(OpenSum.__name__.encode() in frame[:40] for frame in frames.values()):
            opened.append(1)
        begins = any(step.__name__.encode() in frame[:40] for frame in frames.values())
        if begins and len(opened) == 2:
            gone.update(lost)
        answers = {
            name: serve(fleet[name], frame) for name, frame in frames.items() if name not in gone
        }
        return answers, {name: "gone" for name in frames if name not in answers}

    return exchange


@pytest.mark.parametrize("step", [OpenSum, MaskInput])
def test_a_client_that_leaves_in_a_round_ends_the_training(step):
    own = members()
    masked, roster = enroll(own)
    fleet = {member.name: member for member in masked}
    kept = []

    with pytest.raises(PartyMissing, match="no reply to the changes of round 1") as caught:
        run_rounds(
            training(own, on_stage=kept.append),
            FrameTransport(leaving(fleet, step, {own[4].name}), tuple(fleet)),
            sums=MaskedSums(roster),
        )

    assert set(caught.value.missing) == {own[4].name}
    assert kept == []
    assert [member.personal for member in own] == [None] * 5


def test_a_client_that_leaves_after_its_sum_is_in_that_round():
    own = members()
    masked, roster = enroll(own)
    fleet = {member.name: member for member in masked}
    kept = []

    with pytest.raises(PartyMissing, match="no reply to the changes of round 2"):
        run_rounds(
            training(own, on_stage=kept.append),
            FrameTransport(leaving(fleet, Unmask, {own[4].name}), tuple(fleet)),
            sums=MaskedSums(roster),
        )

    assert [stage.number for stage in kept] == [1]


def test_too_few_that_stay_give_no_sum_at_all():
    own = members()
    masked, roster = enroll(own)
    fleet = {member.name: member for member in masked}

    with pytest.raises(AggregationError):
        run_rounds(
            training(own),
            FrameTransport(
                leaving(fleet, MaskInput, {member.name for member in own[2:]}), tuple(fleet)
            ),
            sums=MaskedSums(roster),
        )
