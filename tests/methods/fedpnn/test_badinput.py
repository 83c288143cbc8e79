"""Unusual tables and invalid replies: a working model or an error of this project."""

import contextlib
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_wine

from fedneighbors import FedPNNClassifier
from fedneighbors.errors import FedneighborsError, PartyRefused, ProtocolError, WireError
from fedneighbors.federation._inprocess import run
from fedneighbors.federation._messages import decode, encode
from fedneighbors.federation._roles import Refused, serve
from fedneighbors.methods.fedpnn._party import CentersReply, CentersRequest, FedPNNParty
from fedneighbors.methods.fedpnn._scaling import (
    PointMomentsRequest,
    ScalingReply,
    ScalingRequest,
)
from fedneighbors.methods.fedpnn.protocol import FedPNNSettings, coordinate

X, Y = load_wine(return_X_y=True)
OWNERS = np.arange(len(Y)) % 2
SETTINGS = [
    {},
    {"normalize": "minmax"},
    {"normalize": "minmax", "frame": "local", "metric": None, "classwise": False},
    {"normalize": None, "metric": None},
    {"n_features_to_select": 5},
]


FILLS = [0.0, 7.0, -1e59, np.nan]
ROWS = [slice(None), OWNERS == 0, Y == 1, Y != 1]
COLUMNS = [  # each pair of mode and fill, and of mode and rows; the other triples are slow
    pytest.param(mode, fill, rows, marks=[pytest.mark.slow] if (i + j + k) % 2 else [])
    for i, mode in enumerate(SETTINGS)
    for j, fill in enumerate(FILLS)
    for k, rows in enumerate(ROWS)
]


@pytest.mark.parametrize(("mode", "fill", "rows"), COLUMNS)
def test_constant_and_empty_columns_are_harmless(mode, fill, rows):
    x = X.copy()
    x[rows, 3] = fill
    x[rows, 7] = fill

    model = FedPNNClassifier(**mode).fit(x, Y, parties=OWNERS)

    probabilities = model.predict_proba(np.vstack([x, X]))
    assert np.isfinite(probabilities).all()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)


@pytest.mark.parametrize("mode", SETTINGS)
@pytest.mark.parametrize("value", [0.0, np.nan])
def test_constant_table_gives_constant_probabilities(mode, value):
    x = np.full((40, 6), value)

    model = FedPNNClassifier(**mode).fit(x, np.arange(40) % 2, parties=np.arange(40) % 4 // 2)

    # clustered together, all rows form one center, which belongs to the lower class
    expected = [0.5, 0.5] if mode.get("classwise", True) else [1.0, 0.0]
    np.testing.assert_allclose(model.predict_proba(x), [expected] * 40)


@pytest.mark.parametrize("mode", SETTINGS)
@pytest.mark.parametrize("value", [2.0**200, -1e308, 1.7e308])
def test_too_large_values_are_rejected_with_their_column(mode, value):
    x = X.copy()
    x[5, 3] = value

    with pytest.raises(PartyRefused, match=r"'1' refused: a value is 2\*\*200.*\(column 3\)"):
        FedPNNClassifier(**mode).fit(x, Y, parties=OWNERS)


@pytest.mark.parametrize("mode", SETTINGS)
def test_largest_accepted_values_train(mode):
    x = X.copy()
    x[::7, 3], x[1::7, 4], x[2::7, 5] = 2.0**199, -(2.0**199), 1e-300

    model = FedPNNClassifier(**mode).fit(x, Y, parties=OWNERS)

    with np.errstate(all="raise", under="ignore"):
        probabilities = model.predict_proba(np.vstack([x, np.full_like(x[:2], 1.7e308)]))
    assert np.isfinite(probabilities).all()


@pytest.mark.parametrize("mode", SETTINGS)
def test_parties_with_one_class_each_train(mode):
    model = FedPNNClassifier(**mode).fit(X, Y, parties=Y)

    assert set(model.model_.center_labels.tolist()) == {0, 1, 2}
    assert np.isfinite(model.predict_proba(X)).all()


def test_party_without_rows_takes_part():
    members = [FedPNNParty("empty", X[:0], Y[:0]), FedPNNParty("full", X, Y)]

    for n_columns in (None, 4):
        model = run(coordinate(FedPNNSettings(n_features_to_select=n_columns)), members).result
        assert len(model.centers)
    assert members[0].exposure.n_rows == 0


def test_parties_and_share_are_mutually_exclusive():
    with pytest.raises(ValueError, match="share=2 and parties are mutually exclusive"):
        FedPNNClassifier.paper(0.2, 0.2).fit(X, Y, parties=OWNERS)
    FedPNNClassifier.paper(0.2, 0.2, share=None).fit(X, Y, parties=OWNERS)


@pytest.mark.parametrize("state", [-1, 2**63, "seed"])
def test_seeds_out_of_range_are_rejected(state):
    with pytest.raises(ValueError, match=r"seed|random_state"):
        FedPNNClassifier(share=2, random_state=state).fit(X, Y)


def test_random_states_of_any_kind_split_rows():
    fitted = [
        FedPNNClassifier(share=2, random_state=np.random.RandomState(3)).fit(X, Y) for _ in range(2)
    ]

    assert fitted[0].model_.to_bytes() == fitted[1].model_.to_bytes()
    assert FedPNNClassifier(share=2, random_state=None).fit(X, Y).score(X, Y) > 0.9


def test_model_does_not_depend_on_threads():
    one_thread, three_threads = (FedPNNClassifier(n_jobs=n).fit(X, Y) for n in (None, 3))

    assert one_thread.model_.to_bytes() == three_threads.model_.to_bytes()
    assert (one_thread.predict_proba(X) == three_threads.predict_proba(X)).all()


class TamperingParty(FedPNNParty):
    """Party that sends altered constants or centers."""

    def __init__(self, kind, change):
        super().__init__("p1", X, Y)
        self._kind, self._change = kind, change

    def answer(self, request):
        reply = super().answer(request)
        return replace(reply, **self._change(reply)) if isinstance(reply, self._kind) else reply


def empty_first_group(reply):
    sizes = reply.sizes.copy()
    sizes[0, 0] = 0
    return {"sizes": sizes}


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        (ScalingReply, lambda r: {"knots": -r.knots}, "do not ascend"),
        (ScalingReply, lambda r: {"knots": r.knots * 1e300}, "not a number below"),
        (ScalingReply, lambda r: {"knots": r.knots * np.nan}, "not a number below"),
        (ScalingReply, lambda r: {"sizes": r.sizes * (1 << 50)}, "missing cells must be in"),
        (ScalingReply, lambda r: {"n_missing": r.n_missing - 1}, "missing cells must be in"),
        (ScalingReply, empty_first_group, "unused knots"),
        (ScalingReply, lambda r: {"is_complete": r.is_complete[1:]}, "for each column"),
        (ScalingReply, lambda r: {"knots": r.knots[:, 1:], "sizes": r.sizes[:, 1:]}, "100 knots"),
        (CentersReply, lambda r: {"centers": r.centers * 1e200}, "must be below 1e\\+150"),
        (CentersReply, lambda r: {"centers": r.centers * np.inf}, "must be below 1e"),
        (CentersReply, lambda r: {"counts": r.counts * (1 << 50)}, "counts of rows must be in"),
        (CentersReply, lambda r: {"counts": r.counts * 0 + 1}, "fewer than 5 rows"),
        (CentersReply, lambda r: {"sigma_index": 99}, "expected sigma_index from -1 to 19, got 99"),
    ],
)
def test_impossible_replies_raise_and_name_the_party(kind, change, words):
    """Check replies that the constructors of the messages would reject."""
    unchecked = UncheckedParty(TamperingParty(kind, change))

    with pytest.raises((WireError, ProtocolError), match=f"party 'p1': .*{words}"):
        run(coordinate(FedPNNSettings()), [FedPNNParty("p0", X, Y), unchecked])


