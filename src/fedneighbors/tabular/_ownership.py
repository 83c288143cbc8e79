"""Owners and names of rows, public seeds, limits on threads, and locks."""

import hashlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import count, islice
from pathlib import Path
from threading import RLock
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import scipy.linalg  # noqa: F401 - loads its own BLAS, so that its threads are limited, too
from threadpoolctl import ThreadpoolController

from fedneighbors._typing import Array, Integers
from fedneighbors.datasets._table import join_names
from fedneighbors.tabular._model_file import (
    SCHEMA_SUFFIX,
    copy_schema,
    keep_pending,
    pending_path,
)
from fedneighbors.tabular._schema import Label, SchemaReply, check_cells, describe, label_positions


class TableParty:
    """One organisation's table; base of the parties of all methods.

    Parameters
    ----------
    name : str
        Name in the federation.
    x : array or sparse matrix of shape (n_rows, n_features)
        Rows.
    y : array of shape (n_rows,)
        Labels: strings, integers, floats or booleans.
    feature_names : sequence of str, optional
        Column names.
    label_name : str
        Name of the label, for error messages.
    n_threads : int
        Number of threads; replies do not depend on it.
    model_path : path, optional
        File for the final model.
    run : str
        Name of the run, unique at this party; unfinished models of different runs are separate.
    schema_path : path, optional
        File of the schema of the rows, which is copied next to the final model. One that is pending
        is deleted afterwards.

    Attributes
    ----------
    model : model of the method or None
        The final model after training.

    Raises
    ------
    ValueError
        If the numbers of labels and rows differ.
    """

    accepts: tuple[type[Any], ...]
    """Requests that the party supports."""

    allows_missing: ClassVar[bool] = False
    """True if cells may be NaN."""

    def __init__(
        self,
        name: str,
        x: Any,
        y: Array,
        *,
        feature_names: tuple[str, ...] | None = None,
        label_name: str = "target",
        n_threads: int = 1,
        model_path: str | Path | None = None,
        run: str = "",
        schema_path: Path | None = None,
    ) -> None:
        if len(y) != x.shape[0]:
            raise ValueError(f"expected one label for each of {x.shape[0]} rows, got {len(y)}")
        self.name = name
        self.model: Any = None
        self._x = x
        self._y = np.asarray(y)
        self._feature_names = feature_names
        self._label_name = label_name
        self._n_threads = n_threads
        self._path = None if model_path is None else Path(model_path)
        self._run = run
        self._schema_path = schema_path

    @cached_property
    def table_digest(self) -> bytes:
        """Return a digest of the table; it does not leave the party."""
        parts = (
            (self._x.data, self._x.indices, self._x.indptr)
            if hasattr(self._x, "indptr")
            else (self._x,)
        )
        digest = hashlib.sha256(repr((self._x.shape, self._y.tolist())).encode())
        for part in parts:
            digest.update(repr((part.dtype.str, part.shape)).encode())
            digest.update(np.ascontiguousarray(part).tobytes())
        return digest.digest()

    @property
    def _table(self) -> Any:
        """Return the rows as a two-dimensional table."""
        return self._x

    @property
    def _pending(self) -> Path:
        """Return the path of the run's unfinished model."""
        return pending_path(self._path or Path(), self._run)

    def _keep_pending(self, content: bytes) -> None:
        """Store the unfinished model; delete those of the oldest runs."""
        keep_pending(self._path or Path(), self._run, content)

    def _describe(self, labels: Array) -> SchemaReply:
        """Return the schema of the table with these labels."""
        return describe(
            self._table,
            labels,
            self._feature_names,
            self._label_name,
            allow_missing=self.allows_missing,
        )

    def _column(self, index: int) -> str:
        """Return the name of a column for messages."""
        return self._feature_names[index] if self._feature_names else f"column {index}"

    def _positions(self, classes: tuple[Label, ...], y: Array | None = None) -> Integers:
        """Return each label's position among the classes.

        By default, the labels are those of all rows.
        """
        return label_positions(self._y if y is None else y, classes, name=self._label_name)

    def _keep(self, model: Any) -> None:
        """Store the final model, also in its file, next to its schema."""
        if self._path is not None:
            schema = self._schema_path
            if schema is not None:
                copy_schema(schema, self._path)
            model.save(self._path)
            if schema == pending_path(self._path.with_suffix(SCHEMA_SUFFIX), self._run):
                schema.unlink()
        self.model = model


