"""kNN-Per on Flower: parties rebuilt for each message give the same bits as one process."""

import tomllib
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from sklearn.datasets import load_digits

from fedneighbors.datasets import read_table
from fedneighbors.errors import ModelFileError, PartyMissing, PartyRefused
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.knnper import KNNPerClassifier, flower_app
from fedneighbors.methods.knnper._settings import MemorySettings, RoundSettings
from fedneighbors.methods.knnper.flower_app import NodeParty
from fedneighbors.methods.knnper.protocol import PoolRequest
from tests.federation.grid import ProcessGrid, model_folder, write_keys

APP = Path(__file__).parents[2] / "examples" / "flower-knnper" / "pyproject.toml"
DEFAULTS = tomllib.loads(APP.read_text())["tool"]["flwr"]["app"]["config"]
PARTIES = ("ann", "bob", "cyd")
QUICK = {"hidden": "[16, 8]", "n-rounds": 2, "batch-size": 16}
ESTIMATOR = {"hidden": (16, 8), "n_rounds": 2, "batch_size": 16, "trainer": "reuse"}


@pytest.fixture
def folder(tmp_path):
    """Write a table of digits for each party; return the folder."""
    x, y = load_digits(return_X_y=True)
    rows = np.column_stack([x, y]).astype(int)[:180]
    header = ",".join([*(f"pixel_{j}" for j in range(64)), "digit"])
    for k, name in enumerate(PARTIES):
        party_rows = rows[k :: len(PARTIES)]
        np.savetxt(tmp_path / f"{name}.csv", party_rows, "%d", ",", header=header, comments="")
    return tmp_path


def node(folder, name, **extra):
    files = {"data": str(folder / f"{name}.csv"), "model-folder": str(model_folder(folder, name))}
    return {"party-name": name, "label": "digit", **files, **extra}


def train(folder, grid, **extra):
    path = str(model_folder(folder, "coordinator") / "knnper.model")
    config = {**DEFAULTS, **QUICK, "min-parties": len(grid.configs), "model-path": path, **extra}
    flower_app.server(grid, Context(1, 1, {}, RecordDict(), config))


def make_grid(folder, **options):
    nodes = [node(folder, name) for name in PARTIES]
    return ProcessGrid(flower_app.client, *nodes, **options)


def train_in_one_process(folder, **extra):
    tables = [read_table(folder / f"{name}.csv", label="digit") for name in PARTIES]
    x, y = np.concatenate([t.x for t in tables]), np.concatenate([t.y for t in tables])
    owner = np.repeat(PARTIES, [len(t.y) for t in tables])
    return KNNPerClassifier(**{**ESTIMATOR, **extra}).fit(x, y, parties=owner), x, y


def has_equal_predictions(model, name, expected, x):
    """Return whether a node's model and the client of one process predict the same bits."""
    clients = [name] * len(x)
    return model.predict_proba(x).tobytes() == expected.predict_proba(x, clients).tobytes()


@pytest.mark.parametrize(
    ("parameters", "config"),
    [
        ({}, {}),
        ({"combine": "pool"}, {"combine": "pool"}),
        (
            {"n_neighbors": (2, 9), "metric": ("cosine", "euclidean"), "capacity": 30},
            {"n-neighbors": "2, 9", "metric": "cosine, euclidean", "capacity": 30},
        ),
        ({"memory": "8-bit", "strategy": "fifo"}, {"memory": "8-bit", "strategy": "fifo"}),
        ({"memory": "centers"}, {"memory": "centers"}),
        (
            {"representation": "discriminants", "sigma": "auto", "combine": "pool"},
            {"representation": "discriminants", "sigma": "auto", "combine": "pool"},
        ),
        (
            {"n_rounds": "plateau", "max_rounds": 2, "patience": 1},
            {"n-rounds": "plateau", "max-rounds": 2, "patience": 1},
        ),
    ],
    ids=["paper", "pool", "choices", "8-bit", "centers", "discriminants", "plateau"],
)
def test_nodes_equal_the_clients_of_one_process(folder, parameters, config):
    expected, x, _ = train_in_one_process(folder, **parameters)

    train(folder, make_grid(folder), **config)

    shared = KNNPerClassifier.load(folder / "coordinator" / "knnper.model")
    assert shared.weights_.tobytes() == expected.weights_.tobytes()
    assert shared.clients_ == {}
    for name in PARTIES:
        model = KNNPerClassifier.load(folder / name / "knnper.model")
        assert list(model.clients_) == [name]
        assert model.clients_[name].weight == expected.clients_[name].weight
        assert model.clients_[name].settings == expected.clients_[name].settings
        assert has_equal_predictions(model, name, expected, x)
    assert not list(folder.rglob("*.pending"))


