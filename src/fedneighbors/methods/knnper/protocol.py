"""kNN-Per's messages and coordinator: federated averaging, then memories (Algorithm 1).

Clients see only sums of one another: of class counts, weight changes, scatter of random features,
and the terms of a pool. Rows, embeddings, memories and mixtures never leave a client.
"""

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.errors import DataError
from fedneighbors.federation._loop import Ask, Coordinator, Replies, gather, total
from fedneighbors.federation._messages import Message, message
from fedneighbors.methods.knnper._settings import MemorySettings, RoundSettings
from fedneighbors.methods.knnper.algorithm import average_changes, feature_rate, scale_bits
from fedneighbors.methods.knnper.personal._discriminants import (
    MAX_FEATURES,
    Discriminants,
    RandomFeatures,
    Scatter,
    n_features_for,
    triangle,
)
from fedneighbors.methods.knnper.personal._pool import PoolTerms
from fedneighbors.neural._schedule import Regime
from fedneighbors.tabular._schema import (
    Agreed,
    Label,
    MomentsReply,
    Receipt,
    Schema,
    mean_and_deviation,
)

if TYPE_CHECKING:  # these modules import this one, or torch
    from fedneighbors.methods.knnper._checkpoint import Checkpoint
    from fedneighbors.methods.knnper._task import Task
    from fedneighbors.neural._network import Network

Weights = npt.NDArray[np.floating[Any]]

FIXED_POINT = 32
"""Binary places of scatter and of pool terms in fixed point."""


@message
class ClientSchemaRequest:
    """Request for the schema of a client's rows."""

    layout: str

    reply: ClassVar[type] = Schema


@message
class ClientMomentsRequest:
    """Request for the column sums for standardization."""

    reply: ClassVar[type] = MomentsReply


@message
class CountsReply:
    """Class counts, summed over the clients."""

    counts: Integers


@message
class CountsRequest:
    """Request for class counts, without held-out rows if ``held_out``.

    ``center`` and ``scale`` standardize the columns; both are empty for no standardization.
    """

    classes: tuple[Label, ...]
    held_out: bool
    center: npt.NDArray[np.float64]
    scale: npt.NDArray[np.float64]

    reply: ClassVar[type] = CountsReply


@message
class TargetsRequest:
    """Request for the sums that standardize targets, without held-out rows if ``held_out``.

    Columns are not standardized at this point: :class:`UnitsRequest` follows.
    """

    held_out: bool

    reply: ClassVar[type] = MomentsReply


@message
class UnitsRequest:
    """Units of columns (none if empty) and targets."""

    center: npt.NDArray[np.float64]
    scale: npt.NDArray[np.float64]
    target_center: npt.NDArray[np.float64]
    target_scale: npt.NDArray[np.float64]

    reply: ClassVar[type] = Receipt


@message
class UpdateReply:
    """Weighted update of a client's training (Eq 13), in fixed point."""

    change: Integers


@message
class TrainRequest:
    """Request for one round of local training.

    If ``held_out`` is true, held-out rows are omitted; ``bits`` is the binary places of changes.
    """

    number: int
    held_out: bool
    regime: Regime
    seed: int
    bits: int
    weights: Weights

    reply: ClassVar[type] = UpdateReply


@message
class ScatterReply:
    """Scatter of random features within classes and between them, summed over the clients.

    Upper triangles, row by row, in units of 2 to the power of -32.
    """

    within: Integers
    between: Integers


@message
class ScatterRequest:
    """Request for the scatter of random features, without held-out rows if ``held_out``."""

    held_out: bool
    features: RandomFeatures

    reply: ClassVar[type] = ScatterReply

    def __post_init__(self) -> None:
        if self.features.n_features > MAX_FEATURES:
            raise ValueError(f"expected at most {MAX_FEATURES} random features")


@message
class PoolReply:
    """Loss, gradient and Hessian of the pool on held-out rows, summed over the clients.

    All in units of 2 to the power of -32.
    """

    n_rows: int
    loss: int
    gradient: Integers
    hessian: Integers


@message
class PoolRequest:
    """Request for the pool's loss on held-out rows, under the released model."""

    weights: npt.NDArray[np.float64]

    reply: ClassVar[type] = PoolReply


@message
class ReleaseRequest:
    """The shared model; each client then builds its memory.

    ``overall`` are class shares, or means and standard deviations of the targets. ``final`` is
    false for the model for choosing mixtures, which has not seen held-out rows. ``pool`` and
    ``seen`` are as in :class:`Shared`.
    """

    shared: Weights
    overall: npt.NDArray[np.float64]
    final: bool
    pool: npt.NDArray[np.float64] | None = None
    seen: Discriminants | None = None

    reply: ClassVar[type] = Receipt


