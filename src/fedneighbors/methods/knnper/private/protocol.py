"""Coordinator of kNN-Per under a privacy budget: noisy counts and private steps.

The network is trained once, without the held-out rows. The clients choose their mixtures on the
held-out rows and build their memories from all rows. A second training on all rows, as without
privacy, would have to be charged as well, which costs more than a fifth of the rows is worth.
"""

import secrets
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats
from fedneighbors.federation._loop import Ask, Coordinator, Replies, gather, total
from fedneighbors.federation._messages import message
from fedneighbors.methods.knnper._settings import RoundSettings
from fedneighbors.methods.knnper.algorithm import average_changes, scale_bits
from fedneighbors.methods.knnper.protocol import ReleaseRequest, Shared, UpdateReply
from fedneighbors.neural._network import Network
from fedneighbors.neural._schedule import Regime
from fedneighbors.privacy._policy import Privacy, terms
from fedneighbors.tabular._private import column_bounds
from fedneighbors.tabular._schema import Label, Receipt, Schema, agree


@message
class PublicClientSchemaRequest:
    """Request for the schema without labels, which are declared."""

    layout: str

    reply: ClassVar[type] = Schema


@message
class NoisedCountsReply:
    """Noisy class counts and the clients' effective row counts, summed.

    ``n_rows`` is the sum of the client's noisy counts, at least 1; it depends only on them.
    """

    n_rows: int
    counts: npt.NDArray[np.int64]


@message
class NoisedCountsRequest:
    """Request for noisy class counts.

    ``run`` names the training; a repeated request in the same run gets the same reply. ``center``
    and ``scale`` standardize columns from public bounds; both are empty for no standardization.
    """

    run: str
    privacy: Mapping[str, str]
    classes: tuple[Label, ...]
    center: npt.NDArray[np.float64]
    scale: npt.NDArray[np.float64]

    reply: ClassVar[type] = NoisedCountsReply
    noised: ClassVar[bool] = True


@message
class BeginRequest:
    """Announcement of all steps, which the client charges before the first.

    ``numbers`` are the rounds of the client, ``bound`` is the maximum norm of a row's gradient.
    """

    run: str
    privacy: Mapping[str, str]
    numbers: tuple[int, ...]
    epochs: int
    batch_size: int
    bound: float

    reply: ClassVar[type] = Receipt


@message
class PrivateTrainRequest:
    """Request for one round of announced private steps."""

    run: str
    number: int
    regime: Regime
    bits: int
    weights: npt.NDArray[np.floating[Any]]

    reply: ClassVar[type] = UpdateReply
    noised: ClassVar[bool] = True


_IDLE = ("n_picks", "n_parties", "accounting", "colluders")
"""Fields of Privacy that apply to other methods only."""


def check_payable(privacy: Privacy) -> None:
    """Raise unless this method supports the privacy settings.

    All required facts must be declared.

    Raises
    ------
    ValueError
        If it does not.
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
            "divided by the rows of a client, such as 1e-5"
        )
    privacy.check_fields("kNN-Per", _IDLE)
    privacy.check_classes()


def scaling_of(privacy: Privacy, n_features: int) -> tuple[Floats, Floats]:
    """Return center and scale from public bounds to [-1, 1].

    Raises
    ------
    ValueError
        If bounds are missing, or do not fit the columns.
    """
    if privacy.bounds is None:
        raise ValueError(
            "means and standard deviations of columns depend on rows and are not charged: pass the "
            "columns' range as Privacy(bounds=(low, high)), or standardize=False"
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
        Rounds, participation, and local training of a client.
    bound : float
        Maximum norm of a row's gradient, above 0.
    privacy : Privacy
        Budget and public facts; every client must have accepted the same.
    """

    rounds: RoundSettings
    bound: float
    privacy: Privacy

    def __post_init__(self) -> None:
        if isinstance(self.bound, bool) or not 0 < self.bound < np.inf:
            raise ValueError(f"expected max_grad_norm above 0, got {self.bound!r}")
        if self.rounds.regime.proximal:
            raise ValueError("private steps have no proximal term; leave it at 0")
        check_payable(self.privacy)


def coordinate_private(
    training: PrivateRounds,
    network: Network,
    *,
    frame: tuple[Floats, Floats] = (np.empty(0), np.empty(0)),
    run: str | None = None,
) -> Coordinator[Shared]:
    """Train one network within each client's privacy budget, and release it.

    Parameters
    ----------
    training : PrivateRounds
        Training settings.
    network : Network
        Network of all clients; training begins at its weights.
    frame : pair of float64 arrays of shape (n_features,)
        Center and scale of columns, from public facts; both empty for no standardization.
    run : str, optional
        Name of this training. A new name is a new release, which every client charges; the same
        name repeats the same replies, up to the interruption. Random if None.

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
        If a client's budget is too small; that client has trained nothing.
    """
    privacy, rounds = training.privacy, training.rounds
    name = secrets.token_hex(16) if run is None else run
    replies = yield gather(PublicClientSchemaRequest(network.digest))
    schemas = replies.complete("the schema").each
    agreed = agree(schemas, tuple(sorted(privacy.classes or ())))
    replies = yield total(NoisedCountsRequest(name, terms(privacy), agreed.classes, *frame))
    counts = replies.summed("the class counts")
    names = tuple(schemas)
    yield from _begin(training, name, names)
    weights, bits = network.initial, scale_bits(counts.n_rows)
    for number in range(rounds.n_rounds):
        regime = replace(rounds.regime, learning_rate=rounds.learning_rate(number))
        request = PrivateTrainRequest(name, number, regime, bits, weights)
        replies = yield total(dict.fromkeys(rounds.participants(names, number), request))
        change = replies.summed(f"the changes of round {number + 1}").change
        weights = average_changes(weights, change, n_rows=counts.n_rows, bits=bits)
    present = np.maximum(counts.counts, 0)
    overall = np.asarray((present + 1) / (present.sum() + len(present)))
    replies = yield gather(ReleaseRequest(weights, overall, final=True))
    replies.complete("the model")
    return Shared(weights, agreed.classes, overall, None, *frame, agreed)


def _begin(
    training: PrivateRounds, run: str, names: Sequence[str]
) -> Generator[Ask, Replies, None]:
    """Send each client the number of its rounds."""
    rounds = training.rounds
    takes_part: dict[str, list[int]] = {name: [] for name in names}
    for number in range(rounds.n_rounds):
        for name in rounds.participants(names, number):
            takes_part[name].append(number)
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
            for name, numbers in takes_part.items()
        }
    )
    replies.complete("the announcement of steps")
