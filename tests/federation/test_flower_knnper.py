"""kNN-Per on Flower: clients that are built anew for each message give the bits of one process."""

import tomllib
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from sklearn.datasets import load_digits

from fedneighbors.datasets import read_table
from fedneighbors.methods.knnper import KNNPerClassifier, flower_app
from tests.federation.grid import ProcessGrid

APP = Path(__file__).parents[2] / "examples" / "flower-knnper" / "pyproject.toml"
DEFAULTS = tomllib.loads(APP.read_text())["tool"]["flwr"]["app"]["config"]
PARTIES = ("ann", "bob", "cyd")
QUICK = {"hidden": "[16, 8]", "n-rounds": 2, "batch-size": 16}
ESTIMATOR = {"hidden": (16, 8), "n_rounds": 2, "batch_size": 16, "trainer": "reuse"}


@pytest.fixture
def folder(tmp_path):
    """A folder with one table of digits per party."""
    x, y = load_digits(return_X_y=True)
    rows = np.column_stack([x, y]).astype(int)[:180]
    header = ",".join([*(f"pixel_{j}" for j in range(64)), "digit"])
    for k, name in enumerate(PARTIES):
        part = rows[k :: len(PARTIES)]
        np.savetxt(tmp_path / f"{name}.csv", part, "%d", ",", header=header, comments="")
    return tmp_path


def node(folder, name, **more):
    files = {"data": str(folder / f"{name}.csv"), "model-path": str(folder / f"{name}.model")}
    return {"party-name": name, "label": "digit", **files, **more}


def train(folder, grid, **more):
    path = str(folder / "coordinator.model")
    config = {**DEFAULTS, **QUICK, "min-parties": len(grid.configs), "model-path": path, **more}
    flower_app.server(grid, Context(1, 1, {}, RecordDict(), config))


def grid_of(folder, *parties, **more):
    nodes = [node(folder, name) for name in parties or PARTIES]
    return ProcessGrid(flower_app.client, *nodes, **more)


def of_one_process(folder, **more):
    tables = [read_table(folder / f"{name}.csv", label="digit") for name in PARTIES]
    x, y = np.concatenate([t.x for t in tables]), np.concatenate([t.y for t in tables])
    owner = np.repeat(PARTIES, [len(t.y) for t in tables])
    return KNNPerClassifier(**{**ESTIMATOR, **more}).fit(x, y, parties=owner), x, y


def is_of(found, name, expected, x):
    """Whether a node's part predicts as the client of one process does, to the last bit."""
    asked = [name] * len(x)
    return found.predict_proba(x).tobytes() == expected.predict_proba(x, asked).tobytes()


@pytest.mark.parametrize("combine", ["paper", "pool"])
def test_nodes_end_with_what_the_clients_of_one_process_have(folder, combine):
    expected, x, _ = of_one_process(folder, combine=combine)

    train(folder, grid_of(folder), combine=combine)

    shared = KNNPerClassifier.load(folder / "coordinator.model")
    assert shared.weights_.tobytes() == expected.weights_.tobytes()
    assert shared.clients_ == {}
    for name in PARTIES:
        own = KNNPerClassifier.load(folder / f"{name}.model")
        assert list(own.clients_) == [name]
        assert own.clients_[name].weight == expected.clients_[name].weight
        assert is_of(own, name, expected, x)
    assert not list(folder.glob("*.pending"))