@dataclass(frozen=True, eq=False)
class Shared:
    """State shared by all clients at the end.

    Parameters
    ----------
    weights : float array of shape (n_weights,)
        Weights of the network.
    classes : tuple of labels
        Ascending; empty for regression.
    overall : float64 array of shape (n_classes,) or (2, n_outputs)
        Class shares over all clients, with one row of each class added; or means and standard
        deviations of the targets.
    pool : float64 array of shape (n_experts,) or None
        Weights of the experts; None for the paper's mixture.
    center, scale : float64 array of shape (n_features,)
        Center and scale of the columns of a table; empty for no standardization.
    agreed : Agreed
        Common schema of the clients' tables.
    seen : Discriminants or None
        Directions from all clients' scatter, for a pool with heads on rows.
    """

    weights: Weights
    classes: tuple[Label, ...]
    overall: npt.NDArray[np.float64]
    pool: npt.NDArray[np.float64] | None
    center: npt.NDArray[np.float64]
    scale: npt.NDArray[np.float64]
    agreed: Agreed
    seen: Discriminants | None = None


@dataclass(frozen=True, eq=False)
class Stage:
    """Progress of a training, from which it can be resumed.

    Parameters
    ----------
    number : int
        Rounds done. The first stage omits held-out rows, the second does not.
    weights : float array of shape (n_weights,)
        Weights of the network after these rounds.
    chosen_on : float array of shape (n_weights,) or None
        Weights for choosing mixtures, from the end of the first stage; None before.
    pool : float64 array of shape (n_experts,) or None
        Weights of the experts; None before they are chosen.
    """

    number: int
    weights: Weights
    chosen_on: Weights | None = None
    pool: npt.NDArray[np.float64] | None = None

    @property
    def held_out(self) -> bool:
        """Return whether held-out rows are omitted."""
        return self.chosen_on is None


def coordinate(
    rounds: RoundSettings,
    settings: MemorySettings,
    network: "Network",
    kind: "Task",
    *,
    standardize: bool = False,
    reserved: tuple[Label, ...] = (),
    checkpoint: "Checkpoint | None" = None,
    opening: Message | None = None,
) -> Coordinator[Shared]:
    """Train a shared model, choose mixtures, and train again on all rows.

    Mixtures are chosen on held-out rows.

    Parameters
    ----------
    rounds : RoundSettings
        Training settings of the shared model.
    settings : MemorySettings
        Settings of the clients' memories.
    network : Network
        Network of all clients; training begins at its weights.
    kind : Task
        Task: classification or regression.
    standardize : bool
        Scale the columns of all clients' tables to mean 0 and standard deviation 1 by exact sums.
        Tokens are not scaled.
    reserved : tuple of labels
        Classes that may occur later.
    checkpoint : Checkpoint, optional
        Stores every stage; may contain the stage of an interrupted training.
    opening : message, optional
        Request for the schema; by default a :class:`ClientSchemaRequest`.

    Yields
    ------
    Ask
        Schema; sums of columns for standardization; class counts, or sums of targets; rounds of
        training without held-out rows; scatter; the model for choosing mixtures; the pool's terms;
        rounds on all rows; scatter; the final model.

    Returns
    -------
    Shared

    Raises
    ------
    SchemaMismatch
        If a client's rows differ from the others'.
    PartyMissing
        If a client does not reply; nothing is released.
    DataError
        If the clients have no rows or fewer than two classes together.
    """
    resumed = None if checkpoint is None else checkpoint.resume()
    replies = yield gather(opening or ClientSchemaRequest(network.digest))
    agreed = kind.agree(replies.complete("the schema").each, reserved)
    averaging = _Averaging(rounds, tuple(replies.each), checkpoint)
    standardize = standardize and not network.reads_tokens
    discriminate = settings.uses_rows and kind.discriminates and not network.reads_tokens
    center, scale, rate = np.empty(0), np.empty(0), 0.0
    if standardize or discriminate:
        center, scale, rate = yield from _column_units(standardize=standardize)
    n_rows, overall = yield from kind.prepare(agreed, center, scale, held_out=True)
    stage = resumed or Stage(0, network.initial)
    chosen_on = stage.chosen_on
    if chosen_on is None:
        stage = yield from averaging.rest(stage, n_rows)
        chosen_on = stage.weights
        stage = Stage(0, network.initial, chosen_on)
    features = (rounds.seed, rate) if discriminate else None
    seen = yield from _discriminants(features, overall, n_rows, held_out=True)
    yield from _release(ReleaseRequest(chosen_on, overall, final=False, seen=seen))
    if settings.combine == "pool" and stage.pool is None:
        stage = replace(stage, pool=(yield from _pool_weights(kind)))
    averaging.keep(stage)
    n_rows, overall = yield from kind.prepare(agreed, center, scale, held_out=False)
    stage = yield from averaging.rest(stage, n_rows)
    seen = yield from _discriminants(features, overall, n_rows, held_out=False)
    yield from _release(ReleaseRequest(stage.weights, overall, True, stage.pool, seen))
    return Shared(stage.weights, agreed.classes, overall, stage.pool, center, scale, agreed, seen)


