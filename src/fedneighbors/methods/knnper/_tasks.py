"""Owns `Kind`: what coordinator and clients do otherwise for classes than for numbers."""

from collections.abc import Callable, Generator, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedneighbors._typing import Floats
from fedneighbors.errors import DataError
from fedneighbors.federation._messages import Message
from fedneighbors.federation._roles import Ask, Refuse, Replies, gather, total
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper.personal._client_state import OwnPart
from fedneighbors.methods.knnper.personal._mixtures import (
    EXPERTS,
    FIRST_WEIGHTS,
    HeldOut,
    personalized,
)
from fedneighbors.methods.knnper.personal._pool import PoolTerms, pool_steps
from fedneighbors.methods.knnper.personal._regression import (
    NUMBER_EXPERTS,
    HeldOutNumbers,
    linear_pool,
    personalized_numbers,
)
from fedneighbors.methods.knnper.protocol import (
    CountsReply,
    CountsRequest,
    ScatterRequest,
    TargetsRequest,
    UnitsRequest,
)
from fedneighbors.neural._trainer import Objective, cross_entropy, squared_error
from fedneighbors.tabular._schema import (
    Agreed,
    Label,
    Receipt,
    Schema,
    agree,
    agree_columns,
    column_moments,
    describe,
    label_positions,
    mean_and_deviation,
)

Values = npt.NDArray[Any]
"""What is learned of each row: int64 positions of classes, or float64 standardized targets."""

Basis = tuple[int, Floats]
"""Rows that are trained on, and what is known of all clients' labels or targets (``overall``)."""

Rows = Callable[[bool], npt.NDArray[np.int64]]
"""Takes whether held-out rows are left out; returns the rows that remain."""


class Chosen(Protocol):
    """What a client found on its held-out rows."""

    @property
    def weight(self) -> float:
        """Weight of the memory by Eq 7."""

    @property
    def settings(self) -> MemorySettings:
        """How the memory is asked."""

    def terms(self, weights: Floats) -> PoolTerms:
        """Return what the rows say of a pool's weights."""


class Kind(Protocol):
    """What is learned; one object serves all trainings of its kind and holds nothing of any."""

    @property
    def requests(self) -> tuple[type[Any], ...]:
        """What clients answer beside the requests of every training."""

    @property
    def discriminates(self) -> bool:
        """Whether there are classes that scatter within and between."""

    @property
    def experts(self) -> tuple[str, ...]:
        """What a pool weighs, in order."""

    @property
    def objective(self) -> Objective:
        """What training minimizes."""

    def n_outputs(self, y: npt.NDArray[Any], reserved: tuple[Label, ...], /) -> int:
        """Return how many scores the network of all these rows has."""

    def agreed(self, schemas: Mapping[str, Schema], reserved: tuple[Label, ...], /) -> Agreed:
        """Return what the clients' tables have in common; coordinator."""

    def prepared(
        self, agreed: Agreed, center: Floats, scale: Floats, /, *, held_out: bool
    ) -> Generator[Ask, Replies, Basis]:
        """Tell the clients what they need to train, and learn how many rows there are."""

    def pool_steps(self) -> Generator[Floats, PoolTerms, Floats]:
        """Yield weights of experts at which summed terms are wanted; return the best."""

    def described(
        self, table: npt.NDArray[Any], y: npt.NDArray[Any], names: tuple[str, ...] | None
    ) -> Schema:
        """Return what a client announces of its rows."""

    def answered(
        self, request: Message, y: npt.NDArray[Any], rows: Rows
    ) -> tuple[Message, Values | None]:
        """Return a client's reply to one of :attr:`requests`, and what it learns if it is new."""

    def said(self, scores: Tensor) -> Tensor:
        """Return what the network's scores stand for."""

    def chosen(
        self,
        keys: Floats,
        said: Floats,
        values: Values,
        held: npt.NDArray[np.bool_],
        overall: Floats,
        settings: MemorySettings,
        /,
    ) -> Chosen:
        """Choose a client's mixture on its held-out rows."""

    def personalized(
        self,
        keys: Floats,
        values: Values,
        *,
        weight: float,
        overall: Floats,
        pool: Floats | None,
        settings: MemorySettings,
    ) -> OwnPart:
        """Return what a client with these rows makes of the shared model."""


