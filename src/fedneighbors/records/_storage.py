"""Run records in JSON-lines files: reading with validation, and atomic writing."""

import errno
import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from glob import escape
from pathlib import Path
from typing import Any, NoReturn

from fedneighbors.errors import FolderInUse, RecordError
from fedneighbors.records._encoding import (
    FIELDS,
    OPTIONAL,
    PARTS,
    SCHEMA,
    VERSION,
    check_fields,
    encode,
)
from fedneighbors.records._schema import FIGURE_KINDS, Figure, ResultTable, Round, RunRecord

MIN_PART_AGE_S = 3600.0
"""Minimum age of a temporary file that is deleted; none takes that long to write."""

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def read_record(path: Path | str) -> RunRecord:
    """Read and validate a record written by ``write_record``.

    Parameters
    ----------
    path : path
        A JSON-lines file: a header, one line per round, table, figure and note, and an end line.

    Returns
    -------
    RunRecord
        Equal to the written record.

    Raises
    ------
    RecordError
        If the file cannot be read, is not a run record, is of another version, is truncated or has
        a malformed line; the message names the file, the line and the expectation.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror or error}") from error
    return parse_record(content, source=str(path))


def write_record(record: RunRecord, path: Path | str) -> None:
    """Write a record atomically.

    Parameters
    ----------
    record : RunRecord
        The record of a run.
    path : path
        The file, conventionally ``*.jsonl``; its folder must exist. An existing file is replaced.

    Raises
    ------
    TypeError
        If a value is not a string, a number, a boolean or None.
    ValueError
        If the record is inconsistent, such as a figure without its table.
    OSError
        If the file cannot be written.
    """
    lines = list(_encode_lines(record))
    end = {"seconds": record.seconds, "privacy": record.privacy, "lines": len(lines) + 1}
    content = b"".join([*lines, _encode_line("end", end)])
    try:
        parse_record(content, source="record")  # never write a file that cannot be read
    except RecordError as error:
        raise ValueError(f"this record cannot be written: {error}") from error
    replace_file(path, content)


def replace_file(path: Path | str, content: bytes) -> None:
    """Write a file atomically.

    Readers see the complete old or the complete new content.

    Parameters
    ----------
    path : path
        The file; its folder must exist.
    content : bytes
        Complete content of the file.

    Raises
    ------
    OSError
        If the folder is missing or cannot be written; the old file is then unchanged.
    """
    target = Path(path)
    sweep_parts(target.parent, target.name)
    with write_part(target, content) as part:
        os.replace(part, target)


@contextmanager
def write_part(target: Path, content: bytes, *, mode: int = 0o666) -> Iterator[Path]:
    """Yield a new file with this content; delete it afterwards.

    The file is locked during the block, so that :func:`sweep_parts` leaves it.
    """
    part = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
    file = os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb")
    try:
        _try_lock(file.fileno())
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        if os.name != "posix":  # an open file cannot be renamed there
            file.close()
        yield part
    finally:
        try:
            file.close()  # raises again if the content could not be written
        finally:
            part.unlink(missing_ok=True)


def sweep_parts(folder: Path, name: str | None = None) -> None:
    """Delete temporary files that crashed processes left in a folder.

    Parameters
    ----------
    folder : path
        The folder.
    name : str, optional
        Name of the file to be written; by default any.
    """
    for part in folder.glob(f".{'*' if name is None else escape(name)}.*.part*"):
        with suppress(OSError):  # another process may sweep, too
            if time.time() - part.stat().st_mtime > MIN_PART_AGE_S and not _is_locked(part):
                part.unlink()


def _is_locked(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return not _try_lock(descriptor)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    """Return whether an open file or folder could be locked.

    Windows and some network file systems have no such locks; nothing is locked there.
    """
    if os.name != "posix":
        return True
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    return True


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of an output folder during the block.

    The folder is created if missing, and deleted again if nothing was written. The system releases
    the lock of a process that ends.

    Raises
    ------
    FolderInUse
        If another process holds the lock.
    NotADirectoryError
        If there is a file of that name.
    """
    is_new = not folder.exists()
    descriptor = _open_locked(folder) if os.name == "posix" else None
    _create(folder)
    try:
        yield
    finally:
        if is_new:
            with suppress(OSError):  # it is not empty
                folder.rmdir()  # while it is locked: another process may wait for it
        if descriptor is not None:
            os.close(descriptor)


