"""Filters of a search: conditions on columns that objects must meet.

A filter is a mapping; all its entries must hold. The condition of a column is a number, text or
boolean that cells must equal, None for missing cells, or a mapping of operators to operands.
``"and"`` and ``"or"`` have a list of filters, ``"not"`` has one. A comparison with a missing cell
does not hold. Of a molecule, only ``"substructure"`` and None are conditions.
"""

import hashlib
import json
import math
import operator
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from fedneighbors._typing import Array, Booleans, Floats, Integers
from fedneighbors.datasets._molecules import Molecules
from fedneighbors.datasets._table import join_names, suggest
from fedneighbors.errors import DataError
from fedneighbors.methods.fedknn.metrics._interfaces import Index, Session, SessionBatch
from fedneighbors.methods.fedknn.metrics._sessions import (
    LATE,
    check_radius,
    check_request,
    check_time,
    end_at,
)

Where = Mapping[str, Any]
"""A filter, such as ``{"age": {">=": 40}, "or": [{"site": "a"}, {"site": None}]}``."""

MAX_DEPTH = 20
"""Maximum nesting of a filter."""

_LISTS: dict[str, Any] = {"and": np.logical_and, "or": np.logical_or}
_ORDERS = {">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt}
_KINDS = {int: "number", float: "number", str: "text", bool: "boolean"}
_NARROW = 16  # a filter that leaves a smaller fraction is narrow
_N_SKIPPING = 4  # queries of a filter that skip objects
_MAX_WANTED = 1 << 14  # objects emitted between two clock checks, unless more are wanted
_MAX_NUMBER = 2**53  # larger integers are no float64 numbers


@dataclass(frozen=True, eq=False)
class FilterColumns:
    """Typed columns of objects.

    Parameters
    ----------
    kinds : mapping of str to {"number", "text", "boolean", "molecule"}
        Kind of each column, the same at all parties.
    cells : mapping of str to array of shape (n_objects,) or Molecules
        Numbers as float64 with NaN for missing ones; text and booleans as objects with None.
    n_objects : int
        Number of objects.
    """

    kinds: Mapping[str, str]
    cells: Mapping[str, Array | Molecules]
    n_objects: int

    @classmethod
    def of(cls, columns: Any, n_objects: int, *, kinds: Mapping[str, str] | None = None) -> Self:
        """Return the typed columns of a mapping or data frame.

        Parameters
        ----------
        columns : mapping of str to sequence of shape (n_objects,), or DataFrame
            Numbers, text, booleans or :class:`~fedneighbors.datasets.Molecules`; None, NaN and
            ``pandas.NA`` are missing cells.
        n_objects : int
            Number of objects.
        kinds : mapping of str to {"number", "text", "boolean", "molecule"}, optional
            Kind of each column; by default that of its cells. Cells of molecules are SMILES.

        Raises
        ------
        ValueError
            If a column has another length, cells of several or other kinds, or a reserved name.
        """
        found, cells = dict[str, str](), dict[str, Array | Molecules]()
        for name in columns:
            column = columns[name]
            values = column if isinstance(column, Molecules) else list(column)
            if not isinstance(name, str) or name in (*_LISTS, "not"):
                raise ValueError(f"expected a name other than and, or, not for column {name!r}")
            if len(values) != n_objects:
                raise ValueError(
                    f"expected {n_objects} cells in column {name!r}, one for each object, got "
                    f"{len(values)}"
                )
            found[name], cells[name] = _type_cells(name, values, (kinds or {}).get(name))
        return cls(found, cells, n_objects)

    def select(self, rows: Integers) -> Self:
        """Return the columns of some objects."""
        cells = {name: values[rows] for name, values in self.cells.items()}
        return type(self)(self.kinds, cells, len(rows))

    def digest(self) -> str:
        """Return a digest of the columns in hexadecimal."""
        content = [(name, kind, self.cells[name].tolist()) for name, kind in self.kinds.items()]
        return hashlib.sha256(repr(content).encode()).hexdigest()

    def match(self, where: Where, *, end: float = math.inf, depth: int = MAX_DEPTH) -> Booleans:
        """Return for each object whether it meets a filter.

        Parameters
        ----------
        where : mapping
            The filter.
        end : float
            Monotonic time, checked before each comparison.
        depth : int
            Maximum nesting.

        Raises
        ------
        ValueError
            If the filter is malformed, or does not suit the columns.
        TimeoutError
            If ``end`` has passed.
        """
        if not isinstance(where, Mapping) or not depth:
            raise ValueError(
                "expected a mapping of columns to conditions as filter, nested at most "
                f"{MAX_DEPTH} deep, got {where!r:.80}"
            )
        found = np.ones(self.n_objects, bool)
        for name, condition in where.items():
            if name == "not":
                found &= ~self.match(condition, end=end, depth=depth - 1)
            elif name in _LISTS:
                part = np.full(self.n_objects, name == "and")
                for one in _check_list(name, condition):
                    _LISTS[name](part, self.match(one, end=end, depth=depth - 1), out=part)
                found &= part
            elif name not in self.kinds:
                raise ValueError(
                    f"expected a column among {join_names(self.kinds) or 'none'} in a filter, got "
                    f"{name!r}{suggest([str(name)], self.kinds)}"
                )
            elif isinstance(condition, Mapping):
                for symbol, operand in condition.items():
                    found &= self._compare(name, symbol, operand, end)
            else:
                found &= self._compare(name, "==", condition, end)
        return found

    def _compare(self, name: str, symbol: str, operand: Any, end: float) -> Booleans:
        check_time(end)
        cells, kind = self.cells[name], self.kinds[name]
        if isinstance(cells, Molecules):
            if symbol == "substructure" and isinstance(operand, str):
                return cells.find(operand, lambda: check_time(end))
            if symbol == "==" and operand is None:
                return cells.is_missing
            raise ValueError(
                f"expected {{'substructure': SMARTS}} or None for the molecule column {name!r}, "
                f"got {symbol!r} {operand!r:.80}"
            )
        if symbol == "in":
            found = np.zeros(self.n_objects, bool)
            for value in _check_list(symbol, operand):
                found |= self._compare(name, "==", value, end)
            return found
        if symbol == "==" and operand is None:
            return np.asarray(
                np.isnan(cells) if kind == "number" else operator.eq(cells, None), bool
            )
        if symbol not in ("==", *(_ORDERS if kind == "number" else ())):
            raise ValueError(f"unknown operator {symbol!r} for the {kind} column {name!r}")
        if _KINDS.get(type(operand)) != kind or not _is_exact(operand):
            raise ValueError(f"expected a {kind} for the column {name!r}, got {operand!r:.80}")
        value = np.array(operand, cells.dtype)  # NumPy's texts lose a NUL at the end
        return np.asarray(_ORDERS.get(symbol, operator.eq)(cells, value), bool)


def _check_list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"expected a list for {name!r} in a filter, got {value!r:.80}")
    return list(value)


