"""Columns of a schema: conversion of cells to features, each cell by itself; drafts."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from fedneighbors._typing import Array, Booleans, Floats
from fedneighbors.datasets._ontology import Ontology
from fedneighbors.datasets._table import join_names, missing_cells, suggest
from fedneighbors.datasets._text_format import parse_number
from fedneighbors.errors import DataError

_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.0*)?")  # 18 digits always fit int64
_ID_NAME = re.compile("(^|[^A-Za-z])[Ii][Dd]$|[a-z](ID|Id)$|(^|[^A-Za-z])[Uu][Uu][Ii][Dd]$")
_MAX_DISTINCT = 20  # texts that may all differ in a small table, and still be categories
_RULES = ("drop", "keep")
_MIN_MEASURED = 20  # distinct numbers; scales of scores have fewer
_MIN_CLASS_ROWS = 10
_MISSING_CATEGORY = "missing"
_MAX_WEIGHT = 1e9  # sums of weights stay finite
Cells = Sequence[Any] | Array


@dataclass(frozen=True)
class NumericColumn:
    """A column of numbers.

    A cell that is not a number counts as missing. A number outside the range, also an infinite one,
    becomes the nearer bound.

    Parameters
    ----------
    name : str
        Column name.
    low, high : float
        Range of the values; infinite by default.
    missing : float, "drop" or "keep"
        Value of a missing cell. ``"drop"`` drops its row. ``"keep"`` leaves it NaN, for methods
        that accept NaN.
    weight : float
        Weight in the metric ``tabular``; other methods ignore it.

    Raises
    ------
    ValueError
        If the range is empty, the weight is negative or infinite, or ``missing`` is another text,
        infinite or outside the range.
    """

    name: str
    low: float = -math.inf
    high: float = math.inf
    missing: float | Literal["drop", "keep"] = "drop"
    weight: float = 1.0

    def __post_init__(self) -> None:
        _check_weight(self.weight)
        if not self.low <= self.high:
            raise ValueError(f"expected low of at most high, got {self.low!r} and {self.high!r}")
        if isinstance(self.missing, str):
            if self.missing not in _RULES:
                raise ValueError(
                    f"expected missing as a number, 'drop' or 'keep', got {self.missing!r}"
                )
        elif not (self.low <= self.missing <= self.high and math.isfinite(self.missing)):
            raise ValueError(f"expected missing within the range, got {self.missing!r}")

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Return the names of the column's features."""
        return (self.name,)

    @property
    def bounds(self) -> tuple[tuple[float, float], ...]:
        """Return the lowest and highest value of each feature."""
        return ((self.low, self.high),)

    def encode(self, cells: Cells) -> tuple[Floats, Booleans, Booleans]:
        """Return the feature, and masks of missing and of clipped cells.

        Parameters
        ----------
        cells : sequence of length n_rows
            Numbers, texts or None.

        Returns
        -------
        features : float64 array of shape (n_rows, 1)
            NaN for missing cells unless ``missing`` is a number.
        missing, clipped : bool arrays of shape (n_rows,)
        """
        if isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf":
            numbers = cells.astype(np.float64)
        else:
            numbers = np.fromiter(map(_number, cells), np.float64, len(cells))
        missing = np.isnan(numbers)
        clipped = (numbers < self.low) | (numbers > self.high)
        numbers = np.clip(numbers, self.low, self.high)
        if not isinstance(self.missing, str):
            numbers[missing] = self.missing
        return numbers[:, np.newaxis], missing, clipped


