"""Owns the reading of Parquet files into columns."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from fedneighbors.datasets._table import Column, Table, refuse_repeated
from fedneighbors.errors import DataError, MissingDataError, MissingExtraError


def read_parquet(path: Path, *, words: Collection[str], missing: Collection[str]) -> Table:
    """Columns of a Parquet file.

    Numbers and booleans become numeric columns, text becomes a nominal one even where it looks
    like numbers. Null is missing, and so is a text cell that ``missing`` names.

    Parameters
    ----------
    path : Path
        The file.
    words : collection of str
        Columns that are nominal even if they hold numbers.
    missing : collection of str
        Text cells that count as missing, after stripping blanks.

    Returns
    -------
    Table

    Raises
    ------
    MissingDataError
        If there is no such file.
    MissingExtraError
        If pyarrow is not installed.
    DataError
        If the file is damaged, names a column twice, or holds a column that is neither
        numeric nor text.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "data") from error
    if not path.is_file():
        raise MissingDataError(f"there is no file {path}; check the name")
    try:
        content = pyarrow.parquet.ParquetFile(path).read()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}") from error
    names = [str(name) for name in content.column_names]
    refuse_repeated(names, source=str(path))
    columns = {
        name: _column(column, name=name, path=path, as_words=name in words, missing=missing)
        for name, column in zip(names, content.columns, strict=True)
    }
    return Table(columns, str(path))


def _column(
    column: Any, *, name: str, path: Path, as_words: bool, missing: Collection[str]
) -> Column:
    import pyarrow

    kind = pyarrow.types
    if kind.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    number = kind.is_integer(column.type) or kind.is_floating(column.type)
    if (number or kind.is_boolean(column.type)) and not as_words:
        return _numbers(column, name=name, path=path)
    if number or any(
        test(column.type)
        for test in (kind.is_string, kind.is_large_string, kind.is_boolean, kind.is_null)
    ):
        return _words(column, missing=missing)
    raise DataError(
        f"column {name!r} of {path} has type {column.type}; expected numbers or text: "
        "convert or drop it"
    )


def _numbers(column: Any, *, name: str, path: Path) -> Column:
    import pyarrow

    numbers: Column = column.cast(pyarrow.float64(), safe=False).to_numpy()
    if np.isinf(numbers.astype(np.float64)).any():
        raise DataError(
            f"column {name!r} of {path} holds infinite numbers; they must be finite or missing"
        )
    return numbers


def _words(column: Any, *, missing: Collection[str]) -> Column:
    import pyarrow

    stripped = (
        None if cell is None else cell.strip() for cell in column.cast(pyarrow.string()).to_pylist()
    )
    words = np.empty(len(column), dtype=np.object_)
    words[:] = [None if cell in missing else cell for cell in stripped]
    return words
