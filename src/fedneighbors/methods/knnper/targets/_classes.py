"""Classes as what is learned: counted at all clients, and told apart by likelihood."""

from collections.abc import Generator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedneighbors._typing import Floats
from fedneighbors.errors import DataError
from fedneighbors.federation._messages import Message
from fedneighbors.federation._roles import Ask, Refuse, Replies, total
from fedneighbors.methods.knnper._messages import CountsReply, CountsRequest, ScatterRequest
from fedneighbors.methods.knnper.personal._mixtures import (
    EXPERTS,
    FIRST_WEIGHTS,
    HeldOut,
    personalized,
)
from fedneighbors.methods.knnper.personal._pool import PoolTerms, pool_steps
from fedneighbors.methods.knnper.targets._kind import Basis, Rows, Values
from fedneighbors.neural._trainer import cross_entropy
from fedneighbors.tabular._schema import Agreed, Label, Schema, agree, describe, label_positions


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
