"""Figures of a record: layout of their panels, and rendering as SVG or PNG."""

import io
import math
from collections.abc import Callable, Mapping
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MplFigure

from fedneighbors._typing import Floats
from fedneighbors.records import Figure, ResultTable
from fedneighbors.reports._charts import (
    draw_bars,
    draw_lines,
    draw_points,
    draw_reliability,
    draw_stacked,
    has_horizontal_bars,
    label_series_ends,
    measure_bars,
)
from fedneighbors.reports._formatting import to_printable
from fedneighbors.reports._grids import draw_heatmap, draw_images, measure_heatmap, measure_sheet
from fedneighbors.reports._series import Chart, Panel, build_chart
from fedneighbors.reports._style import MUTED, RC_PARAMS, list_colors

_DRAW_FUNCTIONS: Mapping[str, Callable[[Axes, Chart, Panel], None]] = {
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
_BAR_KINDS = ("bar", "stacked")
_MAX_END_LABELS = 8
_LETTER_WIDTH = 0.08  # inches, for the name at the end of a line


def render(figure: Figure, table: ResultTable, file_format: str, *, titled: bool = False) -> bytes:
    """Draw a figure; return the bytes of an SVG or PNG.

    The same arguments give the same bytes.

    Parameters
    ----------
    figure : Figure
        The description.
    table : ResultTable
        The data.
    file_format : str
        ``"svg"`` or ``"png"``.
    titled : bool
        Draw the title, for a file that is shown outside a report.

    Raises
    ------
    RecordError
        If an image cell is not an image.
    """
    content = io.BytesIO()
    settings: Any = dict(RC_PARAMS)  # matplotlib types the keys as a list of literals
    with matplotlib.rc_context(settings):
        fig = _draw_figure(figure, table)
        _freeze_layout(fig)
        if titled:
            _write_title(fig, figure.title)
        fig.savefig(
            content,
            format=file_format,
            dpi=200,
            bbox_inches="tight",
            pad_inches=0.08,
            metadata=_METADATA[file_format],
        )
    return content.getvalue()


def _draw_figure(figure: Figure, table: ResultTable) -> MplFigure:
    if not table.rows:
        fig = MplFigure(figsize=(6.4, 1.0))
        fig.text(0.5, 0.5, "no data", ha="center", va="center", color=MUTED)
    elif figure.kind == "images":
        fig = MplFigure(figsize=measure_sheet(figure, table))
        draw_images(fig.add_axes((0, 0, 1, 1)), figure, table)
    elif figure.kind == "heatmap":
        fig = MplFigure(figsize=measure_heatmap(figure, table), layout="constrained")
        draw_heatmap(fig, figure, table)
    else:
        fig = draw_panels(figure, table)
    return fig


def draw_panels(figure: Figure, table: ResultTable) -> MplFigure:
    """Draw a chart with one panel per facet."""
    data = build_chart(figure, table, categorical=figure.kind in _BAR_KINDS)
    n_columns = {1: 1, 2: 2, 4: 2}.get(len(data.panels), 3)
    n_rows = math.ceil(len(data.panels) / n_columns)
    width, height = _measure_panel(data, n_columns)
    size = (width * n_columns + _measure_end_labels(data), height * n_rows)
    fig = MplFigure(figsize=size, layout="constrained")
    share_x, share_y = _find_shared_axes(data)
    grid = fig.subplots(n_rows, n_columns, squeeze=False, sharex=share_x, sharey=share_y)
    for axes, panel in zip(grid.flat, data.panels, strict=False):
        _DRAW_FUNCTIONS[figure.kind](axes, data, panel)
        axes.set_title(panel.title)
    _remove_repeats(grid, len(data.panels), share_x=share_x, share_y=share_y)
    _label_series(fig, list(grid.flat[: len(data.panels)]), data)
    if data.omitted:
        fig.supxlabel(f"drawn: {', '.join(data.omitted)}", fontsize=8, color=MUTED)
    return fig


def _measure_panel(data: Chart, n_columns: int) -> tuple[float, float]:
    """Return the width and height of a panel in inches."""
    if data.figure.kind == "reliability" or data.figure.diagonal:
        side = {1: 3.8, 2: 3.3, 3: 2.5}[n_columns]
        return side, side
    width = {1: 6.6, 2: 3.7, 3: 2.7}[n_columns]
    if data.figure.kind in _BAR_KINDS and has_horizontal_bars(data):
        return width, measure_bars(data)
    return width, {1: 3.3, 2: 2.7, 3: 2.3}[n_columns]


def _measure_end_labels(data: Chart) -> float:
    """Return the inches to add for names right of a square panel.

    Without them, the layout would shrink the panel.
    """
    if not (data.figure.diagonal and _has_end_labels(data)):
        return 0.0
    return max(map(len, data.hues)) * _LETTER_WIDTH


def _has_end_labels(data: Chart) -> bool:
    """Return whether series have labels at their ends instead of a legend."""
    return (
        data.figure.kind == "line"
        and len(data.panels) == 1
        and len(data.hues) <= _MAX_END_LABELS
        and data.hues != ("",)
    )


def _find_shared_axes(data: Chart) -> tuple[bool, bool]:
    """Return whether panels share the x axis and the y axis."""
    horizontal = data.figure.kind in _BAR_KINDS and has_horizontal_bars(data)
    y_values = [np.concatenate([series.y for series in panel.series]) for panel in data.panels]
    same_values = data.figure.kind == "stacked" or _fit_one_scale(y_values, log=data.figure.log_y)
    if horizontal:
        return same_values, True
    if data.categories:
        return True, same_values
    x_values = [np.concatenate([series.x for series in panel.series]) for panel in data.panels]
    return _fit_one_scale(x_values, log=data.figure.log_x), same_values


def _fit_one_scale(panels: list[Floats], *, log: bool) -> bool:
    """Return whether one scale fits all panels.

    It does if the values of each panel span at least a quarter of it.
    """
    spans = []
    for values in panels:
        drawable = values[np.isfinite(values) & (values > 0 if log else True)]
        if drawable.size:
            scaled = np.log10(drawable) if log else drawable
            spans.append((float(scaled.min()), float(scaled.max())))
    if not spans:
        return True
    full_span = max(high for _, high in spans) - min(low for low, _ in spans)
    return all(high - low >= full_span / 4 for low, high in spans)


def _remove_repeats(grid: np.ndarray, n_panels: int, *, share_x: bool, share_y: bool) -> None:
    """Remove unused axes, and axis labels that neighbouring panels repeat."""
    n_rows, n_columns = grid.shape
    for index, axes in enumerate(grid.flat):
        if index >= n_panels:
            axes.remove()
            continue
        if share_y and index % n_columns > 0:
            axes.set_ylabel("")
        if share_x and index + n_columns < n_panels:
            axes.set_xlabel("")
        elif index // n_columns < n_rows - 1:
            axes.tick_params(axis="x", labelbottom=True)  # no panel below shows them


def _label_series(fig: MplFigure, panels: list[Axes], data: Chart) -> None:
    """Label the series at their ends, or draw a legend."""
    if len(data.hues) == 1 and not data.hues[0]:
        return
    if _has_end_labels(data):
        label_series_ends(panels[0], data.panels[0], list_colors(len(data.hues)))
        return
    handles: dict[str, Artist] = {}
    for axes in panels:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    names = [name for name in data.hues if name in handles]
    on_right = data.figure.kind == "stacked" or len(names) > 6
    fig.legend(
        [handles[name] for name in names],
        names,
        loc="outside right upper" if on_right else "outside upper left",
        ncols=1 if on_right else len(names),
        title=data.figure.hue.replace("_", " ") if on_right else None,
        alignment="left",
    )


def _freeze_layout(fig: MplFigure) -> None:
    """Compute the layout once, and keep it.

    The legends then stay in place when a title is added and the margins are cropped.
    """
    fig.draw_without_rendering()
    fig.set_layout_engine("none")
    for legend in fig.legends:
        legend.set_bbox_to_anchor((0, 0, 1, 1), transform=fig.transFigure)


def _write_title(fig: MplFigure, title: str) -> None:
    """Write a title above all panels and legends."""
    box = fig.get_tightbbox()
    width, height = fig.get_size_inches()
    x, y = box.x0 / width, (box.y1 + 0.12) / height
    fig.text(x, y, to_printable(title, 90), va="bottom", fontsize=11, fontweight="bold")
