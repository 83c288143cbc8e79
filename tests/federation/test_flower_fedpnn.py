"""FedPNN on Flower: parties rebuilt for each message give the same model as one process."""

import logging
import shutil
import tomllib
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedneighbors.datasets import read_table
from fedneighbors.errors import PartyMissing, PartyRefused
from fedneighbors.federation._inprocess import run
from fedneighbors.methods.fedpnn import flower_app
from fedneighbors.methods.fedpnn._party import FedPNNParty
from fedneighbors.methods.fedpnn.protocol import FedPNNSettings, coordinate
from tests.federation.grid import ProcessGrid, model_folder, write_keys

APP = Path(__file__).parents[2] / "examples" / "flower-fedpnn" / "pyproject.toml"
DEFAULTS = tomllib.loads(APP.read_text())["tool"]["flwr"]["app"]["config"]
PARTIES = ("ann", "bob", "cyd")


@pytest.fixture
def folder(tmp_path):
    """Write a table with missing cells for each party; return the folder."""
    random = np.random.default_rng(3)
    for name in PARTIES:
        labels = np.arange(60) % 2
        cells = (random.normal(size=(60, 3)) + labels[:, None]).round(3).astype(str)
        cells[random.random((60, 3)) < 0.1] = "?"
        lines = [",".join([*row, str(k)]) for row, k in zip(cells, labels, strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,b,c,kind", *lines]))
    return tmp_path


def node(folder, name, **extra):
    files = {"data": str(folder / f"{name}.csv"), "model-folder": str(model_folder(folder, name))}
    return {"party-name": name, "label": "kind", **files, **extra}


def train(folder, grid, **extra):
    path = str(model_folder(folder, "coordinator") / "fedpnn.model")
    config = {**DEFAULTS, "min-parties": len(grid.configs), "model-path": path, **extra}
    flower_app.server(grid, Context(1, 1, {}, RecordDict(), config))


def models(folder):
    """Return the model bytes of the coordinator and the parties."""
    return [(folder / owner / "fedpnn.model").read_bytes() for owner in ("coordinator", *PARTIES)]


def train_in_one_process(folder, settings, **extra):
    parties = []
    for name in PARTIES:
        table = read_table(folder / f"{name}.csv", label="kind", keep_missing=True)
        names = {"feature_names": table.feature_names, "label_name": "kind"}
        parties.append(FedPNNParty(name, table.x, table.y, **names, **extra))
    return run(coordinate(settings), parties).result.to_bytes()


def test_all_models_equal_that_of_one_process(folder):
    grid = ProcessGrid(flower_app.client, *(node(folder, name) for name in PARTIES))

    train(folder, grid)

    assert grid.n_exchanges == 7
    assert models(folder) == [train_in_one_process(folder, FedPNNSettings())] * 4


def test_settings_of_the_run_reach_the_parties(folder):
    grid = ProcessGrid(flower_app.client, *(node(folder, n, **{"min-count": 1}) for n in PARTIES))
    texts = {"normalize": "minmax", "frame": "local", "metric": "none", "classwise": False}

    train(
        folder,
        grid,
        **texts,
        **{"client-threshold": 0.2, "factor": 1, "means": False, "min-count": 1},
    )

    settings = FedPNNSettings(
        client_threshold=0.2,
        factor=1.0,
        normalize="minmax",
        frame="local",
        metric=None,
        classwise=False,
        means=False,
        min_count=1,
    )
    assert grid.n_exchanges == 5
    assert models(folder) == [train_in_one_process(folder, settings, min_count=1)] * 4


def test_masked_sums_give_a_byte_identical_model(folder):
    keys = write_keys(folder, PARTIES)
    configs = [node(folder, name, **keys[name]) for name in PARTIES]
    grid = ProcessGrid(flower_app.client, *configs)

    train(folder, grid, roster=str(folder / "roster.json"), **{"secure-aggregation": True})

    assert grid.n_exchanges == 10
    assert models(folder) == [train_in_one_process(folder, FedPNNSettings())] * 4


def test_node_answers_one_training_about_one_table(folder):
    nodes = [node(folder, name) for name in PARTIES]
    train(folder, ProcessGrid(flower_app.client, *nodes))
    first = (folder / "coordinator" / "fedpnn.model").read_bytes()

    train(folder, ProcessGrid(flower_app.client, *nodes))  # the same run again

    assert (folder / "coordinator" / "fedpnn.model").read_bytes() == first
    with pytest.raises(PartyRefused, match="another request of this kind was answered before"):
        train(folder, ProcessGrid(flower_app.client, *nodes), **{"n-knots": 7})
    for name in PARTIES:
        shutil.rmtree(folder / name / "answers")
    train(folder, ProcessGrid(flower_app.client, *nodes), **{"n-knots": 7})
    assert (folder / "coordinator" / "fedpnn.model").read_bytes() != first


def test_no_model_is_written_if_a_node_is_missing(folder):
    configs = [node(folder, name) for name in PARTIES]
    grid = ProcessGrid(flower_app.client, *configs, errors={(11, "ask"): 5})

    with pytest.raises(PartyMissing, match=r"'bob' .*not connected any more"):
        train(folder, grid)

    assert not list(folder.glob("*/*.model*"))


def test_run_below_the_min_count_of_a_node_is_refused(folder):
    grid = ProcessGrid(flower_app.client, *(node(folder, name) for name in PARTIES))

    with pytest.raises(PartyRefused, match="below the min_count of this party"):
        train(folder, grid, **{"min-count": 4})

    assert not list(folder.glob("*/*.model*"))


@pytest.mark.parametrize("min_count", [0, -1, True, "5", 5.0])
def test_node_with_an_invalid_min_count_refuses(folder, min_count):
    configs = node(folder, "ann"), node(folder, "bob", **{"min-count": min_count})
    grid = ProcessGrid(flower_app.client, *configs)

    with pytest.raises(PartyRefused, match="'bob' refused: min-count of the node must be"):
        train(folder, grid)


def test_node_logs_what_its_centers_reveal(folder, caplog):
    grid = ProcessGrid(flower_app.client, *(node(folder, name) for name in PARTIES))

    with caplog.at_level(logging.INFO, logger="flwr"):
        train(folder, grid)

    lines = [line for line in caplog.messages if "rows or more each" in line]
    assert len(lines) == 3


def test_missing_output_folder_is_an_error_before_the_run(folder):
    grid = ProcessGrid(flower_app.client, *(node(folder, name) for name in PARTIES))

    with pytest.raises(ValueError, match="which is not a folder"):
        train(folder, grid, **{"model-path": str(folder / "missing" / "x.model")})

    assert grid.pushed == []


def test_app_defaults_equal_the_settings():
    assert flower_app.settings_from(DEFAULTS) == FedPNNSettings()


def test_every_setting_has_a_key_in_the_app():
    keys = {field.name.replace("_", "-") for field in fields(FedPNNSettings)}

    run_keys = {"min-parties", "timeout-s", "model-path"}
    sum_keys = {"secure-aggregation", "roster", "sum-threshold"}
    privacy_keys = {
        "epsilon",
        "delta",
        "mechanism",
        "neighbors",
        "schema",
    }
    assert keys | run_keys | sum_keys | privacy_keys | {"colluders"} == set(DEFAULTS)


def test_every_setting_can_be_set():
    config = {
        "client-threshold": 0.2,
        "server-threshold": 0.3,
        "normalize": "none",
        "frame": "local",
        "classwise": False,
        "metric": "none",
        "min-count": 1,
        "sigma": 1,
        "activation": "logistic",
        "factor": 1.0,
        "ridge": 0.2,
        "boost": 2.0,
        "n-knots": 50,
        "means": False,
        "classes": '["a", 1]',
        "n-features-to-select": 3,
    }

    settings = flower_app.settings_from({**DEFAULTS, **config})

    expected = {
        **{key.replace("-", "_"): value for key, value in config.items()},
        "normalize": None,
        "metric": None,
        "classes": ("a", 1),
    }
    assert settings == FedPNNSettings(**expected)
    assert type(settings.sigma) is float


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("client-threshold", "many"),
        ("client-threshold", "none"),
        ("server-threshold", "auto"),
        ("server-threshold", True),
        ("normalize", False),
        ("normalize", "median"),
        ("frame", 1),
        ("classwise", "yes"),
        ("metric", "euclidean"),
        ("min-count", 5.0),
        ("min-count", 0),
        ("sigma", "best"),
        ("sigma", -1.0),
        ("activation", "linear"),
        ("factor", "2"),
        ("n-knots", 1.5),
        ("means", 1),
        ("classes", "a, b"),
    ],
)
def test_invalid_setting_is_rejected_by_its_key(key, value):
    with pytest.raises(ValueError, match=key.replace("-", "[-_]")):
        flower_app.settings_from({**DEFAULTS, key: value})
