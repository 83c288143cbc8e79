"""Requests, plans, trees and models that contradict themselves are rejected."""

from dataclasses import replace

import numpy as np
import pytest

from fedneighbors.baselines.boosting._bins import Holdout, RankReply, RankRequest
from fedneighbors.baselines.boosting._model import BoostingModel, Trees
from fedneighbors.baselines.boosting._party import (
    BoostingParty,
    BoostingPlan,
    HistogramReply,
    HistogramRequest,
    TargetReply,
    TargetRequest,
)
from fedneighbors.baselines.boosting._protocol import BoostingSettings, coordinate
from fedneighbors.errors import PartyRefused, ProtocolError, SchemaMismatch
from fedneighbors.federation._inprocess import run
from fedneighbors.federation._messages import decode, encode
from fedneighbors.federation._roles import Refused

NONE = Holdout(0.0, 0)
PLAN = BoostingPlan(
    classes=("ill", "well"),
    weights=np.ones(2),
    intercept=np.zeros(1),
    factor=2.0**20,
    limit=2.0**40,
    loss_factor=2.0**20,
    edges=np.array([1.0, 2.0, 0.5]),
    starts=np.array([0, 2, 3]),
    holdout=NONE,
)
STUMP = Trees(
    np.array([0, -1, -1], np.int32),
    np.array([1.0, 0.0, 0.0]),
    np.zeros(3, bool),
    np.array([1, 0, 0], np.int32),
    np.array([0.0, -0.1, 0.1]),
    np.zeros(1, np.int64),
)
ROOT = np.zeros((1, 2), np.int64)
REQUEST = HistogramRequest(PLAN, STUMP, np.array([[0, 0, 1, 0, 1]]), np.array([[0, 2]]))
X = np.array([[0.0, 1.0], [1.5, np.nan], [3.0, 0.0], [3.0, 0.0]])
Y = np.array(["ill", "well", "well", "ill"])


def test_messages_survive_encoding():
    for item in (REQUEST, TargetRequest(("ill", "well"), NONE)):
        assert decode(encode(item), (type(item),)) == item


@pytest.mark.parametrize(
    "change",
    [
        {"weights": np.ones(3)},
        {"weights": np.array([1.0, -1.0])},
        {"intercept": np.zeros(2)},
        {"intercept": np.array([np.nan])},
        {"factor": 0.0},
        {"limit": -1.0},
        {"starts": np.array([0, 2])},
        {"starts": np.array([1, 2, 3])},
        {"starts": np.array([0, 4, 3])},
        {"starts": np.zeros(0, np.int64)},
        {"edges": np.array([2.0, 1.0, 0.5])},
        {"edges": np.array([1.0, 1.0, 0.5])},
        {"edges": np.array([1.0, np.nan, 0.5])},
        {"edges": np.arange(256.0), "starts": np.array([0, 255, 256])},
    ],
)
def test_contradictory_plans_are_rejected(change):
    with pytest.raises(ValueError, match=r"expected|must"):
        replace(PLAN, **change)


@pytest.mark.parametrize(
    "change",
    [
        {"splits": np.zeros((1, 4), np.int64)},
        {"splits": np.array([[1, 0, 0, 0, 0]])},  # no such tree
        {"splits": np.array([[0, 1, 0, 0, 0]])},  # no such node yet
        {"splits": np.array([[0, 0, 2, 0, 0]])},  # no such column
        {"splits": np.array([[0, 0, 1, 2, 0]])},  # no such bin
        {"splits": np.array([[0, 0, 1, -1, 0]])},
        {"splits": np.array([[0, 0, 1, 0, 0], [0, 0, 0, 0, 0]])},  # twice
        {"nodes": np.array([[0, 3]])},
        {"nodes": np.array([[1, 0]])},
        {"nodes": np.array([0, 0])},
        {"nodes": np.zeros((1 << 26, 2), np.int64)},
        {"plan": replace(PLAN, edges=PLAN.edges[:0], starts=np.zeros(1, np.int64))},
    ],
)
def test_contradictory_requests_are_rejected(change):
    with pytest.raises(ValueError, match=r"expected|split|histogram|trees"):
        replace(REQUEST, **change)


