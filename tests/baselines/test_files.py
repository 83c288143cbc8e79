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
from fedneighbors.tabular._model_file import seal_model
from tests.baselines.clients import NAMES, NEW_X, NEW_Y, QUICK, X, Y, fresh
from tests.methods.knnper.altering import alter_record
from tests.methods.knnper.federations import OWNER

ALL = [getattr(baselines, name) for name in baselines.TITLES.values()]
CLUSTERED = {"tolerance": 1.0, "split_after": 0.0}


@pytest.fixture(scope="module", params=ALL, ids=lambda method: method.__name__)
def fitted(request):
    own = CLUSTERED if request.param is baselines.ClusteredFLClassifier else {}
    found = request.param(**QUICK, **own).fit(X, Y, parties=OWNER)
    return found.add_client("new", NEW_X[:20], NEW_Y[:20], ids=range(50, 70))


@pytest.fixture
def path(fitted, tmp_path):
    fitted.save(tmp_path / "baseline.fnk")
    return tmp_path / "baseline.fnk"


def answers(model, name):
    return model.predict_proba(NEW_X, [name] * len(NEW_X)).tobytes()


def test_a_loaded_baseline_predicts_and_updates_equally(fitted, path, tmp_path):
    found = type(fitted).load(path)

    for name in [*NAMES, "new"]:
        assert answers(found, name) == answers(fitted, name)
    with pytest.warns(UserWarning, match="are unknown"):
        assert answers(found, "moon") == answers(fitted, "moon")
    found.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
    for each in (found, other := fresh(fitted)):
        each.update("new", NEW_X[20:], NEW_Y[20:]).forget("new", [50])
    assert answers(found, "new") == answers(other, "new")
    assert found.rows_["new"].ids == tuple(map(str, [*range(51, 70), *range(20, 40)]))


def test_parameters_and_attributes_come_back(fitted, path):
    found = type(fitted).load(path)

    kept = fitted.get_params(deep=False) | {"classes": None, "hidden": (16, 8)}
    assert found.get_params(deep=False) == kept
    assert found.classes_.tolist() == list(range(10))
    assert found.weights_.tobytes() == fitted.weights_.tobytes()
    assert found.overall_.tolist() == fitted.overall_.tolist()
    assert getattr(found, "clusters_", None) == getattr(fitted, "clusters_", None)


def test_a_client_file_has_only_its_own_part(fitted, path, tmp_path):
    fitted.save(tmp_path / "own", client="new")

    found = type(fitted).load(tmp_path / "own")

    assert list(found.clients_) == list(found.rows_) == ["new"]
    assert found.predict_proba(NEW_X).tobytes() == answers(fitted, "new")
    raw, own = path.read_bytes(), (tmp_path / "own").read_bytes()
    for other in NAMES:
        row = X[np.flatnonzero(other == OWNER)[0]].astype(np.float32).tobytes()
        assert row in raw
        assert row not in own
    parts = BaselineFile.from_bytes(own)
    assert not any(name in NAMES for cluster in parts.clusters for name in cluster)
    assert len(parts.networks) <= 1
    with pytest.raises(ValueError, match="'moon' is unknown"):
        fitted.save(tmp_path / "moon", client="moon")
    assert not (tmp_path / "moon").exists()


def test_a_file_of_another_method_names_the_one_that_reads_it(fitted, path):
    other = next(method for method in ALL if not isinstance(fitted, method))

    with pytest.raises(ModelFileError, match=rf"of '{type(fitted).__name__}', not of"):
        other.load(path)
    with pytest.raises(ModelFileError, match="is not a fedneighbors model"):
        KNNPerClassifier.load(path)


