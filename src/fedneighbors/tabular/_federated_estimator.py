"""Base class of estimators that are fitted to sums over parties."""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, is_classifier, is_regressor
from sklearn.utils.validation import check_is_fitted

from fedneighbors._typing import Array, Integers
from fedneighbors.errors import ModelFileError
from fedneighbors.federation._inprocess import run
from fedneighbors.federation._loop import Coordinator, gather, total
from fedneighbors.federation._messages import message
from fedneighbors.federation._roles import Refused
from fedneighbors.kernels._exactsum import N_SUM_LIMBS, QUANTUM_BITS, exact_moments
from fedneighbors.records import RunRecord, environment
from fedneighbors.tabular._model_file import ModelFile, convert_file_errors
from fedneighbors.tabular._ownership import (
    Holdings,
    TableParty,
    check_labels,
    column_names,
    plain_targets,
    rows_by_party,
    set_columns,
    validate_rows,
)
from fedneighbors.tabular._schema import (
    Label,
    SchemaReply,
    agree,
    agree_columns,
    check_cells,
    check_n_classes,
    join_limbs,
    label_array,
)

Arrays = dict[str, Array]


@message
class SummarySchemaRequest:
    """Request for the schema of a table, with the labels of a classifier."""

    reply: ClassVar[type] = SchemaReply
    labeled: bool


@message
class SummaryReply:
    """Sums of a party: integers, and floats in the fixed point of ``exact_moments``."""

    integers: Integers
    floats: Integers


@message
class SummaryRequest:
    """Request for the sums of an estimator with the given parameters."""

    reply: ClassVar[type] = SummaryReply
    estimator: str
    classes: tuple[Label, ...]

    def __post_init__(self) -> None:
        check_n_classes(len(self.classes))


@dataclass(frozen=True, eq=False)
class SummaryModel(ModelFile):
    """Schema and sums of all parties, from which an estimator is fitted.

    Parameters
    ----------
    estimator : str
        Class and parameters of the estimator.
    n_features : int
        Number of columns.
    feature_names : tuple of str or None
        Column names.
    classes : tuple of labels
        Labels, ascending; empty unless the estimator is a classifier.
    integers : int64 array of shape (n_integers,)
        Sums of integers.
    floats : int64 array of shape (n_floats, 13)
        Sums of floats in fixed point.
    """

    magic: ClassVar[bytes] = b"FNSUMS1"

    estimator: str
    n_features: int
    feature_names: tuple[str, ...] | None
    classes: tuple[Label, ...]
    integers: Integers
    floats: Integers

    def __post_init__(self) -> None:
        check_n_classes(len(self.classes))
        check_cells("an array for each column and class", self.n_features, len(self.classes) or 1)
        if self.integers.ndim != 1 or self.floats.shape[1:] != (N_SUM_LIMBS,):
            raise ValueError("sums are not of the expected shape")


class SummaryParty(TableParty):
    """One organisation's table, summed by an estimator.

    Parameters
    ----------
    estimator : FederatedEstimator
        Estimator with the same parameters as the coordinator's.
    **table
        Arguments of :class:`TableParty`.
    """

    accepts = (SummarySchemaRequest, SummaryRequest)

    def __init__(self, estimator: "FederatedEstimator", **table: Any) -> None:
        super().__init__(**table)
        self._estimator = estimator

    def answer(self, request: SummarySchemaRequest | SummaryRequest) -> SchemaReply | SummaryReply:
        """Return the schema, or the sums."""
        if isinstance(request, SummarySchemaRequest):
            return self._describe(self._y if request.labeled else self._y[:0])
        if request.estimator != self._estimator._describe_parameters():
            raise Refused("its estimator has other parameters than the coordinator's")
        y = self._positions(request.classes) if request.classes else self._y
        sums = self._estimator._sum_rows(self._x, y, n_classes=len(request.classes))
        return SummaryReply(*_pack(sums))


