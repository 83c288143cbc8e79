"""`TableEncoder`: conversion of missing cells and nominal columns to numbers."""

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.datasets._table import Column, Table, join_names, missing_cells
from fedneighbors.errors import DataError

MISSING_CATEGORY = "missing"
_FORMAT = 1


@dataclass(frozen=True)
class NumericColumn:
    """A numeric column and the value for its missing cells.

    Parameters
    ----------
    name : str
        Column name.
    median : float or None
        Median of the cells in fitting; None leaves missing cells unchanged.
    """

    name: str
    median: float | None

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Return the names of the column's features."""
        return (self.name,)

    def encode(self, column: Column, *, source: str) -> npt.NDArray[np.float64]:
        """Return the cells as one column.

        Missing cells become the median, or NaN if there is none.

        Parameters
        ----------
        column : array of shape (n_rows,)
            A numeric column.
        source : str
            Name of the table in messages.

        Returns
        -------
        float64 array of shape (n_rows, 1)

        Raises
        ------
        DataError
            If the column is nominal.
        """
        if column.dtype == np.object_:
            raise DataError(
                f"column {self.name!r} of {source} has cells that are not numbers; "
                "it was numeric when the encoder was fitted"
            )
        numbers = column.astype(np.float64)
        if self.median is not None:
            numbers = np.where(np.isnan(numbers), self.median, numbers)
        return numbers[:, None]


@dataclass(frozen=True)
class NominalColumn:
    """A nominal column and its categories.

    Parameters
    ----------
    name : str
        Column name.
    categories : tuple of str
        Categories, ascending. Missing cells have the category ``"missing"``.
    """

    name: str
    categories: tuple[str, ...]

    @property
    def _kept(self) -> tuple[str, ...]:
        return self.categories[1:] if len(self.categories) == 2 else self.categories

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Return the names of the column's features."""
        return tuple(f"{self.name}={category}" for category in self._kept)

    def encode(self, column: Column, *, source: str) -> npt.NDArray[np.float64]:
        """Return one-hot columns of the categories.

        A column of two categories becomes one column.

        Parameters
        ----------
        column : array of shape (n_rows,)
            A nominal column.
        source : str
            Name of the table in messages.

        Returns
        -------
        float64 array of shape (n_rows, n_features)
            All zeros for categories not seen in fitting.

        Raises
        ------
        DataError
            If the column is numeric.
        """
        if column.dtype != np.object_:
            raise DataError(
                f"column {self.name!r} of {source} is numeric; it was nominal when the encoder was "
                "fitted. Read it with nominal=[...]"
            )
        position = {category: place for place, category in enumerate(self._kept)}
        places = np.array([position.get(category, -1) for category in _categories(column)])
        encoded: npt.NDArray[np.float64] = np.equal(
            places[:, None], np.arange(len(self._kept))
        ).astype(np.float64)
        return encoded


