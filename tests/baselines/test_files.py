"""Files of baselines: loaded models predict and update like the saved ones."""

import json
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from fedneighbors import baselines
from fedneighbors.baselines._files import BaselineClient, BaselineFile
from fedneighbors.errors import MissingExtraError, ModelFileError
from fedneighbors.methods.knnper import KNNPerClassifier
from fedneighbors.tabular._model_file import encode_model
from tests.baselines.clients import NAMES, NEW_X, NEW_Y, QUICK, X, Y, copy_model
from tests.methods.knnper.federations import OWNER
from tests.methods.knnper.tampering import alter_record

ALL = [getattr(baselines, name) for name in baselines.TITLES.values()]
CLUSTERED = {"tolerance": 1.0, "split_after": 0.0}


@pytest.fixture(scope="module", params=ALL, ids=lambda method: method.__name__)
def model(request):
    options = CLUSTERED if request.param is baselines.ClusteredFLClassifier else {}
    estimator = request.param(**QUICK, **options).fit(X, Y, parties=OWNER)
    return estimator.add_client("new", NEW_X[:20], NEW_Y[:20], ids=range(50, 70))


@pytest.fixture
def path(model, tmp_path):
    model.save(tmp_path / "baseline.fnk")
    return tmp_path / "baseline.fnk"


def predict_bytes(model, name):
    return model.predict_proba(NEW_X, [name] * len(NEW_X)).tobytes()


def test_a_loaded_baseline_predicts_and_updates_equally(model, path, tmp_path):
    loaded = type(model).load(path)

    for name in [*NAMES, "new"]:
        assert predict_bytes(loaded, name) == predict_bytes(model, name)
    with pytest.warns(UserWarning, match="are unknown"):
        assert predict_bytes(loaded, "moon") == predict_bytes(model, "moon")
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
    for estimator in (loaded, other := copy_model(model)):
        estimator.update("new", NEW_X[20:], NEW_Y[20:]).forget("new", [50])
    assert predict_bytes(loaded, "new") == predict_bytes(other, "new")
    assert loaded.rows_["new"].ids == tuple(map(str, [*range(51, 70), *range(20, 40)]))


def test_parameters_and_attributes_are_restored(model, path):
    loaded = type(model).load(path)

    expected = model.get_params(deep=False) | {"classes": None, "hidden": (16, 8)}
    assert loaded.get_params(deep=False) == expected
    assert loaded.classes_.tolist() == list(range(10))
    assert loaded.weights_.tobytes() == model.weights_.tobytes()
    assert loaded.overall_.tolist() == model.overall_.tolist()
    assert getattr(loaded, "clusters_", None) == getattr(model, "clusters_", None)


def test_a_client_file_has_only_its_own_part(model, path, tmp_path):
    model.save(tmp_path / "own", client="new")

    loaded = type(model).load(tmp_path / "own")

    assert list(loaded.clients_) == list(loaded.rows_) == ["new"]
    assert loaded.predict_proba(NEW_X).tobytes() == predict_bytes(model, "new")
    model_bytes, client_bytes = path.read_bytes(), (tmp_path / "own").read_bytes()
    for other in NAMES:
        row = X[np.flatnonzero(other == OWNER)[0]].astype(np.float32).tobytes()
        assert row in model_bytes
        assert row not in client_bytes
    client_file = BaselineFile.from_bytes(client_bytes)
    assert not any(name in NAMES for cluster in client_file.clusters for name in cluster)
    assert len(client_file.networks) <= 1
    with pytest.raises(ValueError, match="'moon' is unknown"):
        model.save(tmp_path / "moon", client="moon")
    assert not (tmp_path / "moon").exists()


def test_loading_a_file_of_another_method_names_the_method(model, path):
    other = next(method for method in ALL if not isinstance(model, method))

    with pytest.raises(ModelFileError, match=rf"of '{type(model).__name__}', not of"):
        other.load(path)
    with pytest.raises(ModelFileError, match="is not a fedneighbors model"):
        KNNPerClassifier.load(path)


