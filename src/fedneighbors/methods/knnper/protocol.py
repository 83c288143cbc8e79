"""kNN-Per's coordinator: a shared model by federated averaging, then memories (Algorithm 1).

What the clients see of one another are sums: of class counts, of changes of weights, of the scatter
of random features, and of the terms from which a pool is weighed. Rows, embeddings, memories and
mixtures never leave a client.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats
from fedneighbors.errors import DataError
from fedneighbors.federation._messages import Message
from fedneighbors.federation._roles import Ask, Coordinator, Replies, gather, total
from fedneighbors.methods.knnper._client import FIXED_POINT
from fedneighbors.methods.knnper._messages import (
    MomentsRequest,
    PoolRequest,
    ReleaseRequest,
    ScatterRequest,
    SchemaRequest,
    TrainRequest,
)
from fedneighbors.methods.knnper._settings import RoundSettings
from fedneighbors.methods.knnper._tasks import CLASSES, Task
from fedneighbors.methods.knnper.algorithm import averaged, scale_bits
from fedneighbors.methods.knnper.personal._discriminants import (
    Discriminants,
    RandomFeatures,
    Scatter,
    feature_rate,
    n_features_for,
    triangle,
)
from fedneighbors.methods.knnper.personal._pool import PoolTerms
from fedneighbors.tabular._schema import Agreed, Label, mean_and_deviation


def _nothing() -> Floats:
    return np.empty(0)


@dataclass(frozen=True, eq=False)
class Frame:
    """How columns are brought to one scale.

    Parameters
    ----------
    center, scale : float64 array of shape (n_features,)
        Means and deviations; empty if columns are left as they are.
    rate : float
        Of random features of rows that are brought there.
    """

    center: Floats = field(default_factory=_nothing)
    scale: Floats = field(default_factory=_nothing)
    rate: float = 0.0


def framed(*, standardize: bool) -> Generator[Ask, Replies, Frame]:
    """Find mean and deviation of each column by exact sums.

    Parameters
    ----------
    standardize : bool
        Bring columns to mean 0 and deviation 1, constant ones to 0; otherwise they stay.

    Raises
    ------
    DataError
        If the clients hold no rows.
    """
    replies = yield total(MomentsRequest())
    found = replies.summed("the sums of columns")
    if found.n_rows < 1:
        raise DataError("the clients hold no rows to train on; give them rows")
    mean, deviation = mean_and_deviation(found)
    if not standardize:
        return Frame(rate=feature_rate(deviation))
    scale = np.where(deviation > 0, deviation, 1.0)
    return Frame(mean, scale, feature_rate(deviation / scale))


def discriminants(
    looked: tuple[Frame, int] | None, overall: Floats, n_rows: int, *, held_out: bool
) -> Generator[Ask, Replies, Discriminants | None]:
    """Find what tells classes apart at every client, by sums of scatter alone.

    Parameters
    ----------
    looked : tuple of Frame and int, or None
        Frame of the columns, and seed of random features; None if nothing is to be found.
    overall : float64 array of shape (n_classes,)
        Shares of the classes over all clients, with one row of each class added.
    n_rows : int
        Rows of all clients whose scatter is summed.
    held_out : bool
        Whether held-out rows are left out.
    """
    if looked is None:
        return None
    frame, seed = looked
    features = RandomFeatures(seed, frame.rate, n_features_for(n_rows))
    request = ScatterRequest(held_out, features.seed, features.rate, features.n_features)
    replies = yield total(request)
    found = replies.summed("the scatter of classes")
    within, between = (_whole(part, features.n_features) for part in (found.within, found.between))
    counts = overall * (n_rows + len(overall)) - 1
    n_present = int((counts > 0.5).sum())  # classes that may come later scatter nowhere
    return Discriminants.best(features, Scatter(within, between), n_present)


def _whole(upper: npt.NDArray[np.int64], n: int) -> Floats:
    """Return the symmetric matrix of an upper triangle in fixed point."""
    whole = np.zeros((n, n))
    whole[triangle(n)] = np.ldexp(upper.astype(np.float64), -FIXED_POINT)
    return whole + np.triu(whole, 1).T


Weights = npt.NDArray[np.floating[Any]]
Steps = Generator[Ask, Replies, Weights]


@dataclass(frozen=True, eq=False)
class Shared:
    """What all clients have in common at the end.

    Parameters
    ----------
    weights : float array of shape (n_weights,)
        Of the network.
    classes : tuple of labels
        Ascending; none where numbers are predicted.
    overall : float64 array of shape (n_classes,) or (2, n_outputs)
        Shares of the classes over all clients, with one row of each class added; or means and
        deviations of the targets.
    pool : float64 array of shape (n_experts,) or None
        Weights of the experts; None for the paper's mixture.
    center, scale : float64 array of shape (n_features,)
        Of the columns of a table; empty if they are left as they are.
    agreed : Agreed
        What the clients' tables have in common.
    seen : Discriminants or None
        What all clients' scatter tells of a row, for a pool that looks at rows.
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
    """How far a training has come, so that it can go on from there.

    Parameters
    ----------
    number : int
        Rounds that are done. The first stage leaves held-out rows out, the second does not.
    weights : float array of shape (n_weights,)
        Of the network after them.
    chosen_on : float array of shape (n_weights,) or None
        Weights on which mixtures are chosen, once they are there: those of the first stage.
    pool : float64 array of shape (n_experts,) or None
        Weights of the experts, once they are chosen.
    """

    number: int
    weights: Weights
    chosen_on: Weights | None = None
    pool: npt.NDArray[np.float64] | None = None

    @property
    def held_out(self) -> bool:
        """Whether held-out rows are left out."""
        return self.chosen_on is None


