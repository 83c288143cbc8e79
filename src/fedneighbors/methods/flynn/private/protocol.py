"""Coordinator and messages of FlyNNFL under a privacy budget (Algorithm 2).

The mechanism is the paper's DP() or a tighter one. The coordinator receives exact values only for
facts declared public. Distributing the finished model is post-processing and costs no budget.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Array, Floats, Integers
from fedneighbors.errors import ProtocolError
from fedneighbors.federation._loop import Coordinator, Replies, gather, total
from fedneighbors.federation._messages import message
from fedneighbors.methods.flynn._features import FeatureMap, choose_expansion, scales
from fedneighbors.methods.flynn._model import FlyNNModel, narrow_counts
from fedneighbors.methods.flynn._settings import FlyNNSettings
from fedneighbors.methods.flynn.algorithm import HashPlan
from fedneighbors.methods.flynn.private._release import (
    constants_levels,
    constants_sensitivity,
    count_sensitivity,
    default_active,
    default_picks,
    paper_sizes,
    picks_mechanism,
    private_sizes,
    release_budget,
)
from fedneighbors.methods.flynn.protocol import check_counts
from fedneighbors.privacy._guarantees import Sensitivity
from fedneighbors.privacy._policy import Privacy, terms
from fedneighbors.tabular._private import PaidRequest, PrivateTraining, check_run, column_bounds
from fedneighbors.tabular._schema import Label, Receipt


@message
class ConstantsReply:
    """Noisy row count, sums and squares in integer steps, int64 of shape (2 n_columns + 1,)."""

    moments: Integers


@message
class ConstantsRequest(PaidRequest):
    """Request for noised moments of columns clipped to ``low`` and ``high``.

    Without columns (empty bounds), only the number of rows is requested.
    """

    reply: ClassVar[type] = ConstantsReply
    low: Floats
    high: Floats

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low.ndim != 1 or self.low.shape != self.high.shape:
            raise ValueError("bounds are not two vectors of one length")
        if not (np.isfinite(self.low).all() and np.isfinite(self.high).all()):
            raise ValueError("a bound is not finite")
        if (self.low > self.high).any():
            raise ValueError("a lower bound is above the upper one")
        with np.errstate(over="ignore"):
            if not np.isfinite(self.high - self.low).all():
                raise ValueError("a range is not finite")


@message
class MaskedConstantsRequest(ConstantsRequest):
    """Request for moments with one share of the noise; masked sums only."""

    masked_only: ClassVar[bool] = True
    noised: ClassVar[bool] = True


@message
class NoisyCountReply:
    """Noisy counts, possibly negative, int32 of shape (n_units, n_classes)."""

    counts: npt.NDArray[np.int32]


@message
class NoisyCountRequest(PaidRequest):
    """Hash plan and classes, and a request for noised counts.

    ``constants_paid`` is True if part of the budget was spent on rows or scaling.
    """

    reply: ClassVar[type] = NoisyCountReply
    plan: HashPlan
    classes: tuple[Label, ...]
    constants_paid: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts([self.plan], self.classes)


@message
class MaskedNoisyCountRequest(NoisyCountRequest):
    """Request for counts with one share of the noise; masked sums only."""

    masked_only: ClassVar[bool] = True
    noised: ClassVar[bool] = True


@message
class PicksReply:
    """Ascending indices of picked cells and their noised counts.

    Cells index the counts flattened class by class. Both are int64 arrays of equal length; every
    other count is zero.
    """

    cells: Integers
    counts: Integers

    def __post_init__(self) -> None:
        if self.cells.ndim != 1 or self.cells.shape != self.counts.shape:
            raise ValueError("cells and counts are not two vectors of one length")
        if (np.diff(self.cells) <= 0).any() or (self.cells[:1] < 0).any():
            raise ValueError("cells are not ascending")
        if (self.counts < 0).any():
            raise ValueError("a picked count is negative")


@message
class PicksRequest:
    """Request for the output of Algorithm 2's DP() with ``n_picks`` cells (T).

    ``share`` is the part of a party's epsilon that is spent, at most 1. Each party's picks carry
    complete noise, so the coordinator may read them individually.
    """

    reply: ClassVar[type] = PicksReply
    one_by_one: ClassVar[bool] = True
    run: str
    privacy: Mapping[str, str]
    plan: HashPlan
    classes: tuple[Label, ...]
    constants_paid: bool
    n_picks: int
    share: float = 1.0

    def __post_init__(self) -> None:
        check_run(self.run)
        check_counts([self.plan], self.classes)
        if not 0 < self.share <= 1:
            raise ValueError("the share of epsilon is out of range")


@message
class PrivateModelRelease:
    """Message with the finished model for every party."""

    reply: ClassVar[type] = Receipt
    model: FlyNNModel


_MAX_DEVIATIONS = 6.0  # standard deviations, which noise almost never exceeds


@dataclass(frozen=True)
class _Totals:
    """Noised number of rows and standardizing constants.

    ``n_rows`` is None if it is not required, ``mean`` and ``scale`` are None without scaling. The
    true number of rows almost never exceeds ``max_rows``.
    """

    n_rows: int | None = None
    mean: Floats | None = None
    scale: Floats | None = None
    max_rows: float = math.inf

    @property
    def paid(self) -> bool:
        """Return whether ledgers were charged for the totals."""
        return self.n_rows is not None


def coordinate_private(
    settings: FlyNNSettings, privacy: Privacy, *, run: str | None = None
) -> Coordinator[FlyNNModel]:
    """Train one model over all parties within a privacy budget.

    Parameters
    ----------
    settings : FlyNNSettings
        As without privacy; values of None are derived only from public or charged facts. No rows
        choose ``"auto"`` values, which are the first of the values to choose from.
    privacy : Privacy
        Budget, mechanism and public facts. Every party must have agreed to the same terms.
    run : str, optional
        Identifier of this training, random if None. A new identifier is a new release, which every
        party charges; requests under a known identifier return the stored replies.

    Yields
    ------
    Ask
        Requests for the schema, public or charged constants if required, and noised counts; the
        model.

    Returns
    -------
    FlyNNModel
        Model with noised counts, the variance of their noise and the guarantee.

    Raises
    ------
    ValueError
        If a required fact was not declared public and cannot be charged to the budget.
    SchemaMismatch, PartyMissing, PartyRefused, ProtocolError
        As without privacy. Under ``"central"`` parties may drop out of the masked sums.
    """
    _check_declared(settings, privacy)
    training = yield from _Training.begin(
        privacy, run, reserved=settings.classes, settings=settings
    )
    totals = yield from training.request_totals()
    plan = training.plan(totals)
    if privacy.mechanism == "paper":
        counts, variance = (yield from training.request_picks(plan, totals)), 0.0
    else:
        counts, variance = yield from training.request_counts(plan, totals)
    model = FlyNNModel(
        plan=plan,
        classes=training.schema.classes,
        counts=narrow_counts(counts),
        decay=settings.explicit_decay,
        class_normalized=settings.flags[0],
        feature_names=training.schema.feature_names,
        noise_variance=variance,
        guarantee=training.guarantee,
    )
    replies = yield gather(PrivateModelRelease(model))
    replies.complete("the model")
    return model


def _check_declared(settings: FlyNNSettings, privacy: Privacy) -> None:
    privacy.check_delta()
    privacy.check_classes()
    if settings.standardize and privacy.bounds is None:
        raise ValueError(
            "mean and spread of columns are computed from noisy sums of values within declared "
            "bounds: give the range of the values as Privacy(bounds=(low, high)), a schema, or set "
            "standardize=False"
        )


@dataclass(frozen=True)
class _Training(PrivateTraining):
    """State of one private training; its ``request_*`` methods are the coordinator's rounds."""

    settings: FlyNNSettings

    def request_totals(self) -> Coordinator[_Totals]:
        """Request the noised number of rows and scaling, if required."""
        scaled = bool(self.settings.standardize)
        sizes = (self.settings.n_units, self.settings.n_active, self.settings.n_inputs)
        is_paper = self.privacy.mechanism == "paper"
        needs_rows = is_paper and None in (self.settings.explicit_decay, self.privacy.n_picks)
        if not scaled and None not in sizes and not needs_rows:
            return _Totals()
        low = high = np.zeros(0)
        if scaled:
            low, high = column_bounds(self.privacy.bounds or (0.0, 0.0), self.schema.n_features)
        levels = constants_levels(self.privacy, len(low))
        request_type = MaskedConstantsRequest if self.is_masked else ConstantsRequest
        replies = yield total(request_type(*self.request_fields, low, high))
        moments = self.check_missing(replies, "rows and scaling").total.moments
        if moments.shape != (2 * len(low) + 1,):
            raise ProtocolError(f"expected {2 * len(low) + 1} noised moments, got {moments.shape}")
        n_rows = max(1, round(int(moments[0]) / levels))
        max_rows = n_rows + self._max_noise_of_rows(len(low), levels, replies) / levels
        if not scaled:
            return _Totals(n_rows, max_rows=max_rows)
        first, second = np.split(moments[1:] / (levels * n_rows), 2)
        mean = np.clip(first, 0, 1)
        deviation = np.sqrt(np.clip(second - mean**2, 0, 0.25))  # in units of the range
        width = high - low
        scale = scales(deviation * width, self.settings.standardize)
        return _Totals(n_rows, low + mean * width, scale, max_rows)

    def _max_noise_of_rows(self, n_columns: int, levels: int, replies: Replies) -> float:
        """Return the largest likely noise on the row count, in quantization steps."""
        variance = self.variance(
            release_budget(self.privacy, of="constants", constants_paid=True),
            constants_sensitivity(n_columns, levels, self.privacy.neighbors),
            n_cells=2 * n_columns + 1,
            n_summed=self.n_parties - len(replies.missing),
        )
        return float(_MAX_DEVIATIONS * variance**0.5)

    def plan(self, totals: _Totals) -> HashPlan:
        """Return the hash plan; derive unset sizes from the totals."""
        settings, n_features = self.settings, self.schema.n_features
        features = FeatureMap(
            n_features,
            choose_expansion(settings.expand, n_features),
            totals.mean,
            totals.scale,
            settings.seed,
        )
        return settings.plan_of(features, self._sizes(totals, features))

    def _sizes(self, totals: _Totals, features: FeatureMap) -> tuple[int, int, int]:
        columns = (features.n_features, features.n_outputs)
        if self.privacy.mechanism == "paper":
            return paper_sizes(*columns)
        n_active = self.settings.n_active
        n_active = default_active(self.privacy) if n_active is None else n_active
        sensitivity = count_sensitivity(n_active, self.privacy.neighbors)
        variance = self._count_variance(sensitivity, totals, n_cells=1, n_summed=self.n_parties)
        n_units, n_inputs = private_sizes(
            totals.n_rows or 1,
            *columns,
            len(self.schema.classes),
            n_active=n_active,
            deviation=variance**0.5,
        )
        return n_units, n_inputs, n_active

    def _count_variance(
        self, sensitivity: Sensitivity, totals: _Totals, *, n_cells: int, n_summed: int
    ) -> float:
        budget = release_budget(self.privacy, of="counts", constants_paid=totals.paid)
        return self.variance(budget, sensitivity, n_cells=n_cells, n_summed=n_summed)

    def request_counts(
        self, plan: HashPlan, totals: _Totals
    ) -> Coordinator[tuple[npt.NDArray[np.int32], float]]:
        """Request noised counts; return their sum and its noise variance."""
        request_type = MaskedNoisyCountRequest if self.is_masked else NoisyCountRequest
        request = request_type(*self.request_fields, plan, self.schema.classes, totals.paid)
        replies = yield total(request)
        counts = self.check_missing(replies, "the counts").total.counts
        shape = (plan.n_units, len(self.schema.classes))
        if counts.shape != shape:
            raise ProtocolError(f"expected noised counts of shape {shape}, got {counts.shape}")
        sensitivity = count_sensitivity(plan.n_active, self.privacy.neighbors)
        n_summed = self.n_parties - len(replies.missing)
        variance = self._count_variance(sensitivity, totals, n_cells=counts.size, n_summed=n_summed)
        self._check_size(counts, plan, totals, variance)
        return np.ascontiguousarray(counts, np.int32), variance

    def _check_size(self, counts: Array, plan: HashPlan, totals: _Totals, variance: float) -> None:
        """Check that the counts do not exceed the noised row number.

        A dishonest party could otherwise inflate the counts.
        """
        max_noise = _MAX_DEVIATIONS * np.sqrt(counts.size * variance)
        if counts.sum(dtype=np.int64) > totals.max_rows * plan.n_active + max_noise:
            raise ProtocolError(
                f"the counts are those of more than the {totals.max_rows:.0f} rows that the "
                "parties announced at most; a party counted other rows than it announced"
            )

    def _choose_picks(self, plan: HashPlan, totals: _Totals) -> tuple[int, float]:
        """Return the number of picks and the share of epsilon."""
        n_cells = plan.n_units * len(self.schema.classes)
        if self.privacy.n_picks is not None:
            return min(self.privacy.n_picks, n_cells), 1.0
        mechanism = picks_mechanism(self.privacy, constants_paid=totals.paid, n_picks=1)
        n_active = (totals.n_rows or 1) * plan.n_active
        mean_count = n_active / (self.n_parties * n_cells)
        return default_picks(mechanism.epsilon, mean_count=mean_count, n_cells=n_cells)

    def request_picks(self, plan: HashPlan, totals: _Totals) -> Coordinator[npt.NDArray[np.int32]]:
        """Request picked cells and sum them (lines 5-8 and 11)."""
        n_classes = len(self.schema.classes)
        n_picks, share = self._choose_picks(plan, totals)
        fields = self.run, terms(self.privacy), plan, self.schema.classes, totals.paid
        replies = yield gather(PicksRequest(*fields, n_picks, share))
        by_class = np.zeros(n_classes * plan.n_units, np.int64)
        for party, reply in replies.complete("the counts").each.items():
            if len(reply.cells) > n_picks or (reply.cells >= len(by_class)).any():
                raise ProtocolError(f"party {party!r} sent cells that it cannot have picked")
            by_class[reply.cells] += reply.counts
        if by_class.max(initial=0) > np.iinfo(np.int32).max:
            raise ProtocolError("a summed count does not fit into 32 bits; a party sent too much")
        return np.ascontiguousarray(by_class.reshape(n_classes, -1).T, np.int32)