class UncheckedParty:
    """Party that sends a tampering party's replies without the checks of their constructors."""

    def __init__(self, party):
        self.name, self.accepts, self._party = party.name, party.accepts, party

    def answer(self, request):
        reply = FedPNNParty.answer(self._party, request)
        if not isinstance(reply, self._party._kind):
            return reply
        altered = object.__new__(type(reply))
        for name, value in (vars(reply) | self._party._change(reply)).items():
            object.__setattr__(altered, name, value)
        return altered


@pytest.mark.parametrize(
    "make",
    [
        lambda: ScalingRequest(9, 5, np.array([3, 2])),
        lambda: ScalingRequest(9, 5, np.array([2, 2])),
        lambda: PointMomentsRequest(None, (0, 1), 5, np.array([-1])),
        lambda: CentersRequest(
            None, "minmax", 9, np.full((2, 2), np.inf), (0,), None, 2.0, True, 5, "gaussian", True
        ),
        lambda: CentersRequest(
            None, "minmax", 9, np.zeros((0, 0)), (0,), None, 2.0, True, 5, "gaussian", False
        ),
    ],
)
def test_requests_with_invalid_fields_raise(make):
    with pytest.raises(
        ValueError, match=r"must be ascending|not a matrix of finite numbers|need min_count=1"
    ):
        make()


def test_party_refuses_columns_outside_its_table():
    with pytest.raises(Refused, match="not in the table"):
        FedPNNParty("p0", X, Y).answer(ScalingRequest(9, 5, np.array([12, 13])))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(SETTINGS), st.integers(1, 5))
def test_unusual_values_train_or_raise_a_project_error(seed, mode, min_count):
    rng = np.random.default_rng(seed)
    values = [np.nan, 0.0, -0.0, 1e-320, 1e-160, 1e55, -1e55, 1.0]
    x = rng.choice(values, size=(40, 3))
    y, owner = rng.integers(0, 3, 40), rng.integers(0, 2, 40)

    classifier = FedPNNClassifier(**mode, min_count=min_count, classes=[0, 1, 2])
    with contextlib.suppress(FedneighborsError), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        model = classifier.fit(x, y, parties=owner)
        assert np.isfinite(model.predict_proba(x)).all()


def test_party_serves_serialized_requests():
    reply = serve(FedPNNParty("p0", X, Y), encode(ScalingRequest(9, 5, np.array([0, 5]))))

    assert decode(reply, (ScalingReply,)).knots.shape == (2, 9)
