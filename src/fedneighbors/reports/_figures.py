"""Turns the figures of a record into pictures."""

import io
from collections.abc import Mapping
from typing import Any

import matplotlib
from matplotlib.figure import Figure as Picture

from fedneighbors.records import Figure, Table
from fedneighbors.reports._heatmaps import draw_heatmap, heatmap_size
from fedneighbors.reports._palette import QUIET, RULES
from fedneighbors.reports._panels import draw_panels
from fedneighbors.reports._sheets import draw_images, sheet_size
from fedneighbors.reports._text import printable

_METADATA: Mapping[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}


def picture(figure: Figure, table: Table, form: str, *, titled: bool = False) -> bytes:
    """Content of a picture file; the same data gives the same bytes.

    Parameters
    ----------
    figure : Figure
        The description.
    table : Table
        The data.
    form : str
        ``"svg"`` or ``"png"``.
    titled : bool
        Write the title into the picture, for one that stands alone.

    Raises
    ------
    RecordError
        If a cell that should hold an image does not.
    """
    content = io.BytesIO()
    settings: Any = dict(RULES)  # matplotlib types the keys as a list of literals
    with matplotlib.rc_context(settings):
        drawn = _draw(figure, table)
        _settle(drawn)
        if titled:
            _write_title(drawn, figure.title)
        drawn.savefig(
            content,
            format=form,
            dpi=200,
            bbox_inches="tight",
            pad_inches=0.08,
            metadata=_METADATA[form],
        )
    return content.getvalue()


def _draw(figure: Figure, table: Table) -> Picture:
    if not table.rows:
        return _draw_nothing()
    if figure.kind == "images":
        drawn = Picture(figsize=sheet_size(figure, table))
        draw_images(drawn.add_axes((0, 0, 1, 1)), figure, table)
    elif figure.kind == "heatmap":
        drawn = Picture(figsize=heatmap_size(figure, table), layout="constrained")
        draw_heatmap(drawn, figure, table)
    else:
        drawn = draw_panels(figure, table)
    return drawn


def _settle(drawn: Picture) -> None:
    """Lay out once; legends then stay where they are when the picture is cropped or titled."""
    drawn.draw_without_rendering()
    drawn.set_layout_engine("none")
    for legend in drawn.legends:
        legend.set_bbox_to_anchor((0, 0, 1, 1), transform=drawn.transFigure)


def _write_title(drawn: Picture, title: str) -> None:
    """Write a title above all that is drawn, legends included."""
    box = drawn.get_tightbbox()
    width, height = drawn.get_size_inches()
    x, y = box.x0 / width, (box.y1 + 0.12) / height
    drawn.text(x, y, printable(title, 90), va="bottom", fontsize=11, fontweight="bold")


def _draw_nothing() -> Picture:
    drawn = Picture(figsize=(6.4, 1.0))
    drawn.text(0.5, 0.5, "no data", ha="center", va="center", color=QUIET)
    return drawn
