"""One labelled data set from the files of several parties, checked against one another."""

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TypeVar

import numpy as np
from scipy.sparse import csr_array

from fedneighbors._typing import Array, Integers
from fedneighbors.datasets._arrays import is_arrays
from fedneighbors.datasets._dataset import Dataset
from fedneighbors.datasets._reading import (
    complete_cells,
    dataset_from_table,
    parse_labels,
    read_columns,
    read_table,
)
from fedneighbors.datasets._schema import Schema
from fedneighbors.datasets._schema_columns import check_measurement
from fedneighbors.datasets._table import (
    Column,
    Table,
    check_present,
    join_names,
    missing_cells,
    word_column,
)
from fedneighbors.datasets._text_format import TextFormat, parse_number
from fedneighbors.errors import DataError

S = TypeVar("S")
R = TypeVar("R")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ].*)?|[0-9]{1,2}([./-])[0-9]{1,2}\2[0-9]{2,4}")
_THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}([., '][0-9]{3})+([.,][0-9]+)?")
_DASHES = re.compile("[-\N{EN DASH}\N{EM DASH}]+")
_MIN_ID_ROWS = 20  # in fewer rows, distinct whole numbers are often measurements
_MAX_NAMED = 5
_MAX_NOTES = 20
_MIN_EQUAL_ROWS = 5
_MIN_EXCESS = 0.1  # in fraction of shared over repeated rows


def read_party_files(
    files: Mapping[str, str | os.PathLike[str]],
    label: str = "target",
    *,
    party: str | None = None,
    drop: Collection[str] = (),
    schema: Schema | None = None,
    text_format: TextFormat | None = None,
    keep_missing: bool = False,
) -> Dataset:
    r"""Read one file for each party as one labelled data set.

    Columns are matched by name; their order may differ. Problems of all files are reported together
    before anything is trained, with the file, the column and the row.

    Parameters
    ----------
    files : mapping of str to path
        Name of each party and its file, see `read_table`.
    label : str, default="target"
        Label column: int64 if all labels are integers, otherwise str.
    party : str, optional
        Column with the owner of each row, for a single file.
    drop : collection of str, default=()
        Columns to ignore, such as identifiers; each must be in a file.
    schema : Schema, optional
        Declared columns and labels, for each file as in `read_table`. By default the columns and
        the rules for missing cells come from the rows of all files together.
    text_format : TextFormat, optional
        Separators and encoding of text, and marks of missing cells of every format.
    keep_missing : bool, default=False
        Leave missing cells of numeric columns NaN.

    Returns
    -------
    Dataset
        Rows in the order of the files. ``parties`` are the names of several files; ``notes`` name
        columns that look constant or like identifiers, and files with categories of their own.

    Raises
    ------
    MissingDataError
        If a file does not exist.
    DataError
        If a file is invalid, columns differ in name or type between files, a column has dates, or
        most of its cells are numbers and some are not. Further errors are its notes.
    ValueError
        If there is no file, or a party column for several.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "north.csv").write_text("age,ill\n40,no\n50,yes\n")
    >>> _ = (folder / "south.csv").write_text("ill;age\nyes;61,5\n")
    >>> files = {name: folder / f"{name}.csv" for name in ("north", "south")}
    >>> data = read_party_files(files, "ill")
    >>> data.x.ravel().tolist(), data.y.tolist(), data.parties.tolist()
    ([40.0, 50.0, 61.5], ['no', 'yes', 'yes'], ['north', 'north', 'south'])
    """
    paths = {str(name): Path(path) for name, path in files.items()}
    problems = _Problems()
    if not paths or (len(paths) > 1 and party is not None):
        raise ValueError("expected a file for each party, or one file with a party column")
    if schema is not None or any(map(is_arrays, paths.values())):
        read = partial(
            read_table,
            label=label,
            party=party,
            schema=schema,
            text_format=text_format,
            keep_missing=keep_missing,
        )
        parts = problems.collect(read, paths.values())
        problems.check()
        return parts[0] if len(parts) == 1 else _join_data_sets(parts, list(paths))
    roles = [label] if party is None else [label, party]
    if needed := [name for name in roles if name in drop]:
        raise DataError(f"column {needed[0]!r} is the label or party; do not drop it (--drop)")
    read_one = partial(read_columns, nominal=roles, text_format=text_format)
    tables = problems.collect(read_one, paths.values())
    if len(tables) == len(paths):
        _check_names(drop, tables)
    tables = [
        table.without([name for name in drop if name in table.columns]) if drop else table
        for table in tables
    ]
    if tables:
        _check_tables(tables, problems, label=label, roles=roles)
    problems.check()
    joined = _join_tables(tables)
    data = dataset_from_table(
        joined,
        label,
        name=", ".join(path.name.split(".")[0] for path in paths.values()),
        party=party,
        keep_missing=keep_missing,
    )
    notes = tuple(_describe_columns(tables, joined.without(roles)))
    if len(paths) > 1:
        sizes = [table.n_rows for table in tables]
        data = replace(data, parties=np.repeat(np.array([*paths], np.str_), sizes))
    return replace(data, notes=notes)


class _Problems:
    """Errors of files, to be raised together."""

    def __init__(self) -> None:
        self._errors: list[DataError] = []

    def collect(self, function: Callable[[S], R], sources: Iterable[S]) -> list[R]:
        """Return a function's results for the sources without an error."""
        results = list[R]()
        for source in sources:
            try:
                results.append(function(source))
            except DataError as error:
                self._errors.append(error)
        return results

    def check(self) -> None:
        """Raise the first error, with the others as notes."""
        if self._errors:
            first, *others = self._errors
            for other in others[:_MAX_NOTES]:
                first.add_note(str(other))
            if len(others) > _MAX_NOTES:
                first.add_note(f"and {len(others) - _MAX_NOTES} more problems")
            raise first


def check_classes(data: Dataset, label: str) -> tuple[str, ...]:
    """Return sentences about the classes of a data set.

    Parameters
    ----------
    data : Dataset
        Rows, and their parties if known.
    label : str
        Name of the label, for messages.

    Raises
    ------
    DataError
        If there is a single class, or the labels look like measurements.
    """
    measured = check_measurement(data.y, label, source=data.source)
    classes = np.unique(data.y)
    if len(classes) == 1:
        raise DataError(
            f"all {data.n_rows} rows of {data.source} have the label {label!r} "
            f"{str(classes[0])!r}; a classifier needs rows of at least two classes"
        )
    notes = [
        f"label {label!r} has classes that differ only in the case of letters: "
        f"{join_names(spellings, most=_MAX_NAMED)}; if these are one class, spell it alike"
        for spellings in _same_letters(map(str, classes.tolist()))
    ]
    notes += measured
    for party in () if data.parties is None else np.unique(data.parties).tolist():
        is_own = data.parties == party
        own = np.unique(data.y[is_own])
        if not is_own.all() and not np.isin(own, data.y[~is_own]).any():
            notes.append(
                f"the labels of party {party!r} occur at no other party: "
                f"{join_names(map(str, own.tolist()), most=_MAX_NAMED)}; check their spelling"
            )
        if len(own) == 1:
            notes.append(
                f"all rows of party {party!r} are of class {str(own[0])!r}: alone it cannot train "
                "a classifier, and its messages show others the label of each of its rows"
            )
    return tuple(notes)


def note_equal_rows(data: Dataset) -> tuple[str, ...]:
    """Return a sentence about the two parties with the most equal rows.

    Rows with few distinct values repeat by chance: of the rows that occur once at each party, the
    fraction that the parties share must clearly exceed the fraction of rows that repeat within one.

    Parameters
    ----------
    data : Dataset
        Rows, labels and parties.
    """
    if data.parties is None:
        return ()
    cells = np.column_stack([data.x + 0.0, np.unique(data.y, return_inverse=True)[1]])  # no -0.0
    cells[np.isnan(cells)] = np.nan  # one pattern of bits
    rows = np.ascontiguousarray(cells).view(np.dtype((np.void, cells[0].nbytes)))
    _, row = np.unique(rows.ravel(), return_inverse=True)
    names, party = np.unique(data.parties, return_inverse=True)
    counts = csr_array((np.ones(len(row), np.int64), (party, row)))  # sums repeated positions
    singles = counts.copy()
    singles.data = (counts.data == 1).astype(np.int64)
    n_singles: Integers = singles.sum(axis=1)
    repeated = 1 - n_singles / counts.sum(axis=1)
    shared = (singles @ singles.T).toarray()
    fewer = np.maximum(np.minimum.outer(n_singles, n_singles), 1)
    chance = np.maximum.outer(repeated, repeated)
    chance += 3 * np.sqrt(chance * (1 - chance) / fewer)  # three standard errors
    is_more = shared / fewer >= chance + _MIN_EXCESS
    pairs = np.argwhere(np.triu((shared >= _MIN_EQUAL_ROWS) & is_more, k=1))
    if not len(pairs):
        return ()
    n_equal = [int(counts[[a]].minimum(counts[[b]]).sum()) for a, b in pairs]
    first, second = names[pairs[np.argmax(n_equal)]].tolist()
    more = f", and {len(pairs) - 1} more pairs of parties have equal rows" if len(pairs) > 1 else ""
    return (
        f"parties {first!r} and {second!r} have {max(n_equal)} equal rows{more}: if they are the "
        "same records, keep each at one party; otherwise they count twice, and held-out rows are "
        "also training rows, so that scores are too good",
    )


def _same_letters(names: Iterable[str]) -> list[list[str]]:
    """Return words, longer than a letter, that differ in case."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.casefold(), []).append(name)
    return [group for key, group in groups.items() if len(group) > 1 and len(key) > 1]


def _check_tables(
    tables: Sequence[Table], problems: _Problems, *, label: str, roles: Sequence[str]
) -> None:
    """Collect the problems of columns and labels."""
    problems.collect(partial(_check_same_columns, tables[0]), tables[1:])
    for name in dict.fromkeys(name for table in tables for name in table.names):
        own = [table for table in tables if name in table.columns and name not in roles]
        if len(problems.collect(partial(check_text_column, name=name), own)) == len(own):
            problems.collect(partial(_check_type, name=name), [own])
    complete = problems.collect(partial(complete_cells, name=label), tables)
    if len(complete) == len(tables):
        problems.collect(partial(_check_labels, label=label), [tables])


def _check_type(tables: Sequence[Table], name: str) -> None:
    """Raise if a column has numbers here and text there."""
    sources: dict[str, Table] = {}
    for table in tables:
        if not missing_cells(table.columns[name]).all():
            sources.setdefault(table.columns[name].dtype.kind, table)
    if len(sources) > 1:
        numeric, words = sources["f"], sources["O"]
        place, remedy = _describe_first_word(words.columns[name])
        raise DataError(
            f"column {name!r} of {words.source}: {place}, but the column has numbers in "
            f"{numeric.source}; {remedy}, or declare the column as a category in a schema"
        )


def _join_tables(tables: Sequence[Table]) -> Table:
    """Join the rows of tables with the same columns."""
    columns: dict[str, Column] = {}
    for name in tables[0].names:
        parts = [table.columns[name] for table in tables]
        kinds = ["" if missing_cells(part).all() else part.dtype.kind for part in parts]
        kind = "O" if "O" in kinds else "f"  # an empty column takes the type of the others
        joined: Array = np.concatenate(
            [part if part.dtype.kind == kind else _empty(kind, len(part)) for part in parts]
        )
        columns[name] = joined
    return Table(columns, ", ".join(table.source for table in tables))


def _empty(kind: str, n_rows: int) -> Column:
    """Return a column of missing cells."""
    return word_column([None] * n_rows) if kind == "O" else np.full(n_rows, np.nan)


def _join_data_sets(parts: Sequence[Dataset], names: Sequence[str]) -> Dataset:
    first = parts[0]
    for part in parts[1:]:
        if part.feature_names != first.feature_names:
            raise DataError(
                f"{part.source} has {part.n_features} features and {first.source} has "
                f"{first.n_features}; expected the same in every file"
            )
    if len({part.y.dtype.kind for part in parts}) > 1:
        raise DataError(
            f"labels are whole numbers in some of {join_names(part.source for part in parts)} and "
            "text in others"
        )
    return Dataset(
        ", ".join(part.name for part in parts),
        np.vstack([part.x for part in parts]),
        np.concatenate([part.y for part in parts]),
        first.feature_names,
        ", ".join(part.source for part in parts),
        parties=np.repeat(np.array(names, np.str_), [part.n_rows for part in parts]),
        schema=first.schema,
        notes=tuple(note for part in parts for note in part.notes),
    )


def _check_names(names: Collection[str], tables: Sequence[Table]) -> None:
    """Raise if no table has a column of one of the names."""
    every = list(dict.fromkeys(name for table in tables for name in table.names))
    check_present(names, every, source=", ".join(table.source for table in tables))


def _check_same_columns(first: Table, second: Table) -> None:
    for table, other in ((second, first), (first, second)):
        try:
            check_present(other.names, table.names, source=table.source)
        except DataError as error:
            raise DataError(
                f"{other.source} has a column that another file lacks: {error}; rename the column, "
                "or leave it out (--drop)"
            ) from None


def check_text_column(table: Table, name: str) -> None:
    """Raise if a text column has dates, mostly numbers, or dashes."""
    column = table.columns[name]
    if column.dtype.kind != "O":
        return
    counts = Counter(cell for cell in column if cell is not None)
    if counts and all(map(_DATE.fullmatch, counts)):
        raise DataError(
            f"column {name!r} of {table.source} has dates, which are not numbers or categories; "
            f"replace them by a number such as an age in days, or leave them out (--drop {name})"
        )
    numbers = sum(count for cell, count in counts.items() if _looks_numeric(cell))
    words = [cell for cell in counts if not _looks_numeric(cell)]
    has_dashes = bool(words) and numbers > 0 and all(map(_DASHES.fullmatch, words))
    if _first_word(column) is not None and (has_dashes or 2 * numbers > counts.total()):
        place, remedy = _describe_first_word(column)
        raise DataError(
            f"column {name!r} of {table.source}: {'all other' if has_dashes else 'most'} cells are "
            f"numbers, but {place}; {remedy}, or declare the column as a category in a schema "
            "(--schema)"
        )


def _looks_numeric(cell: str) -> bool:
    numbers = (parse_number(cell, decimal) for decimal in ".,")
    return any(number is not None for number in numbers) or bool(_THOUSANDS.fullmatch(cell))


def _first_word(column: Array) -> int | None:
    """Return the first data row with text, else with another notation."""
    cells = [(row, cell) for row, cell in enumerate(column, start=1) if cell is not None]
    words = (row for row, cell in cells if not _looks_numeric(cell))
    others = (row for row, cell in cells if parse_number(cell) is None)
    return next(chain(words, others), None)


def _describe_first_word(column: Array) -> tuple[str, str]:
    """Return a clause about the first text among numbers, and its remedies."""
    row = _first_word(column)
    cell = "" if row is None else str(column[row - 1])
    if _DASHES.fullmatch(cell):  # named, as it is no value of a person
        return f"the cell in data row {row} is {cell!r}", f"list it as missing (--missing {cell})"
    place = "it has text" if row is None else f"the cell in data row {row} is no number"
    return place, "correct the cell, list its text as missing (--missing)"


def _check_labels(tables: Sequence[Table], label: str) -> None:
    """Raise if labels are missing or differ in type between files."""
    sources: dict[str, str] = {}
    for table in tables:
        labels = parse_labels(complete_cells(table, label))
        is_number = all(parse_number(str(value)) is not None for value in set(labels.tolist()))
        kind = "whole numbers" if labels.dtype.kind == "i" else "decimals" if is_number else "text"
        sources.setdefault(kind, table.source)
    if len(sources) > 1:
        (kind, source), (_, other) = sorted(sources.items(), reverse=True)[:2]
        raise DataError(
            f"label {label!r} has {kind} in {source}, but not in {other}; use the same labels in "
            "every file"
        )


def _describe_columns(tables: Sequence[Table], joined: Table) -> Iterator[str]:
    """Yield sentences about columns of which a user should know."""
    for name, column in joined.columns.items():
        yield from _describe_codes(tables, name)
        is_missing = missing_cells(column)
        present = column[~is_missing]
        if not is_missing.any() and len(column) > 1 and (present == present[0]).all():
            yield (
                f"column {name!r} has the same value in every row and does not help: leave it out "
                f"(--drop {name})"
            )
        elif all(_looks_like_id(table.columns[name]) for table in tables):
            yield (
                f"column {name!r} is different in every row, like an identifier, from which "
                f"nothing can be learned: leave it out (--id {name})"
            )
        else:
            yield from _describe_constants(tables, name)
        for table in tables:
            if len(tables) > 1 and missing_cells(table.columns[name]).all():
                yield (
                    f"column {name!r} of {table.source} is empty; its cells are filled like other "
                    "missing cells"
                )


def _describe_constants(tables: Sequence[Table], name: str) -> Iterator[str]:
    """Yield sentences about files in which a number is constant."""
    for table in tables:
        column = table.columns[name]
        is_number = column.dtype.kind == "f" and len(column) >= _MIN_ID_ROWS
        if len(tables) > 1 and is_number and (column == column[0]).all():
            yield (
                f"column {name!r} has the same number in every row of {table.source}, but not in "
                "other files: a default or a mark of missing cells (--missing)?"
            )


def _describe_codes(tables: Sequence[Table], name: str) -> Iterator[str]:
    """Yield sentences about files whose categories occur in no other file."""
    cells = [table.columns[name] for table in tables]
    codes = [
        set(column[~missing_cells(column)].tolist()) if column.dtype.kind == "O" else set()
        for column in cells
    ]
    if any(map(_looks_like_id, cells)):
        return
    for number, own in enumerate(codes):
        others = set().union(*codes[:number], *codes[number + 1 :])
        if own and others and not own & others:
            yield (
                f"column {name!r}: no category of {tables[number].source} occurs in another file; "
                "the files may code the same facts differently: use the same codes in all"
            )
            if len(tables) == 2:
                return


def _looks_like_id(column: Column) -> bool:
    """Return whether a column has distinct texts or distinct whole numbers."""
    if len(column) < _MIN_ID_ROWS or missing_cells(column).any():
        return False
    is_numeric = column.dtype.kind == "f"
    return len(set(column.tolist())) == len(column) and (
        not is_numeric or bool((np.rint(column.astype(np.float64)) == column).all())
    )