class Classes:
    """Rows have labels; the network gives a score for each class.

    What is known of all clients (``overall``) are the shares of the classes, with one row of each
    class added.
    """

    requests = (CountsRequest, ScatterRequest)
    discriminates = True
    experts = EXPERTS
    objective = staticmethod(cross_entropy)
    chosen = staticmethod(HeldOut.of)
    personalized = staticmethod(personalized)

    def n_outputs(self, y: npt.NDArray[Any], reserved: tuple[Label, ...]) -> int:
        """Return the number of classes."""
        return len(set(np.unique(y).tolist()) | set(reserved))

    def agreed(self, schemas: Mapping[str, Schema], reserved: tuple[Label, ...]) -> Agreed:
        """Return columns and classes of all clients."""
        return agree(schemas, reserved)

    def prepared(
        self, agreed: Agreed, center: Floats, scale: Floats, *, held_out: bool
    ) -> Generator[Ask, Replies, Basis]:
        """Sum the rows of each class."""
        replies = yield total(CountsRequest(agreed.classes, held_out, center, scale))
        counts = replies.summed("the class counts").counts
        n_rows = int(counts.sum())
        if n_rows < 1:
            raise DataError("the clients hold no rows to train on; give them rows")
        return n_rows, np.asarray((counts + 1) / (n_rows + len(counts)))

    def pool_steps(self) -> Generator[Floats, PoolTerms, Floats]:
        """Go by Newton's steps from :data:`~.personal.FIRST_WEIGHTS`."""
        return pool_steps(FIRST_WEIGHTS)

    def described(
        self, table: npt.NDArray[Any], y: npt.NDArray[Any], names: tuple[str, ...] | None
    ) -> Schema:
        """Return the columns, and the labels that occur."""
        return describe(table, y, names, "target")

    def answered(
        self, request: Message, y: npt.NDArray[Any], rows: Rows
    ) -> tuple[Message, Values | None]:
        """Return counts and the rows' places among the classes."""
        if not isinstance(request, CountsRequest):
            raise Refuse("unknown request")
        labels = label_positions(y, request.classes, name="target")
        own = labels[rows(request.held_out)]
        return CountsReply(np.bincount(own, minlength=len(request.classes))), labels

    def said(self, scores: Tensor) -> Tensor:
        """Return logarithms of the classes' shares."""
        return torch.log_softmax(scores.double(), dim=1)


CLASSES = Classes()


class Numbers:
    """Rows have one or several numbers that are to be predicted; the network gives as many.

    What is known of all clients (``overall``) are the means and deviations of these numbers, by
    exact sums. A deviation of 0 counts as 1.
    """

    requests = (TargetsRequest, UnitsRequest)
    discriminates = False
    experts = NUMBER_EXPERTS
    objective = staticmethod(squared_error)
    personalized = staticmethod(personalized_numbers)

    def n_outputs(self, y: npt.NDArray[Any], _reserved: tuple[Label, ...]) -> int:
        """Return the numbers of a row; there are no classes that could be reserved."""
        return int(_table(y).shape[1])

    def agreed(self, schemas: Mapping[str, Schema], _reserved: tuple[Label, ...]) -> Agreed:
        """Return the columns of all clients."""
        return agree_columns(schemas)

    def prepared(
        self, _agreed: Agreed, center: Floats, scale: Floats, *, held_out: bool
    ) -> Generator[Ask, Replies, Basis]:
        """Sum the targets and their squares, and say in which units they are learned."""
        replies = yield total(TargetsRequest(held_out))
        found = replies.summed("the sums of targets")
        if found.n_rows < 1:
            raise DataError("the clients hold no rows to train on; give them rows")
        mean, spread = mean_and_deviation(found)
        deviation = np.where(spread > 0, spread, 1.0)
        replies = yield gather(UnitsRequest(center, scale, mean, deviation))
        replies.complete("the units of targets")
        return int(found.n_rows), np.stack([mean, deviation])

    def pool_steps(self) -> Generator[Floats, PoolTerms, Floats]:
        """Find the weights of least squared error by one sum."""
        return linear_pool()

    def described(
        self, table: npt.NDArray[Any], y: npt.NDArray[Any], names: tuple[str, ...] | None
    ) -> Schema:
        """Return the columns; nothing is said of the targets."""
        if y.dtype.kind not in "biuf" or not np.isfinite(y).all():
            raise Refuse("a target is missing or not a finite number", "target")
        return describe(table, np.empty(0), names, "target")

    def answered(
        self, request: Message, y: npt.NDArray[Any], rows: Rows
    ) -> tuple[Message, Values | None]:
        """Return sums of targets, or take the units in which they are learned."""
        targets = _table(y)
        match request:
            case TargetsRequest():
                return column_moments(targets[rows(request.held_out)]), None
            case UnitsRequest():
                return Receipt(), (targets - request.target_center) / request.target_scale
        raise Refuse("unknown request")

    def said(self, scores: Tensor) -> Tensor:
        """Return the scores, which are targets in standard units."""
        return scores

    def chosen(
        self,
        keys: Floats,
        said: Floats,
        values: Values,
        held: npt.NDArray[np.bool_],
        _overall: Floats,
        settings: MemorySettings,
    ) -> HeldOutNumbers:
        """Choose a client's mixture by the squared error on its held-out rows."""
        return HeldOutNumbers.of(keys, said, values, held, settings)


def _table(y: npt.NDArray[Any]) -> Floats:
    """Return targets as a table of one column or more."""
    return np.asarray(y.reshape(len(y), -1), np.float64)


NUMBERS = Numbers()
