"""A training set hashed once, and any number of private releases of its counts.

What travels, the ledger and the masks are left out, since they change no number: the released
counts come from the mechanisms that the parties call, under the same share of the budget.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Integers
from fedneighbors.methods.flynn._features import FeatureMap
from fedneighbors.methods.flynn._model import FlyNNModel
from fedneighbors.methods.flynn.algorithm import (
    Active,
    HashPlan,
    compute_novelty,
    count_activations,
    hash_with_plan,
)
from fedneighbors.methods.flynn.private._release import (
    count_sensitivity,
    default_picks,
    picks_mechanism,
    release_budget,
)
from fedneighbors.metrics import balanced_accuracy
from fedneighbors.privacy._policy import Privacy
from fedneighbors.privacy.noise._calibration import guaranteed_shares, mechanism, shares, variance
from fedneighbors.secure_sum._shares import default_threshold

Bits = Callable[[int], bytes]


@dataclass(frozen=True)
class Setting:
    """Sizes of the hash as in the paper; features are hashed without scaling.

    Parameters
    ----------
    n_units, n_inputs, n_active : int
        m, s and rho.
    decay : float
        gamma.
    """

    n_units: int
    n_inputs: int
    n_active: int
    decay: float = 0.9

    @property
    def name(self) -> str:
        """Return a short name, such as ``m=300 s=3 rho=15``."""
        return f"m={self.n_units} s={self.n_inputs} rho={self.n_active}"


@dataclass(frozen=True)
class Hashed:
    """Exact counts of every party, and the test rows to score models with.

    Parameters
    ----------
    plan : HashPlan
        How rows were hashed.
    classes : tuple of labels
        Ascending.
    counts : tuple of int64 arrays of shape (n_units, n_classes)
        One for each party.
    active : int32 array of shape (n_test_rows, n_active)
        Active units of the test rows.
    truth : int64 array of shape (n_test_rows,)
        Position of their labels in ``classes``.
    """

    plan: HashPlan
    classes: tuple[Any, ...]
    counts: tuple[Integers, ...]
    active: Active
    truth: Integers


def hash_set(
    setting: Setting,
    train: tuple[npt.NDArray[Any], npt.NDArray[Any]],
    test: tuple[npt.NDArray[Any], npt.NDArray[Any]],
    *,
    parties: npt.NDArray[Any],
    seed: int,
) -> Hashed:
    """Return the counts of parties and the hash of test rows.

    Parameters
    ----------
    setting : Setting
        Sizes.
    train, test : pair of arrays of shape (n_rows, n_features) and (n_rows,)
        Values and labels.
    parties : array of shape (n_train_rows,)
        Owner of each training row.
    seed : int
        Public seed of the hash.
    """
    x, y = train
    plan = HashPlan(
        FeatureMap(x.shape[1], "none", seed=seed),
        setting.n_units,
        setting.n_inputs,
        setting.n_active,
        seed,
    )
    classes, labels = np.unique(y, return_inverse=True)
    active = hash_with_plan(x, plan)
    owned = [parties == party for party in np.unique(parties)]
    counts = tuple(
        count_activations(
            active[own],
            labels[own].astype(np.int64),
            n_units=plan.n_units,
            n_classes=len(classes),
        ).astype(np.int64)
        for own in owned
    )
    truth = np.searchsorted(classes, test[1])
    return Hashed(plan, tuple(classes.tolist()), counts, hash_with_plan(test[0], plan), truth)


def exact_model(
    hashed: Hashed, *, decay: float | None = None, class_normalized: bool = True
) -> FlyNNModel:
    """Return the model without privacy."""
    return _model(hashed, sum(hashed.counts), decay=decay, class_normalized=class_normalized)


def private_model(
    hashed: Hashed,
    privacy: Privacy,
    *,
    decay: float | None = None,
    class_normalized: bool = True,
    bits: Sequence[Bits] | None = None,
) -> FlyNNModel:
    """Return the model of one private release by all parties.

    Sizes are fixed and features not scaled, so that the counts get the whole budget.

    Parameters
    ----------
    hashed : Hashed
        Exact counts.
    privacy : Privacy
        Budget and mechanism.
    decay, class_normalized
        As for the estimator.
    bits : sequence of callables, optional
        Source of each party's noise; the operating system if None. Anything else is for tests.
    """
    sources = [os.urandom] * len(hashed.counts) if bits is None else bits
    moved = count_sensitivity(hashed.plan.n_active, privacy.neighbors)
    spread = 0.0
    if privacy.mechanism == "paper":
        dp = picks_mechanism(
            replace(privacy, n_parties=len(hashed.counts)),
            constants_paid=False,
            n_picks=privacy.n_picks or default_picks(hashed.plan.n_units),
        )
        # line 15: the counts of one class after another
        released = [
            dp.release(counts.T, moved, bits=source).T
            for counts, source in zip(hashed.counts, sources, strict=True)
        ]
    else:
        released, spread = _noised(hashed, privacy, sources)
    return _model(
        hashed,
        sum(released),
        decay=decay,
        class_normalized=class_normalized,
        noise_variance=spread,
        guarantee=str(privacy.total),
    )


def _noised(
    hashed: Hashed, privacy: Privacy, sources: Sequence[Bits]
) -> tuple[list[Integers], float]:
    """Return each party's noisy counts and the sum's noise variance."""
    moved = count_sensitivity(hashed.plan.n_active, privacy.neighbors)
    allowed = release_budget(privacy, of="counts", constants_paid=False)
    n_parties = len(hashed.counts)
    pairs = list(zip(hashed.counts, sources, strict=True))
    if privacy.mechanism == "local":
        whole = mechanism(allowed, moved)
        released = [whole.release(counts, moved, bits=source) for counts, source in pairs]
        return released, variance(whole, n_summed=n_parties)
    n_cells = hashed.counts[0].size
    n_shares = guaranteed_shares(
        n_asked=n_parties,
        threshold=default_threshold(n_parties),
        colluders=privacy.colluders,
    )
    some = shares(allowed, moved, n_shares=n_shares, n_cells=n_cells)
    released = [
        counts + some.share(n_cells, bits=source).reshape(counts.shape) for counts, source in pairs
    ]
    return released, variance(some, n_summed=n_parties)


def _model(hashed: Hashed, counts: Any, **options: Any) -> FlyNNModel:
    return FlyNNModel(
        plan=hashed.plan,
        classes=hashed.classes,
        counts=np.ascontiguousarray(counts, np.int32),
        **options,
    )


def score(model: FlyNNModel, hashed: Hashed) -> float:
    """Return the balanced accuracy of a model on the test rows."""
    novelty = compute_novelty(hashed.active, model.filters, model.table)
    return balanced_accuracy(hashed.truth, np.argmin(novelty, axis=1))
