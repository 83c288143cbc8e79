"""Federated training of FlyNN without noise: party and coordinator.

FlyNNFL, Algorithm 2 of Ram and Sinha (AAAI 2022). Six rounds: schema, exact moments, counts, hits
of the settings to choose from, calibration losses and finished model. The coordinator reads each
party's schema; of moments, counts, hits and losses it uses only the sums. Rows never leave a party.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors._limits import MAX_CELLS, MAX_STEPS
from fedneighbors._typing import Array, Integers
from fedneighbors.errors import DataError, ProtocolError
from fedneighbors.federation._loop import Coordinator, gather, total
from fedneighbors.federation._messages import Message, encode, message
from fedneighbors.federation._roles import Refused
from fedneighbors.kernels._exactsum import MAX_MAGNITUDE, N_SQUARE_LIMBS, N_SUM_LIMBS
from fedneighbors.methods.flynn._model import FlyNNModel
from fedneighbors.methods.flynn._scoring import HitRequest
from fedneighbors.methods.flynn._settings import FlyNNSettings
from fedneighbors.methods.flynn.algorithm import (
    DEFAULT_ACTIVE,
    HashPlan,
    calibration_rows,
    count_activations,
    hash_with_plan,
    leave_one_out,
    log_losses,
)
from fedneighbors.tabular._ownership import TableParty
from fedneighbors.tabular._schema import (
    Label,
    MomentsReply,
    Receipt,
    SchemaReply,
    agree,
    blocks,
    check_cells,
    column_moments,
)


@message
class MomentsRequest:
    """Request for the number of rows and exact moments of the columns.

    If ``with_columns`` is true, the reply also has each column's sum and sum of squares.
    """

    reply: ClassVar[type] = MomentsReply
    single_use: ClassVar[str] = "masked"
    with_columns: bool


def check_counts(plans: Sequence[HashPlan], classes: tuple[Label, ...], n_bits: int = 32) -> None:
    """Raise ValueError for too many counts, or an unsupported number of bits."""
    check_cells("counts", sum(plan.n_units for plan in plans), len(classes))
    if n_bits not in (8, 16, 32):
        raise ValueError(f"expected counts of 8, 16 or 32 bits, got {n_bits}")


@message
class CountReply:
    """Activations of each unit in each class, unsigned integers of shape (n_units, n_classes).

    The units of several plans follow each other.
    """

    counts: npt.NDArray[np.unsignedinteger]


@message
class CountRequest:
    """Hash plans and classes, and a request for counts as unsigned integers of ``n_bits`` bits.

    The counts under ``plan`` are followed by those under ``others``, of which one plan is chosen
    later. ``declared`` maps a party's name to the maximum number of rows that it declared in
    advance.
    """

    reply: ClassVar[type] = CountReply
    single_use: ClassVar[str] = "masked"
    plan: HashPlan
    classes: tuple[Label, ...]
    n_bits: int
    declared: Mapping[str, int]
    others: tuple[HashPlan, ...] = ()

    def __post_init__(self) -> None:
        check_counts(self.plans, self.classes, self.n_bits)
        kinds = {plan.features.expansion for plan in self.plans}
        if len(kinds) < len(self.plans) or len(set(map(_without_expansion, self.plans))) > 1:
            raise ValueError("plans differ in more than their expansions")

    @property
    def plans(self) -> tuple[HashPlan, ...]:
        """Return all plans."""
        return (self.plan, *self.others)

    def check(self, party: str, reply: CountReply) -> None:
        """Check that one party's counts are possible.

        Runtimes that see individual replies call this, so not under masked sums. Each row adds one
        to the counts of ``n_active`` units in its class, so a class of n rows has counts of at most
        n that sum to n times ``n_active``. A dishonest party can invent rows, but not more than it
        declared.

        Raises
        ------
        ValueError
            If the counts are impossible or exceed the declared rows.
        """
        for plan, counts in _split_counts(reply.counts, self.plans, len(self.classes)):
            sums, n_active = counts.sum(axis=0, dtype=np.int64), plan.n_active
            if (sums % n_active).any():
                raise ValueError(f"counts of a class do not add up to a multiple of {n_active}")
            if (counts > sums // n_active).any():
                raise ValueError("a unit was counted more often than its class has rows")
            max_rows = self.declared.get(party)
            if max_rows is not None and int(sums.sum()) > max_rows * n_active:
                raise ValueError(f"counts of more than the {max_rows} rows that were declared")


def _without_expansion(plan: HashPlan) -> bytes:
    """Return the parts of a plan that all plans share.

    A coordinator that chose several of them freely could find cells by bisection.
    """
    features = replace(plan.features, expansion="none")
    return encode(replace(plan, features=features, n_inputs=1))


def _split_counts(
    counts: Array, plans: Sequence[HashPlan], n_classes: int
) -> list[tuple[HashPlan, Array]]:
    """Return each plan with its counts."""
    sizes = [plan.n_units for plan in plans]
    if counts.shape != (sum(sizes), n_classes):
        raise ValueError(
            f"expected counts of {sum(sizes)} units by {n_classes}, got shape {counts.shape}"
        )
    parts = np.split(counts, np.cumsum(sizes)[:-1])
    return list(zip(plans, parts, strict=True))


@message
class CalibrationReply:
    """Leave-one-out log-losses, summed over rows, in units of 2**-20 nats.

    One for each sharpness (inverse temperature of the softmax) in ``SHARPNESS_GRID``.
    """

    losses: Integers


@message
class ModelRelease:
    """Message with the model before calibration (Algorithm 2, line 10)."""

    reply: ClassVar[type] = CalibrationReply
    single_use: ClassVar[str] = "masked"
    model: FlyNNModel


@message
class Finish:
    """Message with the summed losses, which complete the party's model."""

    reply: ClassVar[type] = Receipt
    losses: Integers


