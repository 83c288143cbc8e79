"""Boosting on Flower: parties rebuilt for each message give the model of the pooled table."""

import json
import tomllib
from dataclasses import fields

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedneighbors.baselines.boosting import _flower_app as flower_app
from fedneighbors.baselines.boosting._party import BoostingParty
from fedneighbors.baselines.boosting._protocol import BoostingSettings, coordinate
from fedneighbors.datasets import read_table
from fedneighbors.errors import PartyRefused
from fedneighbors.federation._inprocess import run
from fedneighbors.privacy import Privacy
from tests.architecture.tree import ROOT
from tests.federation.grid import ProcessGrid, model_folder, write_keys

APP = ROOT / "examples" / "flower-boosting" / "pyproject.toml"
DEFAULTS = tomllib.loads(APP.read_text())["tool"]["flwr"]["app"]["config"]
PARTIES = ("ann", "bob", "cyd")
SMALL = {"max-iter": 2, "max-leaf-nodes": 4, "min-samples-leaf": 5}
SMALL_SETTINGS = {"max_iter": 2, "max_leaf_nodes": 4, "min_samples_leaf": 5}


@pytest.fixture
def folder(tmp_path):
    """Write tables with missing cells and words for each party, and ``pooled.csv``."""
    rng = np.random.default_rng(3)
    target = rng.normal(size=90)
    cells = (rng.normal(size=(90, 2)) + target[:, None]).round(2).astype(str)
    cells[rng.random((90, 2)) < 0.2] = ""
    wards = rng.choice(["east", "west", ""], 90)
    kinds = np.where(target > 0, "well", "ill")
    lines = [
        ",".join(line)
        for line in zip(*cells.T, wards, target.round(2).astype(str), kinds, strict=True)
    ]
    for k, name in enumerate(["pooled", *PARTIES]):
        part = lines if name == "pooled" else lines[k - 1 :: 3]
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,b,ward,score,kind", *part]))
    return tmp_path


def node(folder, name, **extra):
    files = {"data": str(folder / f"{name}.csv"), "model-folder": str(model_folder(folder, name))}
    return {"party-name": name, "label": "kind", **files, **extra}


def train(folder, grid, **extra):
    path = str(model_folder(folder, "coordinator") / "boosting.model")
    config = {**DEFAULTS, **SMALL, "min-parties": len(grid.configs), "model-path": path, **extra}
    flower_app.server(grid, Context(1, 1, {}, RecordDict(), config))
    return [(folder / owner / "boosting.model").read_bytes() for owner in ("coordinator", *PARTIES)]


def train_pooled(folder, settings, **read):
    table = read_table(folder / "pooled.csv", keep_missing=True, **read)
    party = BoostingParty("all", table.x, table.y, feature_names=table.feature_names)
    return run(coordinate(settings), [party]).result.to_bytes()


def test_all_models_equal_that_of_the_pooled_table(folder):
    models = train(folder, ProcessGrid(flower_app.client, *(node(folder, n) for n in PARTIES)))

    expected = train_pooled(folder, BoostingSettings(**SMALL_SETTINGS), label="kind")
    assert models == [expected] * 4
    assert b"ward" in expected


def test_masked_sums_give_a_byte_identical_model(folder):
    keys = write_keys(folder, PARTIES)
    configs = [node(folder, name, **keys[name]) for name in PARTIES]
    masked = {"roster": str(folder / "roster.json"), "secure-aggregation": True}

    models = train(folder, ProcessGrid(flower_app.client, *configs), **masked)

    expected = train_pooled(folder, BoostingSettings(**SMALL_SETTINGS), label="kind")
    assert models == [expected] * 4


def test_numbers_are_predicted(folder):
    grid = ProcessGrid(flower_app.client, *(node(folder, n, label="score") for n in PARTIES))

    models = train(folder, grid, task="regression")

    settings = BoostingSettings("regression", **SMALL_SETTINGS)
    assert models == [train_pooled(folder, settings, label="score")] * 4


def test_labels_that_are_words_are_no_numbers(folder):
    grid = ProcessGrid(flower_app.client, *(node(folder, n) for n in PARTIES))

    with pytest.raises(PartyRefused, match=r"a label is not a number \(kind\)"):
        train(folder, grid, task="regression")


def test_node_with_a_budget_refuses(folder):
    configs = [node(folder, name) for name in PARTIES]
    configs[1]["epsilon"] = 1.0

    with pytest.raises(PartyRefused, match=r"'bob' refused: .* boosting has no privacy budget"):
        train(folder, ProcessGrid(flower_app.client, *configs))


def test_run_with_a_budget_is_an_error():
    with pytest.raises(ValueError, match="no privacy budget"):
        flower_app._coordinate(DEFAULTS, Privacy(epsilon=1.0))


def test_app_defaults_equal_the_settings():
    assert flower_app.settings_from(DEFAULTS) == BoostingSettings()


def test_every_setting_has_a_key_in_the_app():
    keys = {field.name.replace("_", "-") for field in fields(BoostingSettings)}

    run_keys = {"min-parties", "timeout-s", "model-path", "schema"}
    sum_keys = {"secure-aggregation", "roster", "sum-threshold"}
    assert keys | run_keys | sum_keys == set(DEFAULTS)


def test_weights_by_label_are_read():
    config = {**DEFAULTS, "class-weight": json.dumps({"ill": 5}), "max-depth": 3}

    settings = flower_app.settings_from(config)

    assert (settings.class_weight, settings.max_depth) == ({"ill": 5}, 3)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("task", "ranking"),
        ("max-iter", 1.5),
        ("max-depth", "deep"),
        ("max-bins", 256),
        ("class-weight", "heavy"),
        ("early-stopping", "late"),
        ("validation-fraction", 1.0),
        ("seed", -1),
    ],
)
def test_invalid_setting_is_rejected_by_its_key(key, value):
    with pytest.raises(ValueError, match=f"{key}|{key.replace('-', '_')}"):
        flower_app.settings_from({**DEFAULTS, key: value})
