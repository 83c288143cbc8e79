"""kNN-Per as a Flower app: ``flwr run examples/flower-knnper``.

The run's configuration has the settings of the training and the description of the network. A
node's configuration has the party's name (``party-name``), its table (``data``) and label column
(``label``), and the folder for the client's part of the model (``model-folder``). If ``model`` in
the run's configuration is an import path, the run trains a user's network: the coordinator imports
that path, and each node imports the path ``model`` in its own configuration. No path is sent. The
same holds for a user's frozen embedding, with ``representation = "embedding"``. Torch is imported
for networks only.
"""

import importlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedneighbors._typing import Array
from fedneighbors.errors import DataError
from fedneighbors.federation._flower import Config
from fedneighbors.federation._loop import Coordinator, Outcome, gather
from fedneighbors.federation._messages import Message, message
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.knnper._checkpoint import Checkpoint, compute_fingerprint
from fedneighbors.methods.knnper._client import KNNPerParty
from fedneighbors.methods.knnper._frozen import ClassMomentsRequest, FrozenModel, coordinate_frozen
from fedneighbors.methods.knnper._model import KNNPerModel, frozen_model
from fedneighbors.methods.knnper._records import ClientRecord
from fedneighbors.methods.knnper._settings import MemorySettings, RoundSettings
from fedneighbors.methods.knnper._task import CLASSIFICATION
from fedneighbors.methods.knnper.personal._discriminants import ScatterRequest
from fedneighbors.methods.knnper.personal._pool import PoolRequest
from fedneighbors.methods.knnper.protocol import (
    ClientMomentsRequest,
    ClientSchemaRequest,
    CountsRequest,
    LossRequest,
    ReleaseRequest,
    Shared,
    TrainRequest,
    coordinate,
)
from fedneighbors.neural._blueprint import CUSTOM, FROZEN, Blueprint, Model
from fedneighbors.privacy._policy import Privacy
from fedneighbors.records._storage import check_folder
from fedneighbors.tabular._app_config import (
    node_value,
    reserved_classes,
    save_model,
    table_apps,
    typed_or_none,
    typed_value,
)
from fedneighbors.tabular._model_file import decode_model, encode_model, read_model_file
from fedneighbors.tabular._ownership import TableParty, one_blas_thread, one_thread
from fedneighbors.tabular._schema import JointSchema, SchemaReply, agree

if TYPE_CHECKING:
    from fedneighbors.neural._network import Network

log = logging.getLogger(__name__)


@message
class OpeningRequest:
    """Request for a client's schema, from which the coordinator makes the training plan."""

    reply: ClassVar[type] = SchemaReply


MAX_CANDIDATES = 100
"""Maximum number of values from which a client chooses a setting; each is evaluated."""


@message
class PlanRequest:
    """Training plan, and second request for the schema; ``layout`` is the network's digest."""

    blueprint: Blueprint
    layout: str
    settings: MemorySettings

    reply: ClassVar[type] = SchemaReply

    def __post_init__(self) -> None:
        if len(self.settings.ks) * len(self.settings.metrics) > MAX_CANDIDATES:
            raise ValueError(f"expected at most {MAX_CANDIDATES} pairs of k and metric")


MAGIC = b"FNKNODE3"


@dataclass(frozen=True, eq=False)
class RepeatedRequests:
    """Stored requests, which a node answers again to restore its client's state."""

    plan: PlanRequest
    counts: CountsRequest | None = None
    release: ReleaseRequest | None = None

    def before(self, request: Message) -> list[Message]:
        """Return the stored requests to answer before another one."""
        if isinstance(request, ClientMomentsRequest | CountsRequest):
            return []
        needs_counts_only = isinstance(
            request, TrainRequest | LossRequest | ScatterRequest | ClassMomentsRequest
        )
        needed = [self.counts] if needs_counts_only else [self.counts, self.release]
        stored = [each for each in needed if each is not None]
        if not stored:
            raise Refused("no classes have arrived yet")
        return stored