@message
class SchemaRequest:
    """Request for the schema of the table."""

    reply: ClassVar[type] = SchemaReply


class FlyNNParty(TableParty):
    """A party of the FlyNNFL protocol: one organisation's table and its replies.

    Takes the arguments of :class:`~fedneighbors.tabular._ownership.TableParty`, with rows of finite
    numbers. A party whose process does not survive between messages needs a ``model_path``; the
    unfinished model is stored there with the name of the run and the suffix ``.pending``.
    """

    accepts: tuple[type[Any], ...] = (
        SchemaRequest,
        MomentsRequest,
        CountRequest,
        HitRequest,
        ModelRelease,
        Finish,
    )

    model: FlyNNModel | None
    _released: FlyNNModel | None = None
    _hashed: Mapping[bytes, npt.NDArray[np.int32]] = MappingProxyType({})
    _same_work: ClassVar[bool] = False
    """True if the work of a hash must not depend on single rows."""

    def answer(self, request: Message) -> Message:
        """Return the reply to one of the requests in ``accepts``."""
        match request:
            case SchemaRequest():
                return self._describe(self._y)
            case MomentsRequest():
                return self._moments(with_columns=request.with_columns)
            case CountRequest():
                return self._count(request)
            case HitRequest():
                hashes = [self._active(model.plan) for model in request.models]
                return request.count_hits(hashes, self._positions(request.models[0].classes))
            case ModelRelease():
                return self._calibrate(request.model)
            case Finish():
                return self._finish(request.losses)
        raise Refused("unknown request")

    def _moments(self, *, with_columns: bool) -> MomentsReply:
        if not with_columns:
            no_sums = np.zeros((0, 0), np.int64)
            return MomentsReply(self._x.shape[0], no_sums, no_sums)
        may_be_too_large = self._x.dtype.kind == "f" and self._x.dtype.itemsize >= 8
        for block in blocks(self._x) if may_be_too_large else ():
            for column in np.flatnonzero((np.abs(block) >= MAX_MAGNITUDE).any(axis=0)):
                raise Refused("a value is too large to standardize", self._column(int(column)))
        return column_moments(self._x)

    def _count(self, request: CountRequest) -> CountReply:
        self._hashed = {}
        counts = [self._count_activations(plan, request.classes) for plan in request.plans]
        return CountReply(np.concatenate(counts).astype(f"u{request.n_bits // 8}"))

    def _active(self, plan: HashPlan) -> npt.NDArray[np.int32]:
        """Return the hashes of the table, cached for each plan."""
        self._check_hash(plan)
        key = encode(plan)
        if key not in self._hashed:
            active = hash_with_plan(
                self._x, plan, n_threads=self._n_threads, same_work=self._same_work
            )
            self._hashed = {**self._hashed, key: active}
        return self._hashed[key]

    def _check_hash(self, plan: HashPlan) -> None:
        """Refuse a plan for another table or of too much work."""
        n_rows, n_columns = self._x.shape
        if n_columns != plan.features.n_features:
            raise Refused("the number of columns is not the announced one")
        n_steps = n_rows * plan.n_units * plan.n_inputs
        is_long = plan.n_active > DEFAULT_ACTIVE and n_rows * plan.n_active > MAX_CELLS
        if is_long or n_steps > MAX_STEPS:
            raise Refused("hashing would take too much memory or time: lower n_active or n_units")

    def _count_activations(
        self, plan: HashPlan, classes: tuple[Label, ...]
    ) -> npt.NDArray[np.int32]:
        """Count the activations of each unit in each class."""
        labels = self._positions(classes)
        return count_activations(
            self._active(plan), labels, n_units=plan.n_units, n_classes=len(classes)
        )

    def _calibrate(self, model: FlyNNModel) -> CalibrationReply:
        active = self._active(model.plan)
        rows = calibration_rows(active, model.n_rows)
        labels = self._positions(model.classes)[rows]
        novelty = leave_one_out(active[rows], labels, model.filters, model.table)
        self._released = model
        if self._path is not None:
            self._keep_pending(model.to_bytes())
        return CalibrationReply(log_losses(novelty, labels, model.plan.n_active))

    def _finish(self, losses: Integers) -> Receipt:
        model = self._released
        if model is None and self._path is not None and self._pending.exists():
            model = FlyNNModel.load(self._pending)
        if model is None:
            raise Refused("there is no model to finish")
        if losses.shape != model.losses.shape:
            raise Refused("the losses do not fit the model")
        finished = replace(model, losses=np.array(losses))
        self._keep(finished)
        if self._path is not None:
            self._pending.unlink(missing_ok=True)
        self._released, self._hashed = None, {}
        return Receipt()


