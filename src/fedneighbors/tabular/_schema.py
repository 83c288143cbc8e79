"""Schemas of tables, agreement between parties, and exact sums of columns."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors._limits import MAX_CELLS, MAX_CLASSES
from fedneighbors._typing import Array, Booleans, Floats, Integers
from fedneighbors.datasets._schema_columns import read_labels
from fedneighbors.errors import DataError, ProtocolError, SchemaMismatch
from fedneighbors.federation._messages import message
from fedneighbors.federation._roles import Refused
from fedneighbors.kernels._exactsum import QUANTUM_BITS, exact_moments
from fedneighbors.privacy._policy import Privacy, check_privacy

Label = str | int | float | bool

_KINDS = {"b": "boolean", "i": "number", "u": "number", "f": "number"}


@message
class SchemaReply:
    """Schema of one party's table: names and kinds of columns, and labels."""

    feature_names: tuple[str, ...] | None
    kinds: tuple[str, ...]
    label_name: str
    label_kind: str
    labels: tuple[Label, ...]

    def __post_init__(self) -> None:
        if self.feature_names is not None and len(self.feature_names) != len(self.kinds):
            raise ValueError("the numbers of column names and column kinds differ")
        if self.label_kind != _label_kind(self.labels):
            raise ValueError("labels are not of the declared type")


@message
class PublicSchemaRequest:
    """Request for the schema without labels, which are declared."""

    reply: ClassVar[type] = SchemaReply


@message
class Receipt:
    """Acknowledgement of a request."""


@dataclass(frozen=True)
class JointSchema:
    """Schema common to all parties' tables.

    Parameters
    ----------
    n_features : int
        Number of columns.
    feature_names : tuple of str or None
        Column names.
    classes : tuple of labels
        Union of the parties' labels, ascending; empty for regression.
    """

    n_features: int
    feature_names: tuple[str, ...] | None
    classes: tuple[Label, ...]


def describe(
    x: Any,
    y: Array,
    feature_names: Sequence[str] | None,
    label_name: str,
    *,
    allow_missing: bool = False,
) -> SchemaReply:
    """Return the schema of a table.

    Parameters
    ----------
    x : array or sparse matrix of shape (n_rows, n_features)
        Rows of numbers.
    y : array of shape (n_rows,)
        Labels.
    feature_names : sequence of str or None
        Column names.
    label_name : str
        Name of the label column.
    allow_missing : bool
        Whether cells may be NaN.

    Raises
    ------
    Refused
        If a column is not numeric or has a value that is not finite, or if labels are missing or of
        an unsupported type. The error names the column.
    """
    kind = _KINDS.get(x.dtype.kind, "text")
    names = tuple(feature_names) if feature_names is not None else None
    values = x.data if hasattr(x, "toarray") else x
    if kind == "text":
        column = next((j for j in range(x.shape[1]) if not _is_numeric(x[:, j])), 0)
        raise Refused("a column is not numeric", names[column] if names else f"column {column}")
    is_invalid = np.isinf if allow_missing else _is_not_finite
    if x.dtype.kind == "f" and is_invalid(values).any():
        dense = x.tocsc() if hasattr(x, "tocsc") else x
        for column in range(x.shape[1]):
            part = dense[:, [column]]
            if is_invalid(part.data if hasattr(part, "toarray") else part).any():
                name = names[column] if names else f"column {column}"
                problem = "infinite" if allow_missing else "missing or not finite"
                raise Refused(f"a value is {problem}", name)
    labels = _labels(y, label_name)
    return SchemaReply(names, (kind,) * x.shape[1], label_name, _label_kind(labels), labels)


def _is_not_finite(values: Array) -> Booleans:
    return np.asarray(~np.isfinite(values))


def _is_numeric(column: Array) -> bool:
    return all(isinstance(value, int | float | np.number | np.bool_) for value in column.tolist())


def _labels(y: Array, label_name: str) -> tuple[Label, ...]:
    """Return the distinct labels, ascending, as plain Python values."""
    labels = y.tolist() if y.dtype == object else np.unique(y).tolist()
    if any(label is None or label != label for label in labels):
        raise Refused("a label is missing", label_name)
    plain = [label.item() if isinstance(label, np.generic) else label for label in labels]
    if any(not isinstance(label, str | int | float) for label in plain):
        raise Refused("a label is neither text, number nor boolean", label_name)
    if len({type(label) for label in plain}) > 1:
        raise Refused("labels are of different types", label_name)
    if any(isinstance(label, int) and not -(2**63) <= label < 2**63 for label in plain):
        raise Refused("a label does not fit into 64 bits", label_name)
    return tuple(sorted(set(plain)))


