"""Features of rows: embeddings and, for a pool, network inputs and their discriminants."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedneighbors._typing import Floats
from fedneighbors.methods.knnper._settings import Metric


@dataclass(frozen=True, eq=False)
class View:
    """Features of some rows.

    Parameters
    ----------
    embedding : float64 array of shape (n_rows, n_dimensions)
        Output of the network's embedding layer. Distances are computed on it alone.
    rows : float64 array of shape (n_rows, n_features) or None
        Network inputs; None where no head uses them.
    discriminants : float64 array of shape (n_rows, n_discriminants) or None
        Discriminants of the rows; None for a network of tokens or numbers.
    """

    embedding: Floats
    rows: Floats | None = None
    discriminants: Floats | None = None

    def __len__(self) -> int:
        return len(self.embedding)

    def __getitem__(self, places: Any) -> "View":
        return View(self.embedding[places], *(each[places] for each in self.extras))

    @property
    def extras(self) -> tuple[Floats, ...]:
        """Return the features that a memory stores next to the embedding, in order."""
        return tuple(each for each in (self.rows, self.discriminants) if each is not None)

    def table(self) -> Floats:
        """Return all features side by side."""
        return np.hstack([self.embedding, *self.extras]) if self.extras else self.embedding

    def in_metric(self, metric: Metric) -> "View":
        """Return the view with an embedding that suits a metric."""
        return replace(self, embedding=in_metric(self.embedding, metric))


def in_metric(keys: Floats, metric: Metric) -> Floats:
    """Return keys whose Euclidean distances are those of the metric.

    Parameters
    ----------
    keys : float64 array of shape (n_rows, n_dimensions)
        Embeddings.
    metric : {"euclidean", "cosine"}
        ``"cosine"`` brings keys to length 1: the squared distance of two of them is twice one minus
        the cosine of their angle. A key of zeros stays one.

    Returns
    -------
    float64 array of shape (n_rows, n_dimensions)
    """
    if metric == "euclidean":
        return keys
    largest = np.abs(keys).max(axis=1, keepdims=True, initial=0.0)
    scaled = keys / np.where(largest > 0, largest, 1.0)  # so that squares stay in range
    lengths = np.sqrt((scaled**2).sum(axis=1, keepdims=True))
    return np.asarray(scaled / np.where(lengths > 0, lengths, 1.0))