@dataclass(frozen=True)
class TableEncoder:
    """Fitted rules that convert a table to a matrix.

    Missing cells of a numeric column become the median of the column. A nominal column becomes one
    0/1 feature per category in ascending order; missing cells count as the category ``"missing"``.
    A nominal column with two categories becomes a single feature that is 1 for the second.
    Categories not seen in fitting become all zeros. A table of numbers without missing cells is
    returned unchanged.

    The medians and categories are computed from the rows of `fit` and are part of every encoded
    row. In a federation all parties need the *same* encoder, so its constants must be agreed
    beforehand or come from public data: an encoder fitted on private rows reveals information about
    these rows when shared, and no privacy budget is charged for it. To exclude test rows from the
    constants, fit on the training rows and apply to the rest.

    Parameters
    ----------
    columns : tuple of NumericColumn or NominalColumn
        One rule per column, in the order of the features.

    Examples
    --------
    >>> import numpy as np
    >>> from fedneighbors.datasets import Table, TableEncoder
    >>> age = np.array([30.0, np.nan, 50.0])
    >>> site = np.array(["b", "a", "c"], dtype=object)
    >>> table = Table({"age": age, "site": site}, source="example")
    >>> encoder = TableEncoder.fit(table)
    >>> encoder.feature_names
    ('age', 'site=a', 'site=b', 'site=c')
    >>> encoder.apply(table)
    array([[30.,  0.,  1.,  0.],
           [40.,  1.,  0.,  0.],
           [50.,  0.,  0.,  1.]])
    """

    columns: tuple[NumericColumn | NominalColumn, ...]

    @classmethod
    def fit(
        cls, table: Table, *, max_categories: int = 256, keep_missing: bool = False
    ) -> "TableEncoder":
        """Return the encoder whose constants come from the given rows.

        Parameters
        ----------
        table : Table
            Rows for medians and categories; without label and party columns.
        max_categories : int, default=256
            Maximum number of categories of a nominal column.
        keep_missing : bool, default=False
            Leave missing cells of numeric columns NaN, for methods that support them.

        Returns
        -------
        TableEncoder

        Raises
        ------
        DataError
            If a column has missing cells only, or more categories than allowed.
        """
        gone = [name for name, column in table.columns.items() if missing_cells(column).all()]
        if gone:
            raise DataError(
                f"{table.source} has missing cells only in column {join_names(gone)}; "
                "remove it, or drop it when reading"
            )
        rules: list[NumericColumn | NominalColumn] = []
        for name, column in table.columns.items():
            if column.dtype != np.object_:
                median = None if keep_missing else float(np.nanmedian(column.astype(np.float64)))
                rules.append(NumericColumn(name, median))
                continue
            categories = tuple(sorted(set(_categories(column))))
            if len(categories) > max_categories:
                raise DataError(
                    f"column {name!r} of {table.source} is not numeric and has {len(categories)} "
                    f"distinct values, more than max_categories={max_categories}; drop it, or list "
                    "the marks of missing cells with missing=[...]"
                )
            rules.append(NominalColumn(name, categories))
        return cls(tuple(rules))

    @property
    def column_names(self) -> tuple[str, ...]:
        """Return the required columns of a table."""
        return tuple(rule.name for rule in self.columns)

    @property
    def nominal_names(self) -> tuple[str, ...]:
        """Return the nominal columns."""
        return tuple(rule.name for rule in self.columns if isinstance(rule, NominalColumn))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Return the names of the features, in order."""
        return tuple(name for rule in self.columns for name in rule.feature_names)

    def apply(self, table: Table) -> npt.NDArray[np.float64]:
        """Encode rows, ignoring unknown columns.

        Parameters
        ----------
        table : Table
            Table with every column of the encoder, in any order.

        Returns
        -------
        float64 array of shape (n_rows, n_features)
            NaN only if missing cells are kept.

        Raises
        ------
        DataError
            If a column is missing or of another kind.
        """
        table.require(self.column_names)
        return np.hstack(
            [rule.encode(table.columns[rule.name], source=table.source) for rule in self.columns]
        )

    def warnings_for(self, table: Table) -> tuple[str, ...]:
        """Return warnings about missing cells and unknown categories.

        Parameters
        ----------
        table : Table
            Table with every column of the encoder.

        Returns
        -------
        tuple of str
            One for each numeric column with missing cells, and for each nominal column with
            categories not seen in fitting, with at most five of them.
        """
        found = []
        for rule in self.columns:
            column = table.columns[rule.name]
            if isinstance(rule, NumericColumn):
                n_empty = int(missing_cells(column).sum())
                if n_empty and rule.median is not None:
                    found.append(
                        f"column {rule.name!r}: {n_empty} empty cells get the median of the "
                        f"training rows, {rule.median:g}"
                    )
                continue
            unseen = sorted(set(_categories(column)) - set(rule.categories))
            if unseen:
                two = len(rule.categories) == 2
                meant = repr(rule.categories[0]) if two else "none of the categories"
                found.append(
                    f"column {rule.name!r}: {join_names(unseen[:5])} did not occur in training, "
                    f"only {join_names(rule.categories[:10])}; such rows count as {meant}"
                )
        return tuple(found)

    def to_json(self) -> str:
        """Serialize the encoder as text for `from_json`.

        Returns
        -------
        str
        """
        return json.dumps({"format": _FORMAT, "columns": [asdict(rule) for rule in self.columns]})

    @classmethod
    def from_json(cls, text: str) -> "TableEncoder":
        """Return the encoder of a text from `to_json`.

        Parameters
        ----------
        text : str
            Text returned by `to_json`.

        Returns
        -------
        TableEncoder

        Raises
        ------
        DataError
            If the text is not an encoder of this format.
        """
        try:
            content = json.loads(text)
            found = content["format"]
            columns = tuple(_rule_from(fields) for fields in content["columns"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"the text is not a table encoder ({error!r}); write it with TableEncoder.to_json"
            ) from error
        if found != _FORMAT:
            raise DataError(f"the encoder has format {found!r}; this version reads {_FORMAT}")
        return cls(columns)


def _categories(column: Column) -> list[str]:
    return [MISSING_CATEGORY if cell is None else str(cell) for cell in column]


def _rule_from(fields: Any) -> NumericColumn | NominalColumn:
    name = str(fields["name"])
    if "categories" in fields:
        return NominalColumn(name, tuple(str(category) for category in fields["categories"]))
    median = None if fields["median"] is None else float(fields["median"])
    if median is not None and not np.isfinite(median):
        raise ValueError(f"the median of column {name!r} is {median!r}")
    return NumericColumn(name, median)
