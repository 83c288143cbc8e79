"""Writes the record of a run as a JSON-lines file."""

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedneighbors.errors import RecordError
from fedneighbors.records._files import replace_file
from fedneighbors.records._json import OPTIONAL, SCHEMA, VERSION, encode
from fedneighbors.records._reader import parse_record
from fedneighbors.records._schema import Figure, Round, RunRecord, Table


def write_record(record: RunRecord, path: Path | str) -> None:
    """Write a record to ``path``: wholly, or not at all.

    Parameters
    ----------
    record : RunRecord
        What a run left.
    path : path
        The file, by custom ``*.jsonl``; its folder must exist. An older file is replaced.

    Raises
    ------
    TypeError
        If a value is neither a string, a number, a boolean nor None.
    ValueError
        If the parts of the record do not fit together, such as a figure without its table.
    OSError
        If the file cannot be written.
    """
    lines = list(_lines(record))
    end = {"seconds": record.seconds, "privacy": record.privacy, "lines": len(lines) + 1}
    content = b"".join([*lines, _line("end", end)])
    try:
        parse_record(content, source="record")  # what cannot be read is not written
    except RecordError as error:
        raise ValueError(f"this record cannot be written: {error}") from error
    replace_file(path, content)


def _lines(record: RunRecord) -> Iterator[bytes]:
    """All lines but the last."""
    yield _line(
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
            yield _line(kind, _as_mapping(part, OPTIONAL.get(kind, frozenset())))
    for note in record.notes:
        yield _line("note", {"text": note})


def _as_mapping(part: Round | Table | Figure, optional: frozenset[str]) -> dict[str, Any]:
    content = {field.name: getattr(part, field.name) for field in fields(part)}
    return {name: value for name, value in content.items() if value or name not in optional}


def _line(kind: str, content: dict[str, Any]) -> bytes:
    entry = {"line": kind} | encode(content)
    text = json.dumps(entry, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8") + b"\n"
