"""Discriminants in a file: the same again, or refused."""

import numpy as np
import pytest

from fedneighbors.errors import ModelFileError
from fedneighbors.methods.knnper import KNNPerClassifier
from fedneighbors.methods.knnper.files._discriminants import SeenParts, read_seen, seen_bytes
from fedneighbors.methods.knnper.files._model import KNNPerModel
from fedneighbors.methods.knnper.personal._discriminants import Discriminants, RandomFeatures

SEEN = Discriminants(RandomFeatures(5, 0.25, 3), np.array([[1.0, 0.0], [0.5, 2.0], [0.0, -1.0]]))


def test_discriminants_come_back_as_they_were():
    found = read_seen(seen_bytes(SEEN))

    assert found.features == SEEN.features
    assert found.directions.tobytes() == SEEN.directions.tobytes()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"seed": -1}, "seed or rate"),
        ({"rate": -0.5}, "seed or rate"),
        ({"rate": np.inf}, "seed or rate"),
        ({"rate": np.nan}, "seed or rate"),
        ({"directions": np.ones(3)}, "no table"),
        ({"directions": np.empty((3, 0))}, "no table"),
        ({"directions": np.ones((2, 3))}, "no table"),
        ({"directions": np.array([[np.nan]])}, "not finite"),
        ({"directions": np.ones((1025, 1))}, "more than 1024"),
    ],
)
def test_what_are_no_discriminants_is_refused(changed, words):
    parts = {"seed": 5, "rate": 0.25, "directions": SEEN.directions}

    with pytest.raises(ValueError, match=words):
        SeenParts(**(parts | changed))


def test_a_file_whose_discriminants_are_damaged_is_refused(tmp_path, monkeypatch):
    x = np.random.default_rng(0).normal(size=(40, 3))
    y, owner = np.arange(40) % 3, np.repeat(["a", "b"], 20)
    model = KNNPerClassifier(hidden=(4,), n_rounds=1, combine="pool").fit(x, y, parties=owner)
    monkeypatch.setattr(
        "fedneighbors.methods.knnper.files._model.seen_bytes", lambda seen: seen_bytes(seen)[:-9]
    )
    model.save(tmp_path / "model")

    with pytest.raises(ModelFileError):
        KNNPerModel.load(tmp_path / "model")
