"""A file whose network, weights and memories do not fit one another is refused when it is read."""

import json

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine
from torch import nn

from fedneighbors.errors import ModelFileError
from fedneighbors.federation._messages import decode, encode
from fedneighbors.methods.knnper import KNNPerClassifier
from fedneighbors.methods.knnper.files._clients import ClientParts
from fedneighbors.methods.knnper.files._model import MAGIC, ModelParts, SeeingParts
from fedneighbors.neural._blueprint import perceptron
from fedneighbors.neural._network import Layout
from fedneighbors.tabular._model_file import sealed_model

X, Y = load_wine(return_X_y=True)
CELLAR = np.where(np.arange(len(Y)) % 3 == 0, "south", "north")


@pytest.fixture(scope="module")
def fitted():
    return KNNPerClassifier(hidden=(16, 8), n_rounds=2).fit(X, Y, parties=CELLAR)


@pytest.fixture
def path(fitted, tmp_path):
    fitted.save(tmp_path / "model.fnk")
    return tmp_path / "model.fnk"


def parts_of(path):
    return decode(path.read_bytes()[len(MAGIC) + 32 :], (ModelParts, SeeingParts))


def rewritten(path, **changed):
    parts = parts_of(path)
    parts = type(parts)(**{**vars(parts), **changed})
    path.write_bytes(sealed_model(MAGIC, parts))


def test_weights_of_another_number_are_refused(path):
    weights = parts_of(path).weights

    rewritten(path, weights=weights[:-1])

    with pytest.raises(ModelFileError, match=rf"has {len(weights)} weights, it holds"):
        KNNPerClassifier.load(path)


def test_a_network_beyond_all_memory_is_refused_before_it_is_made(path):
    told = json.loads(parts_of(path).network)
    with torch.device("meta"):
        layout = Layout(perceptron(13, 3, hidden=(1 << 23, 1 << 23), seed=0)).digest

    rewritten(path, network=json.dumps({**told, "hidden": [1 << 23, 1 << 23]}), layout=layout)

    with pytest.raises(ModelFileError, match=rf"has {2**46 + 18 * 2**23 + 3} weights"):
        KNNPerClassifier.load(path)


def test_keys_of_another_width_than_embeddings_are_refused(path):
    client = decode(parts_of(path).clients[0], (ClientParts,))
    wide = ClientParts(**{**vars(client), "keys": np.zeros((118, 9))})

    rewritten(path, clients=(encode(wide),))

    with pytest.raises(ModelFileError, match="'north' has 9 columns, 0 of them beside keys"):
        KNNPerClassifier.load(path)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model": "quantum"}, "holds no usable model: expected model as"),
        ({"model": "cnn"}, "holds no usable model"),
        ({"hidden": [16, 9]}, "was written for another network"),
        ({"shape": [14]}, "holds no usable model: columns"),
    ],
)
def test_a_network_that_cannot_be_made_or_is_another_is_refused(path, changed, words):
    told = json.loads(parts_of(path).network)

    rewritten(path, network=json.dumps({**told, **changed}))

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


def test_words_that_are_nested_too_deeply_are_refused(path):
    rewritten(path, network="[" * 100_000)

    with pytest.raises(ModelFileError, match="expected the words of a network"):
        KNNPerClassifier.load(path)


def test_a_client_joins_alike_where_the_writer_of_the_file_had_seen_no_rows(tmp_path):
    kept = KNNPerClassifier(hidden=(16, 8), n_rounds=2, combine="pool").fit(X, Y, parties=CELLAR)
    kept.save(tmp_path / "m")
    # as a coordinator writes it
    settings = {**parts_of(tmp_path / "m").settings, "n_beside": 0, "n_discriminants": 0}
    rewritten(tmp_path / "m", settings=settings)

    found = KNNPerClassifier.load(tmp_path / "m")

    for each in (kept, found):
        each.add_client("east", X[::3], Y[::3])
    east = ["east"] * len(X)
    assert found.clients_["east"].settings.n_beside == 13 + 2
    assert found.predict_proba(X, east).tobytes() == kept.predict_proba(X, east).tobytes()


@pytest.mark.parametrize("value", [-3, 16, True, 2.5, "2", None])
def test_a_memory_of_other_discriminants_is_refused(value, tmp_path):
    kept = KNNPerClassifier(hidden=(16, 8), n_rounds=2, combine="pool").fit(X, Y, parties=CELLAR)
    kept.save(tmp_path / "m")
    client = decode(parts_of(tmp_path / "m").clients[0], (ClientParts,))
    settings = {**client.settings, "n_discriminants": value}

    rewritten(
        tmp_path / "m", clients=(encode(ClientParts(**{**vars(client), "settings": settings})),)
    )

    with pytest.raises(ModelFileError):
        KNNPerClassifier.load(tmp_path / "m")


def test_a_memory_with_other_columns_beside_its_keys_is_refused(tmp_path):
    kept = KNNPerClassifier(hidden=(16, 8), n_rounds=2, combine="pool").fit(X, Y, parties=CELLAR)
    kept.save(tmp_path / "m")
    client = decode(parts_of(tmp_path / "m").clients[0], (ClientParts,))
    other = ClientParts(**{**vars(client), "settings": {**client.settings, "n_beside": 12}})

    rewritten(tmp_path / "m", clients=(encode(other),))

    with pytest.raises(ModelFileError, match="has 23 columns, 12 of them beside keys"):
        KNNPerClassifier.load(tmp_path / "m")
