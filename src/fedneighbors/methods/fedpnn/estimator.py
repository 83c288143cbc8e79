"""FedPNN as a scikit-learn classifier for one table or an in-process federation."""

import time
import warnings
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from joblib import effective_n_jobs
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from fedneighbors._typing import Array, Booleans, Floats
from fedneighbors.errors import DataError
from fedneighbors.federation._inprocess import run
from fedneighbors.methods.fedpnn._model import FedPNNModel
from fedneighbors.methods.fedpnn._network import DensityClassifier
from fedneighbors.methods.fedpnn._party import FedPNNParty
from fedneighbors.methods.fedpnn.algorithm import log_posteriors
from fedneighbors.methods.fedpnn.private._model import PrivateFedPNNModel
from fedneighbors.methods.fedpnn.protocol import FedPNNSettings, coordinate
from fedneighbors.metrics import balanced_accuracy
from fedneighbors.privacy._policy import Privacy
from fedneighbors.records import RunRecord, environment
from fedneighbors.tabular._model_file import ModelFileMixin, read_model_file
from fedneighbors.tabular._ownership import (
    Holdings,
    check_labels,
    column_names,
    encode_features,
    plain_targets,
    public_seed,
    rows_by_party,
    set_columns,
    validate_rows,
)
from fedneighbors.tabular._schema import apply_schema, label_array, reserved_labels


def split_rows(
    y: Array,
    parties: Sequence[Any] | Array | None,
    *,
    share: int | None,
    holdout: float,
    seed: int,
) -> tuple[Sequence[Any] | Array | None, Booleans]:
    """Split rows among parties and the server.

    The rows of each class are distributed in random order, so that each party gets the same
    fraction of every class, and so does the server (section 4.1 of the paper, step b).

    Parameters
    ----------
    y : array of shape (n_rows,)
        Labels.
    parties : sequence of shape (n_rows,) or None
        Owner of each row, if known.
    share : int or None
        Number of parties to split the rows among; None if ``parties`` is given or there is only
        one party.
    holdout : float
        Fraction of the rows that the server holds out, in [0, 1).
    seed : int
        Seed of the random order.

    Returns
    -------
    owners : sequence of shape (n_training_rows,) or None
        Owner of each training row; None for a single party.
    held_out : bool array of shape (n_rows,)
        Mask of the rows that the server holds out.

    Raises
    ------
    ValueError
        If a number is out of range, there is not one owner for each row, or both ``parties`` and
        ``share`` are given.
    """
    if not 0 <= holdout < 1:
        raise ValueError(f"expected holdout in [0, 1), got {holdout!r}")
    if share is not None and share < 1:
        raise ValueError(f"expected share of 1 or more parties, or None; got {share!r}")
    if share is not None and parties is not None:
        raise ValueError(
            f"share={share} and parties are mutually exclusive; leave parties out, or use "
            "share=None"
        )
    rng = np.random.Generator(np.random.PCG64(seed))
    held_out, position = np.zeros(len(y), bool), np.zeros(len(y), np.int64)
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        n_held_out = round(holdout * len(rows))
        held_out[rows[:n_held_out]] = True
        position[rows[n_held_out:]] = np.arange(len(rows) - n_held_out)
    if parties is not None:
        rows_by_party(parties, len(y))  # checks them
        return np.asarray(parties, dtype=object)[~held_out], held_out
    if share is None:
        return None, held_out
    return np.array([f"client {number + 1}" for number in position[~held_out] % share]), held_out


