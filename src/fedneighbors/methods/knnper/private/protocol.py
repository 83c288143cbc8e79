"""Messages and coordinator of kNN-Per under a privacy budget: noisy counts and private steps.

The network is trained once, without the held-out rows. The clients choose their mixtures on the
held-out rows and build their memories from all rows. A second training on all rows, as without
privacy, would need its own part of the budget, and the additional noise would cost more accuracy
than the held-out rows add.
"""

import secrets
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.federation._loop import Ask, Coordinator, Replies, gather, total
from fedneighbors.federation._messages import message
from fedneighbors.methods.knnper._settings import RoundSettings
from fedneighbors.methods.knnper.algorithm import average_changes, binary_places
from fedneighbors.methods.knnper.protocol import (
    ReleaseRequest,
    Shared,
    UpdateReply,
    check_round,
    check_units,
)
from fedneighbors.neural._network import Network
from fedneighbors.neural._schedule import Regime
from fedneighbors.privacy._policy import Privacy, terms
from fedneighbors.tabular._private import check_run, column_bounds
from fedneighbors.tabular._schema import Label, Receipt, SchemaReply, agree, check_n_classes


@message
class PublicClientSchemaRequest:
    """Request for the schema without labels, which are declared."""

    layout: str

    reply: ClassVar[type] = SchemaReply


@message
class NoisedCountsReply:
    """Noisy class counts of a client, and the sum of these counts, but at least 1 (``n_rows``)."""

    n_rows: int
    counts: Integers


@message
class NoisedCountsRequest:
    """Request for noisy class counts.

    ``run`` names the training; a repeated request in the same run gets the same reply. ``center``
    and ``scale`` scale columns from public bounds to [-1, 1]; both are empty for no scaling.
    """

    run: str
    privacy: Mapping[str, str]
    classes: tuple[Label, ...]
    center: Floats
    scale: Floats

    reply: ClassVar[type] = NoisedCountsReply
    noised: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_run(self.run)
        check_n_classes(len(self.classes))
        check_units(self.center, self.scale)


MAX_ROUNDS = 10_000
"""Maximum number of private rounds; more would leave each step almost no budget."""


@message
class BeginRequest:
    """Announcement of all training steps, which the client charges before the first.

    ``numbers`` are the rounds in which the client trains, counted from 0. ``bound`` is the maximum
    norm of a row's gradient.
    """

    run: str
    privacy: Mapping[str, str]
    numbers: tuple[int, ...]
    epochs: int
    batch_size: int
    bound: float

    reply: ClassVar[type] = Receipt

    def __post_init__(self) -> None:
        check_run(self.run)
        check_round(min(self.numbers, default=0), self.epochs)
        if len(set(self.numbers)) < len(self.numbers) or len(self.numbers) > MAX_ROUNDS:
            raise ValueError(f"expected at most {MAX_ROUNDS} rounds, each once")
        if self.batch_size < 1 or self.bound <= 0:
            raise ValueError("expected batch_size and bound above 0")


@message
class PrivateTrainRequest:
    """Request for one round of announced private steps; fields as in :class:`TrainRequest`."""

    run: str
    number: int
    regime: Regime
    bits: int
    weights: npt.NDArray[np.floating[Any]]

    reply: ClassVar[type] = UpdateReply
    noised: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_run(self.run)
        check_round(self.number, self.regime.epochs, self.bits)


_UNUSED_FIELDS = ("n_picks", "n_parties", "accounting", "colluders")
"""Fields of Privacy that apply to other methods only."""


def check_supported(privacy: Privacy) -> None:
    """Raise unless kNN-Per supports the privacy settings.

    Raises
    ------
    ValueError
        If a setting is not supported or has no effect, or the classes are neither listed nor
        declared public.
    """
    if privacy.mechanism != "local":
        raise ValueError(
            f"each client adds noise to its own steps, got mechanism={privacy.mechanism!r}; use "
            "mechanism='local'"
        )
    if privacy.neighbors != "add_remove":
        raise ValueError(
            "private steps support neighbors that differ by one added or removed row, got "
            f"neighbors={privacy.neighbors!r}; use neighbors='add_remove'"
        )
    if not privacy.delta:
        raise ValueError(
            "private steps add Gaussian noise, which needs a delta above 0, well below one "
            "divided by the number of a client's rows, such as 1e-5"
        )
    privacy.check_fields("kNN-Per", _UNUSED_FIELDS)
    privacy.check_classes()