class NodeParty(TableParty):
    """A client whose rows, memory and memory weight stay on its node.

    The node creates the client again for each message. Between messages, a file next to the model
    stores the requests that determine its state: the plan, the request for class counts, and the
    model for choosing the mixture. The file is deleted when the client's part of the model is
    written.

    Parameters
    ----------
    name : str
        Name in the federation.
    x : array of shape (n_rows, n_features)
        Rows of the table.
    y : array of shape (n_rows,)
        Labels.
    model_path : path
        File for the client's part of the model. Requests are stored next to it, in a file with the
        suffix ``.pending``.
    custom : callable, optional
        Function that imports the node's network or its builder, or its frozen embedding, for runs
        with a user's network or embedding.
    **table
        The other arguments of :class:`~fedneighbors.tabular._ownership.TableParty`.
    """

    accepts: tuple[type[Any], ...] = (
        OpeningRequest,
        PlanRequest,
        ClientMomentsRequest,
        CountsRequest,
        TrainRequest,
        LossRequest,
        ScatterRequest,
        ClassMomentsRequest,
        ReleaseRequest,
        PoolRequest,
    )

    def __init__(
        self,
        name: str,
        x: Array,
        y: Array,
        *,
        model_path: str | Path,
        custom: Callable[[], Model] | None = None,
        **table: Any,
    ) -> None:
        super().__init__(name, np.asarray(x), y, model_path=model_path, **table)
        self._custom = custom

    def answer(self, request: Message) -> Message:
        """Return the reply to one of the requests in ``accepts``."""
        if isinstance(request, OpeningRequest):
            self._pending.unlink(missing_ok=True)
            return self._describe(self._y)
        stored = RepeatedRequests(request) if isinstance(request, PlanRequest) else self._requests()
        is_frozen = stored.plan.blueprint.model in FROZEN
        with one_blas_thread() if is_frozen else one_thread():
            client = self._client(stored.plan)
            if isinstance(request, PlanRequest):
                self._store_requests(stored)
                return client.answer(ClientSchemaRequest(request.layout))
            for earlier in stored.before(request):
                client.answer(earlier)
            reply = client.answer(request)
        if isinstance(request, CountsRequest):
            self._store_requests(replace(stored, counts=request))
        elif isinstance(request, ReleaseRequest) and request.final:
            self._finish(stored, client, request)
        elif isinstance(request, ReleaseRequest):
            self._store_requests(replace(stored, release=request))
        return reply

    def _client(self, plan: PlanRequest) -> KNNPerParty:
        """Return the client in its state at the beginning of a training."""
        network, shape = self._network(plan), plan.blueprint.shape
        if int(np.prod(shape)) != int(np.prod(self._x.shape[1:])):
            raise Refused("its rows do not have the shape of the network's input")
        x = self._x.reshape(len(self._x), *shape)
        try:
            return KNNPerParty(
                self.name,
                x,
                self._y,
                network,
                settings=plan.settings,
                feature_names=self._feature_names,
            )
        except DataError as error:
            raise Refused("its rows are not tokens of the network's alphabet") from error

    def _network(self, plan: PlanRequest) -> "Network | FrozenModel":
        if plan.settings.codec is not None:
            raise Refused("the plan has a codebook; codebooks are shared only after training")
        model = plan.blueprint.model
        is_own = model in (CUSTOM, "embedding")
        if is_own and self._custom is None:
            raise Refused("a key is not set in the configuration of the node", "model")
        own = self._custom() if is_own and self._custom is not None else None
        try:
            if model in FROZEN:
                return frozen_model(plan.blueprint, own)
            if not is_own:
                plan.blueprint.check_size()
            return plan.blueprint.network(own)
        except (ValueError, TypeError, RuntimeError) as error:
            raise Refused("the network cannot be built or is too large") from error

    def _requests(self) -> RepeatedRequests:
        if not self._pending.exists():
            raise Refused("no plan has arrived yet")
        return decode_model(
            MAGIC, read_model_file(self._pending), RepeatedRequests, source="stored requests"
        )

    def _store_requests(self, stored: RepeatedRequests) -> None:
        self._keep_pending(encode_model(MAGIC, stored))

    def _finish(self, stored: RepeatedRequests, client: KNNPerParty, final: ReleaseRequest) -> None:
        """Write the client's part of the model; delete stored requests."""
        plan, counts = stored.plan, stored.counts
        assert counts is not None  # RepeatedRequests.before refuses a release without them
        assert client.client_state is not None  # set by the final release
        shared = Shared(
            weights=final.shared,
            classes=counts.classes,
            overall=final.overall,
            pool=final.pool,
            center=counts.center,
            scale=counts.scale,
            agreed=JointSchema(self._x.shape[1], self._feature_names, counts.classes),
            seen=final.seen,
        )
        clients = {self.name: ClientRecord.of(client.client_state)}
        self._keep(KNNPerModel(plan.blueprint, plan.layout, shared, plan.settings, clients))
        self._pending.unlink(missing_ok=True)