@dataclass(eq=False, repr=False)
class FedPNNClassifier(DensityClassifier, ModelFileMixin, BaseEstimator):  # type: ignore[misc]
    """Probabilistic neural network whose neurons are cluster centers of all parties' rows.

    Every party clusters its rows in one pass and sends the centers, in one round. The coordinator
    may cluster the centers again; they are the pattern neurons of a probabilistic neural network
    [1]_. By default, all parties first agree on quantiles and on a metric that separates the
    classes, and cluster each class separately; otherwise rare classes of imbalanced data are lost.
    :meth:`paper` returns a classifier that follows the published method.

    Parameters
    ----------
    client_threshold : float, optional
        Dthr of the parties. None: each party chooses, for each class, the smallest threshold that
        leaves at most four times the square root of the number of rows as centers.
    server_threshold : float, optional
        Dthr of the meta-clustering. None keeps every center.
    normalize : {"quantile", "minmax"} or None
        Scaling of the columns: normal scores of ranks, or linear scaling to [0, 1] between the
        lowest and the highest value. None does not scale.
    frame : {"global", "local"}
        Agree on the scaling constants in a preceding round, or let each party use its own.
    classwise : bool
        Cluster each class separately, so that a frequent class does not absorb a rare one.
    metric : {"supervised"} or None
        Whiten the scaled rows by the covariance within classes, and stretch them in the directions
        between the class means; both are computed from moments that are summed in a preceding
        round. Needs ``frame="global"``. None uses the scaled rows.
    min_count : int
        Minimum number of rows behind every center and every constant. A party sends nothing
        about a class of which it has fewer rows.
    sigma : "loo" or float
        Smoothing of the network. With ``"loo"``, each party chooses the smoothing with the lowest
        leave-one-out loss, and the median of the choices is used.
    activation : {"gaussian", "logistic", "cauchy"}
        Kernel of the network. The Cauchy kernel falls off slowest with the distance.
    factor : float
        A ball may grow to contain a row if distance plus radius is at most ``factor`` times the
        threshold. The text of the paper has 2, its pseudo-code 1.
    means : bool
        Send the means of the clusters' rows. If False, send the final centers of the clustering,
        as in the paper; such a center may be halfway between two rows, and needs ``min_count=1``.
    n_features_to_select : int, optional
        Number of columns to keep: those with the largest Welch t of a class against the rest,
        computed from sums over the parties in a preceding round; at most all. None keeps all.
    classes : sequence of labels, optional
        Labels to include in the model even if no party has ``min_count`` rows of them. Labels of
        which a party has that many rows are always included.
    share : int, optional
        Number of parties among which the rows are split at random. None: ``fit`` gets the owners of
        the rows, or there is one party.
    holdout : float
        Fraction of the rows that the server holds out to score the model on.
    random_state : int, RandomState or None
        Seed of the split.
    n_jobs : int, optional
        Number of threads for prediction, and for training if there is one party; results do not
        depend on it. -1 means all processors.
    privacy : Privacy, optional
        Train under differential privacy, see :class:`~fedneighbors.privacy.Privacy`. Parties send
        noised sums instead of centers. Of the other parameters, only ``bounds``, ``share``,
        ``random_state`` and ``n_jobs`` apply.
    bounds : float64 array of shape (n_features, 2), optional
        Lowest and highest value of each column, to which values are clipped under ``privacy``; take
        them from documentation, not from the rows.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        Labels, ascending.
    centers_ : float64 array of shape (n_centers, n_dimensions)
        Pattern neurons; not set under ``privacy``, like ``counts_`` and ``sigma_``.
    counts_ : int64 array of shape (n_centers, n_classes)
        Records of each class behind each center.
    sigma_ : float
        Smoothing in use.
    model_ : FedPNNModel or PrivateFedPNNModel
        The complete model, as every party of a federation holds it.
    server_score_ : float
        Balanced accuracy on the rows that the server holds out; only with ``holdout``.
    support_ : bool array of shape (n_features,)
        Mask of the columns that the model uses.
    t_statistics_ : float64 array of shape (n_selected,)
        Welch t of the selected columns; only if columns were selected.
    exposures_ : dict of str to Exposure
        Exposure of single rows by each party's centers; empty under ``privacy``, where the
        budget bounds it.
    run_record_ : RunRecord
        Rounds, bytes up and down, seconds, privacy spent.

    References
    ----------
    .. [1] Prasad, Vivek and Ravi, "FedPNN: One-shot Federated Classification via
       Evolving Clustering Method and Probabilistic Neural Network hybrid", 2023.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True)
    >>> owners = ["north" if row % 3 else "south" for row in range(len(y))]
    >>> FedPNNClassifier().fit(X, y, parties=owners).score(X, y) > 0.95
    True
    """

    client_threshold: float | None = None
    server_threshold: float | None = None
    _: KW_ONLY
    normalize: Literal["quantile", "minmax"] | None = "quantile"
    frame: Literal["global", "local"] = "global"
    classwise: bool = True
    metric: Literal["supervised"] | None = "supervised"
    min_count: int = 5
    sigma: float | Literal["loo"] = "loo"
    activation: Literal["gaussian", "logistic", "cauchy"] = "cauchy"
    factor: float = 2.0
    means: bool = True
    n_features_to_select: int | None = None
    classes: Sequence[Any] | Array | None = None
    share: int | None = None
    holdout: float = 0.0
    random_state: int | np.random.RandomState | None = 0
    n_jobs: int | None = None
    privacy: Privacy | None = None
    bounds: npt.ArrayLike | None = None
    model_: Any = field(init=False)
    run_record_: RunRecord = field(init=False)

    @classmethod
    def paper(cls, client_threshold: float, server_threshold: float, **changes: Any) -> Self:
        """Return a classifier with the settings of the paper.

        Each of two parties scales its columns to [0, 1] by its own constants and clusters all
        classes together; the server holds out a tenth of the rows. Nothing is withheld: a center
        may be a single row. Set ``share=None`` to pass the owners of the rows to :meth:`fit`.

        Parameters
        ----------
        client_threshold, server_threshold : float
            Dthr of the parties and of the server (Table 4 of the paper).
        **changes
            Parameters that override these settings.
        """
        settings: dict[str, Any] = {
            "normalize": "minmax",
            "frame": "local",
            "classwise": False,
            "metric": None,
            "min_count": 1,
            "means": False,
            "activation": "gaussian",
            "share": 2,
            "holdout": 0.1,
        }
        return cls(client_threshold, server_threshold, **(settings | changes))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def fit(self, X: Any, y: Any, parties: Sequence[Any] | Array | None = None) -> Self:
        """Train on one table, whose rows may belong to several parties.

        Parameters
        ----------
        X : array or DataFrame of shape (n_rows, n_features)
            Numbers; missing cells are NaN. Leave them so: filled cells no longer show that a value
            was missing.
        y : array of shape (n_rows,)
            Labels.
        parties : sequence of shape (n_rows,), optional
            Owner of each row. None means one party, or ``share`` parties.

        Raises
        ------
        ValueError
            If a parameter is out of range, there is not one owner for each row, or both
            ``parties`` and ``share`` are given.
        DataError
            If no party has enough rows of any class, or there are fewer than two classes.
        """
        if self.privacy is not None:
            return self._fit_privately(X, y, parties, self.privacy)
        y = plain_targets(y, parties)
        x, labels = validate_rows(
            self, X, y, dtype=np.float64, ensure_all_finite="allow-nan", reset=True
        )
        check_labels(labels)
        if len(np.unique(labels)) < 2:
            raise DataError("expected at least two classes, got one class; add rows of another")
        settings = self._make_settings(labels)
        seed = public_seed(self.random_state)
        owners, held_out = split_rows(
            labels, parties, share=self.share, holdout=self.holdout, seed=seed
        )
        holdings = self._make_holdings(x[~held_out], labels[~held_out], owners)
        started, clock = datetime.now(UTC), time.perf_counter()
        members = holdings.parties(
            FedPNNParty, n_threads=effective_n_jobs(self.n_jobs), min_count=self.min_count
        )
        outcome = run(coordinate(settings), members)
        self.exposures_ = {member.name: member.exposure for member in members}
        self._set_model(outcome.result, like=labels)
        self._warn_about_omitted_classes(labels[~held_out])
        if held_out.any():
            self.server_score_ = balanced_accuracy(labels[held_out], self.predict(x[held_out]))
        self.run_record_ = RunRecord(
            name="fedpnn.fit",
            parameters={
                "n_centers_": len(self.model_.centers),
                "sigma_": self.model_.sigma,
                "normalize": settings.scaling_kind,
                "frame": settings.frame,
                "metric": settings.metric or "none",
                "classwise": settings.classwise,
                "min_count": settings.min_count,
                "n_features_to_select": settings.n_features_to_select,
            },
            rounds=outcome.rounds,
            started=started.isoformat(timespec="seconds"),
            seconds=time.perf_counter() - clock,
            environment=environment(),
        )
        return self

    def predict_log_proba(self, X: Any) -> Floats:
        """Return log class probabilities under equal priors.

        Parameters
        ----------
        X : array or DataFrame of shape (n_rows, n_features)
            As for :meth:`fit`.

        Returns
        -------
        float64 array of shape (n_rows, n_classes)
            -inf for a class without centers.
        """
        check_is_fitted(self)
        x = validate_rows(
            self,
            encode_features(self, X),
            dtype=np.float64,
            ensure_all_finite="allow-nan",
            reset=False,
        )
        present = self.model_.has_centers
        log_priors = np.where(present, -np.log(present.sum()), -np.inf)
        densities = self.model_.log_densities(x, n_threads=effective_n_jobs(self.n_jobs))
        return log_posteriors(densities, log_priors)

    @classmethod
    def load(cls, path: str | Path) -> "FedPNNClassifier":
        """Load a classifier written by :meth:`save` or by a party.

        Raises
        ------
        ModelFileError
            If the file is missing, truncated or altered, or of another type or version.
        """
        content = read_model_file(path)
        model: Any
        if content.startswith(PrivateFedPNNModel.magic):
            model, classifier = PrivateFedPNNModel.from_bytes(content, source=str(path)), cls()
        else:
            model = FedPNNModel.from_bytes(content, source=str(path))
            classifier = cls(sigma=model.sigma, activation=model.activation)
        set_columns(classifier, model.n_features, model.feature_names)
        classifier._set_model(model, like=np.array(model.classes))
        return classifier

    def _make_settings(self, labels: Array) -> FedPNNSettings:
        parameters = self.get_params(deep=False)
        names = parameters.keys() & {setting.name for setting in fields(FedPNNSettings)}
        values = {name: parameters[name] for name in names}
        values["classes"] = () if self.classes is None else reserved_labels(self.classes, labels)
        return FedPNNSettings(**values)

    def _make_holdings(self, x: Floats, labels: Array, owners: Any) -> Holdings:
        return Holdings(x, labels, rows_by_party(owners, len(labels)), column_names(self))

    def _fit_privately(self, X: Any, y: Any, parties: Any, privacy: Privacy) -> Self:
        from fedneighbors.methods.fedpnn.private import _training as training

        training.check_private_parameters(
            self.get_params(deep=False), type(self)().get_params(False)
        )
        X, labels = apply_schema(X, y, privacy)
        x = validate_rows(self, X, dtype=np.float64, ensure_all_finite=False, reset=True)
        seed = public_seed(self.random_state)
        texts = labels.astype(np.str_)
        owners, _ = split_rows(texts, parties, share=self.share, holdout=0.0, seed=seed)
        holdings = self._make_holdings(x, labels, owners)
        model, self.run_record_ = training.fit_privately(holdings, privacy, self.bounds)
        self.exposures_ = {}
        self._set_model(model, like=np.array(privacy.classes))
        return self

    def _warn_about_omitted_classes(self, labels: Array) -> None:
        """Warn about classes of which no party has enough rows."""
        unknown = sorted(set(labels.tolist()) - set(self.classes_.tolist()))
        if unknown:
            warnings.warn(
                f"no party has min_count={self.min_count} rows of classes {unknown[:10]}, which "
                "are left out of the model; lower min_count, or list them in classes",
                UserWarning,
                stacklevel=3,
            )

    def _set_model(self, model: Any, *, like: Array) -> None:
        self.model_ = model
        self.classes_ = label_array(model.classes, like=like)
        self.support_ = np.ones(model.n_features, bool)
        if isinstance(model, PrivateFedPNNModel):
            return
        self.centers_ = model.centers
        self.counts_ = model.counts
        self.sigma_ = model.sigma
        if model.selection is not None:
            self.support_ = np.isin(np.arange(model.n_features), model.selection.columns)
            self.t_statistics_ = model.selection.statistics
