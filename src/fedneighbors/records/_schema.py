"""Schema of run records: rounds of a federation, tables of results, figures."""

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
        What was asked for, the name of the request's message type.
    reduce : str
        ``"gather"`` (replies one by one), ``"sum"`` (their sum alone) or ``"masked"`` (one of the
        exchanges of a masked sum).
    upload_bytes, download_bytes : mapping of str to int
        Bytes of the frames from and to each party.
    seconds : float
        Wall time of the round.
    missing : mapping of str to str
        Parties that did not answer, and why.
    busy_s : mapping of str to float
        Wall seconds that each party was at work on its answer, without the way there and back;
        empty where the runtime cannot tell.
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
        Heading for people.
    columns : tuple of str
        Column names, each once, with their unit where they have one: a column of bytes is
        called ``bytes`` or ends in ``_bytes``, one of seconds ``seconds`` or ends in ``_s``.
    rows : tuple of tuple
        Cells: strings, numbers, booleans or None.
    caption : str
        What a reader should see in the table.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Scalar, ...], ...]
    caption: str = ""


@dataclass(frozen=True)
class Figure:
    """A picture, described by the table and the columns that it shows.

    Parameters
    ----------
    name : str
        Identifier, unique in the record; the file name of the picture. Letters, digits, dots,
        dashes and underscores.
    kind : str
        One of ``FIGURE_KINDS``:

        - ``"line"``, ``"scatter"``, ``"bar"``: ``y`` over ``x``;
        - ``"stacked"``: bars at ``x`` made of one part of height ``y`` per ``hue``;
        - ``"reliability"``: observed frequency ``y`` over predicted probability ``x``;
        - ``"images"``: one small image per row, its pixels in column ``y`` as ``encode_pixels``
          writes them, the text below it in column ``x``;
        - ``"heatmap"``: a cell per pair of ``x`` and ``y``, its value in column ``hue``.
    title : str
        Heading for people.
    table : str
        Name of the table in the same record that holds the data.
    x, y : str
        Columns on the axes.
    hue, facet : str
        Columns that split the data by colour and by panel; empty for none.
    error : str
        Column with the half-width of the band or bar around ``y``; empty for none.
    log_x, log_y : bool
        Logarithmic axes.
    diagonal : bool
        Draw the line ``x = y``.
    caption : str
        What a reader should see in the picture.
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
    """Everything that a run leaves behind, enough to draw its report.

    Parameters
    ----------
    name : str
        What was run, such as ``"flynn.synthetic"``.
    parameters : mapping
        Settings of the run.
    rounds : tuple of Round
        Exchanges between coordinator and parties, in order; empty for central work.
    tables, figures : tuple
        Results and the pictures to draw from them.
    notes : tuple of str
        Sentences for the reader: findings, caveats.
    started : str
        ISO 8601 time in UTC.
    seconds : float
        Wall time of the whole run.
    environment : mapping of str to str
        Versions and machine size.
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
        """Return the bytes sent by all parties in all rounds."""
        return sum(sum(r.upload_bytes.values()) for r in self.rounds)

    @property
    def download_bytes(self) -> int:
        """Return the bytes received by all parties in all rounds."""
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
    """Return package versions and machine size for a run record.

    Nothing is imported to find a version, and nothing names the machine or a folder on it. It is
    looked up once in a process.

    Returns
    -------
    mapping of str to str
        ``"python"``, ``"system"``, ``"cores"`` and one entry per installed package.

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
    if hasattr(os, "sched_getaffinity"):  # a container may grant fewer cores than there are
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _package_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