def test_network_parameters_set_after_fit_are_not_saved(tmp_path):
    model = baselines.DittoClassifier(**QUICK).fit(X[:40].astype(np.float16), Y[:40])

    model.set_params(hidden=(3,)).save(tmp_path / "m")

    loaded = baselines.DittoClassifier.load(tmp_path / "m")
    assert loaded.hidden == (16, 8)
    assert loaded.predict_proba(X[:40]).tobytes() == model.predict_proba(X[:40]).tobytes()
    before = (tmp_path / "m").read_bytes()
    with pytest.raises(ValueError, match="expected n_rounds as an integer"):
        model.set_params(n_rounds=0).save(tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == before


def test_without_torch_the_extra_is_named(ditto_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)

    with pytest.raises(MissingExtraError, match="torch"):
        baselines.load(ditto_path)


def test_load_finds_the_class_of_a_file(ditto_path):
    assert isinstance(baselines.load(ditto_path), baselines.DittoClassifier)


def test_a_file_contains_the_network_of_start(tmp_path):
    start = KNNPerClassifier(**QUICK, combine="pool").fit(X, Y, parties=OWNER)
    model = baselines.HeadTuningClassifier(hidden=(3,), start=start).fit(X, Y, parties=OWNER)

    model.save(tmp_path / "m")

    loaded = baselines.HeadTuningClassifier.load(tmp_path / "m")
    assert (loaded.start, loaded.hidden) == (None, (16, 8))
    assert predict_bytes(loaded, NAMES[0]) == predict_bytes(model, NAMES[0])


def test_text_labels_column_names_and_empty_clients_are_restored(tmp_path):
    frame = pd.DataFrame(X, columns=[f"pixel {index}" for index in range(64)])
    labels = np.array([f"digit {label}" for label in Y])
    model = baselines.FedAvgPlusClassifier(hidden=(8,), n_rounds=1).fit(
        frame, labels, parties=OWNER
    )
    model.forget(NAMES[0], list(model.rows_[NAMES[0]].ids))

    model.save(tmp_path / "m")

    loaded = baselines.FedAvgPlusClassifier.load(tmp_path / "m")
    assert loaded.feature_names_in_.tolist() == frame.columns.tolist()
    assert loaded.predict(frame, OWNER).tolist() == model.predict(frame, OWNER).tolist()
    assert len(loaded.rows_[NAMES[0]]) == 0
    loaded.update(NAMES[0], frame[:5], labels[:5])


class Square(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU())
        self.head = nn.Linear(6, 10)

    def forward(self, x):
        return self.head(self.body(x))


def test_a_custom_network_is_restored_with_its_code(tmp_path):
    torch.manual_seed(0)
    images = X.reshape(-1, 8, 8)
    model = baselines.FedRepClassifier(Square(), n_rounds=1).fit(images, Y, parties=OWNER)
    model.save(tmp_path / "m")

    loaded = baselines.FedRepClassifier.load(tmp_path / "m", model=Square())

    assert loaded.predict_proba(images, OWNER).tobytes() == (
        model.predict_proba(images, OWNER).tobytes()
    )
    with pytest.raises(ValueError, match="its code is not stored"):
        baselines.FedRepClassifier.load(tmp_path / "m")
    with pytest.raises(ValueError, match=r"expected rows of shape \(8, 8\), got \(8, 9\)"):
        loaded.predict(np.zeros((2, 8, 9)))


# Invalid files


def alter_and_seal(path, client=None, **changes):
    """Change fields of a file or of its only client; seal the result."""
    file = BaselineFile.load(path)
    changes |= {f"clients.all.{name}": value for name, value in (client or {}).items()}
    path.write_bytes(encode_model(BaselineFile.magic, alter_record(file, changes)))


@pytest.fixture
def ditto_path(tmp_path):
    model = baselines.DittoClassifier(hidden=(4,), n_rounds=1).fit(X[:40], Y[:40])
    model.save(tmp_path / "m")
    return tmp_path / "m"


DITTO = {
    **{"n_rounds": 1, "participation": 1.0, "local_epochs": 1, "batch_size": 8, "momentum": 0.9},
    **{"learning_rate": 0.1, "weight_decay": 0.0, "validation": 0.2, "trainer": "auto"},
    **{"proximal": 1.0, "tuning_epochs": 1, "tuning_rate": None},
}


@pytest.mark.parametrize(
    "changes",
    [
        {"client": {"own": np.zeros(3, np.float32)}},
        {"client": {"own": np.full(304, np.nan)}},
        {"client": {"x": np.zeros((40, 63))}},
        {"client": {"x": np.full((40, 64), np.inf)}},
        {"client": {"x": np.zeros((39, 64))}},
        {"client": {"labels": np.full(40, 10)}},
        {"client": {"labels": np.full(40, -1)}},
        {"client": {"ids": "[1]"}},
        {"client": {"ids": json.dumps(["a"] * 40)}},
        {"client": {"ids": json.dumps(["a"] * 39)}},
        {"client": {"n_named": 3}},
        {"parameters": {}},
        {"parameters": DITTO | {"proximal": -1}},
        {"parameters": DITTO | {"n_rounds": 0}},
        {"parameters": DITTO | {"trainer": "x"}},
        {"parameters": DITTO | {"validation": 5.0}},
        {"parameters": DITTO | {"validation": "a"}},
        {"parameters": DITTO | {"magic": 1}},
        {"networks": (np.zeros(304, np.float32),)},
        {"networks": (np.zeros(3, np.float32),)},
        {"clusters": (("a",),)},
        {"clusters": (("all", "all"),)},
        {"clients": {"": BaselineClient(np.zeros(0), X[:0], Y[:0], "[]", 0)}},
        {"client": {"ids": "[" * 100_000}},
        {"model.layout": "another"},
        {"model.flat": True},
        {"method": "KNNPerClassifier"},
    ],
    ids=lambda changes: str(changes)[:50],
)
def test_an_invalid_file_is_refused_even_if_sealed(ditto_path, changes):
    assert baselines.DittoClassifier.load(ditto_path).clients_["all"].shape == (310,)

    alter_and_seal(ditto_path, **changes)

    with pytest.raises(ModelFileError):
        baselines.DittoClassifier.load(ditto_path)


def test_the_parameters_of_this_release_are_read(ditto_path):
    alter_and_seal(ditto_path, parameters=DITTO)

    assert baselines.DittoClassifier.load(ditto_path).proximal == 1.0


def test_truncated_and_altered_files_are_refused(ditto_path):
    content = ditto_path.read_bytes()

    for altered, message in [
        (content[:-1], "truncated or altered"),
        (content[:300] + bytes([content[300] ^ 1]) + content[301:], "truncated or altered"),
        (content[:7] + b"9" + content[8:], "format version"),
        (b"", "is not a fedneighbors model"),
    ]:
        ditto_path.write_bytes(altered)
        with pytest.raises(ModelFileError, match=message):
            baselines.DittoClassifier.load(ditto_path)
    with pytest.raises(ModelFileError, match="cannot read the model"):
        baselines.DittoClassifier.load(ditto_path.with_name("nothing"))