@dataclass(frozen=True)
class CategoricalColumn:
    """A column of categories.

    A cell that is none of the categories counts as missing.

    Parameters
    ----------
    name : str
        Column name.
    categories : tuple of str
        Categories, in the order of their features.
    missing : str
        Category of a missing cell. ``"drop"`` drops its row, ``"keep"`` sets all its features to 0.
    weight : float
        Weight in the metric ``tabular``; other methods ignore it.

    Raises
    ------
    ValueError
        If there is no category, one occurs twice, the weight is negative or infinite, or
        ``missing`` is none of them.
    """

    name: str
    categories: tuple[str, ...]
    missing: str = "drop"
    weight: float = 1.0

    def __post_init__(self) -> None:
        _check_weight(self.weight)
        if not self.categories or len(set(self.categories)) < len(self.categories):
            raise ValueError(f"expected distinct categories, got {list(self.categories)[:10]}")
        if self.missing not in (*_RULES, *self.categories):
            raise ValueError(
                f"expected missing as a category, 'drop' or 'keep', got {self.missing!r}"
            )

    @property
    def _encoded(self) -> tuple[str, ...]:
        """Return the categories with a feature; two categories share one."""
        return self.categories[1:] if len(self.categories) == 2 else self.categories

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Return the names of the column's features."""
        return tuple(f"{self.name}={category}" for category in self._encoded)

    @property
    def bounds(self) -> tuple[tuple[float, float], ...]:
        """Return the lowest and highest value of each feature."""
        return ((0.0, 1.0),) * len(self._encoded)

    def encode(self, cells: Cells) -> tuple[Floats, Booleans, Booleans]:
        """Return the features, and masks of missing and of clipped cells.

        Parameters
        ----------
        cells : sequence of length n_rows
            Texts, numbers or None. A whole number is compared as text without a decimal point.

        Returns
        -------
        features : float64 array of shape (n_rows, n_features)
            1 for the cell's category, 0 for others.
        missing, clipped : bool arrays of shape (n_rows,)
            No cell is clipped.
        """
        index = {category: position for position, category in enumerate(self.categories)}
        positions = np.array([index.get(cell_text(cell) or "", -1) for cell in cells], np.int64)
        missing = positions < 0
        if self.missing in index:
            positions[missing] = index[self.missing]
        offset = len(self.categories) - len(self._encoded)
        features = positions[:, np.newaxis] == np.arange(offset, len(self.categories))
        return features.astype(np.float64), missing, np.zeros(len(missing), bool)


@dataclass(frozen=True)
class SetColumn:
    """A column of sets of codes, such as a patient's diagnoses.

    Only the metric ``tabular`` compares sets, by their Jaccard distance. A cell is a list of texts
    or whole numbers, such a list as JSON, or text with codes between spaces. A set may be empty,
    which is not missing: ``[]``.

    Parameters
    ----------
    name : str
        Column name.
    missing : "drop" or "keep"
        ``"drop"`` drops the row of a missing cell; ``"keep"`` leaves it missing.
    weight : float
        Weight in the metric ``tabular``.
    ontology : str
        File of an ontology (OBO), relative to the schema's: each code then brings its ancestors.
    terms : Ontology, optional
        Content of the file; :meth:`Schema.load` reads it.

    Raises
    ------
    ValueError
        If the weight is negative or infinite, or ``missing`` is another text.
    """

    name: str
    missing: str = "drop"
    weight: float = 1.0
    ontology: str = ""
    terms: Ontology | None = field(default=None, repr=False)

    feature_names = ()
    bounds = ()

    def __post_init__(self) -> None:
        _check_weight(self.weight)
        if self.missing not in _RULES:
            raise ValueError(f"expected missing as 'drop' or 'keep', got {self.missing!r}")

    def read(self, cell: Any) -> frozenset[str] | None:
        """Return the set of a cell, None if missing.

        With an ontology, it contains the ancestors of its codes.

        Raises
        ------
        DataError
            If the cell is no set of codes, or the ontology was not read.
        """
        found = _read_codes(cell, self.name)
        if found is None or not self.ontology:
            return found
        if self.terms is None:
            raise DataError(
                f"column {self.name!r}: read the schema from its file, with {self.ontology}"
            )
        return self.terms.close(found)

    def encode(self, cells: Cells) -> tuple[Floats, Booleans, Booleans]:
        """Return no features, and masks of missing and of clipped cells.

        Parameters
        ----------
        cells : sequence of length n_rows
            Sets, texts or None.
        """
        missing = np.array([_read_codes(cell, self.name) is None for cell in cells], bool)
        return np.empty((len(missing), 0)), missing, np.zeros(len(missing), bool)


Column = NumericColumn | CategoricalColumn | SetColumn


def kind_of(column: Column) -> str:
    """Return the kind of a column in a schema file."""
    kinds = {NumericColumn: "number", CategoricalColumn: "category", SetColumn: "set"}
    return kinds[type(column)]


