"""Contract of a source whose objects stay in a database.

A source reads *candidates* for a query, with a lower bound of the distances of all objects that it
has not yet read. The package computes the distances of the candidates itself, and decides which of
them are certain. Thus the order of the candidates, the rounding of the database and ties cannot
change an answer.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedneighbors._typing import Floats
from fedneighbors.methods.fedknn._filters import Where


@dataclass(frozen=True)
class SourceSettings:
    """Settings of a source.

    Parameters
    ----------
    metric : str
        Name of the metric.
    options : mapping of str to object
        The keys of the source's table in the configuration file, ``kind`` excepted.
    filters : mapping of str to {"number", "text", "boolean", "molecule"}
        Columns for filters, and the kind of their cells.
    payload : tuple of str
        Columns that are returned with found objects.
    folder : path
        Folder to which paths are relative.
    """

    metric: str
    options: Mapping[str, Any]
    filters: Mapping[str, str] = field(default_factory=dict)
    payload: tuple[str, ...] = ()
    folder: Path = Path()


@dataclass(frozen=True, eq=False)
class CandidateBatch:
    """Objects that a source has read, in any order.

    Parameters
    ----------
    ids : sequence of str
        Unique name of each object.
    objects : sequence, or None
        The objects, as the metric takes them.
    rest : float
        Lower bound of the distances of all objects that were not read; infinity if all were.
    distances : float64 array, optional
        In place of ``objects``: distances that equal the metric's bit for bit.
    """

    ids: Sequence[str]
    objects: Any
    rest: float
    distances: Floats | None = None


@dataclass(frozen=True, eq=False)
class CandidateCount:
    """A count of the objects within a radius.

    Parameters
    ----------
    n_certain : int
        Number of objects that are within the radius in spite of rounding errors.
    uncertain : sequence
        Objects that may be within the radius; their distances are computed.
    """

    n_certain: int
    uncertain: Any


class Candidates(ABC):
    """The candidates of one query; all calls see one version of the objects."""

    exact: bool = True
    """False if ``rest`` is no certain bound, as for approximate indexes."""

    version: str | None = None
    """Text that changes with the objects; without it, private searches are refused."""

    @abstractmethod
    def read(self, n: int, *, deadline_s: float | None) -> CandidateBatch:
        """Read at least ``n`` further objects, or all that are left.

        Raises
        ------
        TimeoutError
            If more than ``deadline_s`` seconds have passed; the call can be repeated.
        SourceError
            If the database fails.
        """

    def count(self, radius: float, *, deadline_s: float | None) -> CandidateCount | None:  # noqa: ARG002 - for subclasses
        """Count the objects within a radius; None to count what ``read`` returns.

        Raises
        ------
        TimeoutError, SourceError
            As for ``read``.
        """
        return None

    def payload(self, ids: Sequence[str]) -> list[Mapping[str, Any]]:
        """Return the payload columns of objects that were read.

        Raises
        ------
        SourceError
            If the database fails.
        """
        return [{} for _ in ids]

    def close(self) -> None:  # noqa: B027 - optional
        """Release what the query holds."""


class CandidateSource(ABC):
    """Objects that stay in a database.

    An object of the class is made with :class:`SourceSettings`, and is used by one thread at a
    time.
    """

    sample: Any
    """Sequence of one object, against which queries are checked; None if ``open`` checks them."""

    purpose: str = ""
    """Stated purpose of the next call, set by the service; empty if there is none."""

    @abstractmethod
    def open(
        self, query: Any, where: Where | None, *, deadline_s: float | None = None
    ) -> Candidates:
        """Open a query over the objects that meet a filter.

        Parameters
        ----------
        query : object
            An object of the metric; checked.
        where : mapping, optional
            Filter that suits the columns; checked.
        deadline_s : float, optional
            Seconds for the call.

        Raises
        ------
        TimeoutError
            If more than ``deadline_s`` seconds have passed.
        SourceError
            If the database fails.
        """

    @abstractmethod
    def size(self, where: Where | None, *, deadline_s: float | None = None) -> int:
        """Count the objects that meet a filter.

        Raises
        ------
        TimeoutError, SourceError
            As for ``open``.
        """

    @abstractmethod
    def longest_name(self) -> int:
        """Return the length of the longest name in bytes of UTF-8."""

    def close(self) -> None:  # noqa: B027 - optional
        """Release connections and files."""
