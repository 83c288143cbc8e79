"""The coordinator of a search: counts per fold, then hits per fold, wiring by wiring."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedneighbors.errors import ProtocolError
from fedneighbors.federation._messages import Message, encode
from fedneighbors.federation._roles import Coordinator, gather, total
from fedneighbors.methods.flynn._candidates import Candidate, Grid
from fedneighbors.methods.flynn._features import FeatureMap, standardizer
from fedneighbors.methods.flynn._messages import CountRequest, MomentsRequest, SchemaRequest
from fedneighbors.methods.flynn._search import FoldCountRequest, FoldHitRequest
from fedneighbors.methods.flynn.algorithm import HashPlan
from fedneighbors.methods.flynn.protocol import checked_moments
from fedneighbors.tabular._moments import Moments
from fedneighbors.tabular._schema import Agreed, Label, agree


@dataclass(frozen=True)
class Scored:
    """What a search found out about one candidate.

    Parameters
    ----------
    candidate : Candidate
        The wiring.
    n_active : tuple of int
        Values of rho that were scored.
    settings : tuple, one entry for each rho, of (decay, class_normalized) pairs
        What was scored.
    hits : int64 array of shape (n_rhos, n_folds, n_settings, n_classes)
        Rows predicted right.
    rows : int64 array of shape (n_folds, n_classes)
        Rows.
    """

    candidate: Candidate
    n_active: tuple[int, ...]
    settings: tuple[tuple[tuple[float, bool], ...], ...]
    hits: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]


def coordinate_search(
    candidates: Sequence[Candidate],
    grid: Grid,
    *,
    n_folds: int,
    seed: int,
    reserved: tuple[Label, ...] = (),
) -> Coordinator[list[Scored]]:
    """Score every candidate over all parties.

    Parameters
    ----------
    candidates, grid
        What to try.
    n_folds : int
        Folds, or 0 to leave out one row at a time.
    seed : int
        Public seed of the hash.
    reserved : tuple of labels
        Labels beside those that the parties announce.

    Yields
    ------
    Ask
        Schema, moments, then for each candidate the counts of the folds and their hits.

    Returns
    -------
    list of Scored
        In the order of the candidates.

    Raises
    ------
    SchemaMismatch, PartyMissing, DataError, ProtocolError
        As :func:`~.protocol.coordinate` does.
    """
    replies = yield gather(SchemaRequest())
    schema = agree(replies.complete("the schema").each, reserved)
    with_columns = any(c.standardize for c in candidates)
    replies = yield total(MomentsRequest(with_columns))
    reply = replies.summed("the column moments")
    moments = checked_moments(reply, schema.n_features if with_columns else 0)
    scored = []
    for candidate in candidates:
        plans = _plans(candidate, grid, moments, schema, seed)
        n_bits = 16 if moments.n_rows < 1 << 16 else 32
        widest = CountRequest.of(plans[-1], schema.classes, n_bits=n_bits)
        rhos = tuple(plan.n_active for plan in plans)
        replies = yield total(FoldCountRequest(encode(widest), rhos, n_folds))
        folds = replies.summed("the counts of the folds")
        _check_folds(folds, plans, (max(n_folds, 1), len(schema.classes)), moments.n_rows)
        settings = tuple(
            grid.settings(plan, n_rows=moments.n_rows, n_classes=len(schema.classes))
            for plan in plans
        )
        decays = tuple(tuple(decay for decay, _ in row) for row in settings)
        normalized = tuple(flag for _, flag in settings[0])
        replies = yield total(FoldHitRequest(folds.counts, folds.rows, decays, normalized))
        found = replies.summed("the hits of the folds")
        shape = (len(rhos), len(folds.rows), len(normalized), len(schema.classes))
        if found.hits.size != math.prod(shape):
            raise ProtocolError(f"expected hits for {shape}, got {found.hits.shape}")
        scored.append(Scored(candidate, rhos, settings, found.hits.reshape(shape), folds.rows))
    return scored


def _plans(
    candidate: Candidate, grid: Grid, moments: Moments, schema: Agreed, seed: int
) -> list[HashPlan]:
    """Return the plans of one wiring, one for each rho that it has units for."""
    mean, scale = (None, None)
    if candidate.standardize:
        mean, scale = standardizer(moments, candidate.standardize)
    features = FeatureMap(schema.n_features, candidate.expand or "none", mean, scale, seed)
    n_units = candidate.n_units
    rhos = [rho for rho in grid.n_active if rho <= n_units] or [min(n_units, grid.n_active[0])]
    return [HashPlan(features, n_units, candidate.n_inputs, rho, seed) for rho in rhos]


def _check_folds(
    folds: Message, plans: Sequence[HashPlan], shape: tuple[int, int], n_rows: int
) -> None:
    """Refuse counts of folds that do not belong to the announced rows."""
    n_folds, n_classes = shape
    expected = (len(plans) * n_folds, plans[0].n_units, n_classes)
    if folds.counts.shape != expected or folds.rows.shape != shape:
        raise ProtocolError(
            f"expected counts and rows of shapes {expected} and {shape}, got {folds.counts.shape} "
            f"and {folds.rows.shape}"
        )
    for k, plan in enumerate(plans):
        found = folds.counts[k * n_folds : (k + 1) * n_folds].sum(axis=1, dtype=np.int64)
        if folds.rows.sum() != n_rows or (found != folds.rows * plan.n_active).any():
            raise ProtocolError(
                f"counts do not add up to {n_rows} rows x {plan.n_active} active units; "
                "a party counted other rows than it announced"
            )