class FederatedEstimator(BaseEstimator, ABC):  # type: ignore[misc]
    """Base class of estimators that are fitted to sums over parties, in one exchange.

    A subclass defines :meth:`summarize`, :meth:`finish` and methods for prediction. It inherits
    from ``ClassifierMixin`` or ``RegressorMixin`` first, if it is one. A subclass with parameters
    of its own also takes ``sums`` in ``__init__``.

    Parameters
    ----------
    sums : {"plain", "masked"}
        ``"masked"`` computes the sums by secure aggregation, with the same result.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        Labels, ascending, of a classifier.
    n_features_in_ : int
        Number of columns.
    run_record_ : RunRecord
        Exchanges, bytes up and down, and seconds; not after :meth:`load`.

    Notes
    -----
    Sums are exact and reveal what they are computed from: there is no privacy budget. Sums of
    integers do not depend on the split of the rows into parties. Sums of floats are the exact sums
    of the parties' numbers, each of which is rounded as usual.

    Examples
    --------
    >>> import numpy as np
    >>> class Mean(FederatedEstimator):
    ...     def summarize(self, rows, labels):
    ...         return {"n_rows": np.array(len(rows)), "sums": rows.sum(axis=0)}
    ...
    ...     def finish(self, totals):
    ...         self.mean_ = totals["sums"] / totals["n_rows"]
    >>> Mean().fit([[1.0], [2.0], [6.0]], parties=["a", "b", "b"]).mean_
    array([3.])
    """

    classes_: Array

    def __init__(self, *, sums: Literal["plain", "masked"] = "plain") -> None:
        self.sums = sums

    @abstractmethod
    def summarize(self, rows: Any, labels: Any) -> Mapping[str, Any]:
        """Return sums over the rows of one party.

        Parameters
        ----------
        rows : float64 array of shape (n_rows, n_features)
            Finite numbers; there may be no rows.
        labels : array of shape (n_rows, n_classes) or (n_rows,)
            For a classifier, True at the class of each row; for a regressor ``y`` as float64;
            otherwise zeros.

        Returns
        -------
        mapping of str to array
            Arrays of integers or floats, whose names and shapes depend on the numbers of columns
            and classes only. They are added up over parties, so they are zero for no rows.
        """

    @abstractmethod
    def finish(self, totals: Arrays) -> None:
        """Set the fitted attributes from the sums over all parties.

        Parameters
        ----------
        totals : dict of str to array
            The arrays of :meth:`summarize`, summed over parties.
        """

    def fit(self, X: Any, y: Any = None, parties: Sequence[Any] | Array | None = None) -> Self:
        """Fit the estimator to the sums of all parties.

        Parameters
        ----------
        X : array or DataFrame of shape (n_rows, n_features)
            Finite numbers.
        y : array of shape (n_rows,), optional
            Labels of a classifier or numbers.
        parties : sequence of shape (n_rows,), optional
            Party of each row. None means one party.

        Raises
        ------
        ValueError
            If :meth:`summarize` does not return sums, or the numbers of parties and rows differ.
        DataError
            If a classifier has fewer than two classes.
        AggregationError
            If there are too few parties for masked sums.
        """
        if y is None and not self.__sklearn_tags__().target_tags.required:
            x = validate_rows(self, X, dtype=np.float64)
            labels = np.zeros(len(x))
        else:
            y = plain_targets(y, parties)
            x, labels = validate_rows(self, X, y, dtype=np.float64, y_numeric=is_regressor(self))
        if is_classifier(self):
            check_labels(labels)
        owned = rows_by_party(parties, len(x))
        started, clock = datetime.now(UTC), time.perf_counter()
        holdings = Holdings(x, labels, owned, column_names(self))
        members = holdings.parties(self.party, n_threads=1)
        outcome = run(self.coordinate(), members, sums=self.sums)
        self._set_totals(outcome.result, labels)
        self.run_record_ = RunRecord(
            name=f"{type(self).__name__}.fit",
            parameters={"parties": len(owned), "sums": self.sums},
            rounds=outcome.rounds,
            started=started.isoformat(timespec="seconds"),
            seconds=time.perf_counter() - clock,
            environment=environment(),
        )
        return self

    def party(self, name: str, x: Any, y: Any = None, **table: Any) -> SummaryParty:
        """Return the party of one table, for a runtime such as Flower.

        Parameters
        ----------
        name : str
            Name in the federation.
        x : array of shape (n_rows, n_features)
            Finite numbers.
        y : array of shape (n_rows,), optional
            Labels or numbers.
        **table
            Other arguments of the party, such as ``feature_names``.
        """
        labels = np.zeros(len(x)) if y is None else np.asarray(y)
        return SummaryParty(self, name=name, x=x, y=labels, **table)

    def coordinate(self) -> Coordinator[SummaryModel]:
        """Compare the schemas, and sum over all parties; returns what :meth:`load` reads."""
        labeled = is_classifier(self)
        replies = yield gather(SummarySchemaRequest(labeled))
        schemas = replies.complete("the schema").each
        schema = agree(schemas) if labeled else agree_columns(schemas)
        name = self._describe_parameters()
        self._template(schema.n_features, len(schema.classes))
        reply = (yield total(SummaryRequest(name, schema.classes))).summed("the sums")
        return SummaryModel(
            name,
            schema.n_features,
            schema.feature_names,
            schema.classes,
            reply.integers,
            reply.floats,
        )

    def flower_apps(self) -> tuple[Any, Any]:
        """Return the Flower apps of the coordinator and of a party.

        Nodes read their tables as described in :func:`~._app_config.party_table`; the run writes
        the model to its ``model-path``, from which :meth:`load` reads it.
        """
        from fedneighbors.tabular._app_config import table_apps

        def coordinate(_: Any, privacy: Any) -> Coordinator[SummaryModel]:
            if privacy is not None:
                raise ValueError("exact sums have no privacy budget; leave epsilon out")
            return self.coordinate()

        def make_party(table: dict[str, Any], node: Mapping[str, Any]) -> SummaryParty:
            if node.get("epsilon"):
                raise Refused("this node sets epsilon, and exact sums have no privacy budget")
            return self.party(**table)

        return table_apps(type(self).__name__.lower(), coordinate, make_party)[:2]

    def save(self, path: str | Path) -> None:
        """Write the sums to a file for :meth:`load`.

        Parameters
        ----------
        path : path
            The file.
        """
        check_is_fitted(self)
        self._model.save(path)

    @classmethod
    def load(cls, path: str | Path, **parameters: Any) -> Self:
        """Read an estimator saved by :meth:`save` or a Flower run.

        Parameters
        ----------
        path : path
            The file.
        **parameters
            Parameters of the estimator, as for the fit.

        Raises
        ------
        ModelFileError
            If the file is missing, truncated or altered, or was written with other parameters or by
            another class.
        """
        new, model = cls(**parameters), SummaryModel.load(path)
        expected = new._describe_parameters()
        if model.estimator != expected:
            raise ModelFileError(f"{path} is from {model.estimator}, not from {expected}")
        set_columns(new, model.n_features, model.feature_names)
        with convert_file_errors(str(path)):
            new._set_totals(model, np.array(model.classes))
        return new

    def _set_totals(self, model: SummaryModel, labels: Array) -> None:
        """Set the fitted attributes; ``labels`` has the type of the classes."""
        if model.classes:
            self.classes_ = label_array(model.classes, like=labels)
        template = self._template(model.n_features, len(model.classes))
        self.finish(_unpack(template, model.integers, model.floats))
        self._model = model

    def _describe_parameters(self) -> str:
        """Return class and parameters as text; they must agree between parties."""
        parameters = {k: v for k, v in self.get_params(deep=False).items() if k != "sums"}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in parameters.items())})"

    def _template(self, n_features: int, n_classes: int) -> Arrays:
        """Return the arrays for no rows; raise if not zero."""
        no_rows = np.empty((0, n_features)), np.empty(0, np.int64)
        arrays = self._sum_rows(*no_rows, n_classes=n_classes)
        for name, array in arrays.items():
            if np.any(array != 0):
                raise ValueError(
                    f"summarize returned {name!r} with other values than 0 for a table without "
                    "rows; return sums over rows, and derive the rest in finish"
                )
        return arrays

    def _sum_rows(self, x: Any, y: Array, *, n_classes: int) -> Arrays:
        """Return the arrays of :meth:`summarize`, sorted by name, as int64 or float64.

        ``y`` contains positions of classes if there are classes.
        """
        if n_classes:
            labels: Array = y[:, None] == np.arange(n_classes)
        else:
            labels = np.asarray(y, np.float64) if is_regressor(self) else np.zeros(len(x))
        arrays = {}
        for name, value in sorted(self.summarize(np.asarray(x, np.float64), labels).items()):
            array = np.asarray(value)
            if array.dtype.kind not in "iuf":
                raise ValueError(
                    f"summarize returned {name!r} of type {array.dtype}; expected an array of "
                    "integers or floats"
                )
            arrays[name] = array.astype(np.float64 if array.dtype.kind == "f" else np.int64)
        return arrays


