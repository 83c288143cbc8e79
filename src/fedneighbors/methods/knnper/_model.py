"""The trained model as it stands in a file: the shared network, and own parts of clients.

The fields of :class:`KNNPerModel`, and of the dataclasses in it, are the schema of the file.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch

from fedneighbors.errors import ModelFileError
from fedneighbors.methods.knnper._client import as_tensor, with_rows
from fedneighbors.methods.knnper._records import (
    ClientRecord,
    check_settings,
    n_classes_of,
    own_part,
)
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper.personal._client_state import OwnPart
from fedneighbors.methods.knnper.personal._discriminants import MOST_FEATURES, Discriminants
from fedneighbors.methods.knnper.personal._mixtures import EXPERTS
from fedneighbors.methods.knnper.personal._regression import (
    NUMBER_EXPERTS,
)
from fedneighbors.methods.knnper.protocol import Shared
from fedneighbors.neural._blueprint import OWN, Blueprint, Model
from fedneighbors.neural._network import Network
from fedneighbors.tabular._model_file import ModelFile, open_model, sealed_model

MAGIC = b"FNKNPER2"
"""How files of models of classes begin."""

NUMBERS_MAGIC = b"FNKNNUM2"
"""How files of models of numbers begin."""


@dataclass(frozen=True, eq=False)
class KNNPerModel(ModelFile):
    """A shared network and, of none, some or all clients, what they made of it.

    Parameters
    ----------
    blueprint : Blueprint
        Of the network.
    layout : str
        Digest of the network's weights by name and shape.
    shared : Shared
        What all clients have in common.
    settings : MemorySettings
        Of the memories of clients that come later.
    clients : mapping of str to ClientRecord
        What each client has for itself.
    guarantee : str
        The privacy of the shared network in words; empty for an exact training.
    flat : bool
        Of a model of numbers: whether it predicts an array of shape (n_rows,).

    Raises
    ------
    ValueError
        If its parts do not fit one another.
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
            raise ValueError("the network does not fit the classes, or the targets")
        if len(shared.center) not in (0, n_cells) or shared.agreed.n_features != n_cells:
            raise ValueError("columns, or their center and scale, do not fit the rows")
        check_settings(self.settings, shared.overall)

    @property
    def of_numbers(self) -> bool:
        """Whether numbers are predicted in place of classes."""
        return n_classes_of(self.shared.overall) is None

    def own_parts(self) -> dict[str, OwnPart]:
        """Return what each client has for itself.

        Raises
        ------
        ValueError, DataError
            If a memory is none.
        """
        return {
            name: own_part(each, self.shared.overall, self.shared.pool, self.settings.codec)
            for name, each in self.clients.items()
        }

    def to_bytes(self) -> bytes:
        """Return the model as the bytes of its file, the same for the same model."""
        return sealed_model(NUMBERS_MAGIC if self.of_numbers else MAGIC, self)

    @classmethod
    def from_bytes(cls, raw: bytes, *, source: str = "the model") -> "KNNPerModel":
        """Return the model that :meth:`to_bytes` wrote.

        Raises
        ------
        ModelFileError
            If the bytes are truncated, altered, not a model or of another version.
        """
        of_numbers = raw.startswith(NUMBERS_MAGIC[:-1])
        found = open_model(NUMBERS_MAGIC if of_numbers else MAGIC, raw, cls, source=source)
        if found.of_numbers and not of_numbers:
            raise _unusable(source, "it has no classes")
        if of_numbers and not found.of_numbers:
            raise _unusable(source, "it has classes, in a file of a model of numbers")
        return found


def _check_shared(shared: Shared) -> None:
    """Raise ValueError for what clients cannot have in common."""
    classes, overall, pool, agreed = shared.classes, shared.overall, shared.pool, shared.agreed
    if shared.weights.ndim != 1 or not np.isfinite(shared.weights).all():
        raise ValueError("weights of the network are not finite")
    numbers = overall.ndim == 2
    if numbers and (classes or overall.shape[0] != 2 or not overall.shape[1]):
        raise ValueError("means and deviations do not fit the targets")
    if not numbers and (len(classes) < 2 or overall.shape != (len(classes),)):
        raise ValueError("shares do not fit the classes")
    positive = overall[1] if numbers else overall
    if not (np.isfinite(overall).all() and (positive > 0).all()):
        raise ValueError("shares of the classes, or deviations of the targets, are out of range")
    n_experts = len(NUMBER_EXPERTS if numbers else EXPERTS)
    if pool is not None and pool.shape != (n_experts,):
        raise ValueError(
            f"its pool weighs {pool.size} experts, that of this release {n_experts}; train it anew"
        )
    if pool is not None and not np.isfinite(pool).all():
        raise ValueError("weights of the pool are not finite")
    if shared.center.shape != shared.scale.shape or not (shared.scale > 0).all():
        raise ValueError("center and scale of the columns do not fit")
    if not np.isfinite(shared.center).all() or not np.isfinite(shared.scale).all():
        raise ValueError("center or scale of a column is not finite")
    if agreed.feature_names is not None and len(agreed.feature_names) != agreed.n_features:
        raise ValueError("names of the columns do not fit them")
    if agreed.classes != classes:
        raise ValueError("the classes that were agreed are others")
    if shared.seen is not None:
        _check_seen(shared.seen)


