"""kNN-Per as a Flower app: ``flwr run examples/flower-knnper``.

The run's configuration holds the settings of the coordinator and the words for the network; a
node's configuration names the party and its files: ``party-name``, ``data``, ``label`` and
``model-path``, where its own part of the model goes. A run whose ``model`` is an import path trains
a network of the user's own: the coordinator imports that path, and each node the one that its own
configuration gives as ``model``. No path travels.
"""

import importlib
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from fedneighbors.federation._flower import Config, client_app, server_app
from fedneighbors.federation._loop import Outcome
from fedneighbors.federation._roles import Coordinator, Refuse, gather
from fedneighbors.methods.knnper._checkpoint import Checkpoint, fingerprint
from fedneighbors.methods.knnper._inputs import probe, refuse_unsuited
from fedneighbors.methods.knnper._model import KNNPerModel
from fedneighbors.methods.knnper._node import NodeParty, OpeningRequest, PlanRequest
from fedneighbors.methods.knnper._settings import MemorySettings, RoundSettings
from fedneighbors.methods.knnper.protocol import coordinate
from fedneighbors.neural._blueprint import OWN, Blueprint, Model
from fedneighbors.neural._schedule import Regime
from fedneighbors.tabular._app_config import (
    check_model_path,
    keep_model,
    node_value,
    party_table,
    reserved_classes,
    typed,
    unless,
)
from fedneighbors.tabular._schema import agree

log = logging.getLogger(__name__)


def rounds_from(config: Config) -> RoundSettings:
    """Return how the shared network is trained, as the configuration of a run describes it.

    Parameters
    ----------
    config : mapping
        ``n-rounds``, ``participation``, ``local-epochs``, ``batch-size``, ``learning-rate``,
        ``momentum``, ``weight-decay`` and ``seed``.

    Raises
    ------
    ValueError
        If a value is of another type than its setting, or out of range.
    """
    regime = Regime(
        epochs=typed(config, "local-epochs", int),
        batch_size=typed(config, "batch-size", int),
        learning_rate=typed(config, "learning-rate", float),
        momentum=typed(config, "momentum", float),
        weight_decay=typed(config, "weight-decay", float),
    )
    return RoundSettings(
        n_rounds=typed(config, "n-rounds", int),
        participation=typed(config, "participation", float),
        regime=regime,
        seed=typed(config, "seed", int),
    )


def memories_from(config: Config) -> MemorySettings:
    """Return how memories are built and asked, as the configuration of a run describes it.

    Parameters
    ----------
    config : mapping
        One key per setting, with ``-`` for ``_``. ``capacity = "none"`` bounds no memory; of
        several values with commas for ``n-neighbors`` or ``metric`` each client chooses one.

    Raises
    ------
    ValueError
        If a value is of another type than its setting, or out of range.
    """
    return MemorySettings(
        n_neighbors=_candidates(typed(config, "n-neighbors", int, str), int),
        metric=_candidates(typed(config, "metric", str), str),
        kernel=typed(config, "kernel", str),
        sigma=typed(config, "sigma", float),
        capacity=unless(config, "capacity", "none", int),
        strategy=typed(config, "strategy", str),
        memory=typed(config, "memory", str),
        combine=typed(config, "combine", str),
        validation=typed(config, "validation", float),
        seed=typed(config, "seed", int),
    )


def _candidates(value: Any, kind: Callable[[str], Any]) -> Any:
    """Return several values where there are commas between them."""
    if not isinstance(value, str):
        return value
    found = tuple(kind(word.strip()) for word in value.split(","))
    return found if len(found) > 1 else found[0]


def _coordinate(config: Config) -> Coordinator[KNNPerModel]:
    check_model_path(config)
    _checkpoint_path(config)
    sketch = _sketch(config)
    own = _imported(str(config["model"])) if sketch.model == OWN else None
    return _training(config, sketch, rounds_from(config), memories_from(config), own)


