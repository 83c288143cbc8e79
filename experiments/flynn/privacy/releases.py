"""Counts of a training set hashed once, and private releases of them.

Messages, ledger and masks are omitted, because they do not change the released counts: these come
from the mechanisms of the parties, with the same budget share.
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
    """Sizes of the hash as in the paper; features are not scaled.

    Parameters
    ----------
    n_units, n_inputs, n_active : int
        m, s and rho in the paper.
    decay : float
        gamma in the paper.
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
class HashedData:
    """Exact counts of every party, and hashed test rows.

    Parameters
    ----------
    plan : HashPlan
        Hash of the rows.
    classes : tuple of labels
        Labels, ascending.
    counts : tuple of int64 arrays of shape (n_units, n_classes)
        Counts of each party.
    active : int32 array of shape (n_test_rows, n_active)
        Active units of the test rows.
    truth : int64 array of shape (n_test_rows,)
        Positions of the labels of test rows in ``classes``.
    """

    plan: HashPlan
    classes: tuple[Any, ...]
    counts: tuple[Integers, ...]
    active: Active
    truth: Integers


def hash_data(
    setting: Setting,
    train: tuple[npt.NDArray[Any], npt.NDArray[Any]],
    test: tuple[npt.NDArray[Any], npt.NDArray[Any]],
    *,
    parties: npt.NDArray[Any],
    seed: int,
) -> HashedData:
    """Count the activations of each party, and hash the test rows.

    Parameters
    ----------
    setting : Setting
        Sizes of the hash.
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
    masks = [parties == party for party in np.unique(parties)]
    counts = tuple(
        count_activations(
            active[mask],
            labels[mask].astype(np.int64),
            n_units=plan.n_units,
            n_classes=len(classes),
        ).astype(np.int64)
        for mask in masks
    )
    truth = np.searchsorted(classes, test[1])
    return HashedData(plan, tuple(classes.tolist()), counts, hash_with_plan(test[0], plan), truth)


def exact_model(
    data: HashedData, *, decay: float | None = None, class_normalized: bool = True
) -> FlyNNModel:
    """Return the model without privacy."""
    return _model(data, sum(data.counts), decay=decay, class_normalized=class_normalized)


def private_model(
    data: HashedData,
    privacy: Privacy,
    *,
    decay: float | None = None,
    class_normalized: bool = True,
    bits: Sequence[Bits] | None = None,
) -> FlyNNModel:
    """Return the model of one private release by all parties.

    Sizes are given and features are not scaled, so the counts may spend the whole budget.

    Parameters
    ----------
    data : HashedData
        Exact counts.
    privacy : Privacy
        Budget and mechanism.
    decay, class_normalized
        See :class:`~fedneighbors.FlyNNClassifier`.
    bits : sequence of callables, optional
        Random bytes for the noise of each party; by default from the operating system. For tests.
    """
    sources = [os.urandom] * len(data.counts) if bits is None else bits
    sensitivity = count_sensitivity(data.plan.n_active, privacy.neighbors)
    noise_variance = 0.0
    if privacy.mechanism == "paper":
        n_picks, share = choose_picks(data, privacy)
        terms = replace(privacy, n_parties=len(data.counts))
        dp = picks_mechanism(terms, constants_paid=False, n_picks=n_picks, share=share)
        # the paper's line 15 adds noise to one class after another
        released = [
            dp.release(counts.T, sensitivity, bits=source).T
            for counts, source in zip(data.counts, sources, strict=True)
        ]
    else:
        released, noise_variance = _add_noise(data, privacy, sources)
    return _model(
        data,
        sum(released),
        decay=decay,
        class_normalized=class_normalized,
        noise_variance=noise_variance,
        guarantee=str(privacy.total),
    )


def choose_picks(data: HashedData, privacy: Privacy) -> tuple[int, float]:
    """Return T and the share of epsilon from public sizes."""
    if privacy.n_picks is not None:
        return privacy.n_picks, 1.0
    terms = replace(privacy, n_parties=len(data.counts))
    epsilon = picks_mechanism(terms, constants_paid=False, n_picks=1).epsilon
    mean_count = float(np.mean(data.counts))
    return default_picks(epsilon, mean_count=mean_count, n_cells=data.counts[0].size)


def _add_noise(
    data: HashedData, privacy: Privacy, sources: Sequence[Bits]
) -> tuple[list[Integers], float]:
    """Add noise to the counts; return them and their sum's noise variance."""
    sensitivity = count_sensitivity(data.plan.n_active, privacy.neighbors)
    budget = release_budget(privacy, of="counts", constants_paid=False)
    n_parties = len(data.counts)
    pairs = list(zip(data.counts, sources, strict=True))
    if privacy.mechanism == "local":
        noise = mechanism(budget, sensitivity)
        released = [noise.release(counts, sensitivity, bits=source) for counts, source in pairs]
        return released, variance(noise, n_summed=n_parties)
    n_cells = data.counts[0].size
    n_shares = guaranteed_shares(
        n_invited=n_parties,
        threshold=default_threshold(n_parties),
        colluders=privacy.colluders,
    )
    noise_shares = shares(budget, sensitivity, n_shares=n_shares, n_cells=n_cells)
    released = [
        counts + noise_shares.share(n_cells, bits=source).reshape(counts.shape)
        for counts, source in pairs
    ]
    return released, variance(noise_shares, n_summed=n_parties)


def _model(data: HashedData, counts: Any, **options: Any) -> FlyNNModel:
    return FlyNNModel(
        plan=data.plan,
        classes=data.classes,
        counts=np.ascontiguousarray(counts, np.int32),
        **options,
    )


def score(model: FlyNNModel, data: HashedData) -> float:
    """Return the balanced accuracy of a model on the test rows."""
    novelty = compute_novelty(data.active, model.filters, model.table)
    return balanced_accuracy(data.truth, np.argmin(novelty, axis=1))
