"""Tries a network on rows of zeros before training, so that what is wrong with it is said well."""

import math

import numpy as np
import numpy.typing as npt
import torch

from fedneighbors.errors import DataError
from fedneighbors.methods.knnper._seen import as_tensor
from fedneighbors.neural._network import Layout, Network


def refuse_unsuited(
    network: Network, layout: Layout, shape: tuple[int, ...], n_outputs: int, *, kind: str = "f"
) -> None:
    """Return if a network takes rows of a shape and gives finite embeddings, and scores as many.

    Parameters
    ----------
    network : Network
        What is to be trained.
    layout : Layout
        Of its weights.
    shape : tuple of int
        Of a row.
    n_outputs : int
        Scores of a row.
    kind : {"f", "i"}
        Whether rows are numbers, or whole numbers that may stand for tokens.

    Raises
    ------
    ValueError
        If it cannot take them, does not pass the layer of the embedding, or gives another number of
        scores.
    DataError
        If embeddings or scores are not finite.
    """
    zeros: npt.NDArray[np.generic] = np.zeros((2, *shape), np.int64 if kind in "iu" else np.float64)
    none = np.empty(0)
    try:
        keys, scores = network.seen(
            layout.state(layout.initial), as_tensor(zeros, none, none, layout)
        )
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ValueError(
            f"the model cannot take rows of shape {shape} with the embedding from its layer "
            f"{network.embedding!r}: {str(error).splitlines()[0]}"
        ) from error
    if tuple(scores.shape) != (2, n_outputs):
        raise ValueError(
            f"expected a model that gives {n_outputs} scores for each row, got an output of shape "
            f"{tuple(scores.shape)} for 2 rows"
        )
    if not (torch.isfinite(keys).all() and torch.isfinite(scores).all()):
        raise DataError(
            f"the model gives embeddings or scores that are not finite for rows of zeros; mend its "
            f"layers up to {network.embedding!r}"
        )


def probe(
    network: Network, layout: Layout, shape: tuple[int, ...], *, kind: str = "f"
) -> npt.NDArray[np.float64]:
    """Return embeddings and scores, under the first weights, of two rows that are always the same.

    Parameters
    ----------
    network, layout, shape, kind
        As :func:`refuse_unsuited` takes them.
    """
    size = 2 * math.prod(shape)
    numbers = np.zeros(size, np.int64) if kind in "iu" else np.linspace(-1, 1, size)
    none = np.empty(0)
    rows = as_tensor(numbers.reshape(2, *shape), none, none, layout)
    found = network.seen(layout.state(layout.initial), rows)
    return np.concatenate([part.numpy().ravel() for part in found]).astype(np.float64)
