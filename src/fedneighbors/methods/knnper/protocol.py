"""kNN-Per's messages and coordinator: federated averaging, then memories (Algorithm 1).

Clients send their schemas. Everything else is summed over clients: sums of columns, class counts or
sums of targets, weight changes, scatter of random features, and the terms of a pool. Rows,
embeddings, memories and their weights never leave a client.
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
from fedneighbors.methods.knnper.algorithm import average_changes, binary_places, feature_rate
from fedneighbors.methods.knnper.personal._discriminants import (
    Discriminants,
    RandomFeatures,
    Scatter,
    ScatterRequest,
    choose_n_features,
    upper_triangle,
)
from fedneighbors.methods.knnper.personal._pool import (
    FittedPool,
    PoolRequest,
    PoolTerms,
    pool_steps,
)
from fedneighbors.neural._schedule import Regime
from fedneighbors.tabular._schema import (
    JointSchema,
    Label,
    MomentsReply,
    Receipt,
    SchemaReply,
    check_n_classes,
    mean_and_deviation,
)

if TYPE_CHECKING:  # these modules import this one, or torch
    from fedneighbors.methods.knnper._checkpoint import Checkpoint
    from fedneighbors.methods.knnper._task import Task
    from fedneighbors.neural._network import Network


Weights = npt.NDArray[np.floating[Any]]

FIXED_POINT = 32
"""Binary places of losses, scatter matrices and pool terms, which are sent as integers."""

MAX_EPOCHS = 1000
"""Maximum number of passes over the rows in a round; shared rounds use a few."""


def check_units(center: Floats, scale: Floats) -> None:
    """Raise ValueError unless center and scale are finite vectors of one length."""
    if center.ndim != 1 or center.shape != scale.shape or not (scale > 0).all():
        raise ValueError("center and scale are not vectors of one length, with scales above 0")
    if not (np.isfinite(center).all() and np.isfinite(scale).all()):
        raise ValueError("center or scale is not finite")


@message
class ClientSchemaRequest:
    """Request for the schema of a client's rows; ``layout`` is the digest of the network."""

    layout: str

    reply: ClassVar[type] = SchemaReply


@message
class ClientMomentsRequest:
    """Request for the sums of columns and squares, for units of columns."""

    reply: ClassVar[type] = MomentsReply


@message
class CountsReply:
    """Class counts, summed over the clients."""

    counts: Integers


@message
class CountsRequest:
    """Request for class counts; held-out rows are not counted if ``held_out`` is true.

    ``center`` and ``scale`` standardize the columns; both are empty for no standardization.
    """

    classes: tuple[Label, ...]
    held_out: bool
    center: Floats
    scale: Floats

    reply: ClassVar[type] = CountsReply

    def __post_init__(self) -> None:
        check_n_classes(len(self.classes))
        check_units(self.center, self.scale)


@message
class TargetsRequest:
    """Request for the sums that standardize targets; ``held_out`` as in :class:`CountsRequest`.

    :class:`UnitsRequest` follows with the units of targets and columns.
    """

    held_out: bool

    reply: ClassVar[type] = MomentsReply


@message
class UnitsRequest:
    """Center and scale of the columns (empty for no standardization) and of the targets."""

    center: Floats
    scale: Floats
    target_center: Floats
    target_scale: Floats

    reply: ClassVar[type] = Receipt

    def __post_init__(self) -> None:
        check_units(self.center, self.scale)
        check_units(self.target_center, self.target_scale)


@message
class UpdateReply:
    """Change of weights in a client's training times its rows (Eq 13), in fixed point."""

    change: Integers


def check_round(number: int, epochs: int, bits: int = 0) -> None:
    """Raise ValueError for a round with too much work."""
    if not 1 <= epochs <= MAX_EPOCHS:
        raise ValueError(f"expected 1 to {MAX_EPOCHS} local epochs per round, got {epochs}")
    if number < 0 or not -62 <= bits <= 62:
        raise ValueError(f"expected a round from 0 and 62 binary places, got {number} and {bits}")


