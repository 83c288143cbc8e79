"""Owns `Kind`: what coordinator and clients do otherwise for classes than for numbers."""

from collections.abc import Callable, Generator, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedneighbors._typing import Floats
from fedneighbors.federation._messages import Message
from fedneighbors.federation._roles import Ask, Replies
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper.personal._own import OwnPart
from fedneighbors.methods.knnper.personal._pool import PoolTerms
from fedneighbors.neural._trainer import Objective
from fedneighbors.tabular._schema import Agreed, Label, Schema

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
