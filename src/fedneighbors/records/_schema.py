"""Schema of run records: federation rounds, result tables and figures."""

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version

Scalar = str | int | float | bool | None

FIGURE_KINDS = ("line", "scatter", "bar", "stacked", "reliability", "images", "heatmap")


@dataclass(frozen=True)
class Round:
    """One exchange between the coordinator and the parties.

    Parameters
    ----------
    index : int
        Position in the run, from 0.
    request : str
        Name of the request's message class.
    reduce : str
        ``"gather"`` (each reply), ``"sum"`` (only the sum of the replies) or ``"masked"`` (one of
        the exchanges of a masked sum).
    upload_bytes, download_bytes : mapping of str to int
        Bytes of the messages sent by each party (upload) and to each party (download).
    seconds : float
        Wall time of the round.
    missing : mapping of str to str
        Reason for each party that did not reply.
    busy_s : mapping of str to float
        Wall seconds that each party worked on its reply, without transport; empty if the runtime
        does not measure them.
    """

    index: int
    request: str
    reduce: str
    upload_bytes: Mapping[str, int]
    download_bytes: Mapping[str, int]
    seconds: float
    missing: Mapping[str, str] = field(default_factory=dict)
    busy_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ResultTable:
    """A named table of results.

    Parameters
    ----------
    name : str
        Identifier, unique in the record; figures refer to it. Letters, digits, dots, dashes and
        underscores.
    title : str
        Heading of the table.
    columns : tuple of str
        Distinct column names, with their unit if they have one: a column of bytes is named
        ``bytes`` or ends in ``_bytes``, one of seconds is named ``seconds`` or ends in ``_s``.
    rows : tuple of tuple
        Cells: strings, numbers, booleans or None.
    caption : str
        The main finding for the reader.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Scalar, ...], ...]
    caption: str = ""


@dataclass(frozen=True)
class Figure:
    """A figure, described by the table and the columns that it shows.

    Parameters
    ----------
    name : str
        Identifier, unique in the record; also the file name of the figure. Letters, digits, dots,
        dashes and underscores.
    kind : str
        One of ``FIGURE_KINDS``:

        - ``"line"``, ``"scatter"``, ``"bar"``: ``y`` over ``x``;
        - ``"stacked"``: stacked bars at ``x``, with a segment of height ``y`` per ``hue``;
        - ``"reliability"``: observed frequency ``y`` over predicted probability ``x``;
        - ``"images"``: one small image per row, its pixels in column ``y`` as written by
          ``encode_pixels``, the text below it in column ``x``;
        - ``"heatmap"``: one cell per pair of ``x`` and ``y``, its value in column ``hue``.
    title : str
        Heading of the figure.
    table : str
        Name of the table in the same record that contains the data.
    x, y : str
        Columns on the axes; for ``"images"``, the captions and the pixels.
    hue : str
        Column that splits the data by colour, or the values of a heatmap; empty for none.
    facet : str
        Column that splits the data by panel; empty for none.
    error : str
        Column with the half-width of the error band or error bar around ``y``; empty for none.
    log_x, log_y : bool
        Use logarithmic axes.
    diagonal : bool
        Draw the line ``x = y``.
    caption : str
        The main finding for the reader.
    """

    name: str
    kind: str
    title: str
    table: str
    x: str
    y: str
    hue: str = ""
    facet: str = ""
    error: str = ""
    log_x: bool = False
    log_y: bool = False
    diagonal: bool = False
    caption: str = ""


@dataclass(frozen=True)
class RunRecord:
    """Complete record of a run, sufficient to render its report.

    Parameters
    ----------
    name : str
        Name of the study or command, such as ``"flynn.synthetic"``.
    parameters : mapping
        Settings of the run.
    rounds : tuple of Round
        Exchanges between coordinator and parties, in order; empty for centralized runs.
    tables, figures : tuple
        Results and the figures to draw from them.
    notes : tuple of str
        Sentences for the reader: findings, caveats.
    started : str
        ISO 8601 time in UTC.
    seconds : float
        Wall time of the whole run.
    environment : mapping of str to str
        Versions of Python and packages, operating system, and number of usable CPU cores.
    privacy : mapping
        Privacy spent; empty when no budget was set.
    """

    name: str
    parameters: Mapping[str, Scalar | list[Scalar]]
    rounds: tuple[Round, ...] = ()
    tables: tuple[ResultTable, ...] = ()
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = ()
    started: str = ""
    seconds: float = 0.0
    environment: Mapping[str, str] = field(default_factory=dict)
    privacy: Mapping[str, Scalar] = field(default_factory=dict)

    @property
    def upload_bytes(self) -> int:
        """Return the number of bytes sent by all parties in all rounds."""
        return sum(sum(r.upload_bytes.values()) for r in self.rounds)

    @property
    def download_bytes(self) -> int:
        """Return the number of bytes received by all parties in all rounds."""
        return sum(sum(r.download_bytes.values()) for r in self.rounds)


_PACKAGES = (
    "fedneighbors",
    "numpy",
    "scipy",
    "scikit-learn",
    "numba",
    "pandas",
    "pyarrow",
    "flwr",
    "torch",
    "opendp",
)


@cache
def environment() -> Mapping[str, str]:
    """Return versions and the number of CPU cores for a run record.

    No package is imported to find its version, and the result names neither the machine nor its
    folders. It is cached for the lifetime of the process.

    Returns
    -------
    mapping of str to str
        ``"python"``, ``"system"``, ``"cores"`` and the installed packages of ``_PACKAGES``.

    Examples
    --------
    >>> sorted(environment())[:2]
    ['cores', 'fedneighbors']
    """
    machine = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(_usable_cores()),
    }
    return machine | {name: found for name in _PACKAGES if (found := _package_version(name))}


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # a container may allow fewer cores than the machine has
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _package_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