def _open_locked(folder: Path) -> int:
    """Open and lock a folder, which is created if missing."""
    while True:
        _create(folder)
        descriptor = os.open(folder, os.O_RDONLY)
        if not _try_lock(descriptor):
            os.close(descriptor)
            raise FolderInUse(str(folder))
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(folder)):
                return descriptor
        os.close(descriptor)  # another process deleted it before it was locked


def _create(folder: Path) -> None:
    """Create a folder if missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(f"expected an output folder, got the file {folder}") from error


def check_folder(path: Path | str, name: str) -> None:
    """Check that the folder of a file exists.

    Parameters
    ----------
    path : path
        The file.
    name : str
        Name of the setting that holds the path, for the error message.

    Raises
    ------
    ValueError
        If the folder does not exist.
    """
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise ValueError(f"{name} points into {folder}, which is not a folder; create it")


def parse_record(content: bytes, *, source: str) -> RunRecord:
    """Parse and validate a record; errors refer to it by ``source``.

    Raises
    ------
    RecordError
        As for `read_record`.
    """
    lines = content.split(b"\n")
    complete = lines.pop() == b""  # a complete file ends with a newline
    if not lines:
        raise RecordError(f"{source}, line 1: expected the header line of a run record")
    header = _read_header(lines[0], source)
    entries = [_read_entry(line, source, number) for number, line in enumerate(lines[1:], start=2)]
    return _assemble(header, entries, complete=complete, source=source)


def _assemble(
    header: dict[str, Any],
    entries: list[tuple[str, dict[str, Any]]],
    *,
    complete: bool,
    source: str,
) -> RunRecord:
    """Build a record from checked lines; check completeness and consistency."""
    if not complete or not entries or entries[-1][0] != "end":
        raise RecordError(
            f"{source}, line {len(entries) + 2}: truncated; expected an end line as the last one"
        )
    *middle, (_, end) = entries
    for number, (kind, _) in enumerate(middle, start=2):
        if kind in ("header", "end"):
            raise RecordError(f"{source}, line {number}: expected no second {kind} line")
    if end["lines"] != len(entries) + 1:
        raise RecordError(
            f"{source}, line {len(entries) + 1}: lines are missing or were added; "
            f"expected {end['lines']}, found {len(entries) + 1}"
        )
    parts = [PARTS[kind](**fields) for kind, fields in middle]
    record = RunRecord(
        name=header["name"],
        parameters=header["parameters"],
        rounds=tuple(part for part in parts if isinstance(part, Round)),
        tables=tuple(part for part in parts if isinstance(part, ResultTable)),
        figures=tuple(part for part in parts if isinstance(part, Figure)),
        notes=tuple(part for part in parts if isinstance(part, str)),
        started=header["started"],
        seconds=end["seconds"],
        environment=header["environment"],
        privacy=end["privacy"],
    )
    for problem in find_problems(record):
        raise RecordError(f"{source}: {problem}")
    return record


def _read_header(line: bytes, source: str) -> dict[str, Any]:
    """Parse the header line; check its schema and version."""
    where = f"{source}, line 1"
    try:
        entry = _parse_json(line)
    except ValueError as error:
        raise RecordError(f"{where}: not a run record; expected a JSON object ({error})") from error
    if entry.get("schema") != SCHEMA or entry.get("line") != "header":
        raise RecordError(f'{where}: not a run record; expected "schema": "{SCHEMA}"')
    if entry.get("version") != VERSION:
        raise RecordError(
            f"{where}: expected version {VERSION}, found {entry.get('version')!r:.40}; "
            "read it with the version of fedneighbors that wrote it"
        )
    try:
        return check_fields("header", entry)
    except ValueError as error:
        raise RecordError(f"{where}: {error}") from error


def _read_entry(line: bytes, source: str, number: int) -> tuple[str, dict[str, Any]]:
    """Return the kind and checked fields of a line after the header."""
    try:
        entry = _parse_json(line)
        kind = entry.get("line")
        if not isinstance(kind, str) or kind not in FIELDS:
            raise ValueError(f'expected "line" to be one of {", ".join(FIELDS)}')
        return kind, check_fields(kind, entry)
    except ValueError as error:
        raise RecordError(f"{source}, line {number}: malformed; {error}") from error


def _parse_json(line: bytes) -> dict[str, Any]:
    try:
        entry = json.loads(line.decode("utf-8"), parse_constant=_reject_constant)
    except RecursionError as error:
        raise ValueError("expected less deep nesting") from error
    if not isinstance(entry, dict):
        raise ValueError("expected a JSON object")
    return entry


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f'expected no bare {constant}; it is written as {{"float": ...}}')


def find_problems(record: RunRecord) -> Iterator[str]:
    """Yield a message for each inconsistency of a record.

    Names of tables and figures are used as file names: they must be unique and consist of letters,
    digits, dots, dashes and underscores. Each row must have one cell per column. A figure must be
    of a known kind and refer to a table and its columns in the same record.
    """
    yield from _name_problems("table", [table.name for table in record.tables])
    yield from _name_problems("figure", [figure.name for figure in record.figures])
    for table in record.tables:
        yield from _table_problems(table)
    tables = {table.name: table for table in record.tables}
    for figure in record.figures:
        yield from _figure_problems(figure, tables)


def _name_problems(kind: str, names: list[str]) -> Iterator[str]:
    for name in names:
        if not _FILE_NAME.fullmatch(name):
            yield (
                f"{kind} {name!r}: expected a name of letters, digits, dots, dashes and "
                "underscores, at most 100, that starts with a letter or digit"
            )
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"{kind} {name!r}: expected a unique name, found it {names.count(name)} times"


def _table_problems(table: ResultTable) -> Iterator[str]:
    if len(set(table.columns)) < len(table.columns):
        yield f"table {table.name!r}: expected distinct column names"
    for number, row in enumerate(table.rows):
        if len(row) != len(table.columns):
            yield (
                f"table {table.name!r}, row {number}: expected {len(table.columns)} cells, "
                f"found {len(row)}"
            )


def _figure_problems(figure: Figure, tables: dict[str, ResultTable]) -> Iterator[str]:
    where = f"figure {figure.name!r}"
    if figure.kind not in FIGURE_KINDS:
        yield f"{where}: expected a kind of {', '.join(FIGURE_KINDS)}, found {figure.kind!r}"
    if figure.table not in tables:
        yield f"{where}: expected a table {figure.table!r} in the record"
        return
    columns = tables[figure.table].columns
    optional = [name for name in (figure.hue, figure.facet, figure.error) if name]
    for name in [figure.x, figure.y, *optional]:
        if name not in columns:
            yield f"{where}: expected a column {name!r} in table {figure.table!r}"


def _encode_lines(record: RunRecord) -> Iterator[bytes]:
    """Yield all encoded lines except the end line."""
    yield _encode_line(
        "header",
        {
            "schema": SCHEMA,
            "version": VERSION,
            "name": record.name,
            "parameters": record.parameters,
            "started": record.started,
            "environment": record.environment,
        },
    )
    for kind, parts in (
        ("round", record.rounds),
        ("table", record.tables),
        ("figure", record.figures),
    ):
        for part in parts:
            yield _encode_line(kind, _to_mapping(part, OPTIONAL.get(kind, frozenset())))
    for note in record.notes:
        yield _encode_line("note", {"text": note})


def _to_mapping(part: Round | ResultTable | Figure, optional: frozenset[str]) -> dict[str, Any]:
    content = {field.name: getattr(part, field.name) for field in fields(part)}
    return {name: value for name, value in content.items() if value or name not in optional}


def _encode_line(kind: str, content: dict[str, Any]) -> bytes:
    entry = {"line": kind} | encode(content)
    text = json.dumps(entry, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8") + b"\n"
