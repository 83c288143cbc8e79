"""Fitted classifiers in files: they are read back equal, and other files are refused."""

from dataclasses import fields

import numpy as np
import pytest
from sklearn.datasets import load_wine
from torch import nn

from fedneighbors.errors import ModelFileError
from fedneighbors.federation._messages import decode, encode
from fedneighbors.methods.knnper import KNNPerClassifier
from fedneighbors.methods.knnper._model import KNNPerModel
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper._task import CLASSIFICATION
from fedneighbors.methods.knnper.flower_app import PlanRequest
from fedneighbors.methods.knnper.personal._client_state import ClientState
from fedneighbors.neural._blueprint import Blueprint
from fedneighbors.privacy._policy import Privacy
from fedneighbors.tabular._model_file import encode_model
from tests.methods.knnper.tampering import alter_file

X, Y = load_wine(return_X_y=True)
PARTIES = np.where(np.arange(len(Y)) % 3 == 0, "south", "north")
QUICK = {"hidden": (16, 8), "n_rounds": 2}


@pytest.fixture(scope="module")
def fitted():
    return KNNPerClassifier(**QUICK).fit(X, Y, parties=PARTIES)


@pytest.fixture
def path(fitted, tmp_path):
    fitted.save(tmp_path / "model.fnk")
    return tmp_path / "model.fnk"


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"combine": "pool"},
        {"strategy": "drift", "capacity": 50},
        {"strategy": "reservoir", "capacity": 20},
        {"kernel": "gaussian", "sigma": 3.0, "n_neighbors": 4, "standardize": False},
        {"n_neighbors": (2, 9), "metric": ("cosine", "euclidean"), "capacity": 30},
    ],
)
def test_a_loaded_classifier_behaves_the_same(parameters, tmp_path):
    original = KNNPerClassifier(**QUICK, **parameters).fit(X, Y, parties=PARTIES)
    original.save(tmp_path / "a")
    loaded = KNNPerClassifier.load(tmp_path / "a")

    assert (
        loaded.predict_proba(X, PARTIES).tobytes() == original.predict_proba(X, PARTIES).tobytes()
    )
    for model in (original, loaded):  # later changes have the same effect on both
        model.update("north", X[::-1][:40], Y[::-1][:40], ids=[f"late {i}" for i in range(40)])
        model.add_client("east", X[::5], Y[::5])
        model.forget("south", model.clients_["south"].memory.ids[:3])
        model.save(tmp_path / f"{model is original}")
    assert (tmp_path / "True").read_bytes() == (tmp_path / "False").read_bytes()
    assert (
        loaded.predict_proba(X, PARTIES).tobytes() == original.predict_proba(X, PARTIES).tobytes()
    )


def test_parameters_and_attributes_are_restored(fitted, path):
    loaded = KNNPerClassifier.load(path)

    for name in ("hidden", "n_neighbors", "sigma", "kernel", "strategy", "validation"):
        assert getattr(loaded, name) == getattr(fitted, name)
    assert (fitted.combine, loaded.combine) == ("auto", "paper")  # the file has the choice
    assert loaded.model is None
    assert loaded.classes_.dtype == fitted.classes_.dtype
    assert loaded.weights_.dtype == np.float32
    assert loaded.n_features_in_ == 13
    assert loaded.clients_["north"].memory.ids == fitted.clients_["north"].memory.ids


def test_a_client_file_has_only_its_own_memory(fitted, tmp_path):
    fitted.save(tmp_path / "north.fnk", client="north")

    loaded = KNNPerClassifier.load(tmp_path / "north.fnk")

    assert list(loaded.clients_) == ["north"]
    expected = fitted.predict_proba(X, ["north"] * len(X))
    assert loaded.predict_proba(X).tobytes() == expected.tobytes()  # a single client is the default
    south = fitted.clients_["south"].memory.keys.astype(np.float32)
    raw = (tmp_path / "north.fnk").read_bytes()
    assert not any(row.tobytes() in raw for row in south)
    with pytest.raises(ValueError, match=r"client 'moon' is unknown; .* Known clients: \['north'"):
        fitted.save(tmp_path / "moon.fnk", client="moon")


def test_the_same_training_makes_the_same_file(fitted, path, tmp_path):
    KNNPerClassifier(**QUICK).fit(X, Y, parties=PARTIES).save(tmp_path / "again")

    assert (tmp_path / "again").read_bytes() == path.read_bytes()


def test_labels_names_and_empty_memories_are_restored(tmp_path):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(X, columns=[f"c{j}" for j in range(13)])
    names = np.array(["red", "rose", "white"], dtype=object)[Y]
    original = KNNPerClassifier(**QUICK).fit(table, names, parties=PARTIES)
    original.forget("south", original.clients_["south"].memory.ids)

    original.save(tmp_path / "m")
    loaded = KNNPerClassifier.load(tmp_path / "m")

    assert loaded.feature_names_in_.tolist() == table.columns.tolist()
    assert loaded.predict(table, PARTIES).tolist() == original.predict(table, PARTIES).tolist()
    assert len(loaded.clients_["south"].memory) == 0


