"""The memory of one client: stores, searches and evicts keys and labels.

For large memories Faiss proposes the nearest keys, and exact distances decide.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from fedneighbors._lazy import optional_module
from fedneighbors._typing import Floats, Integers
from fedneighbors.errors import MissingExtraError
from fedneighbors.methods.knnper.algorithm import (
    Kernel,
    Neighbors,
    check_finite,
    local_votes,
    nearest,
    rank,
    skip_keys,
)
from fedneighbors.methods.knnper.memory._drift import DriftWatch, class_weights, reweight
from fedneighbors.methods.knnper.memory._rows import RowWindow, check_extras, check_rows
from fedneighbors.tabular._ownership import new_names, row_names

Strategy = Literal["concatenate", "fixed", "fifo", "reservoir", "drift"]

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

_COUNTS = {
    "seen": "_n_seen",
    "named": "_n_named",
    "past": "_n_past",
    "evictions": "n_evictions",
    "reweighings": "n_reweighings",
}
"""Attributes in a memory's state, by their names there."""

FAISS_FROM = 20_000
"""Minimum number of keys for a search with Faiss, if installed; the result is the same."""

SPARE = 16
"""Additional neighbors requested from Faiss, so that rounding and ties rarely need a full scan."""


@dataclass
class Datastore:
    """Keys with labels and nearest-neighbour search (K_m and V_m, Eqs 3 to 5 of the paper).

    Parameters
    ----------
    n_dimensions : int
        Width of a key.
    capacity : int, optional
        Maximum number of keys. None: no limit.
    strategy : {"concatenate", "fixed", "fifo", "reservoir", "drift"}
        Handling of new keys in a full memory. ``"concatenate"`` and ``"fixed"`` drop them.
        ``"fifo"`` and ``"drift"`` replace the oldest. ``"reservoir"`` replaces random ones, so that
        the memory stays a uniform sample of all arrived keys that were not forgotten, see below.
        ``"fixed"`` accepts nothing after the first rows. ``"drift"`` detects changes: if the
        meaning of labels has changed, it deletes the older keys; if only the class shares have
        changed, it reweights votes by class.
    random_state : int
        Seed of the reservoir.
    n_classes : int, optional
        Number of classes; required by ``"drift"``. If given, labels must be among them.

    Attributes
    ----------
    ids : list of str
        Name of each key, in the order of :attr:`keys`.
    n_evictions : int
        Number of times ``"drift"`` deleted keys.
    n_reweighings : int
        Number of detected changes of class shares only.

    Notes
    -----
    A deletion in a reservoir leaves its slot open, and later keys enter as if the deleted key were
    still there. So after n arrived keys, each one that was not forgotten is kept with the same
    probability, ``min(1, capacity / n)``, if the deletions are chosen without looking at the
    contents (a name that is not in the memory raises KeyError and changes nothing). If they are
    chosen from :attr:`ids`, the probability is the same for all later keys, and lower for earlier
    ones. Open slots fill up over time. Random pairing [1]_ fills them sooner, but must count
    deletions of keys that are not in the memory, and a memory cannot distinguish these from unknown
    names.

    References
    ----------
    .. [1] Gemulla, Lehner and Haas, "A Dip in the Reservoir: Maintaining Sample Synopses of
       Evolving Datasets", VLDB 2006.
    """

    n_dimensions: int
    capacity: int | None = None
    strategy: Strategy = "concatenate"
    random_state: int = 0
    n_classes: int | None = None
    n_evictions: int = field(init=False, default=0)
    n_reweighings: int = field(init=False, default=0)
    _rows: RowWindow = field(init=False, repr=False)
    _n_seen: int = field(init=False, repr=False, default=0)
    _n_named: int = field(init=False, repr=False, default=0)
    _n_past: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        self._rows = self._new_window(np.empty(0, np.int64))
        self._random = np.random.default_rng(self.random_state)
        if self.strategy == "drift":
            if self.n_classes is None:
                raise ValueError("expected n_classes, which drift detection needs")
            self._watch = DriftWatch(self.n_classes)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def keys(self) -> Floats:
        """Return the keys, read-only, oldest first except in a reservoir.

        Shape (n_keys, n_dimensions).
        """
        return _read_only(self._rows.keys)

    @property
    def labels(self) -> npt.NDArray[Any]:
        """Return a read-only view of each key's label or targets."""
        return _read_only(self._rows.labels)

    @property
    def recent_labels(self) -> npt.NDArray[Any]:
        """Return labels or targets since the last change of class shares."""
        return self.labels[self._n_past :]

    @property
    def extras(self) -> tuple[Floats, ...]:
        """Return each key's additional features, read-only.

        No distance uses them.
        """
        return tuple(map(_read_only, self._rows.extras))

    @property
    def nbytes(self) -> int:
        """Return the bytes of keys, labels and extras.

        Names and spare room are not counted.
        """
        tables = (self._rows.keys, self._rows.labels, *self._rows.extras)
        return sum(table.nbytes for table in tables)

    @property
    def ids(self) -> list[str]:
        """Return the name of each key."""
        return self._rows.ids

    def add(
        self,
        keys: npt.ArrayLike,
        labels: npt.ArrayLike,
        ids: Iterable[object] | None = None,
        *,
        extras: Sequence[Floats] = (),
    ) -> "Datastore":
        """Add keys within capacity and strategy.

        Parameters
        ----------
        keys : array of shape (n, n_dimensions)
            Embeddings, oldest first.
        labels : array of shape (n,) or (n, n_outputs)
            Labels, from 0, or targets.
        ids : iterable of str or int, optional
            Names for :meth:`forget`, converted to str; by default ``"0"``, ``"1"`` and so on in
            order of arrival, except names in use.
        extras : sequence of float64 arrays of shape (n, n_columns)
            Additional features, of the same number and widths in each call; distances do not use
            them.

        Raises
        ------
        ValueError
            If shapes disagree, a label is not among ``n_classes``, or a name is taken.
        TypeError
            If ``ids`` is a single name.
        DataError
            If a key is not finite. Nothing is added in this case.
        """
        rows, values, names = self._check_new_rows(keys, labels, ids)
        check_extras(extras, len(rows), self.extras if self._n_seen else extras)
        if self._n_seen == 0:
            self._rows = self._new_window(values, extras)
        if self.strategy == "drift":
            self._follow_drift(rows, values)
        taken = self._admit(len(rows))
        held = self._encode(rows[taken])
        kept = [extra[taken] for extra in extras]
        self._rows.append(held, values[taken], [names[i] for i in taken], kept)
        self._n_seen += len(rows)
        if ids is None and names:
            self._n_named = int(names[-1]) + 1
        return self

    def forget(self, ids: Iterable[object]) -> "Datastore":
        """Delete keys by name, without a trace.

        Raises
        ------
        KeyError
            If a name is not in the memory; nothing is deleted in this case.
        TypeError
            If ``ids`` is a single name instead of a list.
        """
        gone = set(row_names(ids))
        unknown = sorted(name for name in gone if name not in self._rows)
        if unknown:
            raise KeyError(f"the memory has no rows named {unknown[:5]}; it has {len(self)} rows")
        if self.strategy == "drift":
            self._watch.restore([])  # counts of the last batches are derived from rows, too
        return self.keep([i for i, name in enumerate(self.ids) if name not in gone])

    def keep(self, places: Sequence[int]) -> "Datastore":
        """Delete all keys except those at ``places``, in ascending order."""
        self._rows.keep(places)
        self._n_past = int(sum(place < self._n_past for place in places))
        return self

    def state(self) -> dict[str, Any]:
        """Return the state without keys as plain numbers."""
        return {
            **{name: getattr(self, attribute) for name, attribute in _COUNTS.items()},
            "random": self._random.bit_generator.state,
            "surprises": list(self._watch.seen) if self.strategy == "drift" else [],
        }

    def restore(
        self,
        keys: Floats,
        labels: npt.NDArray[Any],
        ids: Sequence[str],
        state: dict[str, Any],
        *,
        extras: Sequence[Floats] = (),
    ) -> "Datastore":
        """Restore a memory from its parts.

        Later updates have the same effect on both.

        Parameters
        ----------
        keys, labels, ids
            Values of :attr:`keys`, :attr:`labels` and :attr:`ids`.
        state : dict
            Value of :meth:`state`.
        extras : sequence of float64 arrays
            Value of :attr:`extras`.

        Raises
        ------
        ValueError, DataError
            If they are not parts of a valid memory.
        """
        rows, values, names = self._check_new_rows(keys, labels, ids)
        check_extras(extras, len(rows), extras)
        self._rows = RowWindow(self._encode(rows), values, names, extras)
        self._restore_state(state)
        return self

    def _restore_state(self, state: dict[str, Any]) -> None:
        """Restore the state from :meth:`state`, after the rows."""
        try:
            for name, attribute in _COUNTS.items():
                if type(state[name]) is not int or state[name] < 0:
                    raise TypeError
                setattr(self, attribute, state[name])
            self._random.bit_generator.state = state["random"]
            if self.strategy == "drift":
                self._watch.restore(state["surprises"])
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"expected the state of a memory, got {state!r:.80}") from error
        if self._n_seen < len(self) or (self.capacity or len(self)) < len(self):
            raise ValueError("a memory has more keys than arrived, or than its capacity")
        if self._n_past > (len(self) if self.strategy == "drift" else 0):
            raise ValueError("a memory has more past keys than keys")

    def nearest(self, queries: Floats, k: int, *, own: Integers | None = None) -> Neighbors:
        """Return the k nearest keys of each query, like :func:`~.algorithm.nearest`."""
        keys = self._rows.keys
        if len(keys) >= FAISS_FROM:
            with suppress(MissingExtraError):
                return nearest_by_faiss(keys, queries, k, own=own)
        return nearest(keys, queries, k, own=own)

    def votes(
        self,
        queries: Floats,
        n_classes: int,
        *,
        n_neighbors: int,
        kernel: Kernel = "paper",
        sigma: float = 1.0,
        own: Integers | None = None,
    ) -> Floats | None:
        """Return the nearest keys' vote shares (Eq 6); None without keys.

        Queries, ``n_neighbors`` and ``own`` are as in :meth:`nearest`, the others as in
        :func:`~.algorithm.local_votes`.

        Raises
        ------
        ValueError
            If a query is not finite, or a label is not among the classes.
        """
        found = self.nearest(queries, n_neighbors, own=own)
        if found.positions.shape[1] == 0:
            return None
        votes = local_votes(found, self.labels, n_classes, kernel=kernel, sigma=sigma)
        if self._n_past == 0:
            return votes
        return reweight(votes, class_weights(self.labels, self.recent_labels, n_classes))

    def _new_window(self, labels: npt.NDArray[Any], extras: Sequence[Floats] = ()) -> RowWindow:
        """Return an empty window for such labels and extras."""
        empty = [extra[:0] for extra in extras]
        return RowWindow(np.empty((0, self.n_dimensions)), labels[:0], extras=empty)

    def _encode(self, rows: Floats) -> npt.NDArray[Any]:
        """Return keys in their stored form."""
        return rows

    def _admit(self, n_new: int) -> Sequence[int]:
        """Make room and return the positions of the new keys to add."""
        n = len(self)
        if self.strategy == "fixed" and self._n_seen > 0:
            return range(0)
        if self.capacity is None:
            return range(n_new)
        if self.strategy == "reservoir":
            drawn = self._sample(n_new, self.capacity)
            self._rows.vacate([place for place in drawn if place < n])
            return sorted(drawn.values())
        free = self.capacity - n
        if n_new <= free:
            return range(n_new)
        if self.strategy in ("fifo", "drift"):
            excess = n_new - free
            self._rows.drop_first(excess)
            self._n_past = max(0, self._n_past - excess)
            return range(max(excess - n, 0), n_new)
        return range(free)

    def _follow_drift(self, rows: Floats, values: npt.NDArray[Any]) -> None:
        """Delete outdated keys, or reweight votes from now on."""
        change = self._watch.change(self.keys, self.labels, self._n_past, rows, values)
        if change is None:
            return
        if change.of_meaning:
            self.n_evictions += 1
            self.keep(range(change.n_before, len(self)))
        else:
            self.n_reweighings += 1
            self._n_past = change.n_before

    def _sample(self, n_new: int, capacity: int) -> dict[int, int]:
        """Choose new keys and their places by reservoir sampling.

        The memory is a uniform sample of all keys so far.

        Keys at slots below ``len(self)`` must be replaced. A forgotten key still counts as arrived
        and keeps a slot at or above ``len(self)``: filling it at once would favor the next keys.
        """
        drawn: dict[int, int] = {}
        for number in range(n_new):
            place = self._n_seen + number
            if place >= capacity:
                place = int(self._random.integers(place + 1))
            if place < capacity:
                drawn[place] = number
        return drawn

    def _check_new_rows(
        self, keys: npt.ArrayLike, labels: npt.ArrayLike, ids: Iterable[object] | None
    ) -> tuple[Floats, npt.NDArray[Any], list[str]]:
        rows, values = check_rows(keys, labels, self.n_dimensions, self.n_classes)
        if self._n_seen and values.shape[1:] != self._rows.labels.shape[1:]:
            raise ValueError(f"expected labels with the shape of earlier ones, got {values.shape}")
        return rows, values, self._names(len(rows), ids)

    def _names(self, n_rows: int, ids: Iterable[object] | None) -> list[str]:
        """Return names for new rows, none of which is in use."""
        return new_names(ids, n_rows, self._rows, max(self._n_seen, self._n_named))


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view


