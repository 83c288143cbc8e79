"""kNN-Per on windows of characters and on images, from rows to predictions."""

import numpy as np
import pytest

from experiments.datasets.shakespeare import load_roles
from fedneighbors.datasets import load
from fedneighbors.errors import DataError, PartyRefused
from fedneighbors.methods.knnper import KNNPerClassifier
from fedneighbors.neural._architectures import lstm
from fedneighbors.partition import ordered_roles

LENGTH, STRIDE = 20, 5


def reader(shape, n_outputs):
    return lstm(shape, n_outputs, hidden=8, seed=1)


def classifier(**changed):
    settings = {"n_rounds": 2, "n_neighbors": 1, "learning_rate": 0.5, "classes": range(80)}
    return KNNPerClassifier(**(settings | changed))


@pytest.fixture(scope="module")
def roles(data_folder):
    """Thirteen roles, thirty windows each, of which the last fifth is for tests."""
    data = load_roles(data_folder, length=LENGTH, stride=STRIDE, min_rows=30)
    names = np.unique(data.parties)[:13]
    first = [np.flatnonzero(data.parties == name)[:30] for name in names]
    return data.take(np.concatenate(first)), names


def test_roles_train_a_reader_and_remember_their_own_text(roles):
    data, names = roles
    parts = ordered_roles(data.parties, test=0.2, gap=LENGTH // STRIDE)
    known = parts.train & (data.parties != names[-1])

    found = classifier(model=reader).fit(data.x[known], data.y[known], data.parties[known])
    late = parts.train & (data.parties == names[-1])
    found.add_client(names[-1], data.x[late], data.y[late])

    assert sorted(found.clients_) == sorted(names.tolist())
    keys, _ = found.embed(data.x[known])
    assert keys.shape == (known.sum(), 2 * 2 * 8)
    shares = found.predict_proba(data.x[parts.test], data.parties[parts.test])
    assert shares.shape == (6 * 13, 80)
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-9)
    for name in names:
        own = parts.train & (data.parties == name)
        found.clients_[name].weight = 1.0
        assert np.array_equal(found.predict(data.x[own], data.parties[own]), data.y[own])


def test_tokens_are_not_standardized(roles):
    data, names = roles
    own = np.isin(data.parties, names[:3])
    rows = data.x[own], data.y[own], data.parties[own]

    plain = classifier(model=reader, standardize=False).fit(*rows)
    asked = classifier(model=reader, standardize=True).fit(*rows)

    assert asked.weights_.tobytes() == plain.weights_.tobytes()


def test_the_ready_reader_takes_the_windows_of_the_plays(roles):
    data, names = roles
    own = np.isin(data.parties, names[:2])

    found = classifier(model="lstm", n_rounds=1).fit(
        data.x[own, :4].astype(float), data.y[own], data.parties[own]
    )

    assert found.embed(data.x[own, :4])[0].shape == (own.sum(), 1024)


@pytest.mark.parametrize("odd", [80, -1, 0.5])
def test_invalid_tokens_are_refused(roles, odd):
    data, names = roles
    own = np.isin(data.parties, names[:2])
    x = data.x[own].astype(float)
    found = classifier(model=reader, n_rounds=1).fit(x, data.y[own], data.parties[own])
    x[3, 2] = odd

    with pytest.raises(DataError, match="integers from 0 to 79"):
        found.predict(x, data.parties[own])
    with pytest.raises(DataError, match="integers from 0 to 79"):
        classifier(model=reader).fit(x, data.y[own], data.parties[own])


def test_whole_numbers_are_pixels_to_a_network_for_images():
    digits = load("digits")
    x = digits.x[:90].reshape(-1, 8, 8)
    owners = np.arange(90) % 3
    settings = {"model": "cnn", "n_rounds": 2, "standardize": False}

    whole = KNNPerClassifier(**settings).fit(x.astype(np.uint8), digits.y[:90], owners)
    real = KNNPerClassifier(**settings).fit(x, digits.y[:90], owners)

    assert whole.weights_.tobytes() == real.weights_.tobytes()
    assert whole.predict(x.astype(np.uint8), owners).shape == (90,)


def test_raw_pixels_are_more_than_running_averages_may_move():
    digits = load("digits")
    x = 16 * digits.x[:60].reshape(-1, 8, 8)
    asked = KNNPerClassifier("mobilenet", n_rounds=1)

    with pytest.raises(PartyRefused, match="pixels divided by 255"):
        asked.fit(x, digits.y[:60], parties=np.arange(60) % 2)


def test_drawers_are_clients_of_an_image_network(data_folder):
    data = load("omniglot")
    drawers = ["drawer-1", "drawer-2", "drawer-3"]
    rows = np.isin(data.parties, drawers) & np.isin(data.y, data.classes[:5])
    x = data.x[rows].reshape(-1, 28, 28)[:, 4:24:2, 4:24:2] / 255.0

    found = KNNPerClassifier("mobilenet", n_rounds=1, batch_size=16, n_neighbors=1)
    found.fit(x, data.y[rows], parties=data.parties[rows])

    assert sorted(found.clients_) == drawers
    assert found.embed(x[:3])[0].shape == (3, 1280)
