"""The network of a model file, tried on zeros: what does not fit it is told at once."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedneighbors.errors import ModelFileError
from fedneighbors.methods.knnper._inputs import as_tensor, with_rows
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.neural._blueprint import OWN, Blueprint, Model
from fedneighbors.neural._network import Layout, Network


def kept_network(kept: Any, own: Model, *, source: str) -> tuple[Network, Layout, MemorySettings]:
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
    layout = Layout(network)
    _refuse_other(kept, layout, source)
    n_columns, n_outputs, settings = _tried(kept, network, layout, source)
    if n_outputs != kept.blueprint.n_outputs:
        raise _unusable(
            source, f"its network gives {n_outputs} scores, expected {kept.blueprint.n_outputs}"
        )
    for name, personal in kept.clients.items():
        asked = personal.settings
        told = personal.memory.n_dimensions, asked.n_beside, asked.n_discriminants
        made = n_columns, settings.n_beside, settings.n_discriminants
        if told != made:
            raise _unusable(
                source,
                f"the memory of {name!r} has {told[0]} columns, {told[1]} of them beside keys and "
                f"{told[2]} of these discriminants; its network gives {made[0]}, {made[1]} and "
                f"{made[2]}",
            )
    return network, layout, settings


def _network(kept: Any, own: Model, source: str) -> Network:
    blueprint: Blueprint = kept.blueprint
    if blueprint.model == OWN:
        return blueprint.network(own)
    try:
        with torch.device("meta"):  # sizes alone: what a file asks for may be beyond all memory
            sizes = Layout(blueprint.network())
        _refuse_other(kept, sizes, source)
        return blueprint.network()
    except (TypeError, ValueError, RuntimeError) as error:
        raise _unusable(source, error) from error


def _refuse_other(kept: Any, layout: Layout, source: str) -> None:
    """Refuse weights of another network."""
    if layout.digest != kept.layout:
        raise ModelFileError(
            f"{source} was written for another network, whose layers differ in name, shape or "
            "type; give the one that was trained as model="
        )
    n_weights = len(kept.shared.weights)
    if layout.n_weights != n_weights:
        raise _unusable(source, f"its network has {layout.n_weights} weights, it holds {n_weights}")


def _tried(
    kept: Any, network: Network, layout: Layout, source: str
) -> tuple[int, int, MemorySettings]:
    """Return columns of a key, scores, and the settings of memories of such keys."""
    kind = np.int64 if layout.reads_tokens else np.float64
    zeros: npt.NDArray[np.generic] = np.zeros((1, *kept.blueprint.shape), kind)
    none = np.empty(0)
    try:
        x = as_tensor(zeros, none, none, layout)
        keys, scores = network.seen(layout.state(kept.shared.weights), x)
        alone = replace(kept.settings, n_beside=0, n_discriminants=0)
        wide, settings = with_rows(keys.double().numpy(), x, alone, kept.shared.seen)
    except (RuntimeError, ValueError, TypeError, IndexError, MemoryError) as error:
        raise _unusable(source, error) from error
    return wide.shape[1], scores.shape[1] if scores.ndim == 2 else 0, settings


def _unusable(source: str, reason: object) -> ModelFileError:
    first, _, _ = str(reason).partition("\n")
    return ModelFileError(f"{source} holds no usable model: {first}")
