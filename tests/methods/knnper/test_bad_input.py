"""Invalid clients, networks, rows and files, and their error messages."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine
from torch import nn

from fedneighbors.errors import DataError, MissingExtraError, PartyRefused, SchemaMismatch
from fedneighbors.federation._loop import run_rounds
from fedneighbors.federation._messages import decode, encode
from fedneighbors.federation._roles import Refusal, Refused, serve
from fedneighbors.methods.knnper import KNNPerClassifier
from fedneighbors.methods.knnper._client import KNNPerParty
from fedneighbors.methods.knnper._training import Cohort
from fedneighbors.methods.knnper.flower_app import OpeningRequest, PlanRequest
from fedneighbors.methods.knnper.memory._rows import RowFeatures
from fedneighbors.methods.knnper.protocol import ClientSchemaRequest
from tests.methods.knnper.federations import build_coordinator, make_members, make_network
from tests.methods.knnper.tampering import alter_record

X, Y = load_wine(return_X_y=True)
PARTIES = np.where(np.arange(len(Y)) % 3 == 0, "south", "north")
QUICK = {"hidden": (8,), "n_rounds": 2}


@pytest.fixture(scope="module")
def fitted():
    return KNNPerClassifier(**QUICK).fit(X, Y, parties=PARTIES)


def assign_rows(name, rows):
    owner = PARTIES.copy()
    owner[rows] = name
    return owner


# Clients


@pytest.mark.parametrize("combine", ["paper", "pool"])
@pytest.mark.parametrize(
    "rows",
    [[5], [5, 6], [0, 70, 150], list(range(20))],
    ids=["one row", "two of a class", "fewer than k", "one class"],
)
def test_clients_of_few_rows_or_one_class_train_and_predict(rows, combine):
    owner = assign_rows("small", rows)

    model = KNNPerClassifier(**QUICK, combine=combine).fit(X, Y, parties=owner)

    probabilities = model.predict_proba(X[:3], ["small"] * 3)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-12)
    assert len(model.clients_["small"].memory) == len(rows)


def test_a_one_row_client_has_weight_one_half():
    model = KNNPerClassifier(**QUICK).fit(X, Y, parties=assign_rows("lone", [5]))

    shared = np.exp(model.embed(X[:2])[1])
    local = np.eye(3)[Y[5]]
    assert model.clients_["lone"].weight == 0.5  # the middle of equally good weights
    np.testing.assert_allclose(
        model.predict_proba(X[:2], ["lone"] * 2), (local + shared) / 2, rtol=1e-12
    )


@pytest.mark.parametrize("combine", ["paper", "pool"])
def test_a_client_without_rows_changes_nothing_for_the_others(combine):
    from fedneighbors.methods.knnper._settings import MemorySettings

    settings = MemorySettings(combine=combine)
    without_it, with_it = make_members(settings=settings), make_members(settings=settings)
    empty = KNNPerParty(
        "void", np.zeros((0, 64)), np.zeros(0, np.int64), make_network(), settings=settings
    )
    with_it.append(empty)

    expected = run_rounds(build_coordinator(without_it), Cohort(without_it)).result
    result = run_rounds(build_coordinator(with_it), Cohort(with_it)).result

    assert result.weights.tobytes() == expected.weights.tobytes()
    assert len(empty.client_state.memory) == 0
    view = RowFeatures(np.zeros((2, 8)), np.zeros((2, 64)), np.zeros((2, 9)))
    scores = np.log(np.full((2, 10), 0.1))
    assert np.isfinite(empty.client_state.predict(view, scores)).all()


def test_clients_without_rows_raise_an_error():
    x, y = np.zeros((0, 64)), np.zeros(0, np.int64)
    parties = [KNNPerParty(name, x, y, make_network()) for name in ("a", "b")]

    with pytest.raises(DataError, match="the clients have no rows to train on; add rows"):
        run_rounds(build_coordinator(parties, reserved=tuple(range(10))), Cohort(parties))


def test_a_client_with_another_row_shape_is_named():
    parties = [*make_members(), KNNPerParty("zoe", np.zeros((4, 60)), np.arange(4), make_network())]

    with pytest.raises(SchemaMismatch, match=r"zoe.*expected 64 columns, .*60 columns"):
        run_rounds(build_coordinator(parties), Cohort(parties))


def test_a_client_with_another_network_is_named():
    from fedneighbors.neural._blueprint import perceptron

    other = perceptron(64, 10, hidden=(16, 9), seed=1)
    parties = [*make_members(), KNNPerParty("zoe", np.zeros((4, 64)), np.arange(4), other)]

    with pytest.raises(PartyRefused, match="'zoe' refused: the network differs from"):
        run_rounds(build_coordinator(parties), Cohort(parties))


def test_a_label_that_the_network_does_not_know_is_named(fitted):
    for call in (fitted.update, fitted.add_client):
        name = "north" if call == fitted.update else "new"
        with pytest.raises(ValueError, match=r"among \[0, 1, 2\], got \['9'\]; list"):
            call(name, X[:2], [0, 9])
        with pytest.raises(ValueError, match=r"got \['0', '1'\]"):
            call(name, X[:2], ["0", "1"])
    assert "new" not in fitted.clients_


def test_a_client_that_joins_without_rows_is_refused(fitted):
    with pytest.raises(ValueError, match=r"0 sample\(s\).* minimum of 1 is required"):
        fitted.add_client("new", X[:0], Y[:0])


def test_an_unknown_client_gets_the_shared_network_and_is_named(fitted):
    with pytest.warns(
        UserWarning, match=r"\['moon'\] are unknown and get predictions of the shared"
    ):
        predictions = fitted.predict(X[:2], ["moon", "north"])

    scores = fitted.embed(X[:2])[1]
    assert predictions[0] == scores[0].argmax()


@pytest.mark.parametrize("owners", [["north"] * 3, [["north"] * 178], "north"])
def test_parties_of_another_length_are_refused(owners, fitted):
    with pytest.raises(ValueError, match="expected one party for each of 178 rows, got shape"):
        KNNPerClassifier(**QUICK).fit(X, Y, parties=owners)
    with pytest.raises(ValueError, match="expected one party for each of 178 rows, got shape"):
        fitted.predict(X, owners)


def test_rows_without_an_owner_are_counted():
    owner = PARTIES.astype(object)
    owner[:2] = [None, np.nan]

    with pytest.raises(ValueError, match="found 2 rows without one"):
        KNNPerClassifier(**QUICK).fit(X, Y, parties=owner)


def test_a_memory_of_no_rows_is_refused():
    with pytest.raises(ValueError, match="expected capacity as an integer of 1 or more, got 0"):
        KNNPerClassifier(**QUICK, capacity=0).fit(X, Y)


# Labels


@pytest.mark.parametrize(
    "classes", [["red", "rose", "white"], [False, True, True], [-1.0, 0.0, 7.0], [5, -3, 2**40]]
)
def test_predictions_have_the_type_of_the_labels(classes):
    labels = np.array(classes)[Y]

    model = KNNPerClassifier(**QUICK).fit(X, labels, parties=PARTIES)

    assert model.classes_.tolist() == sorted(set(classes))
    assert set(model.predict(X, PARTIES).tolist()) <= set(classes)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (Y + 0.5, "Unknown label type"),
        (np.array([0, "a"] * 89, dtype=object), "expected labels of one type, .* position 1"),
    ],
)
def test_invalid_labels_are_refused(labels, words):
    with pytest.raises(ValueError, match=words):
        KNNPerClassifier(**QUICK).fit(X, labels)


# Networks


class Body(nn.Module):
    """A linear layer, a body and a head; tests define the output for a row."""

    def __init__(self, n_inputs=13, n_outputs=3, *, has_nan=False, skips_body=False):
        super().__init__()
        self.first = nn.Linear(n_inputs, 4)
        self.body = nn.Identity()
        self.head = nn.Linear(4, n_outputs)
        self.has_nan, self.skips_body = has_nan, skips_body

    def forward(self, x):
        hidden = self.first(x)
        if self.skips_body:
            return self.head(hidden)
        if self.has_nan:
            self.body(hidden + torch.nan)
            return self.head(hidden)
        return self.head(self.body(hidden))


@pytest.mark.parametrize(
    ("module", "error", "words"),
    [
        (nn.Linear(13, 3), ValueError, "no layer named 'body'; its layers are: none"),
        (Body(9), ValueError, r"does not support rows of shape \(13,\)"),
        (Body(13, 7), ValueError, r"with 3 scores for each row, got an output of shape \(2, 7\)"),
        (Body(13, 2), ValueError, r"with 3 scores for each row, got an output of shape \(2, 2\)"),
        (Body(skips_body=True), ValueError, "embedding from its layer 'body'"),
        (
            Body(has_nan=True),
            DataError,
            "not finite for rows of zeros; check its layers",
        ),
    ],
    ids=["no layer", "inputs", "more outputs", "fewer outputs", "layer not passed", "NaN"],
)
def test_an_unusable_network_is_refused_before_training(module, error, words):
    with pytest.raises(error, match=words):
        KNNPerClassifier(module, n_rounds=1).fit(X, Y, parties=PARTIES)


def test_an_unused_layer_is_allowed():
    module = Body()
    module.spare = nn.Linear(2, 2)

    model = KNNPerClassifier(module, n_rounds=1).fit(X, Y, parties=PARTIES)

    assert np.isfinite(model.predict_proba(X, PARTIES)).all()


class NaNEmbedding(Body):
    """Network whose embeddings are finite for rows of zeros only."""

    def forward(self, x):
        hidden = self.first(x)
        self.body(torch.where(x.abs().sum(dim=1, keepdim=True) > 0, torch.nan, hidden))
        return self.head(hidden)


def test_infinite_embeddings_name_the_client():
    with pytest.raises(PartyRefused, match="'north' refused: embeddings or scores are not finite"):
        KNNPerClassifier(NaNEmbedding(), n_rounds=1).fit(X, Y, parties=PARTIES)


def test_rows_with_overflowing_embeddings_are_refused(fitted):
    far = np.full((1, 13), 1e300)

    with pytest.raises(DataError, match="embeddings of these rows are not finite"):
        fitted.predict(far, ["north"])


@pytest.mark.parametrize("rate", [1e6, 30.0])
@pytest.mark.parametrize("trainer", ["stacked", "reuse"])
def test_diverging_training_suggests_a_lower_learning_rate(rate, trainer):
    model = KNNPerClassifier(hidden=(8,), n_rounds=5, learning_rate=rate, trainer=trainer)

    with pytest.raises(PartyRefused, match="training has diverged: lower the") as caught:
        model.fit(X, Y, parties=PARTIES)

    assert caught.value.code.endswith("scale rows to about 1 (pixels divided by 255)")
    assert not hasattr(model, "classes_")


# Rows


def test_rows_of_another_shape_are_refused(fitted):
    images = np.random.default_rng(0).random((40, 1, 8, 8))
    module = nn.Sequential()
    module.add_module("body", nn.Flatten())
    module.add_module("head", nn.Linear(64, 2))
    image_model = KNNPerClassifier(module, n_rounds=1).fit(images, np.arange(40) % 2)

    for rows in (np.zeros((2, 1, 9, 9)), np.zeros((2, 1)), np.zeros((2, 1, 64))):
        with pytest.raises(ValueError, match=r"expected rows of shape \(1, 8, 8\), got"):
            image_model.predict(rows)
    with pytest.raises(ValueError, match=r"X has 5 features, .* expecting 13 features"):
        fitted.predict(X[:, :5])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_missing_or_infinite_cells_are_refused(value, fitted):
    rows = X.copy()
    rows[3, 4] = value

    for call in (fitted.predict, lambda r: KNNPerClassifier(**QUICK).fit(r, Y)):
        with pytest.raises(ValueError, match=r"contains (NaN|infinity)"):
            call(rows)


def test_rows_and_labels_of_different_numbers_are_refused(fitted):
    with pytest.raises(ValueError, match=r"inconsistent numbers of samples: \[178, 5\]"):
        KNNPerClassifier(**QUICK).fit(X, Y[:5])
    with pytest.raises(ValueError, match="expected one label for each of 3 rows, got 2"):
        fitted.update("north", X[:3], Y[:2])


# Files and packages


def test_a_checkpoint_in_no_folder_is_refused_before_training(tmp_path):
    with pytest.raises(ValueError, match=r"checkpoint points into .*, which is not a folder"):
        KNNPerClassifier(**QUICK, checkpoint=tmp_path / "no" / "c").fit(X, Y)


def test_without_torch_the_extra_is_named(fitted, tmp_path, monkeypatch):
    fitted.save(tmp_path / "m")
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed

    for call in (
        lambda: KNNPerClassifier(**QUICK).fit(X, Y),
        lambda: KNNPerClassifier.load(tmp_path / "m"),
    ):
        with pytest.raises(MissingExtraError, match="torch"):
            call()


BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, *_):
        if name.split(".")[0] == "torch":
            raise ImportError("not here")
sys.meta_path.insert(0, Blocked())
"""