@message
class TrainRequest:
    """Request for one round of local training.

    ``number`` counts rounds from 0. Held-out rows are not used if ``held_out`` is true. ``bits`` is
    the number of binary places of the reply.
    """

    number: int
    held_out: bool
    regime: Regime
    seed: int
    bits: int
    weights: Weights

    reply: ClassVar[type] = UpdateReply

    def __post_init__(self) -> None:
        check_round(self.number, self.regime.epochs, self.bits)


@message
class LossReply:
    """Loss of ``n_rows`` held-out rows, in units of 2 to the power of -32."""

    n_rows: int
    loss: int


@message
class LossRequest:
    """Request for the loss of the held-out rows under weights that were trained without them."""

    weights: Weights

    reply: ClassVar[type] = LossReply


@message
class ReleaseRequest:
    """Weights of the shared model (``shared``), and other state shared by all clients.

    If ``final`` is false, the model was trained without held-out rows, and the client chooses its
    mixture on them. If true, the client builds its memory. ``overall``, ``pool`` and ``seen`` are
    as in :class:`Shared`.
    """

    shared: Weights
    overall: Floats
    final: bool
    pool: FittedPool | None = None
    seen: Discriminants | None = None

    reply: ClassVar[type] = Receipt


@dataclass(frozen=True, eq=False)
class Shared:
    """State shared by all clients after training.

    Parameters
    ----------
    weights : float array of shape (n_weights,)
        Weights of the network.
    classes : tuple of labels
        Ascending; empty for regression.
    overall : float64 array of shape (n_classes,) or (2, n_outputs)
        Class shares over all clients, with one row of each class added; or means and standard
        deviations of the targets over all clients.
    pool : FittedPool or None
        Weights of the pool's experts; None for the paper's mixture.
    center, scale : float64 array of shape (n_features,)
        Center and scale of the columns of a table; empty for no standardization.
    agreed : JointSchema
        Common schema of the clients' tables.
    seen : Discriminants or None
        Discriminants from the scatter of all clients, for a pool with heads on rows.
    """

    weights: Weights
    classes: tuple[Label, ...]
    overall: Floats
    pool: FittedPool | None
    center: Floats
    scale: Floats
    agreed: JointSchema
    seen: Discriminants | None = None


@dataclass(frozen=True, eq=False)
class Best:
    """Weights with the lowest held-out loss so far, after ``number`` rounds."""

    number: int
    loss: float
    weights: Weights


@dataclass(frozen=True, eq=False)
class Stage:
    """Progress of a training, from which it can be resumed.

    Parameters
    ----------
    number : int
        Number of rounds done in the current pass. The first pass over all rounds does not use
        held-out rows; the second starts again from the initial weights and uses all rows.
    weights : float array of shape (n_weights,)
        Weights of the network after these rounds.
    chosen_on : float array of shape (n_weights,) or None
        Weights at the end of the first pass, with which mixtures are chosen; None before.
    pool : FittedPool or None
        Weights of the experts; None before they are fitted.
    best : Best or None
        Best stage of the first pass if training stops at a plateau of the held-out loss; the second
        pass has as many rounds.
    """

    number: int
    weights: Weights
    chosen_on: Weights | None = None
    pool: FittedPool | None = None
    best: Best | None = None

    @property
    def held_out(self) -> bool:
        """Return whether held-out rows are not used: this is the first pass."""
        return self.chosen_on is None


