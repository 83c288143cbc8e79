"""A client's own part of a model: a memory, how much it weighs, and what follows from it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats
from fedneighbors.methods.knnper._settings import MemorySettings, Metric
from fedneighbors.methods.knnper.memory._codes import ProductCodec
from fedneighbors.methods.knnper.memory._compressed import Memory
from fedneighbors.methods.knnper.memory._datastore import Datastore
from fedneighbors.tabular._ownership import one_blas_thread


def in_metric(keys: Floats, metric: Metric, n_beside: int = 0) -> Floats:
    """Return keys whose Euclidean distances are those of the metric.

    Parameters
    ----------
    keys : float64 array of shape (n_rows, n_dimensions)
        Embeddings.
    metric : {"euclidean", "cosine"}
        ``"cosine"`` brings keys to length 1: the squared distance of two of them is twice one minus
        the cosine of their angle. A key of zeros stays one.
    n_beside : int
        Columns at the end that no distance looks at, and that stay as they are.

    Returns
    -------
    float64 array of shape (n_rows, n_dimensions)
    """
    if metric == "euclidean":
        return keys
    if n_beside:
        return np.hstack([in_metric(keys[:, :-n_beside], metric), keys[:, -n_beside:]])
    largest = np.abs(keys).max(axis=1, keepdims=True, initial=0.0)
    scaled = keys / np.where(largest > 0, largest, 1.0)  # so that squares stay in range
    lengths = np.sqrt((scaled**2).sum(axis=1, keepdims=True))
    return np.asarray(scaled / np.where(lengths > 0, lengths, 1.0))


def apart(keys: Floats, n_beside: int) -> tuple[Floats, Floats]:
    """Return embeddings, and the rows beside them; embeddings for these where none are.

    Parameters
    ----------
    keys : float64 array of shape (n_rows, n_dimensions)
        As a memory keeps them.
    n_beside : int
        Columns at the end that are the row itself.
    """
    return (keys[:, :-n_beside], keys[:, -n_beside:]) if n_beside else (keys, keys)


@dataclass(frozen=True, eq=False)
class Choice:
    """What a client takes of all candidates.

    Parameters
    ----------
    settings : MemorySettings
        With one k and one metric.
    weight : float
        Of the memory by Eq 7 (lambda).
    local : float64 array of shape (n_rows, n_outputs) or None
        What the memory says of the held-out rows; None if it is empty.
    loss : float
        Of the mixture on these rows.
    """

    settings: MemorySettings
    weight: float
    local: Floats | None
    loss: float


def choice(
    settings: MemorySettings,
    *,
    said: Callable[[Metric], Sequence[Floats | None]],
    weighed: Callable[[Floats], tuple[float, float]],
) -> Choice:
    """Return the metric, k and lambda of least loss.

    Of equally good ones the metric that stands first in the settings is taken, then the k that
    stands first; of a metric's and a k's lambdas the middle one.

    Parameters
    ----------
    settings : MemorySettings
        With the candidates.
    said : callable
        From a metric to what the memory says of the held-out rows, for each k in order; None if it
        is empty.
    weighed : callable
        From what the memory says to the best lambda and its loss.
    """
    found = []
    for metric in settings.metrics:
        for k, local in zip(settings.ks, said(metric), strict=True):
            weight, loss = (0.0, 0.0) if local is None else weighed(local)
            one = replace(settings, n_neighbors=k, metric=metric)
            found.append(Choice(one, weight, local, loss))
    return min(found, key=lambda candidate: candidate.loss)  # the first of equals


@dataclass(eq=False)
class OwnPart(ABC):
    """What one client has for itself.

    Parameters
    ----------
    memory : Memory
        Its rows, as the shared model sees them.
    weight : float
        Of the memory by Eq 7 (lambda).
    overall : float64 array
        What is known of all clients: shares of the classes, of shape (n_classes,), or means and
        deviations of the targets, of shape (2, n_outputs).
    pool : float64 array of shape (n_experts,) or None
        Weights of the experts; None for the paper's mixture.
    settings : MemorySettings
        How the memory is asked, with the k and the metric that the client chose.
    """

    memory: Memory
    weight: float
    overall: Floats
    pool: Floats | None
    settings: MemorySettings

    def __post_init__(self) -> None:
        self._made_anew()

    def add(self, keys: Floats, labels: npt.NDArray[Any], ids: Any = None) -> None:
        """Let rows into the memory."""
        near = in_metric(keys, self.settings.metrics[0], self.settings.n_beside)
        self.memory.add(near, labels, ids)
        self._made_anew()

    def forget(self, ids: Any) -> None:
        """Delete rows from the memory and from all that was made of it."""
        self.memory.forget(ids)
        self._made_anew()

    def coded(self, codec: ProductCodec) -> Self:
        """Return the same part with product codes of its keys in place of them.

        Parameters
        ----------
        codec : ProductCodec
            With a book that was learned on other rows.

        Raises
        ------
        ValueError
            If the memory is not an exact one, or has other columns than the book.
        DataError
            If a key is beyond what 32 bits hold.
        """
        before = self.memory
        if type(before) is not Datastore:
            raise ValueError(
                f"expected an exact memory, whose keys are kept, got a {type(before).__name__}"
            )
        settings = replace(self.settings, memory="product", codec=codec)
        memory = settings.new_datastore(before.n_dimensions, before.n_classes)
        memory.restore(before.keys, before.labels, before.ids, before.state())
        return replace(self, memory=memory, settings=settings)

    def _made_anew(self) -> None:
        with one_blas_thread():  # the same rows give the same bits, however many threads there are
            self._refit()

    @abstractmethod
    def _refit(self) -> None:
        """Make anew what follows from the rows of the memory."""