def _label_kind(labels: tuple[Any, ...]) -> str:
    kinds = {type(label).__name__ for label in labels}
    return kinds.pop() if len(kinds) == 1 else ("none" if not kinds else "mixed")


def agree(schemas: Mapping[str, SchemaReply], reserved: tuple[Label, ...] = ()) -> JointSchema:
    """Return the common columns, and the union of the labels.

    Raises
    ------
    SchemaMismatch
        If a party's columns differ from those of the first party by name, or labels are of
        different types. The error names the party and the column.
    DataError
        If ``reserved`` and the labels of all parties have fewer than two classes.
    """
    columns = agree_columns(schemas)
    _compare_labels(schemas, reserved)
    classes = set(reserved).union(*(schema.labels for schema in schemas.values()))
    if len(classes) < 2:
        raise DataError(
            "expected at least two classes over all parties, got "
            f"{f'one class {min(classes)!r}' if classes else 'none'}; add rows of another class"
        )
    return JointSchema(columns.n_features, columns.feature_names, tuple(sorted(classes)))


def agree_columns(schemas: Mapping[str, SchemaReply]) -> JointSchema:
    """Return the common columns, without labels.

    Raises
    ------
    SchemaMismatch
        If a party's columns differ from those of the first party by name.
    """
    parties = sorted(schemas)
    first = schemas[parties[0]]
    for party in parties[1:]:
        _compare_columns(party, first, schemas[party])
    return JointSchema(len(first.kinds), first.feature_names, ())


def _compare_columns(party: str, first: SchemaReply, other: SchemaReply) -> None:
    if len(other.kinds) != len(first.kinds):
        raise SchemaMismatch(
            party, "(all)", f"{len(first.kinds)} columns", f"{len(other.kinds)} columns"
        )
    if (first.feature_names is None) != (other.feature_names is None):
        expected, found = ("no names", "names") if other.feature_names else ("names", "no names")
        raise SchemaMismatch(party, "(all)", f"columns with {expected}", f"columns with {found}")
    names = first.feature_names or tuple(f"column {k}" for k in range(len(first.kinds)))
    others = other.feature_names or names
    for position, (expected, found) in enumerate(zip(names, others, strict=True)):
        if expected != found:
            raise SchemaMismatch(
                party, expected, f"{expected!r} at position {position}", f"{found!r}"
            )
    for name, expected, found in zip(names, first.kinds, other.kinds, strict=True):
        if expected != found:
            raise SchemaMismatch(party, name, expected, found)


def _compare_labels(schemas: Mapping[str, SchemaReply], reserved: tuple[Label, ...]) -> None:
    expected = _label_kind(reserved)
    for party in sorted(schemas):
        schema = schemas[party]
        if schema.label_kind == "none":
            continue
        if expected == "none":
            expected = schema.label_kind
        if schema.label_kind != expected or expected == "mixed":
            raise SchemaMismatch(
                party, schema.label_name, f"labels of type {expected}", schema.label_kind
            )


def label_index(classes: tuple[Label, ...]) -> Mapping[Label, int]:
    """Return the position of each label."""
    return {label: position for position, label in enumerate(classes)}


def label_positions(y: Array, classes: tuple[Label, ...], *, name: str) -> Integers:
    """Return the position of each row's label among the classes.

    Parameters
    ----------
    y : array of shape (n_rows,)
        Labels.
    classes : tuple of labels
        Classes of the federation.
    name : str
        Name of the label column.

    Raises
    ------
    Refused
        If a label is not among the classes.
    """
    index = label_index(classes)
    labels, inverse = np.unique(y, return_inverse=True)
    if not all(label in index for label in labels.tolist()):
        raise Refused("a label is not among the classes", name)
    positions = np.array([index[label] for label in labels.tolist()], np.int64)
    return positions[inverse]


def label_array(classes: Sequence[Any], *, like: Array) -> Array:
    """Return classes as an array, with the labels' object dtype."""
    return np.array(classes, dtype=object if like.dtype == object else None)


