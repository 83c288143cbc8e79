"""HTML reports: tables and figures of run records in one self-contained file."""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path

from fedneighbors.errors import MissingExtraError
from fedneighbors.records import Figure, ResultTable, Round, RunRecord, Scalar, replace_file
from fedneighbors.reports._formatting import (
    format_bytes,
    format_cells,
    format_heading,
    format_number,
    format_seconds,
)

_MAX_ROWS = 200
# tables with more rows are collapsed at first
_MAX_OPEN_ROWS_BELOW_FIGURE = 8
_MAX_OPEN_ROWS = 40
Renderer = Callable[[Figure, ResultTable, str], bytes]


@dataclass(frozen=True)
class TextTable:
    """A table as text.

    ``numeric`` has one flag per column; ``n_hidden`` rows of the original table are left out.
    """

    headings: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]
    n_hidden: int


@dataclass(frozen=True)
class Drawing:
    """An SVG figure as a data URI, with title, caption and alternative text."""

    uri: str
    title: str
    caption: str
    alt: str


@dataclass(frozen=True)
class Section:
    """One table of the record and the figures drawn from it."""

    title: str
    caption: str
    drawings: tuple[Drawing, ...]
    table: TextTable
    is_collapsed: bool


@dataclass(frozen=True)
class Chapter:
    """Report of one record."""

    anchor: str
    name: str
    started: str
    facts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    sections: tuple[Section, ...]
    privacy: tuple[tuple[str, str], ...]
    rounds: TextTable
    parameters: tuple[tuple[str, str], ...]
    environment: tuple[tuple[str, str], ...]


def write_report(records: Sequence[RunRecord], path: Path | str) -> None:
    """Write one HTML file with the results of all records.

    Parameters
    ----------
    records : sequence of RunRecord
        At least one record; each becomes a chapter.
    path : path
        The file, usually ``*.html``; its folder must exist. An existing file is replaced.

    Raises
    ------
    MissingExtraError
        If matplotlib or jinja2 is not installed.
    RecordError
        If an image cell is not an image.
    ValueError
        If there are no records.
    OSError
        If the file cannot be written.
    """
    if not records:
        raise ValueError("expected at least one record for a report, got none")
    check_extra()
    from fedneighbors.reports._figures import render

    chapters = [build_chapter(record, index=i, draw=render) for i, record in enumerate(records)]
    replace_file(path, _render(chapters).encode("utf-8"))


def save_figures(record: RunRecord, folder: Path | str) -> list[Path]:
    """Save every figure of a record as ``<name>.png`` and ``<name>.svg``.

    Parameters
    ----------
    record : RunRecord
        Record with figures and tables.
    folder : path
        Created if missing.

    Returns
    -------
    list of Path
        The files, in the order of the figures.

    Raises
    ------
    MissingExtraError
        If matplotlib or jinja2 is not installed.
    RecordError
        If an image cell is not an image.
    OSError
        If a file cannot be written.
    """
    check_extra()
    from fedneighbors.reports._figures import render

    tables = {table.name: table for table in record.tables}
    Path(folder).mkdir(parents=True, exist_ok=True)
    files = []
    for figure in record.figures:
        for file_format in ("png", "svg"):
            files.append(Path(folder) / f"{figure.name}.{file_format}")
            replace_file(files[-1], render(figure, tables[figure.table], file_format, titled=True))
    return files


def check_extra() -> None:
    """Raise if a package for reports is missing.

    Raises
    ------
    MissingExtraError
        If matplotlib or jinja2 is not installed; the error names the extra.
    """
    for package in ("matplotlib", "jinja2"):
        if find_spec(package) is None:
            raise MissingExtraError(package, "report")


def _render(chapters: Sequence[Chapter]) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    pages = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # every string of a record is text, never markup
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return pages.get_template("report.html.jinja").render(chapters=chapters)


def build_chapter(record: RunRecord, *, index: int, draw: Renderer) -> Chapter:
    """Return the chapter of a record.

    Parameters
    ----------
    record : RunRecord
        Record to report.
    index : int
        Position of the chapter in the report; its anchor for links is ``run-<index + 1>``.
    draw : callable
        Draws a figure from its table and returns the content of a file; the format is the third
        argument.

    Raises
    ------
    RecordError
        If an image cell is not an image.
    """
    return Chapter(
        anchor=f"run-{index + 1}",
        name=record.name,
        started=_format_time(record.started),
        facts=list_facts(record),
        notes=record.notes,
        sections=tuple(_build_section(table, record, draw) for table in record.tables),
        privacy=_format_entries(record.privacy),
        rounds=_format_rounds(record.rounds),
        parameters=_format_entries(record.parameters),
        environment=_format_entries(record.environment),
    )