def read_column(name: str, rule: Any) -> Column:
    """Return the column that a TOML table declares."""
    if not isinstance(rule, dict):
        raise DataError(f"expected a table columns.{name}, got {rule!r}")
    kind = rule.get("kind")
    known = {"number": {"low", "high"}, "category": {"categories"}, "set": {"ontology"}}
    own = [known[kind]] if isinstance(kind, str) and kind in known else []
    allowed = sorted({"kind", "missing", "weight"}.union(*(own or known.values())))
    if unknown := sorted(rule.keys() - set(allowed)):
        raise DataError(
            f"column {name!r} has an unknown key {join_names(unknown)}{suggest(unknown, allowed)}"
        )
    if not own:
        raise DataError(
            f"column {name!r}: expected kind 'number', 'category' or 'set', got {kind!r}"
        )
    values = {key: value for key, value in rule.items() if key != "kind"}
    try:
        if "weight" in values:
            values["weight"] = _read_number("weight", values["weight"])
        if kind == "number":
            return NumericColumn(
                name, **{key: _read_number(key, value) for key, value in values.items()}
            )
        if kind == "set":
            if type(values.get("ontology", "")) is not str:
                raise ValueError("expected ontology as the name of a file")
            return SetColumn(name, **values)
        categories = values.pop("categories", [])
        if not isinstance(categories, list) or any(type(c) is not str for c in categories):
            raise ValueError("expected categories as a list of texts")
        return CategoricalColumn(name, tuple(categories), **values)
    except (ValueError, OverflowError) as error:
        raise DataError(f"column {name!r}: {error}") from None


def _read_number(key: str, value: Any) -> Any:
    if type(value) not in (int, float) and not (key == "missing" and type(value) is str):
        raise ValueError(f"expected a number, got {value!r}")
    return float(value) if type(value) is int else value


def _check_weight(weight: float) -> None:
    if not 0 <= weight <= _MAX_WEIGHT:
        raise ValueError(f"expected a weight from 0 to {_MAX_WEIGHT:g}, got {weight!r}")


def _read_codes(cell: Any, name: str) -> frozenset[str] | None:
    """Return the set of a cell, None if missing."""
    codes: Any = cell
    if isinstance(cell, str):
        codes = cell.split() or None
        if cell.lstrip()[:1] == "[":
            try:
                codes = json.loads(cell)
            except (ValueError, RecursionError):
                raise DataError(f"column {name!r}: expected codes in brackets as JSON") from None
    if codes is None or (isinstance(codes, float) and math.isnan(codes)):
        return None
    if isinstance(codes, np.ndarray):
        codes = codes.tolist()
    if isinstance(codes, list | tuple | set | frozenset):
        texts = [cell_text(code) if isinstance(code, str | int) else None for code in codes]
        if None not in texts:
            return frozenset(map(str, texts))
    raise DataError(
        f"column {name!r}: expected a list of codes, texts or whole numbers, or text with codes "
        "between spaces"
    )


def draft_numbers(
    name: str, cells: Array, *, with_range: bool, keep_missing: bool
) -> NumericColumn:
    """Derive a numeric column from its cells."""
    numbers = cells.astype(np.float64)
    if keep_missing:
        return NumericColumn(name, missing="keep")
    median = float(np.nanmedian(numbers))
    if not with_range:
        return NumericColumn(name, missing=median)
    low, high = float(np.nanmin(numbers)), float(np.nanmax(numbers))
    return NumericColumn(name, low, high, median if np.isnan(numbers).any() else "drop")


def draft_categories(
    name: str, cells: Array, *, source: str, max_categories: int
) -> CategoricalColumn:
    """Derive a categorical column from its cells."""
    has_missing = missing_cells(cells).any()
    texts = {text for cell in cells if (text := cell_text(cell)) is not None}
    categories = tuple(sorted(texts | ({_MISSING_CATEGORY} if has_missing else set())))
    if len(categories) > max_categories:
        raise DataError(
            f"column {name!r} of {source} is not numeric and has {len(categories)} distinct "
            f"values, more than {max_categories}; leave it out (--drop, or --id if it identifies "
            "rows); if it has numbers, list the marks of its missing cells (--missing)"
        )
    return CategoricalColumn(name, categories, _MISSING_CATEGORY if has_missing else "keep")