@dataclass(frozen=True)
class Holdings:
    """A table and the owners of its rows.

    Parameters
    ----------
    x : array or sparse matrix of shape (n_rows, n_features)
        Finite numbers.
    y : array of shape (n_rows,)
        Labels.
    owned : mapping of str to rows
        Rows of each party, as an index of ``x`` and ``y``.
    feature_names : tuple of str or None
        Column names.
    """

    x: Any
    y: Array
    owned: Mapping[str, Any]
    feature_names: tuple[str, ...] | None

    def parties(self, make: Any, *, n_threads: int, **options: Any) -> list[Any]:
        """Return ``make(name, x, y, ...)`` for each party.

        A single party gets all threads.
        """
        threads = n_threads if len(self.owned) == 1 else 1
        return [
            make(
                name,
                self.x[rows],
                self.y[rows],
                feature_names=self.feature_names,
                n_threads=threads,
                **options,
            )
            for name, rows in self.owned.items()
        ]


def party_name(name: object) -> str:
    """Return a party's name as text.

    5 and "5" name the same party.

    Parameters
    ----------
    name : str, number or other scalar
        The name, for example an entry of a party column.

    Raises
    ------
    ValueError
        If it is missing (None, NaN, an empty text) or not a scalar.
    """
    if _is_missing(name) or (hasattr(name, "__iter__") and not isinstance(name, str | bytes)):
        raise ValueError(f"expected the name of one party, such as 'north' or 5, got {name!r}")
    return str(name)


def row_names(ids: Iterable[object]) -> list[str]:
    """Return the names of rows as text.

    11 and "11" name the same row. A single text raises TypeError, because its characters would
    become names.
    """
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise TypeError(f"expected a list of row names, got {ids!r}; pass a list: [{ids!r}]")
    return [str(name) for name in ids]


def new_names(
    ids: Iterable[object] | None, n_rows: int, used: Container[str], first: int
) -> list[str]:
    """Return names for new rows; by default the unused numbers from ``first``.

    A wrong number of names, a repeated name or a name in ``used`` raises ValueError.
    """
    if ids is None:
        numbers = map(str, count(first))
        return list(islice((name for name in numbers if name not in used), n_rows))
    names = row_names(ids)
    if len(names) != n_rows:
        raise ValueError(f"expected a name for each of {n_rows} rows, got {len(names)}")
    if len(set(names)) < len(names):
        raise ValueError("expected new names, got the same name twice; rename one of the rows")
    known = [name for name in names if name in used]
    if known:
        raise ValueError(f"expected new names, got {known[0]!r}; forget that row first")
    return names


def rows_by_party(parties: Sequence[Any] | Array | None, n_rows: int) -> dict[str, Any]:
    """Return each party's rows, in name order; all rows for None.

    Names are converted by :func:`party_name`.

    Raises
    ------
    ValueError
        If the numbers of parties and rows differ, or a name is missing (None, NaN, an empty text).
    TypeError
        If ``parties`` is a mapping.
    """
    if parties is None:
        return {"all": slice(None)}
    if isinstance(parties, Mapping):
        raise TypeError("expected a list with the party of each row, got a mapping; list its names")
    owner = np.asarray(parties, dtype=object)  # an array of text would convert NaN to "nan"
    if owner.shape != (n_rows,):
        raise ValueError(f"expected one party for each of {n_rows} rows, got shape {owner.shape}")
    missing = sum(_is_missing(name) for name in owner)
    if missing:
        raise ValueError(
            f"expected a party for every row, found {missing} rows without one; fill them in"
        )
    owner = np.array([party_name(name) for name in owner])
    return {str(name): np.flatnonzero(owner == name) for name in np.unique(owner)}


