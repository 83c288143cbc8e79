"""Numbers as what is learned: standardized over all clients, and fitted by squared error."""

from collections.abc import Generator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedneighbors._typing import Floats
from fedneighbors.errors import DataError
from fedneighbors.federation._messages import Message
from fedneighbors.federation._roles import Ask, Refuse, Replies, gather, total
from fedneighbors.methods.knnper._messages import (
    MomentsReply,
    Receipt,
    TargetsRequest,
    UnitsRequest,
)
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper.personal._pool import PoolTerms
from fedneighbors.methods.knnper.personal._regression import (
    NUMBER_EXPERTS,
    HeldOutNumbers,
    linear_pool,
    personalized_numbers,
)
from fedneighbors.methods.knnper.targets._kind import Basis, Rows, Values
from fedneighbors.neural._trainer import squared_error
from fedneighbors.tabular._schema import (
    Agreed,
    Label,
    Moments,
    Schema,
    agree_columns,
    column_moments,
    describe,
    mean_and_deviation,
)


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
        mean, spread = mean_and_deviation(Moments(found.n_rows, found.sums, found.squares))
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
                found = column_moments(targets[rows(request.held_out)])
                return MomentsReply(found.n_rows, found.sums, found.squares), None
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
