import tomllib
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedneighbors.cli._predict import predict
from fedneighbors.datasets import read_table
from fedneighbors.errors import PartyMissing, PartyRefused, SchemaMismatch
from fedneighbors.federation._inprocess import run
from fedneighbors.methods.fedpnn import flower_app as fedpnn_app
from fedneighbors.methods.flynn import flower_app
from fedneighbors.methods.flynn._settings import FlyNNSettings
from fedneighbors.methods.flynn.protocol import FlyNNParty, coordinate
from fedneighbors.privacy._policy import Privacy
from tests.architecture.tree import ROOT
from tests.federation.grid import ProcessGrid, model_folder, write_keys

APP = ROOT / "examples" / "flower-flynn" / "pyproject.toml"
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


def node(folder, name, **extra):
    files = {"data": str(folder / f"{name}.csv"), "model-folder": str(model_folder(folder, name))}
    config = {"party-name": name, "label": "kind", **files, **extra}
    return {key: value for key, value in config.items() if value is not None}


def train(folder, grid, **extra):
    path = str(model_folder(folder, "coordinator") / "flynn.model")
    config = {**DEFAULTS, "min-parties": len(grid.configs), "model-path": path, **extra}
    flower_app.server(grid, Context(1, 1, {}, RecordDict(), config))


def test_all_models_equal_that_of_the_pooled_table(folder):
    grid = ProcessGrid(flower_app.client, *(node(folder, name) for name in PARTIES))

    train(folder, grid, **{"n-units": 256, "seed": 5})

    assert grid.n_exchanges == 8
    table = read_table(folder / "pooled.csv", label="kind")
    names = {"feature_names": table.feature_names, "label_name": "kind"}
    pooled = FlyNNParty("pooled", table.x, table.y, **names)
    expected = run(coordinate(FlyNNSettings(n_units=256, seed=5)), [pooled]).result.to_bytes()
    for owner in ("coordinator", *PARTIES):
        assert (folder / owner / "flynn.model").read_bytes() == expected


def test_masked_sums_give_a_byte_identical_model(folder):
    keys = write_keys(folder, PARTIES)
    configs = [node(folder, name, **keys[name]) for name in PARTIES]
    grid = ProcessGrid(flower_app.client, *configs)

    settings = {"n-units": 256, "seed": 5, "roster": str(folder / "roster.json")}
    train(folder, grid, **settings, **{"secure-aggregation": True})

    assert grid.n_exchanges == 20
    masked = [(folder / owner / "flynn.model").read_bytes() for owner in ("coordinator", *PARTIES)]
    train(folder, ProcessGrid(flower_app.client, *(node(folder, n) for n in PARTIES)), **settings)
    assert masked == [(folder / "coordinator" / "flynn.model").read_bytes()] * 4


@pytest.mark.parametrize("action", ["ask", "introduce"])
def test_no_model_is_written_if_a_node_is_missing(folder, action):
    configs = [node(folder, name) for name in PARTIES]
    grid = ProcessGrid(flower_app.client, *configs, errors={(11, action): 5})

    with pytest.raises(PartyMissing, match="not connected any more"):
        train(folder, grid)

    assert not list(folder.glob("*/*.model*"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"data": None}, r"a key is not set in the configuration of the node \(data\)"),
        ({"model-folder": None}, r"a key is not set .* \(model-folder\)"),
        ({"data": "/nowhere/at all.csv"}, "its data or schema file does not exist"),
        ({"label": "colour"}, "its data or schema file cannot be used"),
    ],
)
def test_unreadable_table_is_refused_without_naming_a_path(folder, changes, reason):
    grid = ProcessGrid(flower_app.client, node(folder, "ann"), node(folder, "bob", **changes))

    with pytest.raises(PartyRefused, match=f"'bob' refused: {reason}") as caught:
        train(folder, grid)

    assert "/" not in str(caught.value)
    assert not list(folder.glob("*/*.model*"))


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


WORDS = """
label = "kind"
classes = ["ill", "well"]
[columns.age]
kind = "number"
low = 0
high = 110
missing = 50
[columns.ward]
kind = "category"
categories = ["east", "west"]
missing = "west"
"""
NEW_ROWS = "ward,age\nwest,\n,70\neast,12\n"


def test_predict_reads_words_and_gaps_with_a_nodes_model(folder, monkeypatch):
    (folder / "words.toml").write_text(WORDS)
    columns = ["ward,age,kind", "kind,ward,age"]  # the order of columns does not matter
    rows = [["east,12,well", "west,,ill", "west,70,ill"], ["well,east,9", "ill,west,80"]]
    for name, header, lines in zip(("ann", "bob"), columns, rows, strict=True):
        (folder / f"{name}.csv").write_text("\n".join([header, *lines]))
    schema = str(folder / "words.toml")
    nodes = [node(folder, name, label=None, schema=schema) for name in ("ann", "bob")]
    (folder / "new.csv").write_text(NEW_ROWS)
    monkeypatch.chdir(folder)

    train(folder, ProcessGrid(flower_app.client, *nodes), **{"n-units": 256, "seed": 5})
    predict(model=folder / "bob" / "flynn.model", data=folder / "new.csv")

    assert (folder / "bob" / "flynn.schema.toml").read_text() == WORDS
    assert (folder / "predictions.csv").read_text().split() == ["prediction", "ill", "ill", "well"]


def test_schema_in_the_model_folder_is_not_changed(folder):
    path = model_folder(folder, "ann") / "schema.toml"
    path.write_text(f"# by hand\n{(Path(__file__).with_name('kinds.toml')).read_text()}")
    before = path.read_bytes()
    nodes = [node(folder, name, label=None, schema=str(path)) for name in ("ann", "bob")]

    train(folder, ProcessGrid(flower_app.client, *nodes), **{"n-units": 256})

    assert path.read_bytes() == before == (folder / "bob" / "flynn.schema.toml").read_bytes()


def test_models_of_two_methods_do_not_overwrite_each_other(folder):
    train(folder, ProcessGrid(flower_app.client, *(node(folder, name) for name in PARTIES)))
    before = (folder / "ann" / "flynn.model").read_bytes()
    fedpnn = tomllib.loads((ROOT / "examples" / "flower-fedpnn" / "pyproject.toml").read_text())
    config = fedpnn["tool"]["flwr"]["app"]["config"]
    config |= {"min-parties": 3, "model-path": str(folder / "coordinator" / "fedpnn.model")}
    grid = ProcessGrid(fedpnn_app.client, *(node(folder, name) for name in PARTIES))

    fedpnn_app.server(grid, Context(1, 1, {}, RecordDict(), config))

    assert (folder / "ann" / "flynn.model").read_bytes() == before
    assert (folder / "ann" / "fedpnn.model").exists()


def test_node_without_its_model_folder_refuses(folder):
    nodes = [node(folder, name) for name in PARTIES]
    (folder / "bob").rmdir()

    with pytest.raises(PartyRefused, match="party 'bob' refused: its model-folder does not exist"):
        train(folder, ProcessGrid(flower_app.client, *nodes))