def reserved_labels(classes: Sequence[Any] | Array, y: Any) -> tuple[Any, ...]:
    """Return the classes announced for all current and future rows, ascending.

    Raises
    ------
    ValueError
        If ``y`` has other labels.
    """
    reserved = np.unique(np.asarray(classes)).tolist()
    unknown = set(np.asarray(y).ravel().tolist()) - set(reserved)
    if unknown:
        raise ValueError(
            f"y has labels {list(unknown)[:5]} that are not among classes={reserved[:10]}; "
            "list all current and future labels"
        )
    return tuple(reserved)


BLOCK_ROWS = 512  # rows that are dense at a time; 4 MB per thousand columns of float64


@message
class MomentsReply:
    """Exact sums over rows, additive over parties.

    Parameters
    ----------
    n_rows : int
        Number of rows in the sums.
    sums : int64 array of shape (n_features, 13)
        Sum of each column in fixed point, see :mod:`fedneighbors.kernels._exactsum`; empty if only
        the number of rows was requested.
    squares : int64 array of shape (n_features, 26)
        Sum of the squares of each column in fixed point; empty likewise.
    """

    n_rows: int
    sums: Integers
    squares: Integers


def column_moments(x: Any) -> MomentsReply:
    """Compute exact column moments of a dense or sparse table.

    Examples
    --------
    >>> mean, deviation = mean_and_deviation(column_moments(np.array([[1.0], [3.0]])))
    >>> float(mean[0]), float(deviation[0])
    (2.0, 1.0)
    """
    n_rows, n_features = x.shape
    sums, squares = exact_moments(np.zeros((0, n_features)))
    for block in blocks(x):
        block_sums, block_squares = exact_moments(np.asarray(block, np.float64))
        sums += block_sums
        squares += block_squares
    return MomentsReply(n_rows, sums, squares)


def mean_and_deviation(moments: MomentsReply) -> tuple[Floats, Floats]:
    """Return mean and standard deviation of each column.

    Both are computed from integers, so that no digits cancel.

    Parameters
    ----------
    moments : MomentsReply
        Moments of at least one row.

    Returns
    -------
    mean, deviation : float64 arrays of shape (n_features,)
        In the units of the columns.

    Raises
    ------
    ProtocolError
        If a variance would be negative, which no table has.
    """
    n = moments.n_rows
    mean = np.empty(len(moments.sums))
    deviation = np.empty(len(moments.sums))
    for j, (low, high) in enumerate(zip(moments.sums, moments.squares, strict=True)):
        first, second = join_limbs(low), join_limbs(high)
        spread = n * second - first * first  # n**2 * variance, in units of 2**-400
        if spread < 0:
            raise ProtocolError("column moments contradict each other; a party sent wrong sums")
        mean[j] = first / (n << QUANTUM_BITS)
        deviation[j] = math.sqrt(spread / (n * n << 2 * QUANTUM_BITS))
    return mean, deviation


def join_limbs(limbs: Integers) -> int:
    """Return the integer of limbs in base 2**32, the lowest first."""
    return sum(int(limb) << 32 * k for k, limb in enumerate(limbs))


def blocks(x: Any) -> Iterator[Array]:
    """Yield consecutive dense blocks of rows of a dense or sparse table."""
    for start in range(0, x.shape[0], BLOCK_ROWS):
        part = x[start : start + BLOCK_ROWS]
        yield part.toarray() if hasattr(part, "toarray") else part


def check_cells(name: str, *sides: int) -> None:
    """Raise ValueError for an array of more than ``MAX_CELLS`` cells."""
    if math.prod(sides) > MAX_CELLS:
        raise ValueError(f"{name} of {' x '.join(map(str, sides))} cells; the limit is {MAX_CELLS}")


def check_n_classes(n_classes: int) -> None:
    """Raise ValueError for too many classes."""
    if n_classes > MAX_CLASSES:
        raise ValueError(f"expected at most {MAX_CLASSES} classes, got {n_classes}")


# Sums and products of rows by class. Coordinates are rounded to multiples of 2**-16 before they are
# summed, so that the sums are integers that do not depend on the split into parties.

QUANTA = 1 << 16
"""Steps per unit of a coordinate; coordinates are rounded to multiples of a step."""