def test_node_that_is_not_asked_keeps_its_state(folder):
    expected, x, _ = train_in_one_process(folder, participation=0.4)
    grid = make_grid(folder)

    train(folder, grid, participation=0.4)

    nodes = [node for node, action, _ in grid.pushed if action == "ask"]
    assert len(nodes) == 3 * 9 + 2 * 2 * 1  # nine per node, and one node in each round
    for name in PARTIES:
        assert has_equal_predictions(
            KNNPerClassifier.load(folder / name / "knnper.model"), name, expected, x
        )


def test_masked_sums_give_bit_identical_weights(folder):
    expected, x, _ = train_in_one_process(folder, n_rounds=1)
    keys = write_keys(folder, PARTIES)
    configs = [node(folder, name, **keys[name]) for name in PARTIES]
    grid = ProcessGrid(flower_app.client, *configs)

    masked = {"secure-aggregation": True, "roster": str(folder / "roster.json"), "n-rounds": 1}
    train(folder, grid, **masked)

    model = KNNPerClassifier.load(folder / "ann" / "knnper.model")
    assert model.weights_.tobytes() == expected.weights_.tobytes()
    assert has_equal_predictions(model, "ann", expected, x)


def test_rows_and_embeddings_stay_in_the_nodes_own_files(folder):
    expected, _, _ = train_in_one_process(folder)

    train(folder, make_grid(folder))

    keys = expected.clients_["bob"].memory.keys.astype(np.float32)
    keys = keys[(keys > 0).sum(axis=1) > 1]  # zeros occur in every file
    files = {
        owner: (folder / owner / "knnper.model").read_bytes() for owner in ("coordinator", *PARTIES)
    }
    owners = [owner for owner in files if any(row.tobytes() in files[owner] for row in keys)]
    assert owners == ["bob"]


@pytest.mark.parametrize(
    ("n_messages", "n_skipped"), [(26, 2 * 3), (38, 4 * 3)], ids=["before choosing", "after"]
)
def test_interrupted_run_resumes_after_its_last_round(folder, n_messages, n_skipped):
    expected, x, _ = train_in_one_process(folder, n_rounds=3)
    settings = {"n-rounds": 3, "checkpoint": str(folder / "training")}
    interrupted, resumed = make_grid(folder), make_grid(folder)
    # exchanges: names, drafts, schema, opening, plan, columns, counts; then the rounds
    interrupted.push_messages = fail_after(interrupted, n_messages)

    with pytest.raises(ConnectionError):
        train(folder, interrupted, **settings)
    train(folder, resumed, **settings)

    model = KNNPerClassifier.load(folder / "cyd" / "knnper.model")
    assert model.weights_.tobytes() == expected.weights_.tobytes()
    assert has_equal_predictions(model, "cyd", expected, x)
    assert len(resumed.pushed) == 16 * 3 - n_skipped  # messages of completed rounds
    assert not (folder / "training").exists()


def fail_after(grid, n_messages):
    """Return a push_messages that fails after a number of messages."""
    push = grid.push_messages

    def push_or_fail(envelopes):
        if len(grid.pushed) > n_messages:
            raise ConnectionError("the hub is not reachable")
        return push(envelopes)

    return push_or_fail


def test_checkpoint_of_another_run_is_refused(folder):
    settings = {"checkpoint": str(folder / "training")}
    interrupted = make_grid(folder)
    interrupted.push_messages = fail_after(interrupted, 23)
    with pytest.raises(ConnectionError):
        train(folder, interrupted, **settings)

    with pytest.raises(ModelFileError, match="belongs to another training"):
        train(folder, make_grid(folder), seed=1, **settings)


TOWER = """
from torch import nn

def tower(shape, n_outputs):
    module = nn.Sequential(nn.Flatten())
    module.add_module("seen", nn.Sequential(nn.Linear(shape[0], {width}), nn.ReLU()))
    module.add_module("last", nn.Linear({width}, n_outputs))
    return module
"""


@pytest.fixture
def towers(tmp_path, monkeypatch):
    """Write two importable modules with custom networks."""
    for name, width in (("towers_a", 8), ("towers_b", 9)):
        (tmp_path / f"{name}.py").write_text(TOWER.format(width=width))
    monkeypatch.syspath_prepend(tmp_path)
    return {"model": "towers_a:tower", "embedding": "seen", "head": "last"}