def list_facts(record: RunRecord) -> tuple[tuple[str, str], ...]:
    """Return the main facts of a run, as (name, text)."""
    pairs = [("run time", format_seconds(record.seconds))] if record.seconds else []
    if record.rounds:
        parties = {name for entry in record.rounds for name in entry.upload_bytes}
        pairs += [
            ("rounds", format_number(len(record.rounds))),
            ("parties", format_number(len(parties))),
            ("sent by parties", format_bytes(record.upload_bytes)),
            ("sent to parties", format_bytes(record.download_bytes)),
        ]
    if "epsilon" in record.privacy:
        pairs.append(("privacy spent (ε)", _format_value("epsilon", record.privacy["epsilon"])))
    return tuple(pairs)


def to_text(table: ResultTable, *, omit: Sequence[str] = (), limit: int = _MAX_ROWS) -> TextTable:
    """Format the first ``limit`` rows of a table, without the columns ``omit``."""
    columns = [index for index, name in enumerate(table.columns) if name not in omit]
    values = [[row[index] for row in table.rows[:limit]] for index in columns]
    names = [table.columns[index] for index in columns]
    texts = [format_cells(name, column) for name, column in zip(names, values, strict=True)]
    return TextTable(
        headings=tuple(format_heading(name) for name in names),
        numeric=tuple(_is_numeric(column) for column in values),
        rows=tuple(zip(*texts, strict=True)),
        n_hidden=max(0, len(table.rows) - limit),
    )


def _build_section(table: ResultTable, record: RunRecord, draw: Renderer) -> Section:
    figures = [figure for figure in record.figures if figure.table == table.name]
    pixels = [figure.y for figure in figures if figure.kind == "images"]
    title = table.title or format_heading(table.name)
    max_open_rows = _MAX_OPEN_ROWS_BELOW_FIGURE if figures else _MAX_OPEN_ROWS
    return Section(
        title=title,
        caption=table.caption,
        drawings=tuple(_build_drawing(figure, table, draw, title=title) for figure in figures),
        table=to_text(table, omit=pixels),
        is_collapsed=bool(pixels) or len(table.rows) > max_open_rows,
    )


def _build_drawing(figure: Figure, table: ResultTable, draw: Renderer, *, title: str) -> Drawing:
    """Draw a figure; a title that repeats the section's becomes empty."""
    content = base64.b64encode(draw(figure, table, "svg")).decode("ascii")
    return Drawing(
        uri=f"data:image/svg+xml;base64,{content}",
        title=figure.title if figure.title != title else "",
        caption=figure.caption,
        alt=". ".join(item.rstrip(".") for item in (figure.title, figure.caption) if item) + ".",
    )


def _format_rounds(rounds: Sequence[Round]) -> TextTable:
    columns = ("round", "request", "replies", "parties", "sent_bytes", "received_bytes", "time_s")
    rows = tuple(
        (
            entry.index + 1,
            entry.request,
            {"sum": "only their sum", "masked": "masked sum"}.get(entry.reduce, "individual"),
            len(entry.upload_bytes),
            sum(entry.upload_bytes.values()),
            sum(entry.download_bytes.values()),
            entry.seconds,
            ", ".join(f"{name} ({reason})" for name, reason in entry.missing.items()),
        )
        for entry in rounds
    )
    omit = [] if any(entry.missing for entry in rounds) else ["missing"]
    return to_text(ResultTable("rounds", "", (*columns, "missing"), rows), omit=omit)


def _format_entries(
    mapping: Mapping[str, Scalar | list[Scalar]] | Mapping[str, str],
) -> tuple[tuple[str, str], ...]:
    return tuple((name, _format_value(name, value)) for name, value in mapping.items())


def _format_value(name: str, value: Scalar | list[Scalar]) -> str:
    if isinstance(value, list):
        return ", ".join(_format_value(name, item) for item in value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # seeds and sizes without digit grouping or units
    return format_cells(name, [value])[0]


def _is_numeric(values: Sequence[Scalar]) -> bool:
    present = [value for value in values if value is not None]
    return bool(present) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in present
    )


def _format_time(started: str) -> str:
    """Format an ISO 8601 date and time; return other text unchanged."""
    try:
        time = datetime.fromisoformat(started)
    except ValueError:
        return started
    return f"{time.day} {time:%B %Y, %H:%M} {time.tzname() or ''}".rstrip()