def _column_units(*, standardize: bool) -> Generator[Ask, Replies, tuple[Floats, Floats, float]]:
    """Compute column centers, scales and the random-feature rate from exact sums."""
    replies = yield total(ClientMomentsRequest())
    found = replies.summed("the sums of columns")
    if found.n_rows < 1:
        raise DataError("the clients have no rows to train on; add rows")
    mean, deviation = mean_and_deviation(found)
    if not standardize:
        return np.empty(0), np.empty(0), feature_rate(deviation)
    scale = np.where(deviation > 0, deviation, 1.0)
    return mean, scale, feature_rate(deviation / scale)


@dataclass(frozen=True)
class _Averaging:
    """Federated averaging over the clients of one training."""

    rounds: RoundSettings
    names: tuple[str, ...]
    checkpoint: "Checkpoint | None"

    def keep(self, stage: Stage) -> None:
        """Write a stage to the checkpoint, if any."""
        if self.checkpoint is not None:
            self.checkpoint.keep(stage)

    def rest(self, stage: Stage, n_rows: int) -> Generator[Ask, Replies, Stage]:
        """Run the remaining rounds for ``n_rows`` rows of all clients."""
        rounds, bits = self.rounds, scale_bits(n_rows)
        for number in range(stage.number, rounds.n_rounds):
            request = TrainRequest(
                number=number,
                held_out=stage.held_out,
                regime=replace(rounds.regime, learning_rate=rounds.learning_rate(number)),
                seed=rounds.seed,
                bits=bits,
                weights=stage.weights,
            )
            replies = yield total(dict.fromkeys(rounds.participants(self.names, number), request))
            change = replies.summed(f"the changes of round {number + 1}").change
            weights = average_changes(stage.weights, change, n_rows=n_rows, bits=bits)
            stage = replace(stage, number=number + 1, weights=weights)
            self.keep(stage)
        return stage


def _discriminants(
    features: tuple[int, float] | None, overall: Floats, n_rows: int, *, held_out: bool
) -> Generator[Ask, Replies, Discriminants | None]:
    """Compute discriminants from summed scatter.

    They separate the classes of every client. The result is None if ``features``, the seed and rate
    of the random features, is None.

    """
    if features is None:
        return None
    drawn = RandomFeatures(*features, n_features_for(n_rows))
    replies = yield total(ScatterRequest(held_out, drawn))
    found = replies.summed("the scatter of classes")
    within, between = (_symmetric(part, drawn.n_features) for part in (found.within, found.between))
    counts = overall * (n_rows + len(overall)) - 1
    n_present = int((counts > 0.5).sum())  # absent classes have no scatter
    return Discriminants.best(drawn, Scatter(within, between), n_present)


def _symmetric(upper: npt.NDArray[np.int64], n: int) -> Floats:
    """Return the symmetric matrix of an upper triangle in fixed point."""
    whole = np.zeros((n, n))
    whole[triangle(n)] = _from_fixed(upper)
    return whole + np.triu(whole, 1).T


def _from_fixed(values: npt.NDArray[np.int64]) -> Floats:
    return np.asarray(np.ldexp(values.astype(np.float64), -FIXED_POINT))


def _release(request: ReleaseRequest) -> Generator[Ask, Replies, None]:
    replies = yield gather(request)
    replies.complete("the model")


def _pool_weights(kind: "Task") -> Generator[Ask, Replies, Floats]:
    """Compute the experts' weights from sums of gradients and Hessians."""
    steps = kind.pool_steps()
    weights = next(steps)
    while True:
        replies = yield total(PoolRequest(weights))
        found = replies.summed("the pool's terms")
        terms = PoolTerms(
            n_rows=int(found.n_rows),
            loss=float(np.ldexp(float(found.loss), -FIXED_POINT)),
            gradient=_from_fixed(found.gradient),
            hessian=_from_fixed(found.hessian),
        )
        try:
            weights = steps.send(terms)
        except StopIteration as stop:
            return np.asarray(stop.value)