Keep = Callable[[Stage], None]


def coordinate(
    rounds: RoundSettings,
    layout: str,
    initial: Weights,
    names: Sequence[str],
    *,
    combine: str = "paper",
    standardize: bool = False,
    discriminate: bool = False,
    kind: Task = CLASSES,
    reserved: tuple[Label, ...] = (),
    resumed: Stage | None = None,
    keep: Keep = lambda _stage: None,
    opening: Message | None = None,
) -> Coordinator[Shared]:
    """Train a shared model, choose mixtures on held-out rows, and train it anew on all rows.

    Parameters
    ----------
    rounds : RoundSettings
        Of the shared model.
    layout : str
        Digest of the network, which all clients must have.
    initial : float array of shape (n_weights,)
        Where training begins.
    names : sequence of str
        The clients.
    combine : {"paper", "pool"}
        Each client's own lambda (Eq 7), or a log-linear pool with weights for all.
    standardize : bool
        Bring the columns of all clients' tables to mean 0 and deviation 1, by exact sums.
    discriminate : bool
        Find what tells classes apart at every client, for a pool that looks at rows.
    kind : Task
        What is learned: classes or numbers.
    reserved : tuple of labels
        Classes that may come later.
    resumed : Stage, optional
        Where an interrupted training had come to.
    keep : callable
        Told every stage that is reached.
    opening : message, optional
        Request for the schema, if not a :class:`SchemaRequest`.

    Yields
    ------
    Ask
        Schema; sums of columns, to standardize; class counts, or sums of targets; rounds of
        training on the rows that are not held out; their scatter; the model, on which clients
        choose; the pool's terms; rounds on all rows; their scatter; the final model.

    Returns
    -------
    Shared

    Raises
    ------
    SchemaMismatch
        If a client's rows differ from the others'.
    PartyMissing
        If a client does not answer; nothing is released.
    DataError
        If the clients hold no rows or fewer than two classes together.
    """
    replies = yield gather(SchemaRequest(layout) if opening is None else opening)
    agreed = kind.agreed(replies.complete("the schema").each, reserved)
    frame = Frame()
    if standardize or discriminate:
        frame = yield from framed(standardize=standardize)
    center, scale = frame.center, frame.scale
    n_rows, overall = yield from kind.prepared(agreed, center, scale, held_out=True)
    stage = resumed or Stage(0, initial)
    chosen_on = stage.chosen_on
    if chosen_on is None:
        stage = yield from train_rounds(rounds, stage, names, n_rows, keep=keep)
        chosen_on = stage.weights
        stage = Stage(0, initial, chosen_on)
    looked = (frame, rounds.seed) if discriminate else None
    seen = yield from discriminants(looked, overall, n_rows, held_out=True)
    yield from _released(ReleaseRequest.of(chosen_on, overall, seen=seen, final=False))
    if combine == "pool" and stage.pool is None:
        stage = replace(stage, pool=(yield from _pool_weights(kind)))
    keep(stage)
    n_rows, overall = yield from kind.prepared(agreed, center, scale, held_out=False)
    stage = yield from train_rounds(rounds, stage, names, n_rows, keep=keep)
    seen = yield from discriminants(looked, overall, n_rows, held_out=False)
    yield from _released(ReleaseRequest.of(stage.weights, overall, stage.pool, seen, final=True))
    return Shared(stage.weights, agreed.classes, overall, stage.pool, center, scale, agreed, seen)