def coordinate(
    rounds: RoundSettings,
    settings: MemorySettings,
    network: "Network",
    task: "Task",
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
    task : Task
        Task: classification or regression.
    standardize : bool
        Scale the columns of all clients' tables to mean 0 and standard deviation 1 by exact sums.
        Tokens are not scaled.
    reserved : tuple of labels
        Classes that may occur later.
    checkpoint : Checkpoint, optional
        Receives each stage; may contain the stage of an interrupted training.
    opening : message, optional
        Request for the schema; by default a :class:`ClientSchemaRequest`.

    Yields
    ------
    Ask
        Schema; sums of columns if their units are needed; class counts, or sums and units of
        targets; rounds of training without held-out rows; scatter; the model for choosing mixtures;
        the pool's terms; class counts, or sums and units of targets, of all rows; rounds on all
        rows; scatter; the final model. Scatter is needed only for discriminants.

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
        If all clients together have no rows or fewer than two classes.
    """
    resumed = None if checkpoint is None else checkpoint.resume()
    replies = yield gather(opening or ClientSchemaRequest(network.digest))
    agreed = task.agree(replies.complete("the schema").each, reserved)
    averaging = Averaging(rounds, tuple(replies.each), checkpoint)
    standardize = standardize and not network.reads_tokens
    needs_discriminants = settings.uses_rows and task.has_discriminants and not network.reads_tokens
    center, scale, rate = np.empty(0), np.empty(0), 0.0
    if standardize or needs_discriminants:
        mean, deviation, rate = yield from column_units(standardize=standardize)
        if standardize:
            center, scale = mean, deviation
    n_rows, overall = yield from task.prepare(agreed, center, scale, held_out=True)
    stage = resumed or Stage(0, network.initial)
    chosen_on = stage.chosen_on
    if chosen_on is None:
        stage = yield from averaging.run_remaining(stage, n_rows)
        chosen_on = stage.weights if stage.best is None else stage.best.weights
        stage = Stage(0, network.initial, chosen_on, best=stage.best)
    features = (rounds.seed, rate) if needs_discriminants else None
    seen = yield from scatter_discriminants(features, overall, n_rows, held_out=True)
    yield from release(ReleaseRequest(chosen_on, overall, final=False, seen=seen))
    if settings.combine == "pool" and stage.pool is None:
        stage = replace(stage, pool=(yield from fit_pool(task.experts)))
    averaging.store(stage)
    n_rows, overall = yield from task.prepare(agreed, center, scale, held_out=False)
    stage = yield from averaging.run_remaining(stage, n_rows)
    seen = yield from scatter_discriminants(features, overall, n_rows, held_out=False)
    yield from release(ReleaseRequest(stage.weights, overall, True, stage.pool, seen))
    return Shared(stage.weights, agreed.classes, overall, stage.pool, center, scale, agreed, seen)


def column_units(*, standardize: bool) -> Generator[Ask, Replies, tuple[Floats, Floats, float]]:
    """Compute center and scale of columns, and the random features' rate.

    The rate is that of columns with this center and scale if they are standardized.
    """
    replies = yield total(ClientMomentsRequest())
    moments = replies.summed("the sums of columns")
    if moments.n_rows < 1:
        raise DataError("the clients have no rows to train on; add rows")
    mean, deviation = mean_and_deviation(moments)
    scale = np.where(deviation > 0, deviation, 1.0)
    return mean, scale, feature_rate(deviation / scale if standardize else deviation)


@dataclass(frozen=True)
class Averaging:
    """Federated averaging over the clients of one training."""

    rounds: RoundSettings
    names: tuple[str, ...]
    checkpoint: "Checkpoint | None"

    def store(self, stage: Stage) -> None:
        """Write a stage to the checkpoint, if any."""
        if self.checkpoint is not None:
            self.checkpoint.write(stage)

    def run_remaining(self, stage: Stage, n_rows: int) -> Generator[Ask, Replies, Stage]:
        """Run the remaining rounds of a pass; return its last stage.

        ``n_rows`` is the number of all clients' rows used in the pass.
        """
        rounds, bits = self.rounds, binary_places(n_rows)
        for index in range(stage.number, rounds.limit):
            if self._is_finished(stage):
                break
            request = TrainRequest(
                number=index,
                held_out=stage.held_out,
                regime=replace(rounds.regime, learning_rate=rounds.learning_rate(index)),
                seed=rounds.seed,
                bits=bits,
                weights=stage.weights,
            )
            replies = yield total(dict.fromkeys(rounds.participants(self.names, index), request))
            change = replies.summed(f"the changes of round {index + 1}").change
            weights = average_changes(stage.weights, change, n_rows=n_rows, bits=bits)
            stage = replace(stage, number=index + 1, weights=weights)
            if rounds.stops_at_plateau and stage.held_out:
                stage = yield from _compare_loss(stage)
            self.store(stage)
        return stage

    def _is_finished(self, stage: Stage) -> bool:
        """Return whether a pass has ended before the maximum number of rounds."""
        if stage.best is None:
            return False
        n_rounds = stage.best.number + self.rounds.patience * stage.held_out
        return stage.number >= n_rounds


def _compare_loss(stage: Stage) -> Generator[Ask, Replies, Stage]:
    """Return the stage, with its new best weights if any."""
    replies = yield total(LossRequest(stage.weights))
    reply = replies.summed("the loss of held-out rows")
    loss = float(np.ldexp(float(reply.loss), -FIXED_POINT)) / max(reply.n_rows, 1)
    if stage.best is not None and loss >= stage.best.loss:
        return stage
    return replace(stage, best=Best(stage.number, loss, stage.weights))


def scatter_discriminants(
    features: tuple[int, float] | None, overall: Floats, n_rows: int, *, held_out: bool
) -> Generator[Ask, Replies, Discriminants | None]:
    """Compute discriminants from the scatter of all clients.

    ``features`` is the seed and rate of the random features. If it is None, so is the result.
    """
    if features is None:
        return None
    random = RandomFeatures(*features, choose_n_features(n_rows))
    replies = yield total(ScatterRequest(held_out, random))
    reply = replies.summed("the scatter of classes")
    within, between = (
        _symmetric(half, random.n_features) for half in (reply.within, reply.between)
    )
    counts = overall * (n_rows + len(overall)) - 1
    n_present = int((counts > 0.5).sum())  # classes without rows have no scatter
    return Discriminants.fit(random, Scatter(within, between), n_present)


def _symmetric(upper: Integers, n: int) -> Floats:
    """Return the symmetric matrix of an upper triangle in fixed point."""
    matrix = np.zeros((n, n))
    matrix[upper_triangle(n)] = from_fixed_point(upper)
    return matrix + np.triu(matrix, 1).T


def from_fixed_point(values: Integers) -> Floats:
    """Return numbers from integers in fixed point."""
    return np.asarray(np.ldexp(values.astype(np.float64), -FIXED_POINT))


def release(request: ReleaseRequest) -> Generator[Ask, Replies, None]:
    """Send a model to all clients."""
    replies = yield gather(request)
    replies.complete("the model")


def fit_pool(experts: tuple[str, ...]) -> Generator[Ask, Replies, FittedPool]:
    """Fit a pool, and pools without each expert, from sums over clients."""
    n = len(experts)
    pools = [pool_steps(used) for used in (np.ones(n, bool), *~np.eye(n, dtype=bool))]
    asked = {index: next(steps) for index, steps in enumerate(pools)}
    fits: dict[int, tuple[Floats, float]] = {}
    while asked:
        replies = yield total(PoolRequest(np.stack(list(asked.values()))))
        reply = replies.summed("the pool's terms")
        sums = map(from_fixed_point, (reply.losses, reply.gradients, reply.hessians))
        for index, *terms in list(zip(asked, *sums, strict=True)):
            steps = pools[index]
            try:
                asked[index] = steps.send(PoolTerms(int(reply.n_rows), *terms))
            except StopIteration as stop:
                fits[index] = stop.value
                del asked[index]
    losses = [fits[index][1] for index in range(n + 1)]
    return FittedPool(experts, fits[0][0], losses[0], np.array(losses[1:]))
