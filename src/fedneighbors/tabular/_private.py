"""Private training on tables: party with a ledger, coordinator, and cost.

A party charges its ledger for each reply before it draws noise. In a simulated federation, each
party has its own ledger.
"""

import math
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from fedneighbors._typing import Array, Floats
from fedneighbors.datasets._schema_columns import read_labels
from fedneighbors.federation._inprocess import run
from fedneighbors.federation._loop import Coordinator, Outcome, Replies, gather
from fedneighbors.federation._messages import Message, message
from fedneighbors.federation._release_gate import ReleaseGate, check_noise_shares
from fedneighbors.federation._reply_grid import REPLY_GRID_S
from fedneighbors.federation._roles import MaskedRound, Refused
from fedneighbors.privacy._guarantees import ZCDP, Guarantee, PureDP, Sensitivity, exact
from fedneighbors.privacy._policy import Privacy, terms
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.privacy.noise._calibration import guaranteed_shares, mechanism, shares, variance
from fedneighbors.records import Scalar
from fedneighbors.secure_sum._shares import default_threshold
from fedneighbors.tabular._ownership import Holdings, TableParty
from fedneighbors.tabular._schema import JointSchema, PublicSchemaRequest, SchemaReply, agree

R = TypeVar("R")


MAX_RUN_LENGTH = 100  # characters; with two digests, an id has at most 500 in a ledger


@message
class PaidRequest:
    """Request for a noisy reply, which the party charges to its ledger.

    ``run`` names the training; repeating a request in the same run costs nothing. ``n_shares`` is
    the minimum number of honest noise shares in a masked sum, 1 in plain mode.
    """

    run: str
    privacy: Mapping[str, str]
    n_shares: int

    def __post_init__(self) -> None:
        check_run(self.run)


def check_run(run: str) -> None:
    """Raise ValueError for an invalid name of a training."""
    if not (0 < len(run) <= MAX_RUN_LENGTH and run.isprintable()):
        raise ValueError(f"the name of a training must have 1 to {MAX_RUN_LENGTH} characters")


class PrivateTableParty(TableParty, ABC):
    """One organisation's table with a ledger.

    Its replies are noisy. They are charged to the ledger before the noise is drawn, and stored
    there: a repeated request in the same run gets the same reply, as long as the rows are the same.

    No row makes a request fail: rows are clipped or dropped beforehand, and an invalid request is
    refused before the charge. If a release fails after the charge, the charge stands, and the
    refusal does not name the cause.

    Parameters
    ----------
    name, x, y, *others
        As for the method's party without privacy.
    privacy : Privacy
        Terms of this party; a request with other terms is refused.
    ledger : Ledger
        Ledger with the budget of the data set.
    dataset, user : str
        Names under which the ledger is charged.
    bits : callable
        Source of randomness for the noise. Replace the operating system's in tests only.
    reply_grid_s : float
        Step of the grid of times on which the party replies in a process of its own, in seconds,
        0 or more.
    **table
        The other arguments of the party.

    Raises
    ------
    ValueError
        If the classes are not declared.
    """

    method: ClassVar[str]
    """Name of the method in the ledger."""

    def __init__(
        self,
        name: str,
        x: Any,
        y: Array,
        *others: Any,
        privacy: Privacy,
        ledger: Ledger,
        dataset: str = "table",
        user: str = "coordinator",
        bits: Callable[[int], bytes] = os.urandom,
        reply_grid_s: float = REPLY_GRID_S,
        **table: Any,
    ) -> None:
        if len(y) != x.shape[0]:
            raise ValueError(f"expected one label for each of {x.shape[0]} rows, got {len(y)}")
        privacy.check_classes()
        labels, known = read_labels(y, privacy.classes or ())
        super().__init__(
            name, *self._clean_rows(x[known], labels[known], privacy), *others, **table
        )
        self._privacy = privacy
        self._gate = ReleaseGate(self.method, name, ledger, dataset, user, self.table_digest)
        self._bits = bits
        self.reply_grid_s = reply_grid_s

    @staticmethod
    @abstractmethod
    def _clean_rows(x: Any, y: Array, privacy: Privacy) -> tuple[Any, Array]:
        """Return the usable rows, clipped to the agreed bounds, and their labels."""

    def _schema(self) -> SchemaReply:
        """Return the schema, which depends on no row."""
        kinds = ("number",) * math.prod(self._x.shape[1:])
        return SchemaReply(self._feature_names, kinds, self._label_name, "none", ())

    def _check_terms(self, request: Any) -> None:
        if dict(request.privacy) != terms(self._privacy):
            raise Refused("the privacy terms differ from the agreed ones")

    def _check_classes(self, classes: tuple[Any, ...], *, minimum: int = 0) -> None:
        if len(classes) < minimum or not set(self._privacy.classes or ()) <= set(classes):
            raise Refused("a declared class is missing")