def _pack(arrays: Arrays) -> tuple[Integers, Integers]:
    """Return integers as one array, and floats in fixed point."""
    integers = [a.ravel() for a in arrays.values() if a.dtype == np.int64]
    floats = [a.ravel() for a in arrays.values() if a.dtype != np.int64]
    return (
        np.concatenate([np.empty(0, np.int64), *integers]),
        exact_moments(np.concatenate([np.empty(0), *floats])[None])[0],
    )


def _unpack(template: Arrays, integers: Integers, floats: Integers) -> Arrays:
    """Return arrays with the shapes of the template."""
    numbers = {
        "i": integers,
        "f": np.array([join_limbs(limbs) / (1 << QUANTUM_BITS) for limbs in floats], np.float64),
    }
    sizes = {
        kind: sum(a.size for a in template.values() if a.dtype.kind == kind) for kind in numbers
    }
    if sizes != {kind: len(array) for kind, array in numbers.items()}:
        raise ValueError(
            "the parties' arrays differ in size from those for a table without rows; their shapes "
            "may depend on the numbers of columns and classes only"
        )
    arrays, starts = {}, dict.fromkeys(numbers, 0)
    for name, array in template.items():
        start = starts[kind := array.dtype.kind]
        starts[kind] = start + array.size
        arrays[name] = numbers[kind][start : starts[kind]].reshape(array.shape)
    return arrays
