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


def build_lstm(shape, n_outputs):
    return lstm(shape, n_outputs, hidden=8, seed=1)


def make_classifier(**changed):
    settings = {"n_rounds": 2, "n_neighbors": 1, "learning_rate": 0.5, "classes": range(80)}
    return KNNPerClassifier(**(settings | changed))


@pytest.fixture(scope="module")
def roles(data_folder):
    """Thirteen roles, thirty windows each, of which the last fifth is for tests."""
    data = load_roles(data_folder, length=LENGTH, stride=STRIDE, min_rows=30)
    names = np.unique(data.parties)[:13]
    first = [np.flatnonzero(data.parties == name)[:30] for name in names]
    return data.take(np.concatenate(first)), names


def test_roles_train_an_lstm_and_memorize_their_text(roles):
    data, names = roles
    parts = ordered_roles(data.parties, test=0.2, gap=LENGTH // STRIDE)
    is_known = parts.train & (data.parties != names[-1])

    model = make_classifier(model=build_lstm).fit(
        data.x[is_known], data.y[is_known], data.parties[is_known]
    )
    is_late = parts.train & (data.parties == names[-1])
    model.add_client(names[-1], data.x[is_late], data.y[is_late])

    assert sorted(model.clients_) == sorted(names.tolist())
    keys, _ = model.embed(data.x[is_known])
    assert keys.shape == (is_known.sum(), 2 * 2 * 8)
    probabilities = model.predict_proba(data.x[parts.test], data.parties[parts.test])
    assert probabilities.shape == (6 * 13, 80)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-9)
    for name in names:
        selected = parts.train & (data.parties == name)
        model.clients_[name].weight = 1.0
        assert np.array_equal(
            model.predict(data.x[selected], data.parties[selected]), data.y[selected]
        )


def test_tokens_are_not_standardized(roles):
    data, names = roles
    selected = np.isin(data.parties, names[:3])
    rows = data.x[selected], data.y[selected], data.parties[selected]

    plain = make_classifier(model=build_lstm, standardize=False).fit(*rows)
    standardized = make_classifier(model=build_lstm, standardize=True).fit(*rows)

    assert standardized.weights_.tobytes() == plain.weights_.tobytes()


def test_the_built_in_lstm_accepts_windows_of_plays(roles):
    data, names = roles
    selected = np.isin(data.parties, names[:2])

    model = make_classifier(model="lstm", n_rounds=1).fit(
        data.x[selected, :4].astype(float), data.y[selected], data.parties[selected]
    )

    assert model.embed(data.x[selected, :4])[0].shape == (selected.sum(), 1024)


@pytest.mark.parametrize("token", [80, -1, 0.5])
def test_invalid_tokens_are_refused(roles, token):
    data, names = roles
    selected = np.isin(data.parties, names[:2])
    x = data.x[selected].astype(float)
    model = make_classifier(model=build_lstm, n_rounds=1).fit(
        x, data.y[selected], data.parties[selected]
    )
    x[3, 2] = token

    with pytest.raises(DataError, match="integers from 0 to 79"):
        model.predict(x, data.parties[selected])
    with pytest.raises(DataError, match="integers from 0 to 79"):
        make_classifier(model=build_lstm).fit(x, data.y[selected], data.parties[selected])


def test_integer_images_train_like_real_ones():
    digits = load("digits")
    x = digits.x[:90].reshape(-1, 8, 8)
    owners = np.arange(90) % 3
    settings = {"model": "cnn", "n_rounds": 2, "standardize": False}

    from_integers = KNNPerClassifier(**settings).fit(x.astype(np.uint8), digits.y[:90], owners)
    from_floats = KNNPerClassifier(**settings).fit(x, digits.y[:90], owners)

    assert from_integers.weights_.tobytes() == from_floats.weights_.tobytes()
    assert from_integers.predict(x.astype(np.uint8), owners).shape == (90,)


def test_pixels_too_large_for_running_averages_are_refused():
    digits = load("digits")
    x = 16 * digits.x[:60].reshape(-1, 8, 8)
    model = KNNPerClassifier("mobilenet", n_rounds=1)

    with pytest.raises(PartyRefused, match="pixels divided by 255"):
        model.fit(x, digits.y[:60], parties=np.arange(60) % 2)


def test_drawers_are_clients_of_an_image_network(data_folder):
    data = load("omniglot")
    drawers = ["drawer-1", "drawer-2", "drawer-3"]
    rows = np.isin(data.parties, drawers) & np.isin(data.y, data.classes[:5])
    x = data.x[rows].reshape(-1, 28, 28)[:, 4:24:2, 4:24:2] / 255.0

    model = KNNPerClassifier("mobilenet", n_rounds=1, batch_size=16, n_neighbors=1)
    model.fit(x, data.y[rows], parties=data.parties[rows])

    assert sorted(model.clients_) == drawers
    assert model.embed(x[:3])[0].shape == (3, 1280)