def test_memories_and_heads_load_without_torch():
    names = (
        "estimator",
        "personal._client_state",
        "personal._pool",
        "algorithm",
        "_settings",
        "memory._datastore",
    )
    imports = ", ".join(f"fedneighbors.methods.knnper.{name}" for name in names)
    script = BLOCKED + f"import {imports}"

    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )

    assert process.returncode == 0, process.stderr


# Nodes


def make_node_party(folder, x=None, **options):
    from fedneighbors.methods.knnper.flower_app import NodeParty

    x = X if x is None else x
    return NodeParty("ann", x, Y[: len(x)], model_path=folder / "m", **options)


def make_plan(changes):
    from fedneighbors.methods.knnper._settings import MemorySettings
    from fedneighbors.neural._blueprint import Blueprint

    blueprint = Blueprint("perceptron", (13,), 3, hidden=(4,))
    request = PlanRequest(blueprint, blueprint.network().digest, MemorySettings())
    return alter_record(request, changes)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"blueprint.model": "rm -rf"}, "malformed request"),
        ({"blueprint.hidden": (-1,)}, "malformed request"),
        ({"settings.n_neighbors": -1}, "malformed request"),
        ({"settings.sigma": -1.0}, "malformed request"),
        ({"layout": "0" * 64}, "the network differs from the coordinator's"),
        ({"blueprint.model": "lstm"}, "its rows are not tokens of the network's alphabet"),
        ({"blueprint.model": "own"}, "the network cannot be built or is too large"),
    ],
)
def test_an_invalid_plan_is_refused_by_a_node(changed, words, tmp_path):
    party = make_node_party(tmp_path, custom=lambda: torch.nn.Linear(13, 3))
    party.answer(OpeningRequest())

    reply = decode(serve(party, encode(make_plan(changed))), (Refusal,))

    assert reply.code == words