def train_rounds(
    rounds: RoundSettings, stage: Stage, names: Sequence[str], n_rows: int, *, keep: Keep
) -> Generator[Ask, Replies, Stage]:
    """Go on with federated averaging to its last round.

    Parameters
    ----------
    rounds : RoundSettings
        How.
    stage : Stage
        Where to go on.
    names : sequence of str
        All clients.
    n_rows : int
        Rows of all of them.
    keep : callable
        Told the stage after each round.
    """
    bits = scale_bits(n_rows)
    for number in range(stage.number, rounds.n_rounds):
        request = _training(rounds, stage, bits)
        chosen = rounds.participants(names, number)
        replies = yield total(dict.fromkeys(chosen, request))
        change = replies.summed(f"the changes of round {number + 1}").change
        weights = averaged(stage.weights, change, n_rows=n_rows, bits=bits)
        stage = replace(stage, number=number + 1, weights=weights)
        keep(stage)
    return stage


def _training(rounds: RoundSettings, stage: Stage, bits: int) -> TrainRequest:
    regime = rounds.regime
    return TrainRequest(
        number=stage.number,
        held_out=stage.held_out,
        learning_rate=rounds.learning_rate(stage.number),
        epochs=regime.epochs,
        batch_size=regime.batch_size,
        momentum=regime.momentum,
        weight_decay=regime.weight_decay,
        proximal=regime.proximal,
        seed=rounds.seed,
        bits=bits,
        weights=stage.weights,
    )


def _released(request: ReleaseRequest) -> Generator[Ask, Replies, None]:
    replies = yield gather(request)
    replies.complete("the model")


def _pool_weights(kind: Task) -> Generator[Ask, Replies, npt.NDArray[np.float64]]:
    """Find the weights of the experts, by sums of gradients and Hessians alone."""
    steps = kind.pool_steps()
    weights = next(steps)
    while True:
        replies = yield total(PoolRequest(weights))
        try:
            weights = steps.send(_terms(replies.summed("the pool's terms")))
        except StopIteration as stop:
            return np.asarray(stop.value)


def _terms(reply: Message) -> PoolTerms:
    return PoolTerms(
        n_rows=int(reply.n_rows),
        loss=float(np.ldexp(float(reply.loss), -FIXED_POINT)),
        gradient=np.ldexp(reply.gradient.astype(np.float64), -FIXED_POINT),
        hessian=np.ldexp(reply.hessian.astype(np.float64), -FIXED_POINT),
    )