def test_network_parameters_set_after_fit_are_not_saved(tmp_path):
    kept = baselines.DittoClassifier(**QUICK).fit(X[:40].astype(np.float16), Y[:40])

    kept.set_params(hidden=(3,)).save(tmp_path / "m")

    found = baselines.DittoClassifier.load(tmp_path / "m")
    assert found.hidden == (16, 8)
    assert found.predict_proba(X[:40]).tobytes() == kept.predict_proba(X[:40]).tobytes()
    before = (tmp_path / "m").read_bytes()
    with pytest.raises(ValueError, match="expected n_rounds as an integer"):
        kept.set_params(n_rounds=0).save(tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == before


def test_without_torch_the_extra_is_named(small, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)

    with pytest.raises(MissingExtraError, match="torch"):
        baselines.load(small)


def test_the_class_of_a_file_need_not_be_known(small):
    assert isinstance(baselines.load(small), baselines.DittoClassifier)


def test_the_network_of_start_is_in_the_file(tmp_path):
    start = KNNPerClassifier(**QUICK, combine="pool").fit(X, Y, parties=OWNER)
    kept = baselines.HeadTuningClassifier(hidden=(3,), start=start).fit(X, Y, parties=OWNER)

    kept.save(tmp_path / "m")

    found = baselines.HeadTuningClassifier.load(tmp_path / "m")
    assert (found.start, found.hidden) == (None, (16, 8))
    assert answers(found, NAMES[0]) == answers(kept, NAMES[0])


def test_text_labels_column_names_and_empty_clients_are_restored(tmp_path):
    frame = pd.DataFrame(X, columns=[f"pixel {place}" for place in range(64)])
    words = np.array([f"digit {label}" for label in Y])
    kept = baselines.FedAvgPlusClassifier(hidden=(8,), n_rounds=1).fit(frame, words, parties=OWNER)
    kept.forget(NAMES[0], list(kept.rows_[NAMES[0]].ids))

    kept.save(tmp_path / "m")

    found = baselines.FedAvgPlusClassifier.load(tmp_path / "m")
    assert found.feature_names_in_.tolist() == frame.columns.tolist()
    assert found.predict(frame, OWNER).tolist() == kept.predict(frame, OWNER).tolist()
    assert len(found.rows_[NAMES[0]]) == 0
    found.update(NAMES[0], frame[:5], words[:5])


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
    kept = baselines.FedRepClassifier(Square(), n_rounds=1).fit(images, Y, parties=OWNER)
    kept.save(tmp_path / "m")

    found = baselines.FedRepClassifier.load(tmp_path / "m", model=Square())

    assert found.predict_proba(images, OWNER).tobytes() == (
        kept.predict_proba(images, OWNER).tobytes()
    )
    with pytest.raises(ValueError, match="its code is not stored"):
        baselines.FedRepClassifier.load(tmp_path / "m")
    with pytest.raises(ValueError, match=r"expected rows of shape \(8, 8\), got \(8, 9\)"):
        found.predict(np.zeros((2, 8, 9)))


# Hostile files


def resealed(path, client=None, **changed):
    """Change fields of a file, or of its only client, and seal it again."""
    parts = BaselineFile.load(path)
    changed |= {f"clients.all.{name}": value for name, value in (client or {}).items()}
    path.write_bytes(seal_model(BaselineFile.magic, alter_record(parts, changed)))


@pytest.fixture
def small(tmp_path):
    found = baselines.DittoClassifier(hidden=(4,), n_rounds=1).fit(X[:40], Y[:40])
    found.save(tmp_path / "m")
    return tmp_path / "m"


DITTO = {
    **{"n_rounds": 1, "participation": 1.0, "local_epochs": 1, "batch_size": 8, "momentum": 0.9},
    **{"learning_rate": 0.1, "weight_decay": 0.0, "validation": 0.2, "trainer": "auto"},
    **{"proximal": 1.0, "tuning_epochs": 1, "tuning_rate": None},
}


@pytest.mark.parametrize(
    "changed",
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
    ids=lambda changed: str(changed)[:50],
)
def test_an_impossible_baseline_is_refused_even_if_sealed(small, changed):
    assert baselines.DittoClassifier.load(small).clients_["all"].shape == (310,)

    resealed(small, **changed)

    with pytest.raises(ModelFileError):
        baselines.DittoClassifier.load(small)


def test_the_parameters_of_this_release_are_read(small):
    resealed(small, parameters=DITTO)

    assert baselines.DittoClassifier.load(small).proximal == 1.0


def test_truncated_and_altered_files_are_refused(small):
    raw = small.read_bytes()

    for changed, words in [
        (raw[:-1], "truncated or altered"),
        (raw[:300] + bytes([raw[300] ^ 1]) + raw[301:], "truncated or altered"),
        (raw[:7] + b"9" + raw[8:], "format version"),
        (b"", "is not a fedneighbors model"),
    ]:
        small.write_bytes(changed)
        with pytest.raises(ModelFileError, match=words):
            baselines.DittoClassifier.load(small)
    with pytest.raises(ModelFileError, match="cannot read the model"):
        baselines.DittoClassifier.load(small.with_name("nothing"))
