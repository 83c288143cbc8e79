"""The network of a model file, tried on zeros: what does not fit it is told at once."""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.errors import ModelFileError
from fedneighbors.methods.knnper.client import as_tensor
from fedneighbors.methods.knnper.networks.blueprint import OWN
from fedneighbors.methods.knnper.networks.choice import Model
from fedneighbors.methods.knnper.networks.flat import Layout
from fedneighbors.methods.knnper.networks.network import Network

__all__ = ["kept_network"]


def kept_network(kept: Any, own: Model, *, source: str) -> tuple[Network, Layout]:
    """Return the network that a file is of, if weights and memories fit it.

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
    if layout.digest != kept.layout:
        raise ModelFileError(
            f"{source} was written for another network, whose layers differ in name, shape or "
            "type; give the one that was trained as model="
        )
    width, n_outputs = _widths(kept, network, layout, source)
    if n_outputs != kept.blueprint.n_outputs:
        raise ModelFileError(
            f"{source} holds no usable model: its network gives {n_outputs} scores, expected "
            f"{kept.blueprint.n_outputs}"
        )
    for name, personal in kept.clients.items():
        own_width = personal.memory.n_dimensions - personal.settings.n_beside
        if own_width != width:
            raise ModelFileError(
                f"{source} holds no usable model: the memory of {name!r} has keys of {own_width} "
                f"dimensions, its network gives {width}"
            )
    return network, layout


def _network(kept: Any, own: Model, source: str) -> Network:
    try:
        made: Network = kept.blueprint.network(own)
    except (TypeError, ValueError, RuntimeError) as error:
        if kept.blueprint.model == OWN:  # what the user gave, or did not
            raise
        raise ModelFileError(f"{source} holds no usable model: {error}") from error
    return made


def _widths(kept: Any, network: Network, layout: Layout, source: str) -> tuple[int, int]:
    """Return the width of an embedding, and the number of scores."""
    kind = np.int64 if layout.reads_tokens else np.float64
    zeros: npt.NDArray[np.generic] = np.zeros((1, *kept.blueprint.shape), kind)
    none = np.empty(0)
    try:
        state = layout.state(kept.shared.weights)
        keys, scores = network.seen(state, as_tensor(zeros, none, none, layout))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        first = str(error).splitlines()[0]
        raise ModelFileError(f"{source} holds no usable model: {first}") from error
    return keys.shape[1], scores.shape[1] if scores.ndim == 2 else 0
