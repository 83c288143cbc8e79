"""Model files: the shared network and the clients' states.

The fields of :class:`KNNPerModel`, and of the dataclasses in it, are the schema of the file.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedneighbors.errors import ModelFileError
from fedneighbors.methods.knnper._client import model_inputs, row_features, shared_outputs
from fedneighbors.methods.knnper._frozen import FrozenModel
from fedneighbors.methods.knnper._records import ClientRecord, RowMemory, read_client
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper._task import CLASSIFICATION, REGRESSION, Task, task_of
from fedneighbors.methods.knnper.memory._rows import RowFeatures
from fedneighbors.methods.knnper.personal._client_state import ClientState
from fedneighbors.methods.knnper.personal._discriminants import MAX_FEATURES
from fedneighbors.methods.knnper.protocol import Shared
from fedneighbors.neural._blueprint import CUSTOM, FROZEN, Blueprint, Model
from fedneighbors.tabular._model_file import ModelFile, decode_model, encode_model

if TYPE_CHECKING:
    from fedneighbors.neural._network import Network


@dataclass(frozen=True, eq=False)
class KNNPerModel(ModelFile):
    """A shared network and the state of any number of its clients.

    Parameters
    ----------
    blueprint : Blueprint
        Blueprint of the network.
    layout : str
        Digest of the names, shapes and type of the network's weights.
    shared : Shared
        State shared by all clients.
    settings : MemorySettings
        Settings for the memories of clients that join later.
    clients : mapping of str to ClientRecord
        State of each stored client, by name.
    guarantee : str
        Description of the shared network's privacy; empty for training without a budget.
    flat : bool
        True if a regression model predicts arrays of shape (n_rows,).

    Raises
    ------
    ValueError
        If the fields contradict each other.
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
            raise ValueError("the network's scores do not match the classes or targets")
        if len(shared.center) not in (0, n_cells) or shared.agreed.n_features != n_cells:
            raise ValueError("columns, or their center and scale, do not match the rows' shape")
        self.task.check_settings(self.settings)

    @property
    def task(self) -> Task:
        """Return the task of the model."""
        return task_of(self.shared.overall)

    def client_states(self) -> dict[str, ClientState]:
        """Return the state of each client.

        Raises
        ------
        ValueError, DataError
            If a memory is invalid.
        """
        pool = None if self.shared.pool is None else self.shared.pool.weights
        return {
            name: read_client(record, self.shared.overall, pool, self.settings.codec)
            for name, record in self.clients.items()
        }

    def to_bytes(self) -> bytes:
        """Serialize the model; equal models have equal bytes."""
        return encode_model(self.task.magic, self)

    @classmethod
    def from_bytes(cls, raw: bytes, *, source: str = "the model") -> "KNNPerModel":
        """Return the model of bytes from :meth:`to_bytes`.

        Raises
        ------
        ModelFileError
            If the bytes are truncated, altered, not a model or of another version.
        """
        task = REGRESSION if raw.startswith(REGRESSION.magic[:-1]) else CLASSIFICATION
        model = decode_model(task.magic, raw, cls, source=source)
        if model.task is not task:
            has_classes = "it has classes, in a file of a regression model"
            raise _unusable(source, "it has no classes" if task is CLASSIFICATION else has_classes)
        return model


def _check_shared(shared: Shared) -> None:
    """Raise ValueError if the shared state is invalid."""
    classes, overall, pool, agreed = shared.classes, shared.overall, shared.pool, shared.agreed
    if shared.weights.ndim != 1 or not np.isfinite(shared.weights).all():
        raise ValueError("weights of the network are not finite")
    task_of(overall).check_overall(overall, classes)
    experts = task_of(overall).experts
    if pool is not None and pool.experts != experts:
        raise ValueError(f"its pool has the experts {pool.experts}, expected {experts}")
    if shared.center.shape != shared.scale.shape or not (shared.scale > 0).all():
        raise ValueError("center or scale of the columns is invalid")
    if not np.isfinite(shared.center).all() or not np.isfinite(shared.scale).all():
        raise ValueError("center or scale of a column is not finite")
    if agreed.feature_names is not None and len(agreed.feature_names) != agreed.n_features:
        raise ValueError("the number of column names is wrong")
    if agreed.classes != classes:
        raise ValueError("the classes differ from the agreed ones")
    if shared.seen is not None and shared.seen.features.n_features > MAX_FEATURES:
        raise ValueError(f"discriminants have more than {MAX_FEATURES} random features")


