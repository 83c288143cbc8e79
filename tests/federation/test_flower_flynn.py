import tomllib
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedneighbors.datasets import read_table
from fedneighbors.errors import PartyMissing, PartyRefused, SchemaMismatch
from fedneighbors.federation._inprocess import run
from fedneighbors.methods.flynn import flower_app
from fedneighbors.methods.flynn.protocol import FlyNNParty, FlyNNSettings, coordinate
from fedneighbors.privacy._policy import Privacy
from fedneighbors.secure_sum._keys import Identity, Roster
from tests.federation.grid import ProcessGrid

APP = Path(__file__).parents[2] / "examples" / "flower-flynn" / "pyproject.toml"
DEFAULTS = tomllib.loads(APP.read_text())["tool"]["flwr"]["app"]["config"]
PARTIES = ("ann", "bob", "cyd")


@pytest.fixture
def folder(tmp_path):
    """Write a table for each party, and ``pooled.csv`` with all rows; return the folder."""
    random = np.random.default_rng(3)
    rows = np.column_stack([random.integers(0, 99, (60, 4)), np.arange(60) % 3])
    for k, name in enumerate(["pooled", *PARTIES]):
        table = rows if name == "pooled" else rows[k - 1 :: 3]
        header = "a,b,c,d,kind"
        np.savetxt(tmp_path / f"{name}.csv", table, "%d", ",", header=header, comments="")
    return tmp_path


def node(folder, name, **more):
    files = {"data": str(folder / f"{name}.csv"), "model-path": str(folder / f"{name}.model")}
    config = {"party-name": name, "label": "kind", **files, **more}
    return {key: value for key, value in config.items() if value is not None}


def train(folder, grid, **more):
    path = str(folder / "coordinator.model")
    config = {**DEFAULTS, "min-parties": len(grid.configs), "model-path": path, **more}
    flower_app.server(grid, Context(1, 1, {}, RecordDict(), config))


def test_all_models_equal_that_of_the_pooled_table(folder):
    grid = ProcessGrid(flower_app.client, *(node(folder, name) for name in PARTIES))

    train(folder, grid, **{"n-units": 256, "seed": 5})

    table = read_table(folder / "pooled.csv", label="kind")
    names = {"feature_names": table.feature_names, "label_name": "kind"}
    pooled = FlyNNParty("pooled", table.x, table.y, **names)
    expected = run(coordinate(FlyNNSettings(n_units=256, seed=5)), [pooled]).result.to_bytes()
    for owner in ("coordinator", *PARTIES):
        assert (folder / f"{owner}.model").read_bytes() == expected


def test_masked_sums_give_a_byte_identical_model(folder):
    keys = {name: Identity.new() for name in PARTIES}
    roster = Roster({name: key.public for name, key in keys.items()})
    (folder / "roster.json").write_text(roster.to_json())
    configs = []
    for name, key in keys.items():
        key.write(folder / f"{name}.pem")
        files = {"identity-key": f"{name}.pem", "roster": "roster.json", "mask-state": name}
        configs.append(node(folder, name, **{k: str(folder / path) for k, path in files.items()}))
    grid = ProcessGrid(flower_app.client, *configs)

    settings = {"n-units": 256, "seed": 5, "roster": str(folder / "roster.json")}
    train(folder, grid, **settings, **{"secure-aggregation": True})

    masked = [(folder / f"{owner}.model").read_bytes() for owner in ("coordinator", *PARTIES)]
    train(folder, ProcessGrid(flower_app.client, *(node(folder, n) for n in PARTIES)), **settings)
    assert masked == [(folder / "coordinator.model").read_bytes()] * 4


@pytest.mark.parametrize("action", ["ask", "introduce"])
def test_no_model_is_written_if_a_node_is_missing(folder, action):
    configs = [node(folder, name) for name in PARTIES]
    grid = ProcessGrid(flower_app.client, *configs, errors={(11, action): 5})

    with pytest.raises(PartyMissing, match="not connected any more"):
        train(folder, grid)

    assert not list(folder.glob("*.model*"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"data": None}, r"a key is not set in the configuration of the node \(data\)"),
        ({"model-path": None}, r"a key is not set .* \(model-path\)"),
        ({"data": "/nowhere/at all.csv"}, "its data or schema file does not exist"),
        ({"label": "colour"}, "its data or schema file cannot be used"),
    ],
)
def test_unreadable_table_is_refused_without_naming_a_path(folder, changes, reason):
    grid = ProcessGrid(flower_app.client, node(folder, "ann"), node(folder, "bob", **changes))

    with pytest.raises(PartyRefused, match=f"'bob' refused: {reason}") as caught:
        train(folder, grid)

    assert "/" not in str(caught.value)
    assert not list(folder.glob("*.model*"))


def test_party_with_other_columns_is_named(folder):
    text = (folder / "bob.csv").read_text()
    (folder / "bob.csv").write_text(text.replace("a,b,c,d", "a,b,c,e"))
    grid = ProcessGrid(flower_app.client, *(node(folder, name) for name in PARTIES))

    with pytest.raises(SchemaMismatch, match="party 'bob'"):
        train(folder, grid)


def test_missing_output_folder_is_an_error_before_the_run(folder):
    grid = ProcessGrid(flower_app.client, *(node(folder, name) for name in PARTIES))

    with pytest.raises(ValueError, match="which is not a folder"):
        train(folder, grid, **{"model-path": str(folder / "missing" / "x.model")})

    assert grid.pushed == []


def test_app_defaults_equal_the_settings():
    assert flower_app.settings_from(DEFAULTS) == FlyNNSettings()


def test_every_setting_has_a_key_in_the_app():
    keys = {field.name.replace("_", "-") for field in fields(FlyNNSettings)}

    run_keys = {"min-parties", "timeout-s", "model-path"}
    sum_keys = {"secure-aggregation", "roster", "sum-threshold"}
    privacy_keys = {field.name.replace("_", "-") for field in fields(Privacy)}
    derived = {"classes", "bounds"}  # by the schema
    assert keys | run_keys | sum_keys | (privacy_keys - derived) == set(DEFAULTS)


def test_every_setting_can_be_set():
    config = {
        "n-units": 64,
        "n-inputs": 3,
        "n-active": 8,
        "decay": 0.5,
        "standardize": "global",
        "expand": "mirror",
        "class-normalized": False,
        "seed": 9,
        "classes": '["a", 1]',
        "declared-rows": '{"ann": 20}',
    }

    settings = flower_app.settings_from(config)

    assert settings == FlyNNSettings(
        64, 3, 8, 0.5, "global", "mirror", False, 9, ("a", 1), {"ann": 20}
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("n-units", "many"),
        ("n-units", 1.5),
        ("n-units", True),
        ("decay", "half"),
        ("seed", "0"),
        ("class-normalized", 1),
        ("classes", "a, b"),
        ("classes", '{"a": 1}'),
        ("classes", "[null]"),
        ("classes", "[[1]]"),
    ],
)
def test_setting_of_wrong_type_is_rejected_by_its_key(key, value):
    with pytest.raises(ValueError, match=key):
        flower_app.settings_from({**DEFAULTS, key: value})


def test_expand_none_means_no_expansion():
    assert flower_app.settings_from({**DEFAULTS, "expand": "none"}).expand is None
