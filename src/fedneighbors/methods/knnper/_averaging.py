"""Rounds of federated averaging: messages, progress, and the end at a plateau."""

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.federation._loop import Ask, Replies, total
from fedneighbors.federation._messages import message
from fedneighbors.methods.knnper._settings import RoundSettings
from fedneighbors.methods.knnper.algorithm import average_changes, binary_places
from fedneighbors.neural._schedule import Regime

if TYPE_CHECKING:  # imports this module
    from fedneighbors.methods.knnper._checkpoint import Checkpoint

Weights = npt.NDArray[np.floating[Any]]

FIXED_POINT = 32
"""Binary places of losses, scatter matrices and pool terms, which are sent as integers."""

MAX_EPOCHS = 1000
"""Maximum number of passes over the rows in a round; shared rounds use a few."""


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
    pool : float64 array of shape (n_experts,) or None
        Weights of the experts; None before they are chosen.
    best : Best or None
        Best stage of the first pass if training stops at a plateau of the held-out loss; the second
        pass has as many rounds.
    """

    number: int
    weights: Weights
    chosen_on: Weights | None = None
    pool: npt.NDArray[np.float64] | None = None
    best: Best | None = None

    @property
    def held_out(self) -> bool:
        """Return whether held-out rows are not used: this is the first pass."""
        return self.chosen_on is None


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
    """Return the stage, with its weights as the best if the loss fell."""
    replies = yield total(LossRequest(stage.weights))
    reply = replies.summed("the loss of held-out rows")
    loss = float(np.ldexp(float(reply.loss), -FIXED_POINT)) / max(reply.n_rows, 1)
    if stage.best is not None and loss >= stage.best.loss:
        return stage
    return replace(stage, best=Best(stage.number, loss, stage.weights))


def from_fixed_point(values: npt.NDArray[np.int64]) -> Floats:
    """Return numbers from integers in fixed point."""
    return np.asarray(np.ldexp(values.astype(np.float64), -FIXED_POINT))
