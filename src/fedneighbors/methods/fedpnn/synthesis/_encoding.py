"""Encoding of a table as one matrix: mode-specific normalization and one-hot parts."""

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from typing import ClassVar

import numpy as np

from fedneighbors._typing import Floats, Integers, Singles
from fedneighbors.datasets._table import Column, Table, missing_cells
from fedneighbors.errors import DataError
from fedneighbors.methods.fedpnn.synthesis._mixture import Modes, fit_modes

Codes = Integers

_MODE_REACH = 4.0  # a mode covers this many standard deviations to either side
_MAX_POSITION = 0.99  # positions are clipped to this, within the range of tanh


@dataclass(frozen=True, eq=False)
class NumericCoding:
    """Mode-specific encoding of a numeric column.

    A cell is a *repeated value*, a *mode* (a Gaussian, with the position
    ``(value - mean) / (4 deviation)`` in it), or missing. These are the categories of the column,
    in this order.

    Parameters
    ----------
    name : str
        Column name.
    repeated : float64 array of shape (n_repeated,)
        Values that occur in many rows, ascending.
    modes : Modes or None
        Modes of the other values; None if there are no others.
    missing : bool
        If True, the last category is "missing".
    whole : bool
        If True, all training values were integers, and decoded values are rounded.

    References
    ----------
    .. [1] Xu et al., "Modeling Tabular Data using Conditional GAN", NeurIPS 2019, section 4.2.
    """

    name: str
    repeated: Floats
    modes: Modes | None
    missing: bool
    whole: bool

    def __post_init__(self) -> None:
        values = self.repeated
        if values.ndim != 1 or not np.isfinite(values).all() or (np.diff(values) <= 0).any():
            raise ValueError("repeated values must be finite and ascend")
        if self.width == 0:
            raise ValueError("a column has no categories")

    @property
    def width(self) -> int:
        """Return the number of categories."""
        n_modes = 0 if self.modes is None else len(self.modes.means)
        return len(self.repeated) + n_modes + self.missing

    def encode(self, column: Column, rng: np.random.Generator) -> tuple[Codes, Floats]:
        """Return category and position of each cell; draw modes from their posterior.

        Raises
        ------
        DataError
            If the column is nominal, or a cell cannot be encoded: it is missing, but no cell of the
            fit was; or it is no repeated value, but all values of the fit were.
        """
        if column.dtype == np.object_:
            raise DataError(f"column {self.name!r} contains text; it was numeric in the fit")
        values = column.astype(np.float64)
        codes = np.full(len(values), self.width - 1)
        positions = np.zeros(len(values))
        missing = np.isnan(values)
        if missing.any() and not self.missing:
            raise DataError(
                f"column {self.name!r} has missing cells; it had none in the fit. Fill them, or "
                "fit on rows with missing cells too"
            )
        at = np.minimum(np.searchsorted(self.repeated, values), len(self.repeated) - 1)
        same = self.repeated[at] == values if len(self.repeated) else np.zeros_like(missing)
        codes[same] = at[same]
        rest = np.flatnonzero(~missing & ~same)
        if self.modes is not None:
            codes[rest], positions[rest] = self._encode_in_modes(self.modes, values[rest], rng)
        elif len(rest):
            raise DataError(
                f"column {self.name!r} contains {values[rest[0]]}; in the fit it contained only "
                f"{self.repeated.tolist()}"
            )
        return codes, positions

    def _encode_in_modes(
        self, modes: Modes, values: Floats, rng: np.random.Generator
    ) -> tuple[Codes, Floats]:
        cumulative = np.cumsum(modes.posterior(values), axis=1)
        mode = (cumulative < rng.random((len(values), 1)) * cumulative[:, -1:]).sum(axis=1)
        positions = (values - modes.means[mode]) / (_MODE_REACH * modes.deviations[mode])
        return len(self.repeated) + mode, np.clip(positions, -_MAX_POSITION, _MAX_POSITION)

    def decode(self, codes: Codes, positions: Floats) -> Column:
        """Return numbers, with NaN where the category is "missing"."""
        n_repeated = len(self.repeated)
        centers = np.full(self.width, np.nan)
        reach = np.zeros(self.width)
        centers[:n_repeated] = self.repeated
        if self.modes is not None:
            in_modes = slice(n_repeated, n_repeated + len(self.modes.means))
            centers[in_modes] = self.modes.means
            reach[in_modes] = _MODE_REACH * self.modes.deviations
        values: Floats = centers[codes] + reach[codes] * positions
        return np.round(values) if self.whole else values


