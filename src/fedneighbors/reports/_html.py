"""HTML reports: text and pictures of each record in one self-contained file."""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path

from fedneighbors.errors import MissingExtraError
from fedneighbors.records import Figure, ResultTable, Round, RunRecord, Scalar, replace_file
from fedneighbors.reports._formatting import cells, heading, number, size, span

_MAX_ROWS = 200
_SHORT_TABLE = 8
_LONG_TABLE = 40
Draw = Callable[[Figure, ResultTable, str], bytes]


@dataclass(frozen=True)
class TextTable:
    """A table as text: headings, numeric columns, rows, and the number of hidden rows."""

    headings: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: int


@dataclass(frozen=True)
class Drawing:
    """A picture as a data URI, with title and caption."""

    uri: str
    title: str
    caption: str
    alt: str


@dataclass(frozen=True)
class Section:
    """One table of the record and the pictures drawn from it."""

    title: str
    caption: str
    drawings: tuple[Drawing, ...]
    grid: TextTable
    folded: bool


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
        At least one; each becomes a chapter.
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
    require_drawing()
    from fedneighbors.reports._figures import picture

    chapters = [chapter(record, place=place, draw=picture) for place, record in enumerate(records)]
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
    require_drawing()
    from fedneighbors.reports._figures import picture

    tables = {table.name: table for table in record.tables}
    Path(folder).mkdir(parents=True, exist_ok=True)
    files = []
    for figure in record.figures:
        for form in ("png", "svg"):
            files.append(Path(folder) / f"{figure.name}.{form}")
            replace_file(files[-1], picture(figure, tables[figure.table], form, titled=True))
    return files


def require_drawing() -> None:
    """Raise if the packages for drawing a report are missing.

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


def chapter(record: RunRecord, *, place: int, draw: Draw) -> Chapter:
    """Return the chapter of a record.

    Parameters
    ----------
    record : RunRecord
        Record to report.
    place : int
        Index in the report, for links.
    draw : callable
        Function from a figure and its table to an SVG picture.

    Raises
    ------
    RecordError
        If ``draw`` finds a cell without an image.
    """
    return Chapter(
        anchor=f"run-{place + 1}",
        name=record.name,
        started=_moment(record.started),
        facts=facts(record),
        notes=record.notes,
        sections=tuple(_section(table, record, draw) for table in record.tables),
        privacy=_entries(record.privacy),
        rounds=_rounds(record.rounds),
        parameters=_entries(record.parameters),
        environment=_entries(record.environment),
    )


def facts(record: RunRecord) -> tuple[tuple[str, str], ...]:
    """Return the main facts of a run: time, parties, bytes."""
    found = [("run time", span(record.seconds))] if record.seconds else []
    if record.rounds:
        parties = {name for entry in record.rounds for name in entry.upload_bytes}
        found += [
            ("rounds", number(len(record.rounds))),
            ("parties", number(len(parties))),
            ("sent by parties", size(record.upload_bytes)),
            ("sent to parties", size(record.download_bytes)),
        ]
    if "epsilon" in record.privacy:
        found.append(("privacy spent (ε)", _text("epsilon", record.privacy["epsilon"])))
    return tuple(found)


def grid(table: ResultTable, *, without: Sequence[str] = (), most: int = _MAX_ROWS) -> TextTable:
    """Return a table as text cells, except the columns in ``without``."""
    kept = [place for place, name in enumerate(table.columns) if name not in without]
    values = [[row[place] for row in table.rows[:most]] for place in kept]
    names = [table.columns[place] for place in kept]
    texts = [cells(name, column) for name, column in zip(names, values, strict=True)]
    return TextTable(
        headings=tuple(heading(name) for name in names),
        numeric=tuple(_is_numeric(column) for column in values),
        rows=tuple(zip(*texts, strict=True)),
        left_out=max(0, len(table.rows) - most),
    )


def _section(table: ResultTable, record: RunRecord, draw: Draw) -> Section:
    figures = [figure for figure in record.figures if figure.table == table.name]
    pixels = [figure.y for figure in figures if figure.kind == "images"]
    title = table.title or heading(table.name)
    return Section(
        title=title,
        caption=table.caption,
        drawings=tuple(_drawing(figure, table, draw, title=title) for figure in figures),
        grid=grid(table, without=pixels),
        folded=bool(pixels) or len(table.rows) > (_SHORT_TABLE if figures else _LONG_TABLE),
    )


def _drawing(figure: Figure, table: ResultTable, draw: Draw, *, title: str) -> Drawing:
    """Return a picture, without a title that repeats the section's."""
    content = base64.b64encode(draw(figure, table, "svg")).decode("ascii")
    return Drawing(
        uri=f"data:image/svg+xml;base64,{content}",
        title=figure.title if figure.title != title else "",
        caption=figure.caption,
        alt=". ".join(part.rstrip(".") for part in (figure.title, figure.caption) if part) + ".",
    )


def _rounds(rounds: Sequence[Round]) -> TextTable:
    columns = ("round", "request", "replies", "parties", "sent_bytes", "received_bytes", "took_s")
    rows = tuple(
        (
            entry.index + 1,
            entry.request,
            {"sum": "only their sum", "masked": "masked sum"}.get(entry.reduce, "one by one"),
            len(entry.upload_bytes),
            sum(entry.upload_bytes.values()),
            sum(entry.download_bytes.values()),
            entry.seconds,
            ", ".join(f"{name} ({reason})" for name, reason in entry.missing.items()),
        )
        for entry in rounds
    )
    without = [] if any(entry.missing for entry in rounds) else ["missing"]
    return grid(ResultTable("rounds", "", (*columns, "missing"), rows), without=without)


def _entries(
    mapping: Mapping[str, Scalar | list[Scalar]] | Mapping[str, str],
) -> tuple[tuple[str, str], ...]:
    return tuple((name, _text(name, value)) for name, value in mapping.items())


def _text(name: str, value: Scalar | list[Scalar]) -> str:
    if isinstance(value, list):
        return ", ".join(_text(name, part) for part in value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # keep seeds and sizes unchanged
    return cells(name, [value])[0]


def _is_numeric(values: Sequence[Scalar]) -> bool:
    present = [value for value in values if value is not None]
    return bool(present) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in present
    )


def _moment(started: str) -> str:
    """Format day and time; return other text unchanged.

    The input is ISO 8601.
    """
    try:
        moment = datetime.fromisoformat(started)
    except ValueError:
        return started
    return f"{moment.day} {moment:%B %Y, %H:%M} {moment.tzname() or ''}".rstrip()