def read_round_settings(config: Config) -> RoundSettings:
    """Read the training settings from a run's configuration.

    Parameters
    ----------
    config : mapping
        ``n-rounds``, ``patience``, ``max-rounds``, ``participation``, ``local-epochs``,
        ``batch-size``, ``learning-rate``, ``learning-rate-schedule``, ``learning-rate-factor``,
        ``momentum``, ``weight-decay`` and ``seed``.

    Raises
    ------
    ValueError
        If a value has another type than its setting, or is out of range.
    """
    parameters = _typed_settings(
        config,
        patience=int,
        max_rounds=int,
        participation=float,
        local_epochs=int,
        batch_size=int,
        learning_rate=float,
        learning_rate_schedule=str,
        learning_rate_factor=float,
        momentum=float,
        weight_decay=float,
    )
    parameters["n_rounds"] = typed_value(config, "n-rounds", int, str)
    return RoundSettings.of(SimpleNamespace(**parameters), typed_value(config, "seed", int))


def read_memory_settings(config: Config) -> MemorySettings:
    """Read the memory settings from a run's configuration.

    Parameters
    ----------
    config : mapping
        One key per setting, with ``-`` instead of ``_``. ``capacity = "none"`` means no limit.
        ``n-neighbors`` and ``metric`` accept several values separated by commas, from which each
        client chooses one.

    Raises
    ------
    ValueError
        If a value has another type than its setting, or is out of range.
    """
    return MemorySettings(
        n_neighbors=_candidates(typed_value(config, "n-neighbors", int, str), int),
        metric=_candidates(typed_value(config, "metric", str), str),
        capacity=typed_or_none(config, "capacity", "none", int),
        sigma=typed_value(config, "sigma", float, str),
        **_typed_settings(
            config, kernel=str, strategy=str, memory=str, combine=str, validation=float, seed=int
        ),
    )


def _typed_settings(config: Config, **types: type) -> dict[str, Any]:
    """Return settings by name, from keys with ``-`` instead of ``_``."""
    return {name: typed_value(config, name.replace("_", "-"), t) for name, t in types.items()}


def _candidates(value: Any, convert: Callable[[str], Any]) -> Any:
    """Return the values in a text with commas: one, or a tuple."""
    if not isinstance(value, str):
        return value
    candidates = tuple(convert(word.strip()) for word in value.split(","))
    return candidates if len(candidates) > 1 else candidates[0]


def _coordinate(config: Config, _privacy: Privacy | None) -> Coordinator[KNNPerModel]:
    _checkpoint_path(config)  # raise for an invalid path before any request
    draft = _draft_blueprint(config)
    custom = _import(str(config["model"])) if draft.model in (CUSTOM, "embedding") else None
    rounds, settings = read_round_settings(config), read_memory_settings(config)
    return _train(config, draft, rounds, settings, custom)