def representation_parameters(blueprint: Blueprint, custom: Any) -> dict[str, Any]:
    """Return the estimator parameters that select a network or a frozen embedding.

    Parameters
    ----------
    blueprint : Blueprint
        Blueprint of the shared model.
    custom : Network, module, callable or transformer
        The user's network or embedding, if any.
    """
    if blueprint.model not in FROZEN:
        return {"representation": "network", **blueprint.parameters(custom)}
    return {"representation": custom if blueprint.model == "embedding" else blueprint.model}


def restore_network(stored: KNNPerModel, custom: Any, *, source: str) -> "Network | FrozenModel":
    """Build the shared model of a file; raise for inconsistent content.

    Parameters
    ----------
    stored : KNNPerModel
        The model from the file.
    custom : Network, module, callable or transformer
        The user's network or frozen embedding, if the file refers to one.
    source : str
        The file, for errors.

    Raises
    ------
    ModelFileError
        If the network cannot be built, or does not match the weights, rows, outputs or keys in the
        file.
    ValueError
        If the user's network is missing, or lacks a layer.
    """
    network: Network | FrozenModel
    if stored.blueprint.model in FROZEN:
        network = frozen_model(stored.blueprint, custom)
    else:
        network = _network(stored, custom, source)
    _check_layout(stored, network, source)
    features, n_outputs = _try_network(stored, network, source)
    if n_outputs != stored.blueprint.n_outputs:
        raise _unusable(
            source, f"its network has {n_outputs} scores, expected {stored.blueprint.n_outputs}"
        )
    widths = [table.shape[1] for table in (features.embedding, *features.extras)]
    for name, client in stored.clients.items():
        extras = client.memory.extras if isinstance(client.memory, RowMemory) else ()
        stored_widths = [client.memory.n_dimensions, *(sum(table.shape[1:]) for table in extras)]
        if stored_widths != widths:
            raise _unusable(
                source,
                f"the memory of {name!r} has embeddings and additional features of widths "
                f"{stored_widths}; its network has {widths}",
            )
    return network


def frozen_model(blueprint: Blueprint, custom: Any = None) -> FrozenModel:
    """Return the frozen model of a blueprint."""
    function = custom if blueprint.model == "embedding" else None
    return FrozenModel(blueprint.model, blueprint.shape, blueprint.n_outputs, function)


def _network(stored: KNNPerModel, custom: Model, source: str) -> "Network":
    import torch

    blueprint: Blueprint = stored.blueprint
    if blueprint.model == CUSTOM:
        return blueprint.network(custom)
    try:
        with torch.device("meta"):  # allocates nothing: a malicious file may have huge sizes
            without_storage = blueprint.network()
        _check_layout(stored, without_storage, source)
        return blueprint.network()
    except (TypeError, ValueError, RuntimeError) as error:
        raise _unusable(source, error) from error


def _check_layout(stored: KNNPerModel, network: "Network | FrozenModel", source: str) -> None:
    """Raise if the weights belong to another network."""
    if network.digest != stored.layout:
        raise ModelFileError(
            f"{source} was written for another network, whose layers differ in name, shape or "
            "type; pass the trained one as model="
        )
    if isinstance(network, FrozenModel):
        return  # the number of weights depends on the keys, see _try_network
    n_weights = len(stored.shared.weights)
    if network.n_weights != n_weights:
        raise _unusable(
            source, f"its network has {network.n_weights} weights, the file has {n_weights}"
        )


def _try_network(
    stored: KNNPerModel, network: "Network | FrozenModel", source: str
) -> tuple[RowFeatures, int]:
    """Return features of a zero row, and the number of scores."""
    dtype = np.int64 if network.reads_tokens else np.float64
    zeros: npt.NDArray[np.generic] = np.zeros((1, *stored.blueprint.shape), dtype)
    try:
        x = model_inputs(zeros, np.empty(0), np.empty(0), network)  # without scaling
        keys, scores = shared_outputs(
            network, stored.shared.weights, x, task=stored.task, seen=stored.shared.seen
        )
        features = row_features(keys, x, stored.settings, stored.shared.seen)
    except (RuntimeError, ValueError, TypeError, IndexError, MemoryError) as error:
        raise _unusable(source, error) from error
    return features, scores.shape[1] if scores.ndim == 2 else 0


def _unusable(source: str, reason: object) -> ModelFileError:
    first_line, _, _ = str(reason).partition("\n")
    return ModelFileError(f"{source} has no usable model: {first_line}")
