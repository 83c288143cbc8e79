"""Conversion of rows to network inputs, embeddings and views."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedneighbors._typing import Floats
from fedneighbors.errors import DataError
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper._task import Task
from fedneighbors.methods.knnper._tasks import CLASSES
from fedneighbors.methods.knnper.personal._discriminants import Discriminants
from fedneighbors.methods.knnper.personal._view import View
from fedneighbors.neural._network import Device, Network
from fedneighbors.tabular._ownership import one_blas_thread


def view_of(keys: Floats, x: Tensor, settings: MemorySettings, seen: Discriminants | None) -> View:
    """Return embeddings with the further features that the heads of a pool use.

    A pool with exact memories has them. Tokens are no coordinates and are left out.

    Parameters
    ----------
    keys : float64 array of shape (n_rows, n_dimensions)
        Embeddings.
    x : Tensor of shape (n_rows, ...)
        Rows as the network takes them.
    settings : MemorySettings
        Of the memory.
    seen : Discriminants or None
        Of rows.
    """
    if not (settings.looks_at_rows and x.is_floating_point()):
        return View(keys)
    rows = flat_rows(x)
    with one_blas_thread():  # products of several round otherwise
        return View(keys, rows, None if seen is None else seen.of(rows))


def flat_rows(x: Tensor) -> Floats:
    """Return rows as a float64 table, whatever their shape."""
    return np.asarray(x.reshape(len(x), math.prod(x.shape[1:])).cpu().double().numpy())


def as_tensor(x: npt.NDArray[Any], center: Floats, scale: Floats, network: Network) -> Tensor:
    """Return rows as a network takes them.

    Parameters
    ----------
    x : array of shape (n_rows, ...)
        Numbers, or whole numbers that stand for tokens.
    center, scale : float64 array of shape (n_features,)
        Of the columns; empty if they are left as they are.
    network : Network
        Whose type numbers get.

    Raises
    ------
    DataError
        If the network reads tokens and rows hold what is none.
    """
    if len(center):
        x = (x - center) / scale
    if network.n_tokens is not None:
        x = tokens(x, network.n_tokens)
    if network.reads_tokens and x.dtype.kind in "iu":
        return torch.from_numpy(np.ascontiguousarray(x, np.int64))
    return torch.from_numpy(np.ascontiguousarray(x)).to(network.dtype)


def tokens(x: npt.NDArray[Any], n_tokens: int) -> npt.NDArray[np.int64]:
    """Return rows of tokens as int64.

    Parameters
    ----------
    x : array of shape (n_rows, n_tokens_of_a_row)
        Whole numbers.
    n_tokens : int
        Of the alphabet.

    Raises
    ------
    DataError
        If a token is none of the alphabet.
    """
    if not ((x >= 0) & (x < n_tokens) & (x == np.floor(x))).all():
        raise DataError(
            f"expected rows of tokens, whole numbers from 0 to {n_tokens - 1}; encode them with "
            "the alphabet that the network was made for"
        )
    return np.asarray(x, np.int64)


def shared_log_shares(
    network: Network,
    weights: npt.NDArray[Any],
    x: Tensor,
    *,
    kind: Task = CLASSES,
    device: Device = "cpu",
) -> tuple[Floats, Floats]:
    """Return embeddings and logarithms of the shared model's shares, as float64 arrays.

    Where numbers are predicted, in place of logarithms what the model says of them.
    """
    embeddings, scores = network.seen(network.state(weights), x, device=device)
    return embeddings.double().numpy(), kind.said(scores).double().numpy()


def refuse_unsuited(
    network: Network, shape: tuple[int, ...], n_outputs: int, *, kind: str = "f"
) -> None:
    """Return if a network takes rows of a shape and gives finite embeddings, and scores as many.

    Parameters
    ----------
    network : Network
        What is to be trained.
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
            network.state(network.initial), as_tensor(zeros, none, none, network)
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


def probe(network: Network, shape: tuple[int, ...], *, kind: str = "f") -> npt.NDArray[np.float64]:
    """Return embeddings and scores, under the first weights, of two rows that are always the same.

    Parameters
    ----------
    network, shape, kind
        As :func:`refuse_unsuited` takes them.
    """
    size = 2 * math.prod(shape)
    numbers = np.zeros(size, np.int64) if kind in "iu" else np.linspace(-1, 1, size)
    none = np.empty(0)
    rows = as_tensor(numbers.reshape(2, *shape), none, none, network)
    found = network.seen(network.state(network.initial), rows)
    return np.concatenate([part.numpy().ravel() for part in found]).astype(np.float64)