@dataclass(frozen=True, eq=False)
class NominalCoding:
    """Encoding of a nominal column by positions among its categories.

    Parameters
    ----------
    name : str
        Column name.
    categories : tuple of str
        Categories, ascending, without "missing".
    missing : bool
        If True, the last category is "missing".
    """

    modes: ClassVar[None] = None

    name: str
    categories: tuple[str, ...]
    missing: bool

    def __post_init__(self) -> None:
        if any(a >= b for a, b in pairwise(self.categories)) or self.width == 0:
            raise ValueError("categories must ascend, and there must be at least one")

    @property
    def width(self) -> int:
        """Return the number of categories, "missing" included."""
        return len(self.categories) + self.missing

    def encode(self, column: Column, rng: np.random.Generator) -> tuple[Codes, Floats]:  # noqa: ARG002
        """Return the category of each cell, and positions of 0; ignore ``rng``.

        Raises
        ------
        DataError
            If the column is numeric, or has a category that was not in the fit.
        """
        if column.dtype != np.object_:
            raise DataError(f"column {self.name!r} is numeric; it contained text in the fit")
        codes: dict[str | None, int] = {text: code for code, text in enumerate(self.categories)}
        if self.missing:
            codes[None] = len(self.categories)
        unseen = sorted({repr(text) for text in column} - {repr(text) for text in codes})
        if unseen:
            cells = "missing cells" if unseen == ["None"] else f"the categories {unseen[:5]}"
            raise DataError(
                f"column {self.name!r} has {cells}, which it did not have in the fit; leave these "
                "rows out, or fit on rows that have them"
            )
        return np.array([codes[text] for text in column], dtype=np.int64), np.zeros(len(column))

    def decode(self, codes: Codes, positions: Floats) -> Column:  # noqa: ARG002
        """Return categories, with None where the category is "missing"."""
        categories = np.array([*self.categories, None], dtype=np.object_)
        column: Column = categories[codes]
        return column


Coding = NumericCoding | NominalCoding


_MAX_VALUE = 1e150  # squares of larger numbers overflow
_ALL_INTEGERS_FROM = 2.0**53  # larger floats are always integers, so that rounding means nothing


@dataclass(frozen=True)
class Layout:
    """Layout of the encoded matrix: all positions in modes, then all one-hot parts.

    One-hot parts are sorted by width, so that parts of equal width form a block and can be
    processed together.

    Parameters
    ----------
    widths : tuple of int
        Number of categories of each column of the table.
    scalars : tuple of int
        Indices of the table columns that have modes, ascending. The first columns of the matrix are
        their positions in modes.
    """

    widths: tuple[int, ...]
    scalars: tuple[int, ...]

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Return the table columns in the order of their one-hot parts."""
        return tuple(sorted(range(len(self.widths)), key=self.widths.__getitem__))

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Return the first matrix column of each table column's one-hot part."""
        starts, start = [0] * len(self.widths), len(self.scalars)
        for column in self.order:
            starts[column] = start
            start += self.widths[column]
        return tuple(starts)

    @property
    def width(self) -> int:
        """Return the number of columns of the matrix."""
        return len(self.scalars) + sum(self.widths)

    @cached_property
    def blocks(self) -> tuple[tuple[int, int, int], ...]:
        """Return blocks of one-hot parts of equal width.

        Each block is (first matrix column, number of parts, width).
        """
        groups = groupby(self.order, key=self.widths.__getitem__)
        blocks = [(width, list(columns)) for width, columns in groups]
        return tuple((self.starts[columns[0]], len(columns), width) for width, columns in blocks)


