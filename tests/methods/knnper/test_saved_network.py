"""A file whose network, weights and memories do not fit together is refused on reading."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine
from torch import nn

from fedneighbors.errors import ModelFileError
from fedneighbors.methods.knnper import KNNPerClassifier
from fedneighbors.methods.knnper._model import KNNPerModel
from fedneighbors.neural._blueprint import perceptron
from tests.methods.knnper.tampering import alter_file

X, Y = load_wine(return_X_y=True)
PARTIES = np.where(np.arange(len(Y)) % 3 == 0, "south", "north")


@pytest.fixture(scope="module")
def fitted():
    return KNNPerClassifier(hidden=(16, 8), n_rounds=2).fit(X, Y, parties=PARTIES)


@pytest.fixture
def path(fitted, tmp_path):
    fitted.save(tmp_path / "model.fnk")
    return tmp_path / "model.fnk"


def rewrite(path, **changes):
    """Change fields of a file; two underscores in a name represent a dot."""
    changes = {name.replace("__", "."): value for name, value in changes.items()}
    path.write_bytes(alter_file(path.read_bytes(), changes))


def test_weights_of_another_number_are_refused(path):
    weights = KNNPerModel.load(path).shared.weights

    rewrite(path, shared__weights=weights[:-1])

    with pytest.raises(ModelFileError, match=rf"has {len(weights)} weights, the file has"):
        KNNPerClassifier.load(path)


def test_a_network_beyond_memory_is_refused_before_building(path):
    with torch.device("meta"):
        layout = perceptron(13, 3, hidden=(1 << 23, 1 << 23), seed=0).digest

    rewrite(path, blueprint__hidden=(1 << 23, 1 << 23), layout=layout)

    with pytest.raises(ModelFileError, match=rf"has {2**46 + 18 * 2**23 + 3} weights"):
        KNNPerClassifier.load(path)


def test_keys_of_another_width_than_embeddings_are_refused(path):
    north = "clients__north__memory__"
    rewrite(path, **{north + "n_dimensions": 9, north + "keys": np.zeros((118, 9))})

    with pytest.raises(
        ModelFileError, match=r"'north' has .* of widths \[9\]; its network has \[8\]"
    ):
        KNNPerClassifier.load(path)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model": "quantum"}, "has no usable model: .*expected a network among"),
        ({"model": "cnn"}, "has no usable model"),
        ({"hidden": (16, 9)}, "was written for another network"),
        ({"shape": (14,)}, "has no usable model: .*columns"),
        ({"shape": (0,)}, "expected names and sizes of a network"),
        ({"hidden": (1 << 24,)}, "expected names and sizes of a network"),
    ],
)
def test_invalid_and_other_networks_are_refused(path, changed, words):
    rewrite(path, **{f"blueprint__{name}": value for name, value in changed.items()})

    with pytest.raises(ModelFileError, match=words):
        KNNPerClassifier.load(path)


def test_a_custom_network_must_accept_the_rows(tmp_path):
    def build_module(layer):
        module = nn.Sequential()
        module.add_module("body", layer)
        module.add_module("head", nn.Linear(13, 3))
        return module

    model = KNNPerClassifier(build_module(nn.Identity()), n_rounds=2).fit(X, Y, parties=PARTIES)
    model.save(tmp_path / "m")

    with pytest.raises(ModelFileError, match=r"has no usable model: .*shapes cannot be"):
        KNNPerClassifier.load(tmp_path / "m", model=build_module(nn.ReflectionPad1d(1)))
    assert (
        KNNPerClassifier.load(tmp_path / "m", model=build_module(nn.Identity())).n_features_in_
        == 13
    )


def test_a_client_added_after_loading_predicts_the_same(tmp_path):
    fitted = KNNPerClassifier(hidden=(16, 8), n_rounds=2, combine="pool").fit(X, Y, parties=PARTIES)
    fitted.save(tmp_path / "m")

    loaded = KNNPerClassifier.load(tmp_path / "m")

    for classifier in (fitted, loaded):
        classifier.add_client("east", X[::3], Y[::3])
    east = ["east"] * len(X)
    memory = loaded.clients_["east"].memory
    assert [extra.shape[1] for extra in memory.extras] == [13, 2]
    assert loaded.predict_proba(X, east).tobytes() == fitted.predict_proba(X, east).tobytes()


@pytest.mark.parametrize("widths", [(13,), (12, 2), (13, 3), (13, 1), (2, 13), (13, 2, 1), ()])
def test_a_memory_of_other_features_is_refused(widths, tmp_path):
    model = KNNPerClassifier(hidden=(16, 8), n_rounds=2, combine="pool").fit(X, Y, parties=PARTIES)
    model.save(tmp_path / "m")
    extras = tuple(np.zeros((len(model.clients_["north"].memory), width)) for width in widths)
    rewrite(tmp_path / "m", clients__north__memory__extras=extras)

    with pytest.raises(ModelFileError, match="has embeddings and additional features of widths"):
        KNNPerClassifier.load(tmp_path / "m")


@pytest.mark.parametrize("cell", [np.nan, np.inf])
def test_a_memory_of_features_that_are_not_finite_is_refused(cell, tmp_path):
    model = KNNPerClassifier(hidden=(16, 8), n_rounds=2, combine="pool").fit(X, Y, parties=PARTIES)
    model.save(tmp_path / "m")
    rows, last = model.clients_["north"].memory.extras
    extras = np.full_like(rows, cell), last
    rewrite(tmp_path / "m", clients__north__memory__extras=extras)

    with pytest.raises(ModelFileError, match="not finite"):
        KNNPerClassifier.load(tmp_path / "m")