def is_identifier(name: str, cells: Array) -> bool:
    """Return whether a column identifies rows rather than describes them.

    Its cells all differ, and are texts, none of them a number, or have a name such as patient_id.

    Parameters
    ----------
    name : str
        Column name.
    cells : array of shape (n_rows,)
        Cells, None or NaN if missing.
    """
    present = cells[~missing_cells(cells)].tolist()
    if len(set(present)) < len(present):
        return False
    if _ID_NAME.search(name):
        return len(present) > 1 and all(
            isinstance(c, str) or float(c).is_integer() for c in present
        )
    # numbers among texts may have marks of missing cells, which the owner should declare
    are_texts = all(math.isnan(_number(str(cell).replace(",", "."))) for cell in present)
    return are_texts and len(present) > _MAX_DISTINCT


def read_labels(cells: Cells, classes: tuple[Any, ...]) -> tuple[Array, Booleans]:
    """Return the labels, and a mask of the known ones.

    A label is known if it is among the classes; without classes, if it is not missing.
    Without classes, the labels are int64 if all are integers.
    """
    if classes:
        index = {_label_key(label): position for position, label in enumerate(classes)}
        positions = np.array([index.get(_label_key(cell), -1) for cell in cells], np.int64)
        return np.array(classes)[positions], positions >= 0
    texts = [cell_text(cell) for cell in cells]
    integers = [parse_integer(text) for text in texts]
    known = np.array([text is not None for text in texts], bool)
    if all(number is not None for number, text in zip(integers, texts, strict=True) if text):
        return np.array([number or 0 for number in integers], np.int64), known
    return np.array([text or "" for text in texts], np.str_), known


def check_measurement(y: Array, label: str, *, source: str) -> tuple[str, ...]:
    """Return a sentence if labels may be measurements, not classes.

    Parameters
    ----------
    y : array of shape (n_rows,)
        Labels, int64 or str.
    label, source : str
        Names of the label and of the table, for messages.

    Raises
    ------
    DataError
        If the labels are many numbers with decimals.
    """
    classes = np.unique(y)
    if len(classes) <= _MIN_MEASURED:
        return ()
    if y.dtype.kind in "iu":
        if len(y) >= _MIN_CLASS_ROWS * len(classes):
            return ()
        return (
            f"label {label!r} has {len(classes)} distinct numbers in {len(y)} rows: if it is a "
            "measurement, use a regressor instead of a classifier",
        )
    if None in [parse_number(str(value)) for value in classes.tolist()]:
        return ()
    raise DataError(
        f"label {label!r} of {source} has {len(classes)} distinct numbers with decimals, which "
        "look like a measurement: a classifier needs classes. Group them, or predict the number: "
        "--task regression of run boosting, run neighbors and compare"
    )


def _label_key(label: Any) -> str | int | None:
    """Return a key that is equal for 3, 3.0, "3" and "3.0"."""
    text = cell_text(label)
    number = parse_integer(text)
    return text if number is None else number


def _number(cell: Any) -> float:
    """Return a cell as a number, NaN if it is none."""
    if isinstance(cell, str) and "_" in cell:  # float() would parse the name 1_2 as twelve
        return math.nan
    try:
        return float(cell)
    except (TypeError, ValueError):
        return math.nan
    except OverflowError:  # an integer of more than 308 digits
        return math.inf if cell > 0 else -math.inf


def cell_text(cell: Any) -> str | None:
    """Return a cell as stripped text, None if it is missing.

    A float that is a whole number has no decimal point.
    """
    if isinstance(cell, str):
        return cell.strip() or None
    if isinstance(cell, float | np.floating):
        if math.isnan(cell):
            return None
        return str(int(cell)) if float(cell).is_integer() else str(cell)
    return None if cell is None else str(cell)


def parse_integer(text: str | None) -> int | None:
    """Return the integer of a text such as 3.0, else None."""
    if text is None or not _INTEGER.fullmatch(text):
        return None
    return int(text.split(".")[0])