def _type_cells(
    name: str, values: list[Any] | Molecules, expected: str | None
) -> tuple[str, Array | Molecules]:
    """Return the kind of a column and its cells."""
    if isinstance(values, Molecules):
        return "molecule", values
    if expected == "molecule":
        try:
            return expected, Molecules([None if _is_missing(one) else one for one in values])
        except DataError as error:
            raise ValueError(f"column {name!r}: {error}") from None
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    cells = [None if _is_missing(value) else value for value in plain]
    found = {_KINDS.get(type(value), type(value).__name__) for value in cells if value is not None}
    kind = min(found, default=expected or "text")
    if expected is not None and (others := sorted(found - {expected})):
        raise ValueError(f"expected {expected} cells in column {name!r}, got {', '.join(others)}")
    if len(found) > 1 or kind not in _KINDS.values():
        raise ValueError(
            f"expected numbers, text or booleans in column {name!r}, one of them, got "
            f"{', '.join(sorted(found))}"
        )
    if not all(map(_is_exact, cells)):
        raise ValueError(
            f"column {name!r} has a number that is not finite or above 2**53; use text"
        )
    if kind == "number":
        return kind, np.array(cells, np.float64)
    column: Array = np.empty(len(cells), object)
    column[:] = cells
    return kind, column


def _is_missing(value: Any) -> bool:
    equal = value == value  # NaN differs from itself, pandas.NA has no answer
    return value is None or equal is not True


def _is_exact(value: Any) -> bool:
    """Return whether a number can be compared exactly; true for other values."""
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, int) or abs(value) <= _MAX_NUMBER


def list_columns(where: Any) -> dict[str, bool]:
    """Return for each column in a filter whether it has molecules.

    The filter may be malformed.
    """
    parts = where.items() if isinstance(where, Mapping) else ()
    found: dict[str, bool] = {}
    for name, one in parts:
        nested = one if isinstance(one, list | tuple) else [one]
        is_column = name not in (*_LISTS, "not")
        has_molecules = isinstance(one, Mapping) and "substructure" in one
        for part in [{name: has_molecules}] if is_column else map(list_columns, nested):
            found |= {column: is_one or found.get(column, False) for column, is_one in part.items()}
    return found


def filter_text(where: Where) -> str:
    """Return a filter as canonical JSON."""
    return json.dumps(where, sort_keys=True, allow_nan=False, separators=(",", ":"))


class FilteredIndex:
    """Index of the objects that meet a filter.

    The first queries of a filter that leaves many objects search all objects and skip the others.
    Further ones, and those of a narrow filter, search an index of the remaining objects if there is
    time to build it.

    Parameters
    ----------
    whole : Index
        Index of all objects.
    rows : int64 array of shape (n_remaining,)
        Positions of the remaining objects, ascending.
    build : callable
        Function that returns an index of the remaining objects; None if it would be late.
    """

    def __init__(self, whole: Index, rows: Integers, build: Callable[[], Index | None]) -> None:
        self.n_objects = len(rows)
        self._whole, self._rows, self._build = whole, rows, build
        self._n_skipping = 0 if _NARROW * len(rows) <= whole.n_objects else _N_SKIPPING
        self._own: Index | None = None

    def open(self, query: Any) -> Session:
        """Open a session for a query.

        Raises
        ------
        TimeoutError
            If the index of all objects is approximate, and there is no time to build another.
        """
        own = None
        if self._own is None and self._n_skipping > 0:
            self._n_skipping -= 1
        else:
            own = self._open_own(query)
        if own is None:
            session = self._whole.open(query)
            if session.exact:
                return FilteredSession(session, self._rows, lambda: self._open_own(query))
            own = self._open_own(query)
        if own is None:
            raise TimeoutError(LATE)
        return own

    def _open_own(self, query: Any) -> Session | None:
        """Open a session of the remaining objects, whose index is built once."""
        self._own = self._own or self._build()
        return None if self._own is None else self._own.open(query)