COORDINATE_LIMIT = 8.0
"""Limit of a coordinate, to which others are clipped: 2**19 steps, whose square is 2**38."""

CLASS_BLOCK_ROWS = 1 << 14
"""Size of blocks of rows: sums of squares stay below 2**53, exact in float64."""


@message
class PointMomentsReply:
    """Sums over the rows of a party, to be added up over parties.

    Parameters
    ----------
    counts : int64 array of shape (n_classes,)
        Rows of each class.
    sums : int64 array of shape (n_classes, n_coordinates)
        Sum of each coordinate by class, in units of 2**-16.
    products : int64 array of shape (n_coordinates, n_coordinates)
        Sum of the product of each pair of coordinates over all classes, in units of 2**-32; or,
        with a first axis of length n_classes, over each class.
    """

    counts: Integers
    sums: Integers
    products: Integers


def class_moments(points: Floats, labels: Integers, n_classes: int) -> PointMomentsReply:
    """Return counts and sums by class, and products over all classes."""
    n_coordinates = points.shape[1]
    sums = np.zeros((n_classes, n_coordinates), np.int64)
    products = np.zeros((n_coordinates, n_coordinates), np.int64)
    for start in range(0, len(points), CLASS_BLOCK_ROWS):
        block = quantize(points[start : start + CLASS_BLOCK_ROWS])
        products += (block.T @ block).astype(np.int64)  # exact: below 2**53
        block_labels = labels[start : start + CLASS_BLOCK_ROWS]
        for label in np.unique(block_labels):
            sums[label] += block[block_labels == label].sum(axis=0).astype(np.int64)
    return PointMomentsReply(np.bincount(labels, minlength=n_classes), sums, products)


def quantize(points: Floats) -> Floats:
    """Return coordinates in steps of 2**-16, rounded to integers."""
    return np.asarray(np.rint(np.clip(points, -COORDINATE_LIMIT, COORDINATE_LIMIT) * QUANTA))


def covariance_within(moments: PointMomentsReply) -> tuple[Floats, Floats]:
    """Return class means and the covariance within classes.

    Parameters
    ----------
    moments : PointMomentsReply
        Moments of at least one row.

    Returns
    -------
    means : float64 array of shape (n_present, n_coordinates)
        Means of the classes that have rows, in the order of the classes.
    within : float64 array of shape (n_coordinates, n_coordinates)
        Symmetric covariance matrix.
    """
    counts = moments.counts
    present = counts > 0
    means = moments.sums[present] / (counts[present, None] * float(QUANTA))
    between = (means * counts[present, None]).T @ means
    within = (moments.products / float(QUANTA) ** 2 - between) / int(counts.sum())
    return means, (within + within.T) / 2


def apply_schema(X: Any, y: Any, privacy: Privacy) -> tuple[Any, npt.NDArray[np.object_]]:
    """Return rows and labels, converted by the schema.

    The label of a row is None if the schema drops the row or the label is not among the classes.
    Without a schema, rows are unchanged.

    Raises
    ------
    TypeError
        If the budget is no Privacy.
    ValueError
        If a data frame has no schema, the classes are not declared, or the numbers of rows and
        labels differ.
    DataError
        If a column of the schema is missing.
    """
    check_privacy(privacy)
    privacy.check_classes()
    if privacy.schema is None and hasattr(X, "columns"):
        raise ValueError(
            "a data frame needs a schema under a privacy budget, since its rows decide the types "
            "of its columns: declare Privacy(schema=...), or pass an array with bounds and classes"
        )
    from sklearn.utils import column_or_1d  # slow to import; Flower nodes do not need it

    rows = X if hasattr(X, "shape") else np.asarray(X)
    y = column_or_1d(y, dtype=object, warn=True)
    labels = np.full(rows.shape[0], None, dtype=object)
    if len(labels) != len(y):
        raise ValueError(f"expected one label for each of {len(labels)} rows, got {len(y)}")
    if privacy.schema is None:
        found, known = read_labels(y, privacy.classes or ())
        labels[known] = found[known]
        return rows, labels
    encoded = privacy.schema.encode(rows, y)
    features = np.zeros((len(labels), encoded.x.shape[1]))
    features[encoded.kept], labels[encoded.kept] = encoded.x, encoded.y
    return features, labels