class ChargedReplies(ABC):
    """Noisy replies of a private party, charged before the noise is drawn."""

    _gate: ReleaseGate
    _privacy: Privacy
    _check_terms: Callable[[Any], None]

    @abstractmethod
    def sensitivity(self, request: Any) -> Sensitivity:
        """Return the stated sensitivity of a charged reply to one row."""

    @abstractmethod
    def _offer(self, request: Any, n_shares: int | None) -> tuple[Guarantee, Callable[[], Message]]:
        """Return a reply's cost and the function that draws the reply.

        The function is called after the charge.
        """

    def contribute(self, request: Message, masked: MaskedRound) -> Message:
        """Return the reply with this party's noise share, for a masked sum.

        Every attempt at a sum is a separate release. Otherwise the difference of two sums over
        different parties would reveal noise shares.
        """
        check_noise_shares(masked, n_shares=request.n_shares, colluders=self._privacy.colluders)
        return self._charge_and_draw(request, attempt=masked.id, n_shares=request.n_shares)

    def _charge_and_draw(
        self, request: Any, *, attempt: str = "", n_shares: int | None = None
    ) -> Message:
        """Charge for a reply, draw, store and return it."""
        self._check_terms(request)
        cost, draw = self._offer(request, n_shares)
        return self._gate.release(request, attempt=attempt, cost=cost, draw=draw)


def flush_subnormal(x: Array) -> Array:
    """Set values that are subnormal as float32 to 0.

    They slow arithmetic down.
    """
    if x.dtype.kind != "f":
        return x
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, x.dtype.type(0), x)


def column_bounds(bounds: tuple[Any, Any], n_features: int) -> tuple[Floats, Floats]:
    """Return the public lowest and highest value of each column.

    Raises
    ------
    ValueError
        If they are not finite numbers in order, one for all columns or one per column.
    """
    low, high = (np.asarray(bound, np.float64) for bound in bounds)
    for bound in (low, high):
        if bound.shape not in ((), (n_features,)) or not np.isfinite(bound).all():
            raise ValueError(
                f"expected bounds as finite numbers, one or {n_features} of them, got {bound!r}"
            )
    with np.errstate(over="ignore"):
        if (low > high).any() or not np.isfinite(high - low).all():
            raise ValueError("expected low bounds below the high ones, within a finite range")
    return np.broadcast_to(low, n_features).copy(), np.broadcast_to(high, n_features).copy()