def repeat_rows(owned: Mapping[str, Any], sample_weight: Any, x: Any) -> Mapping[str, Any]:
    """Return each party's rows, repeated as often as their weights say.

    Parameters
    ----------
    owned : mapping of str to rows
        Rows of each party, from :func:`rows_by_party`.
    sample_weight : array-like of shape (n_rows,) or None
        Whole numbers of 0 or more; None: all 1.
    x : array of shape (n_rows, n_features)
        The rows.

    Raises
    ------
    ValueError
        If the weights are not one whole number of 0 or more for each row, all are zero, or they are
        too large.
    """
    if sample_weight is None:
        return owned
    from sklearn.utils.validation import _check_sample_weight  # slow to import, as above

    weights = _check_sample_weight(sample_weight, x, dtype=np.float64)
    whole = (weights >= 0) & (weights == np.rint(weights))
    if not whole.all():
        raise ValueError(
            f"expected sample_weight of whole numbers, got {weights[~whole][0]}; rows are added as "
            "integer counts, which are exact in any order: multiply the weights and round them"
        )
    if len(weights) and not weights.any():
        raise ValueError("expected a positive sample_weight, got zero for all rows")
    check_cells("the repeated rows", int(weights.sum()), x.shape[1])
    copies, positions = weights.astype(np.int64), np.arange(len(weights))
    repeated = {name: np.repeat(positions[rows], copies[rows]) for name, rows in owned.items()}
    return {name: rows for name, rows in repeated.items() if len(rows)}


def _is_missing(name: Any) -> bool:
    """Return whether a value is None, "", or a missing marker.

    Markers such as NaN, NaT and pandas' NA differ from themselves.
    """
    if name is None or (isinstance(name, str) and not name):
        return True
    equal = name == name
    return not isinstance(equal, bool | np.bool_) or not equal


