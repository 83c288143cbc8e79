"""Figures of a record: layout of panels and content of files."""

import io
import math
from collections.abc import Callable, Mapping
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from fedneighbors._typing import Floats
from fedneighbors.records import Figure, ResultTable
from fedneighbors.reports._charts import (
    draw_bars,
    draw_lines,
    draw_points,
    draw_reliability,
    draw_stacked,
    flat_height,
    label_ends,
    lies_flat,
)
from fedneighbors.reports._formatting import printable
from fedneighbors.reports._grids import draw_heatmap, draw_images, heatmap_size, sheet_size
from fedneighbors.reports._series import Chart, Panel, chart
from fedneighbors.reports._style import QUIET, RULES, colors

_DRAW: Mapping[str, Callable[[Axes, Chart, Panel], None]] = {
    "line": draw_lines,
    "scatter": draw_points,
    "bar": draw_bars,
    "stacked": draw_stacked,
    "reliability": draw_reliability,
}
_METADATA: Mapping[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}
_BARS = ("bar", "stacked")
_SQUARE = ("reliability",)
_MAX_END_LABELS = 8
_LETTER = 0.08  # width in inches of a letter of a name at the end of a line


def picture(figure: Figure, table: ResultTable, form: str, *, titled: bool = False) -> bytes:
    """Return the content of a picture file.

    The same data gives the same bytes.

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
        If an image cell is not an image.
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


def _draw(figure: Figure, table: ResultTable) -> Picture:
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


def draw_panels(figure: Figure, table: ResultTable) -> Picture:
    """Draw a figure with axes, one panel per facet."""
    data = chart(figure, table, categorical=figure.kind in _BARS)
    n_columns = _columns(len(data.panels))
    n_lines = math.ceil(len(data.panels) / n_columns)
    width, height = _panel_size(data, n_columns)
    size = (width * n_columns + _beside(data), height * n_lines)
    drawn = Picture(figsize=size, layout="constrained")
    share_x, share_y = _shared(data)
    grid = drawn.subplots(n_lines, n_columns, squeeze=False, sharex=share_x, sharey=share_y)
    for axes, panel in zip(grid.flat, data.panels, strict=False):
        _DRAW[figure.kind](axes, data, panel)
        axes.set_title(panel.title)
    _tidy(grid, len(data.panels), share_x=share_x, share_y=share_y)
    _name_series(drawn, list(grid.flat[: len(data.panels)]), data)
    if data.left_out:
        drawn.supxlabel(f"drawn: {', '.join(data.left_out)}", fontsize=8, color=QUIET)
    return drawn


def _columns(n_panels: int) -> int:
    return {1: 1, 2: 2, 4: 2}.get(n_panels, 3)


def _panel_size(data: Chart, n_columns: int) -> tuple[float, float]:
    """Return the size of a panel in inches."""
    if data.figure.kind in _SQUARE or data.figure.diagonal:
        side = {1: 3.8, 2: 3.3, 3: 2.5}[n_columns]
        return side, side
    width = {1: 6.6, 2: 3.7, 3: 2.7}[n_columns]
    if data.figure.kind in _BARS and lies_flat(data):
        return width, flat_height(data)
    return width, {1: 3.3, 2: 2.7, 3: 2.3}[n_columns]


def _beside(data: Chart) -> float:
    """Return the inches to add for names right of a square panel.

    The panel would shrink otherwise.
    """
    if not (data.figure.diagonal and _named_at_ends(data)):
        return 0.0
    return max(map(len, data.hues)) * _LETTER


def _named_at_ends(data: Chart) -> bool:
    """Return whether series are labelled at their ends, without a legend."""
    return (
        data.figure.kind == "line"
        and len(data.panels) == 1
        and len(data.hues) <= _MAX_END_LABELS
        and data.hues != ("",)
    )


def _shared(data: Chart) -> tuple[bool, bool]:
    """Return whether all panels share the x and the y axis."""
    flat = data.figure.kind in _BARS and lies_flat(data)
    heights = [np.concatenate([series.y for series in panel.series]) for panel in data.panels]
    same_values = data.figure.kind == "stacked" or _alike(heights, log=data.figure.log_y)
    if flat:
        return same_values, True
    if data.categories:
        return True, same_values
    places = [np.concatenate([series.x for series in panel.series]) for panel in data.panels]
    return _alike(places, log=data.figure.log_x), same_values


def _alike(panels: list[Floats], *, log: bool) -> bool:
    """Return whether one scale fits all panels.

    Each panel must fill at least a quarter of it.
    """
    spans = []
    for values in panels:
        drawable = values[np.isfinite(values) & (values > 0 if log else True)]
        if drawable.size:
            shown = np.log10(drawable) if log else drawable
            spans.append((float(shown.min()), float(shown.max())))
    if not spans:
        return True
    whole = max(high for _, high in spans) - min(low for low, _ in spans)
    return all(high - low >= whole / 4 for low, high in spans)


def _tidy(grid: np.ndarray, n_panels: int, *, share_x: bool, share_y: bool) -> None:
    """Remove empty panels and labels repeated by neighbouring panels."""
    n_lines, n_columns = grid.shape
    for place, axes in enumerate(grid.flat):
        if place >= n_panels:
            axes.remove()
            continue
        if share_y and place % n_columns > 0:
            axes.set_ylabel("")
        if share_x and place + n_columns < n_panels:
            axes.set_xlabel("")
        elif place // n_columns < n_lines - 1:
            axes.tick_params(axis="x", labelbottom=True)


def _name_series(drawn: Picture, panels: list[Axes], data: Chart) -> None:
    """Label the series at their right ends or in an outer legend."""
    if len(data.hues) == 1 and not data.hues[0]:
        return
    if _named_at_ends(data):
        label_ends(panels[0], data.panels[0], colors(len(data.hues)))
        return
    handles: dict[str, Artist] = {}
    for axes in panels:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    names = [name for name in data.hues if name in handles]
    beside = data.figure.kind == "stacked" or len(names) > 6
    drawn.legend(
        [handles[name] for name in names],
        names,
        loc="outside right upper" if beside else "outside upper left",
        ncols=1 if beside else len(names),
        title=data.figure.hue.replace("_", " ") if beside else None,
        alignment="left",
    )


def _settle(drawn: Picture) -> None:
    """Fix the layout.

    Legends then stay in place when the picture is cropped or titled.
    """
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
