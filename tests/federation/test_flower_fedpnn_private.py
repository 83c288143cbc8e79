"""Private FedPNN on Flower: nodes with ledgers and agreed privacy terms."""

from pathlib import Path

import pytest

from fedneighbors import FedPNNClassifier
from fedneighbors.errors import PartyRefused
from fedneighbors.methods.fedpnn import flower_app
from fedneighbors.privacy._guarantees import ApproxDP, PureDP
from fedneighbors.privacy.ledger._ledger import Ledger
from tests.federation.grid import ProcessGrid, write_keys
from tests.federation.test_flower_fedpnn import APP, PARTIES, folder, models, node, train

__all__ = ["folder"]

SCHEMA = {"schema": str(Path(__file__).with_name("gaps.toml"))}
LOCAL = {"epsilon": "1", "mechanism": "local", **SCHEMA}
CENTRAL = {"epsilon": "1", "delta": "1e-6", "mechanism": "central", **SCHEMA}


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
    config = {**terms, "secure-aggregation": masked, "roster": str(folder / "roster.json")}

    train(folder, grid, **config)
    with pytest.raises(PartyRefused, match="its privacy budget does not allow this release"):
        train(folder, grid, **config)

    assert len(set(models(folder))) == 1
    model = FedPNNClassifier.load(folder / "coordinator" / "fedpnn.model").model_
    assert model.guarantee.startswith("epsilon=1")
    for name in PARTIES:
        with Ledger(folder / f"{name}.ledger") as ledger:
            kinds = {entry.kind for entry in ledger.entries()}
        assert kinds == {"budget", "reserved", "released"}


def test_private_node_refuses_exact_training(folder):
    grid = ProcessGrid(flower_app.client, *nodes(folder, LOCAL, PureDP(1), masked=False))

    with pytest.raises(PartyRefused, match="malformed request"):
        train(folder, grid)

    assert not list(folder.glob("*/*.model*"))


def test_coordinator_with_other_privacy_terms_is_refused(folder):
    grid = ProcessGrid(flower_app.client, *nodes(folder, LOCAL, PureDP(9), masked=False))

    with pytest.raises(PartyRefused, match="differ from the agreed ones"):
        train(folder, grid, **{**LOCAL, "epsilon": "9"})

    with Ledger(folder / "ann.ledger") as ledger:
        assert ledger.spent("visits") == PureDP(0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "set secure-aggregation=true"),
        ({"secure-aggregation": True, "client-threshold": 0.2}, "takes no client-threshold"),
        ({"secure-aggregation": True, "classes": "[0, 1]"}, "takes no classes"),
    ],
    ids=["masks", "threshold", "classes"],
)
def test_settings_unfit_for_privacy_are_an_error(folder, changes, message):
    grid = ProcessGrid(flower_app.client, *nodes(folder, CENTRAL, ApproxDP(1, "1e-6"), True))
    roster = {"roster": str(folder / "roster.json")}

    with pytest.raises(ValueError, match=message):
        train(folder, grid, **CENTRAL, **roster, **changes)

    assert grid.pushed == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ledger": ""}, r"a key is not set in the configuration of the node \(ledger\)"),
        ({"dataset": ""}, r"a key is not set in the configuration of the node \(dataset\)"),
        ({"ledger": "/nowhere/at.all"}, "its ledger cannot be used"),
        ({"schema": ""}, "its privacy terms are invalid"),
        ({"schema": str(APP)}, "its data or schema file cannot be used"),
    ],
)
def test_node_with_unusable_terms_refuses_without_paths(folder, changes, reason):
    ann, bob, _ = nodes(folder, LOCAL, PureDP(1), masked=False)
    grid = ProcessGrid(flower_app.client, ann, {**bob, **changes})

    with pytest.raises(PartyRefused, match=f"'bob' refused: {reason}") as caught:
        train(folder, grid, **LOCAL)

    assert "/" not in str(caught.value)