def _train(
    config: Config, draft: Blueprint, rounds: RoundSettings, settings: MemorySettings, custom: Model
) -> Coordinator[KNNPerModel]:
    """Request the schemas, build a network for them, and train it."""
    reserved = reserved_classes(config)
    replies = yield gather(OpeningRequest())
    agreed = agree(replies.complete("the schema").each, reserved)
    names = tuple(sorted(replies.each))
    shape = draft.shape or (agreed.n_features,)
    blueprint = replace(draft, shape=shape, n_outputs=len(agreed.classes))
    if blueprint.model in FROZEN:
        return (yield from _train_frozen(config, blueprint, settings, custom))
    from fedneighbors.neural._blueprint import check_network, probe_outputs

    network = blueprint.network(custom, seed=rounds.seed)
    check_network(network, shape, len(agreed.classes))
    path = _checkpoint_path(config)
    standardize = typed_value(config, "standardize", bool) and len(shape) == 1
    inputs = (network.digest, blueprint, rounds, settings, names, agreed, standardize)
    fingerprint = compute_fingerprint(*inputs)
    checkpoint = Checkpoint(path, fingerprint, probe_outputs(network, shape)) if path else None
    shared = yield from coordinate(
        rounds,
        settings,
        network,
        CLASSIFICATION,
        standardize=standardize,
        reserved=reserved,
        checkpoint=checkpoint,
        opening=PlanRequest(blueprint, network.digest, settings),
    )
    return KNNPerModel(blueprint, network.digest, shared, settings)


def _train_frozen(
    config: Config, blueprint: Blueprint, settings: MemorySettings, custom: Any
) -> Coordinator[KNNPerModel]:
    """Compute the shared head on a frozen embedding."""
    if _checkpoint_path(config):
        raise ValueError('a frozen embedding has no rounds to resume; set checkpoint = ""')
    model = frozen_model(blueprint, custom)
    shared = yield from coordinate_frozen(
        settings,
        model,
        CLASSIFICATION,
        standardize=typed_value(config, "standardize", bool) and model.can_standardize,
        reserved=reserved_classes(config),
        opening=PlanRequest(blueprint, model.digest, settings),
    )
    return KNNPerModel(blueprint, model.digest, shared, settings)


def _draft_blueprint(config: Config) -> Blueprint:
    """Return the blueprint with a placeholder for the number of classes.

    An empty shape means the shape of the tables' rows.
    """
    representation = typed_value(config, "representation", str)
    if representation != "network":
        return Blueprint(representation, _sizes(config, "shape"), 1)
    model = typed_value(config, "model", str)
    head = tuple(name.strip() for name in typed_value(config, "head", str).split(","))
    return Blueprint(
        model=CUSTOM if ":" in model else model,
        shape=_sizes(config, "shape"),
        n_outputs=1,
        embedding=typed_value(config, "embedding", str),
        head=head,
        hidden=_sizes(config, "hidden"),
    )


def _sizes(config: Config, key: str) -> tuple[int, ...]:
    text = typed_value(config, key, str)
    try:
        sizes = json.loads(text)
    except json.JSONDecodeError:
        sizes = None
    if not isinstance(sizes, list) or any(type(n) is not int or n < 1 for n in sizes):
        raise ValueError(f"expected {key} as a JSON list of sizes such as [64, 32], got {text!r}")
    return tuple(sizes)


def _checkpoint_path(config: Config) -> Path | None:
    text = typed_value(config, "checkpoint", str)
    if not text:
        return None
    check_folder(text, "checkpoint")
    return Path(text).absolute()


def _import(path: str) -> Any:
    """Import an object by a path such as ``package.module:function``.

    Raises
    ------
    ValueError
        If the import fails.
    """
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"expected model as an import path such as package.module:function, got {path!r}: "
            f"{error}"
        ) from error


def _keep(outcome: Outcome[Any], config: Config) -> None:
    """Write the shared model, then delete the checkpoint."""
    save_model(outcome, config)
    if path := _checkpoint_path(config):
        path.unlink(missing_ok=True)


def _party(table: dict[str, Any], node: Config) -> NodeParty:
    if node.get("epsilon"):
        raise Refused("kNN-Per does not support a budget on nodes; remove epsilon from this node")
    return NodeParty(**table, custom=partial(_custom_model, node) if node.get("model") else None)


def _custom_model(node: Config) -> Any:
    """Import the network named in a node's configuration."""
    try:
        return _import(node_value(node, "model"))
    except ValueError as error:
        log.error("the network of this node cannot be imported: %s", error)
        raise Refused("its own network cannot be imported") from error


_apps = table_apps("knnper", _coordinate, _party, save=_keep)
# Flower finds only plain assignments of these names in the source.
server = _apps[0]
client = _apps[1]
