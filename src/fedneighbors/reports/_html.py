"""Writes the report of one or more runs as a single HTML file that needs nothing else."""

from collections.abc import Sequence
from pathlib import Path

from fedneighbors.records import RunRecord, replace_file
from fedneighbors.reports._chapters import Chapter, chapter
from fedneighbors.reports._extras import require_drawing


def write_report(records: Sequence[RunRecord], path: Path | str) -> None:
    """Write one HTML file with the results of all records.

    Parameters
    ----------
    records : sequence of RunRecord
        At least one; each becomes a chapter.
    path : path
        The file, by custom ``*.html``; its folder must exist. An older file is replaced.

    Raises
    ------
    MissingExtraError
        If matplotlib or jinja2 is not installed.
    RecordError
        If a cell that should hold an image does not.
    ValueError
        If there is no record.
    OSError
        If the file cannot be written.
    """
    if not records:
        raise ValueError("a report is drawn from at least one record, got none")
    require_drawing()
    from fedneighbors.reports._figures import picture

    chapters = [chapter(record, place=place, draw=picture) for place, record in enumerate(records)]
    replace_file(path, _render(chapters).encode("utf-8"))


def save_figures(record: RunRecord, folder: Path | str) -> list[Path]:
    """Save every figure of a record as ``<name>.png`` and ``<name>.svg``.

    Parameters
    ----------
    record : RunRecord
        Holds figures and tables.
    folder : path
        Made if it is not there.

    Returns
    -------
    list of Path
        The files, in the order of the figures.

    Raises
    ------
    MissingExtraError
        If matplotlib or jinja2 is not installed.
    RecordError
        If a cell that should hold an image does not.
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