@dataclass(frozen=True, eq=False)
class TableTransform:
    """Reversible encoding of a table as a matrix.

    Parameters
    ----------
    codings : tuple of NumericCoding or NominalCoding
        Encoding of each column, in the order of the table.
    """

    codings: tuple[Coding, ...]

    def __post_init__(self) -> None:
        if not self.codings or len({coding.name for coding in self.codings}) < len(self.codings):
            raise ValueError("expected at least one coding, and distinct column names")

    @cached_property
    def layout(self) -> Layout:
        """Return the layout of the matrix."""
        return Layout(
            widths=tuple(coding.width for coding in self.codings),
            scalars=tuple(index for index, coding in enumerate(self.codings) if coding.modes),
        )

    def codes(self, table: Table, rng: np.random.Generator) -> tuple[Codes, Floats]:
        """Return the category and the position of every cell.

        Parameters
        ----------
        table : Table
            Table with the columns of the fit.
        rng : numpy.random.Generator
            Random source for drawing modes where they overlap.

        Returns
        -------
        codes : int64 array of shape (n_rows, n_columns)
            Categories.
        positions : float64 array of shape (n_rows, n_columns)
            Positions in modes, in (-1, 1); 0 where the category is not a mode.

        Raises
        ------
        DataError
            If columns differ from the fit, or contain cells that cannot be encoded.
        """
        names = tuple(coding.name for coding in self.codings)
        if table.names != names:
            raise DataError(f"expected the columns {list(names)}, got {list(table.names)}")
        pairs = [coding.encode(table.columns[coding.name], rng) for coding in self.codings]
        return np.stack([a for a, _ in pairs], axis=1), np.stack([b for _, b in pairs], axis=1)

    def matrix(self, codes: Codes, positions: Floats) -> Singles:
        """Return the encoded rows, float32 of shape (n_rows, layout.width)."""
        layout = self.layout
        matrix = np.zeros((len(codes), layout.width), np.float32)
        matrix[:, : len(layout.scalars)] = positions[:, layout.scalars]
        np.put_along_axis(matrix, codes + np.array(layout.starts), 1.0, axis=1)
        return matrix

    def table(self, matrix: Singles, *, source: str = "the synthetic table") -> Table:
        """Decode rows by the largest entry of each one-hot part.

        Parameters
        ----------
        matrix : float32 array of shape (n_rows, layout.width)
            Output of a generator.
        source : str
            Name of the table in messages.
        """
        layout = self.layout
        columns: dict[str, Column] = {}
        zeros = np.zeros(len(matrix))
        for index, coding in enumerate(self.codings):
            start = layout.starts[index]
            codes = matrix[:, start : start + coding.width].argmax(axis=1)
            positions = matrix[:, layout.scalars.index(index)] if coding.modes else zeros
            columns[coding.name] = coding.decode(codes, positions.astype(np.float64))
        return Table(columns, source)


def fit_transform(
    table: Table,
    *,
    max_modes: int = 10,
    repeated_share: float | None = 0.05,
    min_count: int = 0,
) -> TableTransform:
    """Fit the encodings of all columns.

    Parameters
    ----------
    table : Table
        Table; missing cells are NaN in numeric columns, None in nominal ones.
    max_modes : int
        Maximum number of Gaussian modes of a numeric column.
    repeated_share : float or None
        A value of at least this fraction of the rows becomes a category of its own and is
        reproduced exactly. None, as in the paper, restricts this to constant columns.
    min_count : int
        Minimum number of cells with a repeated value or in a mode, if so many are for modes.

    Returns
    -------
    TableTransform

    Raises
    ------
    DataError
        If a numeric column contains infinite values, or values beyond 1e150 in magnitude.
    """
    split = {
        name: split_repeated(name, column.astype(np.float64), repeated_share, min_count)
        for name, column in table.columns.items()
        if column.dtype != np.object_
    }
    spread = {name: values for name, (_, values) in split.items() if len(values)}
    fitted = fit_modes(list(spread.values()), max_modes=max_modes, min_count=min_count)
    modes = dict(zip(spread, fitted, strict=True))
    codings: list[Coding] = []
    for name, column in table.columns.items():
        missing = bool(missing_cells(column).any())
        if name in split:
            values = column[~missing_cells(column)].astype(np.float64)
            whole = bool((values == np.round(values)).all())
            whole &= np.abs(values).max(initial=0) < _ALL_INTEGERS_FROM
            codings.append(NumericCoding(name, split[name][0], modes.get(name), missing, whole))
        else:
            texts = sorted({text for text in column.tolist() if text is not None})
            codings.append(NominalCoding(name, tuple(texts), missing))
    return TableTransform(tuple(codings))


def split_repeated(
    name: str, column: Floats, min_share: float | None, min_count: int
) -> tuple[Floats, Floats]:
    """Split a numeric column into repeated values and values for modes.

    Parameters
    ----------
    name : str
        Name of the column, for errors.
    column : float64 array of shape (n_rows,)
        Cells; missing ones are NaN.
    min_share, min_count : float or None, int
        As ``repeated_share`` and ``min_count`` of :func:`fit_transform`.
    """
    if (np.abs(column) > _MAX_VALUE).any():
        raise DataError(
            f"column {name!r} contains infinite values or values beyond {_MAX_VALUE:g}; use NaN "
            "or smaller ones instead"
        )
    missing = np.isnan(column)
    values, counts = np.unique(column[~missing], return_counts=True)
    share = 1.0 if min_share is None else max(min_share, 0.0)
    frequent = counts >= max(share * len(column), min_count)
    frequent |= len(values) == 1
    repeated = values[frequent]
    return repeated, column[~missing & ~np.isin(column, repeated)]
