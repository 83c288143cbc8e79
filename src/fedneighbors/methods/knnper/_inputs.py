"""Network inputs of rows, and the check of a network before training."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedneighbors._typing import Floats
from fedneighbors.errors import DataError
from fedneighbors.neural._network import Network


def as_tensor(x: npt.NDArray[Any], center: Floats, scale: Floats, network: Network) -> Tensor:
    """Return rows as network inputs.

    Parameters
    ----------
    x : array of shape (n_rows, ...)
        Rows of numbers, or of integer tokens.
    center, scale : float64 array of shape (n_features,)
        Center and scale of the columns; empty for no scaling.
    network : Network
        Network that reads the rows; it determines the dtype.

    Raises
    ------
    DataError
        If the network has an alphabet of tokens and rows have other values.
    """
    if len(center):
        x = (x - center) / scale
    if network.n_tokens is not None:
        x = check_tokens(x, network.n_tokens)
    if network.reads_tokens and x.dtype.kind in "iu":
        return torch.from_numpy(np.ascontiguousarray(x, np.int64))
    return torch.from_numpy(np.ascontiguousarray(x)).to(network.dtype)


def check_tokens(x: npt.NDArray[Any], n_tokens: int) -> npt.NDArray[np.int64]:
    """Return rows of tokens as int64.

    Parameters
    ----------
    x : array of shape (n_rows, n_tokens_of_a_row)
        Integers.
    n_tokens : int
        Size of the alphabet.

    Raises
    ------
    DataError
        If a token is not in the alphabet.
    """
    if not ((x >= 0) & (x < n_tokens) & (x == np.floor(x))).all():
        raise DataError(
            f"expected rows of tokens, integers from 0 to {n_tokens - 1}; encode them with "
            "the alphabet of the network"
        )
    return np.asarray(x, np.int64)


def check_network(
    network: Network, shape: tuple[int, ...], n_outputs: int, *, dtype_kind: str = "f"
) -> None:
    """Raise if a network does not support rows of a shape.

    It must return finite embeddings and ``n_outputs`` finite scores for two rows of zeros.

    Parameters
    ----------
    network : Network
        Network to train.
    shape : tuple of int
        Shape of a row.
    n_outputs : int
        Expected number of scores per row.
    dtype_kind : {"f", "i"}
        ``kind`` of the rows' NumPy dtype. Rows of integers may be tokens.

    Raises
    ------
    ValueError
        If the network does not accept the rows, does not use the embedding layer, or returns
        another number of scores.
    DataError
        If embeddings or scores are not finite.
    """
    rows = np.zeros((2, *shape), np.int64 if dtype_kind in "iu" else np.float64)
    try:
        keys, scores = _initial_outputs(network, rows)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ValueError(
            f"the model does not support rows of shape {shape} with the embedding from its layer "
            f"{network.embedding!r}: {str(error).splitlines()[0]}"
        ) from error
    if tuple(scores.shape) != (2, n_outputs):
        raise ValueError(
            f"expected a model with {n_outputs} scores for each row, got an output of shape "
            f"{tuple(scores.shape)} for 2 rows"
        )
    if not (torch.isfinite(keys).all() and torch.isfinite(scores).all()):
        raise DataError(
            f"the model's embeddings or scores are not finite for rows of zeros; check its "
            f"layers up to {network.embedding!r}"
        )


def probe_outputs(
    network: Network, shape: tuple[int, ...], *, dtype_kind: str = "f"
) -> npt.NDArray[np.float64]:
    """Compute embeddings and scores of two fixed rows under the initial weights.

    Parameters
    ----------
    network, shape, dtype_kind
        As in :func:`check_network`.
    """
    size = 2 * math.prod(shape)
    cells = np.zeros(size, np.int64) if dtype_kind in "iu" else np.linspace(-1, 1, size)
    outputs = _initial_outputs(network, cells.reshape(2, *shape))
    return np.concatenate([part.numpy().ravel() for part in outputs]).astype(np.float64)


def _initial_outputs(network: Network, rows: npt.NDArray[Any]) -> tuple[Tensor, Tensor]:
    """Return embeddings and scores of rows under the initial weights."""
    x = as_tensor(rows, np.empty(0), np.empty(0), network)  # without scaling
    return network.embed(network.state(network.initial), x)