def _training(
    config: Config, sketch: Blueprint, rounds: RoundSettings, settings: MemorySettings, own: Model
) -> Coordinator[KNNPerModel]:
    """Ask what the tables look like, make a network for them, and train it."""
    reserved = reserved_classes(config)
    replies = yield gather(OpeningRequest())
    agreed = agree(replies.complete("the first question").each, reserved)
    names = tuple(sorted(replies.each))
    shape = sketch.shape or (agreed.n_features,)
    blueprint = replace(sketch, shape=shape, n_outputs=len(agreed.classes))
    network = blueprint.network(own, seed=rounds.seed)
    refuse_unsuited(network, shape, len(agreed.classes))
    path = _checkpoint_path(config)
    standardize = typed(config, "standardize", bool) and len(shape) == 1
    words = (network.digest, blueprint, rounds, settings, names, agreed, standardize)
    keeper = path and Checkpoint(path, fingerprint(*words), probe(network, shape))
    shared = yield from coordinate(
        rounds,
        network.digest,
        network.initial,
        names,
        combine=settings.combine,
        standardize=standardize and not network.reads_tokens,
        discriminate=settings.looks_at_rows and not network.reads_tokens,
        reserved=reserved,
        resumed=keeper.resumed() if keeper else None,
        keep=keeper.keep if keeper else (lambda _stage: None),
        opening=PlanRequest.of(blueprint, network.digest, settings),
    )
    return KNNPerModel(blueprint, network.digest, shared, settings)


def _sketch(config: Config) -> Blueprint:
    """Return the blueprint as far as a run knows it before the tables."""
    model = typed(config, "model", str)
    head = tuple(name.strip() for name in typed(config, "head", str).split(","))
    return Blueprint(
        model=OWN if ":" in model else model,
        shape=_sizes(config, "shape"),
        n_outputs=1,
        embedding=typed(config, "embedding", str),
        head=head,
        hidden=_sizes(config, "hidden"),
    )


def _sizes(config: Config, key: str) -> tuple[int, ...]:
    text = typed(config, key, str)
    try:
        sizes = json.loads(text)
    except json.JSONDecodeError:
        sizes = None
    if not isinstance(sizes, list) or any(type(n) is not int or n < 1 for n in sizes):
        raise ValueError(f"expected {key} as a JSON list of sizes such as [64, 32], got {text!r}")
    return tuple(sizes)


def _checkpoint_path(config: Config) -> Path | None:
    text = typed(config, "checkpoint", str)
    path = Path(text).absolute() if text else None
    if path is not None and not path.parent.is_dir():
        raise ValueError(f"checkpoint points into {path.parent}, which is not a folder; create it")
    return path


def _imported(words: str) -> Any:
    """Return what an import path such as ``package.module:function`` names.

    Raises
    ------
    ValueError
        If there is no such thing.
    """
    module, _, name = words.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"expected model as an import path such as package.module:function, got {words!r}: "
            f"{error}"
        ) from error


def _keep(outcome: Outcome[Any], config: Config) -> None:
    """Write what all clients have in common; only then the training is no longer needed."""
    keep_model(outcome, config)
    if path := _checkpoint_path(config):
        path.unlink(missing_ok=True)


def _party(node: Config) -> NodeParty:
    if node.get("epsilon"):
        raise Refuse("kNN-Per keeps to no budget over nodes; epsilon is set on this one")
    return NodeParty(**party_table(node), own=_own(node) if node.get("model") else None)


def _own(node: Config) -> Callable[[], Model]:
    """Return what imports the network of a node, once a run asks for it."""

    def model() -> Model:
        try:
            return cast("Model", _imported(node_value(node, "model")))
        except ValueError as error:
            log.error("the network of this node cannot be imported: %s", error)
            raise Refuse("its own network cannot be imported") from error

    return model


server = server_app(_coordinate, _keep)
client = client_app(_party)