def plain_targets(y: Any, parties: Any = None) -> Any:
    """Return targets without pandas' nullable types; refuse missing ones.

    Integers and booleans keep their type; scikit-learn converts a nullable column to floats.

    Parameters
    ----------
    y : array-like of shape (n_rows,) or (n_rows, n_outputs)
        Labels or numbers.
    parties : sequence of shape (n_rows,), optional
        Party of each row, for the message.

    Raises
    ------
    ValueError
        If a target is missing; the message names the first row and its party.
    """
    kind = getattr(y, "dtype", None)
    if hasattr(y, "isna"):
        y = np.asarray(y) if isinstance(kind, np.dtype) else np.array(y, object)
    elif isinstance(y, list | tuple):
        with suppress(ValueError):  # a ragged list, which scikit-learn refuses
            y = np.asarray(y)
    if not isinstance(y, np.ndarray) or y.dtype.kind not in "fO":
        return y
    missing = np.isnan(y) if y.dtype.kind == "f" else np.array([_is_missing(v) for v in y.ravel()])
    rows = np.unique(np.flatnonzero(missing) * len(y) // max(1, y.size))
    if len(rows):
        owners = np.empty(0, object) if parties is None else np.asarray(parties, object)
        raise ValueError(
            f"expected a label for every row, found {len(rows)} rows without one, first at "
            f"position {rows[0]}{f' of party {owners[rows[0]]!s}' if len(owners) == len(y) else ''}"
            "; fill them in or remove these rows"
        )
    is_number = all(isinstance(v, bool | int | float | np.number | np.bool_) for v in y.ravel())
    return np.array(y.tolist()) if y.dtype == object and is_number else y


def check_labels(labels: Array) -> None:
    """Raise ValueError unless labels are classes of one type."""
    from sklearn.utils.multiclass import check_classification_targets  # slow to import, as above

    if labels.dtype == object:
        is_text = [isinstance(label, str) for label in labels.ravel()]
        if any(is_text) and not all(is_text):
            raise ValueError(
                "expected labels of one type, found text and other values; first of the other: "
                f"position {is_text.index(not is_text[0])}; convert all, for example with str"
            )
    check_classification_targets(labels)


def validate_rows(estimator: Any, X: Any, *others: Any, **options: Any) -> Any:
    """Return inputs that scikit-learn validates; name columns without numbers."""
    from sklearn.utils.validation import validate_data  # slow to import

    if type(X) is dict:  # SciPy's dok_matrix is a mapping, too
        raise TypeError("expected the rows of all parties in one table, got a mapping; join them")
    try:
        return validate_data(estimator, X, *others, **options)
    except (ValueError, TypeError) as error:
        if "feature names" not in str(error):  # other columns than in training
            check_numbers(X)
        if "contains NaN" in str(error):
            error.add_note("FedPNNClassifier and federated boosting accept missing cells.")
        raise


def check_numbers(X: Any) -> None:
    """Raise ValueError if columns of a data frame have no numbers."""
    columns = X.items() if hasattr(X, "columns") and hasattr(X, "items") else ()
    if names := [str(name) for name, column in columns if not _has_numbers(column)]:
        raise ValueError(
            f"these columns have cells other than numbers: {join_names(names)}; drop them "
            "or encode them, for example with pandas.get_dummies or fedneighbors.datasets.Schema"
        )


def _has_numbers(column: Any) -> bool:
    """Return whether scikit-learn reads a data frame's column as numbers."""
    if column.dtype.kind in "biufMm":
        return column.dtype.kind not in "Mm"
    try:
        np.asarray(column, dtype=np.float64)
    except (ValueError, TypeError):
        return False
    return True


def encode_features(estimator: Any, X: Any) -> Any:
    """Return rows for prediction, converted by the schema, if any."""
    schema = getattr(getattr(estimator, "privacy", None), "schema", None)
    return X if schema is None else schema.encode_all(X)


def column_names(estimator: Any) -> tuple[str, ...] | None:
    """Return the column names of a fitted estimator, if any."""
    schema = getattr(getattr(estimator, "privacy", None), "schema", None)
    if schema is not None:
        return tuple(schema.feature_names)
    names = getattr(estimator, "feature_names_in_", None)
    return None if names is None else tuple(map(str, names))


def set_columns(estimator: Any, n_features: int, names: Sequence[str] | None) -> None:
    """Set the number of columns and, if any, their names."""
    estimator.n_features_in_ = n_features
    if names is not None:
        estimator.feature_names_in_ = np.array(names, dtype=object)


def public_seed(random_state: int | np.random.RandomState | None) -> int:
    """Return the seed for a ``random_state``.

    Raises
    ------
    ValueError
        If an integer is negative or has more than 63 bits.
    """
    if isinstance(random_state, int | np.integer):
        if not 0 <= random_state < 2**63:
            raise ValueError(f"expected random_state in [0, 2**63), got {random_state}")
        return int(random_state)
    from sklearn.utils import check_random_state  # slow to import; Flower nodes do not need it

    return int(check_random_state(random_state).randint(2**31 - 1))


@lru_cache(maxsize=1)
def _controller() -> ThreadpoolController:
    """Return the controller of the loaded thread libraries.

    It is cached, because finding the libraries takes milliseconds.
    """
    return ThreadpoolController()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit NumPy and SciPy products to one thread in the block."""
    with _controller().limit(limits=1, user_api="blas"):
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch, NumPy and SciPy to one thread in the block."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with one_blas_thread():
            yield
    finally:
        torch.set_num_threads(before)


_LOCKS: WeakKeyDictionary[object, AbstractContextManager[Any]] = WeakKeyDictionary()
_LOCKS_GUARD = RLock()


def model_lock(model: object) -> AbstractContextManager[Any]:
    """Return a reentrant lock for a model.

    The lock is not an attribute of the model, because locks can be neither copied nor pickled.
    """
    with _LOCKS_GUARD:
        return _LOCKS.setdefault(model, RLock())
