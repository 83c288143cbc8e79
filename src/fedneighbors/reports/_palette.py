"""Colours, markers and type of the pictures.

The colours are Paul Tol's "bright" and "rainbow discrete" schemes, which people with any of the
common colour vision deficiencies can tell apart; markers and dashes repeat what colours say.
"""

from collections.abc import Mapping
from typing import Any

INK = "#1d2733"
QUIET = "#5b6775"
FRAME = "#9aa5b1"
_GRID = "#e3e8ee"

_BRIGHT = ("#4477AA", "#EE6677", "#228833", "#AA3377", "#CC8800", "#33A5C8", "#777777")
_RAINBOW = (
    *("#882E72", "#1965B0", "#5289C7", "#7BAFDE", "#4EB265", "#90C987"),
    *("#CAE0AB", "#F7F056", "#F6C141", "#F1932D", "#E8601C", "#DC050C"),
)
_LONG_RAINBOW = ("#D1BBD7", "#AE76A3", *_RAINBOW)

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":")

RULES: Mapping[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": FRAME,
    "axes.grid": False,
    "axes.labelcolor": QUIET,
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "figure.dpi": 100,
    "figure.facecolor": "white",
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "grid.color": _GRID,
    "grid.linewidth": 0.8,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "svg.fonttype": "path",
    "svg.hashsalt": "fedneighbors",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": FRAME,
    "xtick.labelcolor": QUIET,
    "xtick.labelsize": 8.5,
    "xtick.major.size": 3,
    "ytick.color": FRAME,
    "ytick.labelcolor": QUIET,
    "ytick.labelsize": 8.5,
    "ytick.major.size": 3,
}
"""Settings of matplotlib while a picture is drawn.

``text.parse_math`` is off: a record's strings are text, never formulas to be interpreted.
"""


def darker(color: str) -> str:
    """Shade of a colour that reads well as text on white.

    Examples
    --------
    >>> darker("#EE6677")
    '#b24c59'
    """
    parts = (int(color[place : place + 2], 16) * 3 // 4 for place in (1, 3, 5))
    return "#" + "".join(f"{part:02x}" for part in parts)


def colors(n_colors: int, *, ordered: bool = False) -> list[str]:
    """Colours for as many groups, as hexadecimal strings.

    Parameters
    ----------
    n_colors : int
        Number of groups; beyond 14 the colours repeat.
    ordered : bool
        Take a scheme that runs from cold to warm also for a small number of groups.
    """
    if n_colors <= len(_BRIGHT) and not ordered:
        return list(_BRIGHT[:n_colors])
    if n_colors > len(_RAINBOW):
        return [_LONG_RAINBOW[index % len(_LONG_RAINBOW)] for index in range(n_colors)]
    step = (len(_RAINBOW) - 1) / max(1, n_colors - 1)
    return [_RAINBOW[round(index * step)] for index in range(n_colors)]