def build_custom_network(width=6):
    module = nn.Sequential()
    module.add_module("seen", nn.Sequential(nn.Linear(13, width), nn.BatchNorm1d(width)))
    module.add_module("last", nn.Linear(width, 3))
    return module


def test_a_custom_network_is_restored_with_its_code(tmp_path):
    layers = {"embedding": "seen", "head": "last"}
    original = KNNPerClassifier(build_custom_network(), **layers, n_rounds=2).fit(
        X, Y, parties=PARTIES
    )
    original.save(tmp_path / "m")

    with pytest.raises(ValueError, match="expected model=, the trained network"):
        KNNPerClassifier.load(tmp_path / "m")
    with pytest.raises(ModelFileError, match="written for another network"):
        KNNPerClassifier.load(tmp_path / "m", model=build_custom_network(7))
    loaded = KNNPerClassifier.load(tmp_path / "m", model=build_custom_network())

    assert (
        loaded.predict_proba(X, PARTIES).tobytes() == original.predict_proba(X, PARTIES).tobytes()
    )
    assert (loaded.embedding, loaded.head) == ("seen", "last")


def test_a_foreign_file_is_refused(fitted, path):
    raw = path.read_bytes()

    for changed, words in [
        (raw[:-1], "truncated or altered"),
        (raw[:200] + bytes([raw[200] ^ 1]) + raw[201:], "truncated or altered"),
        (raw[:7] + b"9" + raw[8:], "format version"),
        (b"PK" + raw, "is not a fedneighbors model"),
        (b"", "is not a fedneighbors model"),
        (encode_model(CLASSIFICATION.magic, MemorySettings()), "has no usable model"),
    ]:
        path.write_bytes(changed)
        with pytest.raises(ModelFileError, match=words):
            KNNPerClassifier.load(path)
    with pytest.raises(ModelFileError, match="cannot read the model"):
        KNNPerClassifier.load(path.with_name("nothing"))


@pytest.mark.parametrize(
    "changed",
    [
        {"memory.labels": np.array([7] * 118)},
        {"memory.labels": np.array([-1] * 118)},
        {"memory.labels": np.array([0.5] * 118)},
        {"weight": 2.0},
        {"memory.ids": "[1, 2]"},
        {"memory.ids": "["},
        {"memory.ids": '["a"]'},
        {"memory.state": "[]"},
        {"memory.state": "{}"},
        {"memory.state": '{"seen": 1, "evictions": 0, "random": {}, "recent": []}'},
        {"memory.keys": np.full((118, 8), np.nan)},
        {"memory.keys": np.zeros(3)},
        {"settings.n_neighbors": 0},
        {"settings.memory": "8-bit"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_an_impossible_memory_is_refused(path, changed):
    assert KNNPerClassifier.load(path).clients_["north"].memory.keys.shape == (118, 8)
    changed = {f"clients.north.{name}": value for name, value in changed.items()}
    path.write_bytes(alter_file(path.read_bytes(), changed))

    with pytest.raises(ModelFileError, match="has no usable model"):
        KNNPerClassifier.load(path)


def test_an_interrupted_write_leaves_the_old_file(fitted, path, monkeypatch):
    import os

    before = path.read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        fitted.save(path, client="north")

    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_private_guarantee_stays_with_its_network(tmp_path):
    policy = Privacy(epsilon=100, delta=1e-5, classes=(0, 1, 2), bounds=(0, 2000))
    original = KNNPerClassifier(**QUICK, privacy=policy).fit(X, Y, parties=PARTIES)
    original.save(tmp_path / "m")

    loaded = KNNPerClassifier.load(tmp_path / "m")

    guarantee = original.guarantee_
    assert "100" in guarantee
    assert "of one row" in guarantee
    assert loaded.guarantee_ == guarantee
    assert (
        loaded.predict_proba(X, PARTIES).tobytes() == original.predict_proba(X, PARTIES).tobytes()
    )
    assert loaded.fit(X, Y).guarantee_ == ""  # trained again without one


def test_a_file_of_another_version_is_refused(path):
    path.write_bytes(
        CLASSIFICATION.magic[:-1] + b"1" + path.read_bytes()[len(CLASSIFICATION.magic) :]
    )

    with pytest.raises(ModelFileError, match=r"has format version b'1', this release reads b'3'"):
        KNNPerClassifier.load(path)


def test_integer_settings_are_read_back_as_floats(tmp_path):
    KNNPerClassifier(**QUICK, sigma=2).fit(X, Y, parties=PARTIES).save(tmp_path / "m")

    assert KNNPerModel.load(tmp_path / "m").settings.sigma == 2.0


def test_every_memory_setting_is_read_back():
    settings = MemorySettings(
        n_neighbors=(3, 5), metric=("cosine", "euclidean"), kernel="uniform", sigma=0.1,
        capacity=7, strategy="fifo", memory="8-bit", validation=0.4, seed=5,
    )  # fmt: skip

    plan = PlanRequest(Blueprint("cnn", (8, 8), 3), "", settings)

    assert decode(encode(plan), (PlanRequest,)).settings == settings


def test_files_store_every_field_of_own_parts():
    stored = {"memory", "weight", "overall", "pool", "settings"}

    assert {field.name for field in fields(ClientState)} == stored