def _check_seen(seen: Discriminants) -> None:
    """Raise ValueError for discriminants that cannot be."""
    drawn, directions = seen.features, seen.directions
    if not (drawn.seed >= 0 and 0 <= drawn.rate < np.inf):
        raise ValueError("seed or rate of random features is out of range")
    if directions.ndim != 2 or not 0 < directions.shape[1] <= len(directions):
        raise ValueError("directions are no table of discriminants")
    if len(directions) > MOST_FEATURES:
        raise ValueError(f"directions are of more than {MOST_FEATURES} random features")
    if not np.isfinite(directions).all() or drawn.n_features != len(directions):
        raise ValueError("directions are not finite, or not of all random features")


def kept_network(kept: KNNPerModel, own: Model, *, source: str) -> tuple[Network, MemorySettings]:
    """Return the network that a file is of, if weights and memories fit it, and its settings.

    The settings of memories tell how many columns stand beside keys, which a coordinator that has
    seen no rows cannot know.

    Parameters
    ----------
    kept : KNNPerModel
        What was read.
    own : Network, module or callable
        The user's own, where the file is of such a one.
    source : str
        The file, for errors.

    Raises
    ------
    ModelFileError
        If the network is another, cannot be made, or does not fit weights, rows, outputs or keys.
    ValueError
        If the user's own is missing, or has no such layers.
    """
    network = _network(kept, own, source)
    _refuse_other(kept, network, source)
    n_columns, n_outputs, settings = _tried(kept, network, source)
    if n_outputs != kept.blueprint.n_outputs:
        raise _unusable(
            source, f"its network gives {n_outputs} scores, expected {kept.blueprint.n_outputs}"
        )
    for name, client in kept.clients.items():
        asked = client.settings
        told = client.memory.n_dimensions, asked.n_beside, asked.n_discriminants
        made = n_columns, settings.n_beside, settings.n_discriminants
        if told != made:
            raise _unusable(
                source,
                f"the memory of {name!r} has {told[0]} columns, {told[1]} of them beside keys and "
                f"{told[2]} of these discriminants; its network gives {made[0]}, {made[1]} and "
                f"{made[2]}",
            )
    return network, settings


def _network(kept: KNNPerModel, own: Model, source: str) -> Network:
    blueprint: Blueprint = kept.blueprint
    if blueprint.model == OWN:
        return blueprint.network(own)
    try:
        with torch.device("meta"):  # sizes alone: what a file asks for may be beyond all memory
            sizes = blueprint.network()
        _refuse_other(kept, sizes, source)
        return blueprint.network()
    except (TypeError, ValueError, RuntimeError) as error:
        raise _unusable(source, error) from error


def _refuse_other(kept: KNNPerModel, network: Network, source: str) -> None:
    """Refuse weights of another network."""
    if network.digest != kept.layout:
        raise ModelFileError(
            f"{source} was written for another network, whose layers differ in name, shape or "
            "type; give the one that was trained as model="
        )
    n_weights = len(kept.shared.weights)
    if network.n_weights != n_weights:
        raise _unusable(
            source, f"its network has {network.n_weights} weights, it holds {n_weights}"
        )


def _tried(kept: KNNPerModel, network: Network, source: str) -> tuple[int, int, MemorySettings]:
    """Return columns of a key, scores, and the settings of memories of such keys."""
    kind = np.int64 if network.reads_tokens else np.float64
    zeros: npt.NDArray[np.generic] = np.zeros((1, *kept.blueprint.shape), kind)
    none = np.empty(0)
    try:
        x = as_tensor(zeros, none, none, network)
        keys, scores = network.seen(network.state(kept.shared.weights), x)
        alone = replace(kept.settings, n_beside=0, n_discriminants=0)
        wide, settings = with_rows(keys.double().numpy(), x, alone, kept.shared.seen)
    except (RuntimeError, ValueError, TypeError, IndexError, MemoryError) as error:
        raise _unusable(source, error) from error
    return wide.shape[1], scores.shape[1] if scores.ndim == 2 else 0, settings


def _unusable(source: str, reason: object) -> ModelFileError:
    first, _, _ = str(reason).partition("\n")
    return ModelFileError(f"{source} holds no usable model: {first}")