@pytest.mark.parametrize(
    "change",
    [
        {"values": np.zeros(2)},
        {"values": np.array([0.0, np.inf, 0.0])},
        {"thresholds": np.array([np.nan, 0.0, 0.0])},
        {"children": np.array([0, 0, 0], np.int32)},  # an endless walk
        {"children": np.array([2, 0, 0], np.int32)},  # no right child
        {"children": np.array([-5, 0, 0], np.int32)},
        {"roots": np.array([1])},
        {"roots": np.array([0, 0])},
        {"roots": np.array([0, 3])},
        {"roots": np.array([0, 1])},  # a child in another tree
        {"roots": np.zeros(0, np.int64)},
    ],
)
def test_trees_that_could_not_be_walked_are_rejected(change):
    with pytest.raises(ValueError, match=r"tree"):
        replace(STUMP, **change)


@pytest.mark.parametrize(
    "change",
    [
        {"n_features": 0},
        {"intercept": np.zeros(2)},
        {"classes": ("a", "b", "c")},
        {"intercept": np.array([np.inf])},
        {"feature_names": ("a",)},
    ],
)
def test_contradictory_models_are_rejected(change):
    model = BoostingModel(("ill", "well"), 2, np.zeros(1), STUMP)

    with pytest.raises(ValueError, match=r"column|score|names"):
        replace(model, **change)


@pytest.mark.parametrize(
    "changed",
    [
        ([0], [0], [[1]]),
        ([0, 1], [0], [1]),
        ([-1], [0], [1]),
        ([0], [1], [1]),
        ([0, 1], [0, 5], [1]),
    ],
)
def test_contradictory_cuts_are_rejected(changed):
    with pytest.raises(ValueError, match=r"expected|must"):
        RankRequest(NONE, *(np.array(part, np.int64) for part in changed))


@pytest.mark.parametrize("fraction", [1.0, -0.1, np.nan])
def test_held_out_fraction_is_checked(fraction):
    with pytest.raises(ValueError, match=r"fraction in \[0, 1\)"):
        Holdout(fraction, 0)


def test_party_refuses_columns_that_it_does_not_have():
    party = BoostingParty("p", X[:, :1], Y)
    cuts = RankRequest(NONE, np.array([1]), np.array([0]), np.array([0]))

    for request in (REQUEST, cuts):
        with pytest.raises(Refused, match="column"):
            party.answer(request)


def test_party_refuses_unknown_labels():
    with pytest.raises(Refused, match="a label is not among the classes"):
        BoostingParty("p", X, np.array(["ill", "well", "well", "dead"])).answer(REQUEST)


def test_histogram_has_the_rows_of_its_node():
    reply = BoostingParty("p", X, Y).answer(REQUEST)

    # node 2 has the rows above 0.5 in column 1; its missing cell went left
    assert reply.histograms[0, :, 2].tolist() == [1, 0, 0, 0, 0, 1, 0]


class LyingParty(BoostingParty):
    """Party that changes each reply of a class."""

    def __init__(self, *table, change):
        super().__init__(*table)
        self._change = change

    def answer(self, request):
        return self._change(super().answer(request))


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (TargetReply, lambda reply: replace(reply, counts=reply.counts - 99)),
        (TargetReply, lambda reply: replace(reply, counts=reply.counts[:1])),
        (TargetReply, lambda reply: replace(reply, sums=reply.sums[:, :1])),
        (RankReply, lambda reply: RankReply(reply.counts[1:])),
        (RankReply, lambda reply: RankReply(-reply.counts)),
        (HistogramReply, lambda reply: replace(reply, histograms=reply.histograms[:, 1:])),
        (HistogramReply, lambda reply: replace(reply, histograms=-reply.histograms - 1)),
    ],
)
@pytest.mark.parametrize("sums", ["plain", "masked"])
def test_false_replies_end_the_training(kind, change, sums):
    def maybe(reply):
        return change(reply) if type(reply) is kind else reply

    x, y = np.tile(X, (20, 1)), np.tile(Y, 20)
    parties = [LyingParty(name, x, y, change=maybe) for name in "abc"]

    with pytest.raises(ProtocolError):
        run(coordinate(BoostingSettings(max_iter=1)), parties, sums=sums)


def test_other_columns_are_named():
    parties = [BoostingParty("a", X, Y), BoostingParty("b", X[:, :1], Y)]

    with pytest.raises(SchemaMismatch, match="party 'b'"):
        run(coordinate(BoostingSettings()), parties)


def test_infinite_cells_are_refused():
    x = X.copy()
    x[0, 0] = np.inf

    with pytest.raises(PartyRefused, match="infinite"):
        run(coordinate(BoostingSettings()), [BoostingParty("a", x, Y)])