class FilteredSession:
    """A session of all objects that skips those that a filter excludes.

    Parameters
    ----------
    session : Session
        Session of all objects; exact.
    rows : int64 array of shape (n_remaining,)
        Positions of the remaining objects, ascending.
    open_own : callable
        Function that opens a session of the remaining objects alone; None if it would be late.
    """

    exact = True

    def __init__(
        self, session: Session, rows: Integers, open_own: Callable[[], Session | None]
    ) -> None:
        self._session, self._rows, self._open_own = session, rows, open_own
        self._counting: Session | None = None
        self._positions, self._distances = np.empty(0, np.int64), np.empty(0)  # in order
        self._n_emitted = 0
        self._n_wanted = 1
        self.n_verified = 0  # distances, also to excluded objects

    def bounds(self, *, deadline_s: float | None = None) -> Floats:
        """Return the lower bounds of the remaining objects."""
        return self._session.bounds(deadline_s=deadline_s)[self._rows]

    def separate_bounds(self, *, deadline_s: float | None = None) -> Floats:
        """Return bounds that depend on one object each, or 0."""
        compute: Any = getattr(self._session, "separate_bounds", None)
        if compute is None:
            return np.zeros(len(self._rows))
        bounds: Floats = compute(deadline_s=deadline_s)[self._rows]
        return bounds

    def count(self, radius: float, *, deadline_s: float | None = None) -> int:
        """Return the number of remaining objects within a radius.

        Raises
        ------
        TimeoutError
            If more than ``deadline_s`` seconds have passed.
        """
        end = end_at(deadline_s)
        self._counting = self._counting or self._open_own()
        if self._counting is not None:
            left_s = None if deadline_s is None else max(end - time.monotonic(), 0.0)
            return self._counting.count(radius, deadline_s=left_s)
        check_radius(radius)
        n_emitted, is_complete = self._n_emitted, False
        try:
            while not is_complete:  # emits all objects within the radius
                check_time(end)
                left_s = max(end - time.monotonic(), 0.0)
                is_complete = self.next(_MAX_WANTED, cutoff=radius, deadline_s=left_s).exhausted
        finally:
            self._n_emitted = n_emitted
        return self._n_within(radius)

    def next(
        self, k: int, *, cutoff: float = math.inf, deadline_s: float | None = None
    ) -> SessionBatch:
        """Emit the next ``k`` remaining objects."""
        check_request(k, cutoff)
        end, exhausted, late = end_at(deadline_s), False, False
        frontier = getattr(self._session, "least", 0.0)
        uncertain = np.empty(0, np.int64), np.empty(0)
        first = self._n_emitted
        while self._n_within(cutoff) - first < k and not exhausted and not late:
            self._n_wanted = max(min(2 * self._n_wanted, _MAX_WANTED), k)
            left_s = None if deadline_s is None else max(end - time.monotonic(), 0.0)
            batch = self._session.next(self._n_wanted, cutoff=cutoff, deadline_s=left_s)
            n, exhausted, frontier = batch.n_certified, batch.exhausted, batch.frontier
            places, distances = self._keep(batch.positions[:n], batch.distances[:n])
            uncertain = self._keep(batch.positions[n:], batch.distances[n:])
            self._positions = np.concatenate([self._positions, places])
            self._distances = np.concatenate([self._distances, distances])
            late = n < len(batch.positions) or time.monotonic() > end
            self.n_verified = self._session.n_verified
        n_within = max(self._n_within(cutoff), first)
        n = min(k, n_within - first)
        self._n_emitted += n
        last = self._n_emitted
        following = self._distances[last : last + 1].tolist()
        return SessionBatch(
            positions=np.concatenate([self._positions[first:last], uncertain[0][: k - n]]),
            distances=np.concatenate([self._distances[first:last], uncertain[1][: k - n]]),
            exhausted=exhausted and n_within == last,
            n_certified=n,
            frontier=min([frontier, *following]),
        )

    def _keep(self, positions: Integers, distances: Floats) -> tuple[Integers, Floats]:
        """Return the remaining objects among emitted ones."""
        places = np.searchsorted(self._rows, positions)
        is_kept = self._rows[np.minimum(places, len(self._rows) - 1)] == positions
        return places[is_kept], distances[is_kept]

    def _n_within(self, cutoff: float) -> int:
        return int(self._distances.searchsorted(cutoff, side="right"))