def test_a_plan_with_a_codebook_is_refused(tmp_path):
    from fedneighbors.methods.knnper.memory._codes import shared_codec

    codec = shared_codec(X, n_stretches=2, bits=4)
    changed = {"settings.memory": "product", "settings.codec": codec}

    with pytest.raises(Refused, match="the plan has a codebook"):
        make_node_party(tmp_path).answer(make_plan(changed))


def test_a_plan_for_rows_of_another_shape_is_refused(tmp_path):
    with pytest.raises(Refused, match="its rows do not have the shape of the network's input"):
        make_node_party(tmp_path, X[:, :5]).answer(make_plan({}))


def test_a_node_needs_the_plan_first(tmp_path):
    from fedneighbors.methods.knnper.protocol import CountsRequest, ReleaseRequest

    party, empty = make_node_party(tmp_path), np.empty(0)
    counts = CountsRequest((0, 1, 2), True, empty, empty)
    release = ReleaseRequest(np.zeros(71, np.float32), np.full(3, 1 / 3), final=True)

    with pytest.raises(Refused, match="no plan has arrived yet"):
        party.answer(counts)
    party.answer(make_plan({}))
    with pytest.raises(Refused, match="no classes have arrived yet"):
        party.answer(release)
    party.answer(counts)
    party.answer(release)

    assert (tmp_path / "m").exists()
    assert not isinstance(party.answer(OpeningRequest()), ClientSchemaRequest)
