"""Interface of a learning task: the parts of kNN-Per that differ for classes and numbers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.federation._messages import Message
from fedneighbors.federation._roles import Ask, Replies
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper.algorithm import (
    Neighbors,
)
from fedneighbors.methods.knnper.memory._compressed import Memory
from fedneighbors.methods.knnper.memory._datastore import Datastore
from fedneighbors.methods.knnper.personal._pool import (
    PoolTerms,
)
from fedneighbors.tabular._schema import (
    Agreed,
    Label,
    Schema,
)

if TYPE_CHECKING:  # estimators are imported without torch
    from torch import Tensor

    from fedneighbors.neural._trainer import Objective

Values = npt.NDArray[Any]
"""What is learned of each row: int64 positions of classes, or float64 standardized targets."""

Basis = tuple[int, Floats]
"""Rows that are trained on, and what is known of all clients' labels or targets (``overall``)."""

Rows = Callable[[bool], npt.NDArray[np.int64]]
"""Takes whether held-out rows are left out; returns the rows that remain."""


class Task(ABC):
    """Interface of a learning task: classification or regression; instances hold no state.

    Attributes
    ----------
    requests : tuple of type
        Messages that clients answer in addition to those of every training.
    experts : tuple of str
        Experts of a pool, in order.
    first_weights : tuple of float
        Weights of a pool without any rows.
    discriminates : bool
        Whether there are classes that scatter within and between.
    magic : bytes
        First bytes of model files.
    reader : tuple of str
        Task of a saved model in words, and the estimator that loads it.
    """

    requests: ClassVar[tuple[type[Any], ...]]
    experts: ClassVar[tuple[str, ...]]
    first_weights: ClassVar[tuple[float, ...]]
    discriminates: ClassVar[bool]
    magic: ClassVar[bytes]
    reader: ClassVar[tuple[str, str]]

    # Training

    @property
    @abstractmethod
    def objective(self) -> "Objective":
        """Return the loss of training; needs torch."""

    @abstractmethod
    def n_outputs(self, y: npt.NDArray[Any], reserved: tuple[Label, ...]) -> int:
        """Return how many scores the network of all these rows has."""

    @abstractmethod
    def agreed(self, schemas: Mapping[str, Schema], reserved: tuple[Label, ...]) -> Agreed:
        """Return what the clients' tables have in common; coordinator."""

    @abstractmethod
    def prepared(
        self, agreed: Agreed, center: Floats, scale: Floats, *, held_out: bool
    ) -> Generator[Ask, Replies, Basis]:
        """Tell the clients what they need to train, and learn how many rows there are."""

    @abstractmethod
    def pool_steps(self) -> Generator[Floats, PoolTerms, Floats]:
        """Yield weights of experts at which summed terms are wanted; return the best."""

    @abstractmethod
    def described(
        self, table: npt.NDArray[Any], y: npt.NDArray[Any], names: tuple[str, ...] | None
    ) -> Schema:
        """Return what a client announces of its rows."""

    @abstractmethod
    def answered(
        self, request: Message, y: npt.NDArray[Any], rows: Rows
    ) -> tuple[Message, Values | None]:
        """Return a client's reply to one of :attr:`requests`, and what it learns if it is new."""

    @abstractmethod
    def said(self, scores: "Tensor") -> "Tensor":
        """Return logarithms of shares, or predictions, from the network's scores."""

    # Checks

    def check_settings(self, settings: Any) -> None:  # noqa: B027 - all settings suit classes
        """Raise ValueError if ``strategy`` or ``memory`` does not suit the task."""

    @abstractmethod
    def check_overall(self, overall: Floats, classes: tuple[Label, ...]) -> None:
        """Raise ValueError if ``overall`` does not suit the task."""

    @abstractmethod
    def check_values(self, values: Values, overall: Floats) -> None:
        """Raise ValueError for classes or targets that no row of a memory can have."""

    # Mixtures

    @abstractmethod
    def n_classes(self, overall: Floats) -> int | None:
        """Return the number of classes; None for numbers."""

    @abstractmethod
    def shares(self, said: Floats) -> Floats:
        """Return the shared model's answers, as they are mixed with those of a memory."""

    @abstractmethod
    def targets(self, values: Values, n_outputs: int) -> Floats:
        """Return the targets of heads, shape (n_rows, n_outputs)."""

    @abstractmethod
    def prior(self, values: Values, overall: Floats) -> Floats:
        """Return a client's answer without looking at a row."""

    @abstractmethod
    def stack(self, said: Floats, local: Floats, prior: Floats, heads: list[Floats]) -> Floats:
        """Return the answers of the experts, shape (n_rows, n_outputs, n_experts)."""

    @abstractmethod
    def pool(self, experts: Floats, weights: Floats) -> Floats:
        """Return the answers of a pool."""

    @abstractmethod
    def pool_terms(self, experts: Floats, values: Values, weights: Floats) -> PoolTerms:
        """Return loss, gradient and Hessian of a pool's weights on some rows."""

    @abstractmethod
    def weigh(self, local: Floats, shared: Floats, values: Values) -> tuple[float, float]:
        """Return the best weight of a memory on some rows (lambda), and the loss of the mixture."""

    @abstractmethod
    def combine(
        self, found: Neighbors, values: Values, n_outputs: int, settings: MemorySettings
    ) -> Floats:
        """Return Eq 6 of neighbors."""

    def answer(
        self,
        memory: Memory,
        keys: Floats,
        n_outputs: int,
        settings: MemorySettings,
        own: Integers | None = None,
    ) -> Floats | None:
        """Return Eq 6 for some rows; None if the memory is empty."""
        assert isinstance(memory, Datastore)  # summaries are of classes alone
        found = memory.nearest(np.ascontiguousarray(keys), settings.ks[0], own=own)
        if found.positions.shape[1] == 0:
            return None
        return self.combine(found, memory.labels, n_outputs, settings)

    def answers(
        self, memory: Memory, keys: Floats, n_outputs: int, settings: MemorySettings
    ) -> list[Floats | None]:
        """Return Eq 6 for each k; where the memory is of keys, by one search for the largest."""
        if len(settings.ks) == 1 or not isinstance(memory, Datastore):
            each = [replace(settings, n_neighbors=k) for k in settings.ks]
            return [self.answer(memory, keys, n_outputs, one) for one in each]
        found = memory.nearest(np.ascontiguousarray(keys), max(settings.ks))
        if found.positions.shape[1] == 0:
            return [None] * len(settings.ks)
        labels = memory.labels
        return [self.combine(found.first(k), labels, n_outputs, settings) for k in settings.ks]
