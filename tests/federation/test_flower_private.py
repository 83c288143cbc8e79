"""Private FlyNN on Flower: nodes with ledgers that persist between messages."""

from pathlib import Path

import pytest

from fedneighbors.datasets import Schema
from fedneighbors.errors import MissingDataError, PartyRefused
from fedneighbors.methods.flynn import flower_app
from fedneighbors.methods.flynn._model import FlyNNModel
from fedneighbors.privacy._guarantees import ApproxDP, PureDP
from fedneighbors.privacy._policy import Privacy, privacy_from
from fedneighbors.privacy.ledger._ledger import Ledger
from tests.federation.grid import ProcessGrid, write_keys
from tests.federation.test_flower_flynn import DEFAULTS, PARTIES, folder, node, train

__all__ = ["folder"]

SCHEMA = {"schema": str(Path(__file__).with_name("kinds.toml"))}
LOCAL = {"epsilon": "1", "mechanism": "local", **SCHEMA}
CENTRAL = {"epsilon": "1", "delta": "1e-6", "mechanism": "central", **SCHEMA}
SIZES = {"n-units": 64, "n-active": 8}


def nodes(folder, terms, budget, masked):
    """Return configurations of nodes with ledgers, and if ``masked`` with keys."""
    keys = write_keys(folder, PARTIES)
    configs = []
    for name in PARTIES:
        with Ledger(folder / f"{name}.ledger", party=name) as ledger:
            ledger.set_budget("visits", budget)
        extra = {**terms, "ledger": str(folder / f"{name}.ledger"), "dataset": "visits"}
        configs.append(node(folder, name, **extra, **(keys[name] if masked else {})))
    return configs


@pytest.mark.parametrize(
    ("terms", "budget", "masked"),
    [(LOCAL, PureDP(1), False), (CENTRAL, ApproxDP(1, "1e-6"), True)],
    ids=["local", "central"],
)
def test_nodes_train_only_once_with_their_budget(folder, terms, budget, masked):
    grid = ProcessGrid(flower_app.client, *nodes(folder, terms, budget, masked))
    config = {**SIZES, **terms, "secure-aggregation": masked, "roster": str(folder / "roster.json")}

    train(folder, grid, **config)
    with pytest.raises(PartyRefused, match="its privacy budget does not allow this release"):
        train(folder, grid, **config)

    model = FlyNNModel.load(folder / "coordinator" / "flynn.model")
    assert model.guarantee.startswith("epsilon=1")
    assert model.noise_variance > 0
    for name in PARTIES:
        assert (folder / name / "flynn.model").read_bytes() == model.to_bytes()
        with Ledger(folder / f"{name}.ledger") as ledger:
            kinds = [entry.kind for entry in ledger.entries()]
        assert kinds == ["budget", *["reserved", "released"] * 2]  # constants, counts


def test_private_node_refuses_exact_training(folder):
    grid = ProcessGrid(flower_app.client, *nodes(folder, LOCAL, PureDP(1), masked=False))

    with pytest.raises(PartyRefused, match="malformed request"):
        train(folder, grid, **SIZES)


def test_coordinator_with_other_privacy_terms_is_refused(folder):
    grid = ProcessGrid(flower_app.client, *nodes(folder, LOCAL, PureDP(9), masked=False))

    with pytest.raises(PartyRefused, match="differ from the agreed ones"):
        train(folder, grid, **SIZES, **{**LOCAL, "epsilon": "9"})

    with Ledger(folder / "ann.ledger") as ledger:
        assert ledger.spent("visits") == PureDP(0)


def test_noise_shares_without_masks_are_an_error(folder):
    grid = ProcessGrid(
        flower_app.client, *nodes(folder, CENTRAL, ApproxDP(1, "1e-6"), masked=False)
    )

    with pytest.raises(ValueError, match="set secure-aggregation=true"):
        train(folder, grid, **SIZES, **CENTRAL)

    assert grid.pushed == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ledger": None}, r"a key is not set in the configuration of the node \(ledger\)"),
        ({"dataset": None}, r"a key is not set in the configuration of the node \(dataset\)"),
        ({"ledger": "/nowhere/at.all"}, "its ledger cannot be used"),
        ({"ledger": "{folder}/ann.ledger"}, "its ledger cannot be used"),
        ({"dataset": "unknown"}, "its privacy budget does not allow this release"),
        ({"schema": None}, "its privacy terms are invalid"),
        ({"schema": "/nowhere/at.all"}, "its data or schema file does not exist"),
        ({"data": None}, r"a key is not set in the configuration of the node \(data\)"),
    ],
)
def test_unusable_ledger_is_refused_without_naming_a_path(folder, changes, reason):
    ann, bob, _ = nodes(folder, LOCAL, PureDP(1), masked=False)
    changed = {key: value and value.format(folder=folder) for key, value in changes.items()}
    bob = {key: value for key, value in {**bob, **changed}.items() if value is not None}
    grid = ProcessGrid(flower_app.client, ann, bob)

    with pytest.raises(PartyRefused, match=f"'bob' refused: {reason}") as caught:
        train(folder, grid, **SIZES, **LOCAL)

    assert "/" not in str(caught.value)


def test_every_privacy_term_can_be_set():
    config = {
        "epsilon": "1/3",
        "delta": "1e-9",
        "mechanism": "central",
        "neighbors": "replace_one",
        **SCHEMA,
        "constants-share": "1/5",
        "n-picks": 7,
        "n-parties": 4,
        "accounting": "paper",
        "colluders": 2,
    }

    privacy = privacy_from(config)

    assert privacy == Privacy(
        "1/3",
        "1e-9",
        "central",
        "replace_one",
        Schema.load(SCHEMA["schema"]),
        (0, 1, 2),
        ((0.0,) * 4, (99.0,) * 4),
        "1/5",
        7,
        "paper",
        4,
        2,
    )


def test_privacy_is_off_by_default():
    assert privacy_from(DEFAULTS) is None


def test_a_budget_needs_a_schema():
    with pytest.raises(ValueError, match="epsilon needs a schema: under a privacy budget, rows"):
        privacy_from({**DEFAULTS, "epsilon": "1"})
    with pytest.raises(MissingDataError, match=r"there is no file none\.toml"):
        privacy_from({**DEFAULTS, "epsilon": "1", "schema": "none.toml"})


def test_node_charges_its_configured_user(folder):
    configs = nodes(folder, LOCAL, PureDP(1), masked=False)
    with_user = ({**config, "ledger-user": "study"} for config in configs)

    train(folder, ProcessGrid(flower_app.client, *with_user), **SIZES, **LOCAL)

    with Ledger(folder / "ann.ledger") as ledger:
        users = [(entry.kind, entry.user) for entry in ledger.entries()]
    charged = [("reserved", "study"), ("released", "study")]
    assert users == [("budget", ""), *charged, *charged]