def test_custom_network_is_imported_on_the_training_node(folder, towers):
    from towers_a import tower

    parameters = {"model": tower, "embedding": "seen", "head": "last"}
    expected, x, _ = train_in_one_process(folder, **parameters)
    configs = [node(folder, name, model="towers_a:tower") for name in PARTIES]
    grid = ProcessGrid(flower_app.client, *configs)

    train(folder, grid, **towers)

    model = KNNPerClassifier.load(folder / "ann" / "knnper.model", model=tower)
    assert has_equal_predictions(model, "ann", expected, x)
    frames = [envelope.content["frame"]["frame"].data for _, _, envelope in grid.pushed]
    assert not any(b"towers" in frame for frame in frames)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (None, "a key is not set in the configuration of the node .model"),
        ("towers_b:tower", "the network differs from the coordinator's"),
        ("towers_c:tower", "its own network cannot be imported"),
    ],
)
def test_node_with_another_network_refuses_to_train(folder, towers, model, message):
    configs = [node(folder, name, model="towers_a:tower") for name in ("ann", "bob")]
    configs.append(node(folder, "cyd", **({} if model is None else {"model": model})))
    grid = ProcessGrid(flower_app.client, *configs)

    with pytest.raises(PartyRefused, match=message):
        train(folder, grid, **towers)

    assert not list(folder.glob("*/*.model"))


def test_image_network_gets_the_runs_image_shape(folder):
    tables = [read_table(folder / f"{name}.csv", label="digit") for name in PARTIES]
    x = np.concatenate([t.x for t in tables]).reshape(-1, 1, 8, 8)
    y, owner = np.concatenate([t.y for t in tables]), np.repeat(PARTIES, 60)
    expected = KNNPerClassifier("cnn", n_rounds=1, trainer="reuse", batch_size=16)
    expected.fit(x, y, parties=owner)

    train(folder, make_grid(folder), **{"model": "cnn", "shape": "[1, 8, 8]", "n-rounds": 1})

    model = KNNPerClassifier.load(folder / "bob" / "knnper.model")
    assert model.model == "cnn"
    assert has_equal_predictions(model, "bob", expected, x)


def test_network_that_does_not_fit_the_tables_is_not_sent(folder):
    grid = make_grid(folder)

    with pytest.raises(ValueError, match=r"expected rows of shape .*, got \(64,\)"):
        train(folder, grid, model="cnn")

    assert [action for _, action, _ in grid.pushed] == ["introduce"] * 3 + ["ask"] * 9


def test_node_that_expects_a_budget_refuses(folder):
    configs = [node(folder, "ann"), node(folder, "bob", epsilon="1")]

    with pytest.raises(
        PartyRefused, match="'bob' refused: kNN-Per does not support a budget on nodes"
    ):
        train(folder, ProcessGrid(flower_app.client, *configs))


def test_unconfigured_node_refuses_with_the_reason(folder):
    party = NodeParty("ann", np.zeros((2, 2)), np.array([0, 1]), model_path=folder / "m")

    with pytest.raises(Refused, match="no plan has arrived yet"):
        party.answer(PoolRequest(np.zeros(4)))


def test_no_model_is_written_if_a_node_is_missing(folder):
    with pytest.raises(PartyMissing, match=r"'bob' .*not connected any more"):
        train(folder, make_grid(folder, errors={(11, "ask"): 5}))

    assert not list(folder.glob("*/*.model*"))


def test_app_defaults_equal_settings_and_estimator():
    assert flower_app.read_round_settings(DEFAULTS) == RoundSettings()
    assert flower_app.read_memory_settings(DEFAULTS) == MemorySettings()
    plain = KNNPerClassifier()
    assert DEFAULTS["standardize"] is plain.standardize
    assert tuple(tomllib.loads(f"a = {DEFAULTS['hidden']}")["a"]) == plain.hidden
    assert (DEFAULTS["embedding"], DEFAULTS["head"]) == (plain.embedding, plain.head)


def test_every_memory_setting_has_a_key_in_the_app():
    keys = {field.name.replace("_", "-") for field in fields(MemorySettings)}

    # a codebook is shared after training
    assert keys - set(DEFAULTS) == {"codec"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("n-rounds", 2.5),
        ("participation", 0.0),
        ("learning-rate", "fast"),
        ("capacity", 0),
        ("capacity", "all"),
        ("strategy", "lifo"),
        ("memory", "zip"),
        ("metric", "euclidean, manhattan"),
        ("n-neighbors", "5, -1"),
        ("hidden", "64, 32"),
        ("shape", "[1, 0]"),
        ("model", "towers_z:tower"),
        ("checkpoint", "/missing/folder/c"),
        ("classes", "a, b"),
    ],
)
def test_setting_of_wrong_type_or_range_is_rejected_by_key(folder, key, value):
    grid = make_grid(folder)

    with pytest.raises(ValueError, match=key.replace("-", "[-_]")):
        train(folder, grid, **{key: value})

    assert len(grid.pushed) <= 3  # at most the requests for names