@dataclass(frozen=True)
class PrivateTraining:
    """A private training; base class of the methods' coordinators.

    Parameters
    ----------
    privacy : Privacy
        Terms that all parties have accepted.
    schema : JointSchema
        Columns and classes.
    run : str
        Name of the training; a reply is charged once per name.
    n_parties : int
        Number of participating parties.
    """

    privacy: Privacy
    schema: JointSchema
    run: str
    n_parties: int

    @classmethod
    def begin(
        cls, privacy: Privacy, run: str | None, *, reserved: tuple[Any, ...] = (), **more: Any
    ) -> Coordinator[Self]:
        """Request the schemas and return the training.

        Parameters
        ----------
        privacy : Privacy
            Terms that all parties have accepted.
        run : str or None
            Name of the training; None draws a random one.
        reserved : tuple of labels
            Labels to reserve in addition to the agreed classes.
        **more
            Other fields of the class.
        """
        replies = yield gather(PublicSchemaRequest())
        schemas = replies.complete("the schema").each
        schema = agree(schemas, tuple(sorted({*reserved, *(privacy.classes or ())})))
        if privacy.n_parties not in (None, len(schemas)):
            raise ValueError(
                f"expected the {privacy.n_parties} parties that privacy names, got {len(schemas)}"
            )
        name = secrets.token_hex(16) if run is None else run
        return cls(privacy, schema, name, len(schemas), **more)

    @property
    def guarantee(self) -> str:
        """Return a description of the model's privacy."""
        privacy = self.privacy
        return f"{privacy.total}; {privacy.neighbors} of one row; {privacy.mechanism}"

    @property
    def request_fields(self) -> tuple[str, dict[str, str], int]:
        """Return the common first fields of charged requests."""
        return self.run, terms(self.privacy), self.n_shares

    @property
    def is_masked(self) -> bool:
        """Return whether the parties send noise shares in masked sums."""
        return self.privacy.mechanism == "central" and self.n_parties > 1

    @property
    def n_shares(self) -> int:
        """Return the minimum number of honest noise shares, 1 without masks."""
        if not self.is_masked:
            return 1
        return guaranteed_shares(
            n_invited=self.n_parties,
            threshold=default_threshold(self.n_parties),
            colluders=self.privacy.colluders,
        )

    def check_missing(self, replies: Replies, during: str) -> Any:
        """Return the replies; raise PartyMissing if a party is missing.

        A masked sum may lack parties.
        """
        if self.is_masked and replies.total is not None:
            return replies
        return replies.complete(during)

    def variance(
        self, budget: PureDP | ZCDP, sensitivity: Sensitivity, *, n_cells: int, n_summed: int
    ) -> float:
        """Return the variance of the noise on one cell of a sum.

        Parameters
        ----------
        budget : PureDP or ZCDP
            Budget of the release.
        sensitivity : Sensitivity
            Sensitivity of the release.
        n_cells : int
            Cells of the release.
        n_summed : int
            Parties in the sum.
        """
        if not self.is_masked:
            return variance(mechanism(budget, sensitivity), n_summed=n_summed)
        noise = shares(budget, sensitivity, n_shares=self.n_shares, n_cells=n_cells)
        return variance(noise, n_summed=n_summed)


def run_private(
    coordinator: Coordinator[R],
    holdings: Holdings,
    make: Callable[..., Any],
    privacy: Privacy,
    *,
    n_threads: int = 1,
) -> tuple[Outcome[R], dict[str, Scalar]]:
    """Return a private training's outcome and its cost for the record.

    Each party has a ledger with the budget of this training only, deleted at the end.

    Parameters
    ----------
    coordinator : Coordinator
        Coordinator of the training.
    holdings : Holdings
        The table and its owners.
    make : callable
        Function that creates a party; takes ``privacy`` and ``ledger`` besides the usual arguments.
    privacy : Privacy
        The budget.
    n_threads : int
        Number of threads.
    """
    with ExitStack() as stack:
        ledgers: dict[str, Ledger] = {}

        def make_with_ledger(name: str, *table: Any, **options: Any) -> Any:
            ledgers[name] = stack.enter_context(Ledger(":memory:", party=name))
            ledgers[name].set_budget("table", privacy.total)
            return make(name, *table, privacy=privacy, ledger=ledgers[name], **options)

        parties = holdings.parties(make_with_ledger, n_threads=n_threads)
        masked = privacy.mechanism == "central" and len(parties) > 1
        outcome = run(
            coordinator, parties, n_workers=n_threads, sums="masked" if masked else "plain"
        )
        spent = {name: str(ledger.spent("table")) for name, ledger in ledgers.items()}
    return outcome, cost_record(privacy, spent)


def declared_facts(privacy: Privacy) -> str:
    """Return the facts that the user declared, for a record."""
    if privacy.schema is not None:
        return f"schema {privacy.schema.name or privacy.schema.digest}"
    return "classes" if privacy.bounds is None else "classes, bounds"


def cost_record(privacy: Privacy, spent: Mapping[str, str]) -> dict[str, Scalar]:
    """Return the privacy of a run for its record."""
    divided = privacy.mechanism == "paper" and privacy.accounting == "paper"
    return {
        "epsilon": float(exact(privacy.epsilon, "epsilon")),
        "delta": float(exact(privacy.delta, "delta")),
        "neighbors": f"{privacy.neighbors}, one row of one party",
        "mechanism": privacy.mechanism,
        "composition": "parties in parallel, for their rows are disjoint; releases of one add up",
        "declared": declared_facts(privacy),
        "spent by each party": ", ".join(sorted(set(spent.values()))),
        "accounting": f"epsilon / {len(spent)} each, as printed" if divided else "epsilon each",
    }