def scaling_of(privacy: Privacy, n_features: int) -> tuple[Floats, Floats]:
    """Return center and scale that map public bounds to [-1, 1].

    Raises
    ------
    ValueError
        If bounds are missing, or their number is not that of the columns.
    """
    if privacy.bounds is None:
        raise ValueError(
            "means and standard deviations of columns depend on rows, and no budget is set aside "
            "for them: pass the columns' range as Privacy(bounds=(low, high)), or standardize=False"
        )
    low, high = column_bounds(privacy.bounds, n_features)
    half = (high - low) / 2
    return (low + high) / 2, np.where(half > 0, half, 1.0)


@dataclass(frozen=True)
class PrivateRounds:
    """Settings of the shared network's private training.

    Parameters
    ----------
    rounds : RoundSettings
        Rounds, participation, and settings of local training.
    bound : float
        Maximum norm of a row's gradient, above 0.
    privacy : Privacy
        Budget and public facts; clients refuse requests with other terms than their own.
    """

    rounds: RoundSettings
    bound: float
    privacy: Privacy

    def __post_init__(self) -> None:
        if isinstance(self.bound, bool) or not 0 < self.bound < np.inf:
            raise ValueError(f"expected max_grad_norm above 0, got {self.bound!r}")
        if self.rounds.stops_at_plateau:
            raise ValueError("sums of held-out losses are not private; set n_rounds to a number")
        if self.rounds.regime.proximal:
            raise ValueError("private steps have no proximal term; leave it at 0")
        check_supported(self.privacy)


def coordinate_private(
    training: PrivateRounds,
    network: Network,
    *,
    scaling: tuple[Floats, Floats] = (np.empty(0), np.empty(0)),
    run: str | None = None,
) -> Coordinator[Shared]:
    """Train one network within each client's privacy budget, and release it.

    Parameters
    ----------
    training : PrivateRounds
        Training settings.
    network : Network
        Network of all clients; training begins at its weights.
    scaling : pair of float64 arrays of shape (n_features,)
        Center and scale of columns, from :func:`scaling_of`; both empty for no scaling.
    run : str, optional
        Name of this training. Clients charge a training with a new name. With the name of an
        interrupted training, they repeat the replies that they have sent. Random if None.

    Yields
    ------
    Ask
        Schema, noisy class counts, announcement of the steps, rounds of private steps, the network.

    Returns
    -------
    Shared

    Raises
    ------
    SchemaMismatch, PartyMissing
        As without privacy.
    PartyRefused
        If a client's budget is too small; that client has not trained.
    """
    privacy, rounds = training.privacy, training.rounds
    name = secrets.token_hex(16) if run is None else run
    replies = yield gather(PublicClientSchemaRequest(network.digest))
    schemas = replies.complete("the schema").each
    agreed = agree(schemas, tuple(sorted(privacy.classes or ())))
    replies = yield total(NoisedCountsRequest(name, terms(privacy), agreed.classes, *scaling))
    counts = replies.summed("the class counts")
    names = tuple(schemas)
    yield from _begin(training, name, names)
    weights, bits = network.initial, binary_places(counts.n_rows)
    for index in range(rounds.limit):
        regime = replace(rounds.regime, learning_rate=rounds.learning_rate(index))
        request = PrivateTrainRequest(name, index, regime, bits, weights)
        replies = yield total(dict.fromkeys(rounds.participants(names, index), request))
        change = replies.summed(f"the changes of round {index + 1}").change
        weights = average_changes(weights, change, n_rows=counts.n_rows, bits=bits)
    positive = np.maximum(counts.counts, 0)  # noise may make a count negative
    overall = np.asarray((positive + 1) / (positive.sum() + len(positive)))
    replies = yield gather(ReleaseRequest(weights, overall, final=True))
    replies.complete("the model")
    return Shared(weights, agreed.classes, overall, None, *scaling, agreed)


def _begin(
    training: PrivateRounds, run: str, names: Sequence[str]
) -> Generator[Ask, Replies, None]:
    """Send each client the rounds in which it trains."""
    rounds = training.rounds
    rounds_of: dict[str, list[int]] = {name: [] for name in names}
    for index in range(rounds.limit):
        for name in rounds.participants(names, index):
            rounds_of[name].append(index)
    replies = yield gather(
        {
            name: BeginRequest(
                run=run,
                privacy=terms(training.privacy),
                numbers=tuple(numbers),
                epochs=rounds.regime.epochs,
                batch_size=rounds.regime.batch_size,
                bound=float(training.bound),
            )
            for name, numbers in rounds_of.items()
        }
    )
    replies.complete("the announcement of steps")