def nearest_by_faiss(
    keys: Floats, queries: Floats, k: int, *, own: Integers | None = None
) -> Neighbors:
    """Search like :func:`~.algorithm.nearest`, with candidates from Faiss.

    Faiss adds in float32. A key that it does not propose is farther than the proposed ones, up to a
    rounding error with a known bound. If the bound leaves a doubt, all keys are searched.

    Parameters
    ----------
    keys, queries, k, own
        As in :func:`~.algorithm.nearest`.

    Raises
    ------
    MissingExtraError
        If Faiss is not installed.
    ValueError
        As in :func:`~.algorithm.nearest`.
    """
    faiss = optional_module("faiss", "faiss")
    check_finite(queries)
    n_asked = k + SPARE
    with np.errstate(over="ignore"):
        narrow, asked = (np.ascontiguousarray(rows, np.float32) for rows in (keys, queries))
        slack = _slack(narrow, asked)
    if k < 1 or n_asked >= len(keys) or keys.shape[1:] != queries.shape[1:] or slack is None:
        return nearest(keys, queries, k, own=own)
    own, n_found = skip_keys(own, len(queries), len(keys), k)
    index = faiss.IndexFlatL2(keys.shape[1])
    index.add(narrow)
    about, proposed = index.search(asked, n_asked)
    positions = np.empty((len(queries), n_found), np.int64)
    squares = np.empty(positions.shape)
    doubtful = []
    for row, (query, candidates) in enumerate(zip(queries, np.sort(proposed), strict=True)):
        others = candidates[candidates != own[row]]
        positions[row], squares[row] = rank(keys, query, others, n_found)
        if not squares[row, -1] < about[row, -1] - slack[row]:
            doubtful.append(row)
    distances = np.sqrt(squares)
    if doubtful:
        exact = nearest(keys, queries[doubtful], k, own=own[doubtful])
        positions[doubtful], distances[doubtful] = exact.positions, exact.distances
    return Neighbors(positions, distances)


def _slack(keys: npt.NDArray[np.float32], queries: npt.NDArray[np.float32]) -> Floats | None:
    """Return the error bound of Faiss for each query.

    None if float32 cannot represent the bound.
    """
    lengths = np.einsum("ij,ij->i", keys, keys).max(initial=0)
    reach = np.einsum("ij,ij->i", queries, queries)
    if not np.isfinite(4 * (reach.max(initial=0) + lengths)):
        return None
    # As for products in float64: about (n + 8) roundings of the squares of both lengths. Below the
    # smallest normal number, a rounding error may be as large as that number.
    info = np.finfo(np.float32)
    roundings = 16 * (keys.shape[1] + 8)
    total = reach.astype(np.float64) + float(lengths)
    return np.asarray(roundings * (float(info.eps) * total + float(info.tiny)))
