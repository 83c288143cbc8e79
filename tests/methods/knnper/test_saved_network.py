"""A file whose network, weights and memories do not fit one another is refused when it is read."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine
from torch import nn

from fedneighbors.errors import ModelFileError
from fedneighbors.methods.knnper import KNNPerClassifier
from fedneighbors.methods.knnper._model import KNNPerModel
from fedneighbors.neural._blueprint import Blueprint, perceptron
from tests.methods.knnper.altering import resealed

X, Y = load_wine(return_X_y=True)
CELLAR = np.where(np.arange(len(Y)) % 3 == 0, "south", "north")


@pytest.fixture(scope="module")
def fitted():
    return KNNPerClassifier(hidden=(16, 8), n_rounds=2).fit(X, Y, parties=CELLAR)


@pytest.fixture
def path(fitted, tmp_path):
    fitted.save(tmp_path / "model.fnk")
    return tmp_path / "model.fnk"


def rewritten(path, **changes):
    """Change fields of a file, in whose names two underscores stand for a dot."""
    changes = {name.replace("__", "."): value for name, value in changes.items()}
    path.write_bytes(resealed(path.read_bytes(), changes))


def test_weights_of_another_number_are_refused(path):
    weights = KNNPerModel.load(path).shared.weights

    rewritten(path, shared__weights=weights[:-1])

    with pytest.raises(ModelFileError, match=rf"has {len(weights)} weights, it holds"):
        KNNPerClassifier.load(path)


def test_a_network_beyond_all_memory_is_refused_before_it_is_made(path):
    with torch.device("meta"):
        layout = perceptron(13, 3, hidden=(1 << 23, 1 << 23), seed=0).digest

    rewritten(path, blueprint__hidden=(1 << 23, 1 << 23), layout=layout)

    with pytest.raises(ModelFileError, match=rf"has {2**46 + 18 * 2**23 + 3} weights"):
        KNNPerClassifier.load(path)


def test_keys_of_another_width_than_embeddings_are_refused(path):
    north = "clients__north__memory__"
    rewritten(path, **{north + "n_dimensions": 9, north + "keys": np.zeros((118, 9))})

    with pytest.raises(ModelFileError, match="'north' has 9 columns, 0 of them beside keys"):
        KNNPerClassifier.load(path)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model": "quantum"}, "holds no usable model: expected model as"),
        ({"model": "cnn"}, "holds no usable model"),
        ({"hidden": (16, 9)}, "was written for another network"),
        ({"shape": (14,)}, "holds no usable model: columns"),
        ({"shape": (0,)}, "expected names and sizes of a network"),
        ({"hidden": (1 << 24,)}, "expected names and sizes of a network"),
    ],
)
def test_a_network_that_cannot_be_made_or_is_another_is_refused(path, changed, words):
    rewritten(path, **{f"blueprint__{name}": value for name, value in changed.items()})

    with pytest.raises(ModelFileError, match=words):
        KNNPerClassifier.load(path)


def test_a_network_of_the_users_own_that_does_not_take_the_rows_is_refused(tmp_path):
    def own(layer):
        module = nn.Sequential()
        module.add_module("body", layer)
        module.add_module("head", nn.Linear(13, 3))
        return module

    kept = KNNPerClassifier(own(nn.Identity()), n_rounds=2).fit(X, Y, parties=CELLAR)
    kept.save(tmp_path / "m")

    with pytest.raises(ModelFileError, match=r"holds no usable model: .*shapes cannot be"):
        KNNPerClassifier.load(tmp_path / "m", model=own(nn.ReflectionPad1d(1)))
    assert KNNPerClassifier.load(tmp_path / "m", model=own(nn.Identity())).n_features_in_ == 13


def test_words_that_are_nested_too_deeply_are_refused():
    with pytest.raises(ValueError, match="expected the words of a network"):
        Blueprint.read("[" * 100_000)


def test_a_client_joins_alike_where_the_writer_of_the_file_had_seen_no_rows(tmp_path):
    kept = KNNPerClassifier(hidden=(16, 8), n_rounds=2, combine="pool").fit(X, Y, parties=CELLAR)
    kept.save(tmp_path / "m")
    # as a coordinator writes it
    rewritten(tmp_path / "m", settings__n_beside=0, settings__n_discriminants=0)

    found = KNNPerClassifier.load(tmp_path / "m")

    for each in (kept, found):
        each.add_client("east", X[::3], Y[::3])
    east = ["east"] * len(X)
    assert found.clients_["east"].settings.n_beside == 13 + 2
    assert found.predict_proba(X, east).tobytes() == kept.predict_proba(X, east).tobytes()


@pytest.mark.parametrize("value", [-3, 16, 1, 0])
def test_a_memory_of_other_discriminants_is_refused(value, tmp_path):
    kept = KNNPerClassifier(hidden=(16, 8), n_rounds=2, combine="pool").fit(X, Y, parties=CELLAR)
    kept.save(tmp_path / "m")
    rewritten(tmp_path / "m", clients__north__settings__n_discriminants=value)

    with pytest.raises(ModelFileError):
        KNNPerClassifier.load(tmp_path / "m")


def test_a_memory_with_other_columns_beside_its_keys_is_refused(tmp_path):
    kept = KNNPerClassifier(hidden=(16, 8), n_rounds=2, combine="pool").fit(X, Y, parties=CELLAR)
    kept.save(tmp_path / "m")
    rewritten(tmp_path / "m", clients__north__settings__n_beside=12)

    with pytest.raises(ModelFileError, match="has 23 columns, 12 of them beside keys"):
        KNNPerClassifier.load(tmp_path / "m")
