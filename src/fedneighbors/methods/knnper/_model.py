"""Model files: the shared network and the own parts of clients.

The fields of :class:`KNNPerModel`, and of the dataclasses in it, are the schema of the file.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from fedneighbors.errors import ModelFileError
from fedneighbors.methods.knnper._client import as_tensor, view_of
from fedneighbors.methods.knnper._records import ClientRecord, RowMemory, client_state
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper._task import CLASSES, NUMBERS, Task, task_of
from fedneighbors.methods.knnper.memory._rows import View
from fedneighbors.methods.knnper.personal._client_state import OwnPart
from fedneighbors.methods.knnper.personal._discriminants import MAX_FEATURES
from fedneighbors.methods.knnper.protocol import Shared
from fedneighbors.neural._blueprint import OWN, Blueprint, Model
from fedneighbors.neural._network import Network
from fedneighbors.tabular._model_file import ModelFile, open_model, seal_model


@dataclass(frozen=True, eq=False)
class KNNPerModel(ModelFile):
    """A shared network and the client state of no, some or all clients.

    Parameters
    ----------
    blueprint : Blueprint
        Blueprint of the network.
    layout : str
        Digest of the network's weights by name and shape.
    shared : Shared
        State shared by all clients.
    settings : MemorySettings
        Settings of the memories of later clients.
    clients : mapping of str to ClientRecord
        Client state of each client.
    guarantee : str
        Description of the shared network's privacy; empty for training without a budget.
    flat : bool
        True if a regression model predicts arrays of shape (n_rows,).

    Raises
    ------
    ValueError
        If the fields do not fit together.
    """

    blueprint: Blueprint
    layout: str
    shared: Shared
    settings: MemorySettings
    clients: Mapping[str, ClientRecord] = field(default_factory=dict)
    guarantee: str = ""
    flat: bool = False

    def __post_init__(self) -> None:
        shared, n_cells = self.shared, math.prod(self.blueprint.shape)
        _check_shared(shared)
        n_outputs = shared.overall.shape[-1]
        if self.blueprint.n_outputs != n_outputs or (self.flat and n_outputs > 1):
            raise ValueError("the network does not fit the classes or targets")
        if len(shared.center) not in (0, n_cells) or shared.agreed.n_features != n_cells:
            raise ValueError("columns, or their center and scale, do not fit the rows")
        self.task.check_settings(self.settings)

    @property
    def task(self) -> Task:
        """Return the task of the model."""
        return task_of(self.shared.overall)

    def own_parts(self) -> dict[str, OwnPart]:
        """Return the state of each client.

        Raises
        ------
        ValueError, DataError
            If a memory is invalid.
        """
        return {
            name: client_state(each, self.shared.overall, self.shared.pool, self.settings.codec)
            for name, each in self.clients.items()
        }

    def to_bytes(self) -> bytes:
        """Serialize the model; equal models have equal bytes."""
        return seal_model(self.task.magic, self)

    @classmethod
    def from_bytes(cls, raw: bytes, *, source: str = "the model") -> "KNNPerModel":
        """Return the model of bytes from :meth:`to_bytes`.

        Raises
        ------
        ModelFileError
            If the bytes are truncated, altered, not a model or of another version.
        """
        task = NUMBERS if raw.startswith(NUMBERS.magic[:-1]) else CLASSES
        found = open_model(task.magic, raw, cls, source=source)
        if found.task is not task:
            mixed = "it has classes, in a file of a regression model"
            raise _unusable(source, "it has no classes" if task is CLASSES else mixed)
        return found


def _check_shared(shared: Shared) -> None:
    """Raise ValueError if the shared state is invalid."""
    classes, overall, pool, agreed = shared.classes, shared.overall, shared.pool, shared.agreed
    if shared.weights.ndim != 1 or not np.isfinite(shared.weights).all():
        raise ValueError("weights of the network are not finite")
    task_of(overall).check_overall(overall, classes)
    n_experts = len(task_of(overall).experts)
    if pool is not None and pool.shape != (n_experts,):
        raise ValueError(
            f"its pool has {pool.size} experts, this release has {n_experts}; train it again"
        )
    if pool is not None and not np.isfinite(pool).all():
        raise ValueError("weights of the pool are not finite")
    if shared.center.shape != shared.scale.shape or not (shared.scale > 0).all():
        raise ValueError("center and scale of the columns do not fit")
    if not np.isfinite(shared.center).all() or not np.isfinite(shared.scale).all():
        raise ValueError("center or scale of a column is not finite")
    if agreed.feature_names is not None and len(agreed.feature_names) != agreed.n_features:
        raise ValueError("the number of column names is wrong")
    if agreed.classes != classes:
        raise ValueError("the classes differ from the agreed ones")
    if shared.seen is not None and shared.seen.features.n_features > MAX_FEATURES:
        raise ValueError(f"directions have more than {MAX_FEATURES} random features")


def restore_network(kept: KNNPerModel, own: Model, *, source: str) -> Network:
    """Return the network of a file, if weights and memories fit it.

    Parameters
    ----------
    kept : KNNPerModel
        The model from the file.
    own : Network, module or callable
        The user's module, if the file refers to one.
    source : str
        The file, for errors.

    Raises
    ------
    ModelFileError
        If the network is another one, cannot be built, or does not fit weights, rows, outputs or
        keys.
    ValueError
        If the user's module is missing, or lacks a layer.
    """
    network = _network(kept, own, source)
    _check_layout(kept, network, source)
    view, n_outputs = _try_network(kept, network, source)
    if n_outputs != kept.blueprint.n_outputs:
        raise _unusable(
            source, f"its network has {n_outputs} scores, expected {kept.blueprint.n_outputs}"
        )
    made = [each.shape[1] for each in (view.embedding, *view.extras)]
    for name, client in kept.clients.items():
        extras = client.memory.extras if isinstance(client.memory, RowMemory) else ()
        wanted = [client.memory.n_dimensions, *(sum(each.shape[1:]) for each in extras)]
        if wanted != made:
            raise _unusable(
                source,
                f"the memory of {name!r} has embeddings and additional features of widths "
                f"{wanted}; its network has {made}",
            )
    return network


def _network(kept: KNNPerModel, own: Model, source: str) -> Network:
    blueprint: Blueprint = kept.blueprint
    if blueprint.model == OWN:
        return blueprint.network(own)
    try:
        with torch.device("meta"):  # no storage: a malicious file could ask for more than fits
            sizes = blueprint.network()
        _check_layout(kept, sizes, source)
        return blueprint.network()
    except (TypeError, ValueError, RuntimeError) as error:
        raise _unusable(source, error) from error


def _check_layout(kept: KNNPerModel, network: Network, source: str) -> None:
    """Raise if the weights belong to another network."""
    if network.digest != kept.layout:
        raise ModelFileError(
            f"{source} was written for another network, whose layers differ in name, shape or "
            "type; pass the trained one as model="
        )
    n_weights = len(kept.shared.weights)
    if network.n_weights != n_weights:
        raise _unusable(
            source, f"its network has {network.n_weights} weights, the file has {n_weights}"
        )


def _try_network(kept: KNNPerModel, network: Network, source: str) -> tuple[View, int]:
    """Return the view of a zero row and the number of scores."""
    kind = np.int64 if network.reads_tokens else np.float64
    zeros: npt.NDArray[np.generic] = np.zeros((1, *kept.blueprint.shape), kind)
    none = np.empty(0)
    try:
        x = as_tensor(zeros, none, none, network)
        keys, scores = network.embed(network.state(kept.shared.weights), x)
        view = view_of(keys.double().numpy(), x, kept.settings, kept.shared.seen)
    except (RuntimeError, ValueError, TypeError, IndexError, MemoryError) as error:
        raise _unusable(source, error) from error
    return view, scores.shape[1] if scores.ndim == 2 else 0


def _unusable(source: str, reason: object) -> ModelFileError:
    first, _, _ = str(reason).partition("\n")
    return ModelFileError(f"{source} has no usable model: {first}")