def coordinate(settings: FlyNNSettings) -> Coordinator[FlyNNModel]:
    """Train one model over all parties.

    The model equals that of the pooled table bit for bit.

    Yields
    ------
    Ask
        Requests for schema, moments and counts; then the model and the summed losses.

    Returns
    -------
    FlyNNModel
        The model that every party holds as well.

    Raises
    ------
    SchemaMismatch
        If a party's table differs from the others'.
    PartyMissing
        If a party does not answer; the coordinator then returns no model.
    DataError
        If all parties together have no rows or fewer than two classes.
    ProtocolError
        If no table could have the reported sums.
    """
    replies = yield gather(SchemaRequest())
    schema = agree(replies.complete("the schema").each, settings.classes)
    replies = yield total(MomentsRequest(bool(settings.standardize)))
    reply = replies.summed("the column moments")
    moments = check_moments(reply, schema.n_features if settings.standardize else 0)
    plans = settings.plans(moments, schema.n_features)
    n_bits = 16 if moments.n_rows < 1 << 16 else 32  # no count exceeds the number of rows
    declared = settings.declared_rows
    replies = yield total(CountRequest(plans[0], schema.classes, n_bits, declared, plans[1:]))
    reply = replies.summed("the counts")
    model = yield from _choose_model(
        [
            settings.models(plan, counts, schema)
            for plan, counts in _check_counts(reply, plans, len(schema.classes), moments.n_rows)
        ]
    )
    replies = yield total(ModelRelease(model))
    losses = replies.summed("the calibration").losses
    if losses.shape != model.losses.shape or losses.min() < 0:
        raise ProtocolError(
            f"expected {len(model.losses)} losses of 0 or more, got shape {losses.shape} with "
            f"{np.count_nonzero(losses < 0)} negative; a party sent wrong losses"
        )
    model = replace(model, losses=losses)
    replies = yield gather(Finish(model.losses))
    replies.complete("the summed losses")
    return model


def check_moments(reply: MomentsReply, n_columns: int) -> MomentsReply:
    """Check the number of rows and the shapes of summed moments.

    Parameters
    ----------
    reply : MomentsReply
        Sum over all parties.
    n_columns : int
        Number of summed columns; 0 if only rows were counted.

    Raises
    ------
    DataError
        If there are no rows.
    ProtocolError
        If the sums have the wrong shape.
    """
    if reply.n_rows < 1:
        raise DataError("expected at least one row over all parties, got none; add data")
    shapes = ((n_columns, N_SUM_LIMBS), (n_columns, N_SQUARE_LIMBS))
    if n_columns and (reply.sums.shape, reply.squares.shape) != shapes:
        raise ProtocolError(
            f"expected column moments of shapes {shapes}, got {reply.sums.shape} and "
            f"{reply.squares.shape}; a party sent moments of another table"
        )
    return reply


def _check_counts(
    reply: Message, plans: Sequence[HashPlan], n_classes: int, n_rows: int
) -> list[tuple[HashPlan, npt.NDArray[np.int32]]]:
    """Return each plan with its summed counts, after checks."""
    try:
        parts = _split_counts(reply.counts, plans, n_classes)
    except ValueError as error:
        raise ProtocolError(str(error)) from None
    for plan, counts in parts:
        sums = counts.sum(axis=0, dtype=np.int64)  # for each class
        if sums.sum() != n_rows * plan.n_active or (sums % plan.n_active).any():
            raise ProtocolError(
                f"counts add up to {sums.sum()}, expected {n_rows} rows x "
                f"{plan.n_active} active units; a party counted other rows than it announced"
            )
        if counts.max(initial=0) > n_rows:
            raise ProtocolError("a unit was counted more often than there are rows")
    return [(plan, np.ascontiguousarray(counts, np.int32)) for plan, counts in parts]


def _choose_model(models: list[list[FlyNNModel]]) -> Coordinator[FlyNNModel]:
    """Return the first model with the most hits on rows left out.

    Parameters
    ----------
    models : list, for each plan, of one model for each setting
        Models to choose from.
    """
    every = [model for row in models for model in row]
    if len(every) == 1:
        return every[0]
    request = HitRequest(
        tuple(row[0] for row in models),
        tuple(tuple(model.gamma for model in row) for row in models),
        tuple(model.class_normalized for model in models[0]),
    )
    hits = (yield total(request)).summed("the hits").hits
    if hits.shape != (len(every),) or hits.min() < 0 or hits.max() > every[0].n_rows:
        raise ProtocolError(
            f"expected {len(every)} numbers of hits on {every[0].n_rows} rows, got shape "
            f"{hits.shape}; a party sent wrong hits"
        )
    return every[int(np.argmax(hits))]
