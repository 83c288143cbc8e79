"""The memory of one client: stores, searches and evicts keys and labels."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Array, Floats, Integers
from fedneighbors.methods.knnper.algorithm import (
    Kernel,
    Neighbors,
    local_votes,
    nearest,
)
from fedneighbors.methods.knnper.memory._drift import DriftDetector, class_weights, reweight
from fedneighbors.methods.knnper.memory._rows import RowWindow, check_extras, check_rows
from fedneighbors.tabular._ownership import new_names, row_names

Strategy = Literal["concatenate", "fixed", "fifo", "reservoir", "drift"]

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

_COUNTS = {
    "seen": "_n_arrived",
    "named": "_next_number",
    "past": "_n_before_change",
    "evictions": "n_evictions",
    "reweighings": "n_reweighings",
}
"""Attributes that are part of a memory's state, by their names in it."""


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
        Treatment of new keys. In a full memory, ``"concatenate"`` drops them, ``"fifo"`` and
        ``"drift"`` evict the oldest keys, and ``"reservoir"`` replaces random keys, so that the
        memory stays a uniform sample of all arrived keys that were not deleted (see below).
        ``"fixed"`` accepts keys only in the first call of :meth:`add`. ``"drift"`` also detects
        changes: if rows get other labels than before, it deletes the older keys; if only the class
        shares have changed, it reweights votes by class.
    random_state : int
        Seed of the reservoir.
    n_classes : int, optional
        Number of classes; required by ``"drift"``. If given, labels must be among them.

    Attributes
    ----------
    ids : list of str
        Name of each key, in the order of :attr:`keys`.
    n_evictions : int
        Number of times that ``"drift"`` deleted older keys.
    n_reweighings : int
        Number of times that ``"drift"`` began to reweight votes.

    Notes
    -----
    A deletion in a reservoir leaves its slot empty, and later keys are sampled as if the deleted
    key were still there. If deletions are chosen without regard to the contents of the memory, each
    of n arrived keys that was not deleted is in the memory with the same probability,
    ``min(1, capacity / n)``. If they are chosen from :attr:`ids`, that probability is the same for
    all keys that arrive later, and lower for earlier ones. Empty slots fill up over time. Random
    pairing [1]_ fills them sooner, but must count deletions of keys that are not in the memory, and
    a memory cannot distinguish their names from unknown ones, for which it raises KeyError.

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
    _n_arrived: int = field(init=False, repr=False, default=0)
    _next_number: int = field(init=False, repr=False, default=0)
    _n_before_change: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        self._rows = self._new_window(np.empty(0, np.int64))
        self._random = np.random.default_rng(self.random_state)
        if self.strategy == "drift":
            if self.n_classes is None:
                raise ValueError("expected n_classes, which drift detection needs")
            self._detector = DriftDetector(self.n_classes)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def keys(self) -> Floats:
        """Return a read-only view of the keys, oldest first unless sampled.

        Shape (n_keys, n_dimensions).
        """
        return _read_only(self._rows.keys)

    @property
    def labels(self) -> Array:
        """Return a read-only view of the keys' labels or targets."""
        return _read_only(self._rows.labels)

    @property
    def recent_labels(self) -> Array:
        """Return the labels since the last detected change of class shares."""
        return self.labels[self._n_before_change :]

    @property
    def extras(self) -> tuple[Floats, ...]:
        """Return read-only views of additional features, which distances ignore."""
        return tuple(map(_read_only, self._rows.extras))

    @property
    def nbytes(self) -> int:
        """Return the bytes of keys, labels and extras.

        Names and free space are not counted.
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
        """Add keys, within capacity and strategy.

        Parameters
        ----------
        keys : array of shape (n, n_dimensions)
            Embeddings, oldest first.
        labels : array of shape (n,) or (n, n_outputs)
            Class indices, from 0, or targets.
        ids : iterable of str or int, optional
            Names for :meth:`forget`, converted to str; by default ``"0"``, ``"1"`` and so on in
            order of arrival, without names in use.
        extras : sequence of float64 arrays of shape (n, n_columns)
            Additional features, of the same number and widths in each call; distances do not use
            them.

        Raises
        ------
        ValueError
            If shapes disagree, a label is not below ``n_classes``, or a name is taken.
        TypeError
            If ``ids`` is a single name instead of a list.
        DataError
            If a key is not finite. After an error the memory is unchanged.
        """
        rows, values, names = self._check_new_rows(keys, labels, ids)
        check_extras(extras, len(rows), self.extras if self._n_arrived else extras)
        if self._n_arrived == 0:
            self._rows = self._new_window(values, extras)
        if self.strategy == "drift":
            self._follow_drift(rows, values)
        admitted = self._admit(len(rows))
        stored = self._encode(rows[admitted])
        columns = [extra[admitted] for extra in extras]
        self._rows.append(stored, values[admitted], [names[i] for i in admitted], columns)
        self._n_arrived += len(rows)
        if ids is None and names:
            self._next_number = int(names[-1]) + 1
        return self

    def forget(self, ids: Iterable[object]) -> "Datastore":
        """Delete keys by name; nothing of them remains in the memory.

        Raises
        ------
        KeyError
            If a name is not in the memory; nothing is deleted in this case.
        TypeError
            If ``ids`` is a single name instead of a list.
        """
        deleted = set(row_names(ids))
        unknown = sorted(name for name in deleted if name not in self._rows)
        if unknown:
            raise KeyError(f"the memory has no rows named {unknown[:5]}; it has {len(self)} rows")
        if self.strategy == "drift":
            self._detector.restore([])  # counts of the last batches depend on deleted rows
        return self.keep([i for i, name in enumerate(self.ids) if name not in deleted])

    def keep(self, positions: Sequence[int]) -> "Datastore":
        """Delete all keys except those at ``positions``, which must be ascending."""
        self._rows.keep(positions)
        self._n_before_change = int(sum(i < self._n_before_change for i in positions))
        return self

    def state(self) -> dict[str, Any]:
        """Return counts and random state, for :meth:`restore`, as JSON values."""
        return {
            **{name: getattr(self, attribute) for name, attribute in _COUNTS.items()},
            "random": self._random.bit_generator.state,
            "surprises": list(self._detector.batches) if self.strategy == "drift" else [],
        }

    def restore(
        self,
        keys: Floats,
        labels: Array,
        ids: Sequence[str],
        state: dict[str, Any],
        *,
        extras: Sequence[Floats] = (),
    ) -> "Datastore":
        """Restore a memory from the values of another one's properties.

        Later calls then have the same effect on both.

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
        """Restore a value of :meth:`state`; the rows must be restored before."""
        try:
            for name, attribute in _COUNTS.items():
                if type(state[name]) is not int or state[name] < 0:
                    raise TypeError
                setattr(self, attribute, state[name])
            self._random.bit_generator.state = state["random"]
            if self.strategy == "drift":
                self._detector.restore(state["surprises"])
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"expected the state of a memory, got {state!r:.80}") from error
        if self._n_arrived < len(self) or (self.capacity or len(self)) < len(self):
            raise ValueError("a memory has more keys than have arrived, or than its capacity")
        if self._n_before_change > (len(self) if self.strategy == "drift" else 0):
            raise ValueError("a memory has more keys from before a change than keys")

    def nearest(self, queries: Floats, k: int, *, skip: Integers | None = None) -> Neighbors:
        """Return the k nearest keys of each query, like :func:`~.algorithm.nearest`."""
        return nearest(self._rows.keys, queries, k, skip=skip)

    def votes(
        self,
        queries: Floats,
        n_classes: int,
        *,
        n_neighbors: int,
        kernel: Kernel = "paper",
        sigma: float = 1.0,
        skip: Integers | None = None,
    ) -> Floats | None:
        """Return the nearest keys' vote shares (Eq 6); None without keys.

        ``n_neighbors`` is ``k`` of :meth:`nearest`. ``skip`` is as there, the other parameters
        as in :func:`~.algorithm.local_votes`. After a change of class shares, votes are reweighted.

        Raises
        ------
        ValueError
            If a query is not finite, or a label is not among the classes.
        """
        neighbors = self.nearest(queries, n_neighbors, skip=skip)
        if neighbors.positions.shape[1] == 0:
            return None
        votes = local_votes(neighbors, self.labels, n_classes, kernel=kernel, sigma=sigma)
        if self._n_before_change == 0:
            return votes
        return reweight(votes, class_weights(self.labels, self.recent_labels, n_classes))

    def _new_window(self, labels: Array, extras: Sequence[Floats] = ()) -> RowWindow:
        """Return an empty window for rows with such labels and extras."""
        empty = [extra[:0] for extra in extras]
        return RowWindow(np.empty((0, self.n_dimensions)), labels[:0], extras=empty)

    def _encode(self, rows: Floats) -> Array:
        """Return keys in the form in which they are stored."""
        return rows

    def _admit(self, n_new: int) -> Sequence[int]:
        """Make space for new keys; return positions of those to add."""
        n = len(self)
        if self.strategy == "fixed" and self._n_arrived > 0:
            return range(0)
        if self.capacity is None:
            return range(n_new)
        if self.strategy == "reservoir":
            new_by_slot = self._sample(n_new, self.capacity)
            self._rows.delete([slot for slot in new_by_slot if slot < n])
            return sorted(new_by_slot.values())
        n_free = self.capacity - n
        if n_new <= n_free:
            return range(n_new)
        if self.strategy in ("fifo", "drift"):
            n_excess = n_new - n_free
            self._rows.drop_first(n_excess)
            self._n_before_change = max(0, self._n_before_change - n_excess)
            return range(max(n_excess - n, 0), n_new)
        return range(n_free)

    def _follow_drift(self, rows: Floats, values: Array) -> None:
        """Delete outdated keys or begin to reweight votes if drift is detected."""
        change = self._detector.detect(self.keys, self.labels, self._n_before_change, rows, values)
        if change is None:
            return
        if change.of_meaning:
            self.n_evictions += 1
            self.keep(range(change.n_before, len(self)))
        else:
            self.n_reweighings += 1
            self._n_before_change = change.n_before

    def _sample(self, n_new: int, capacity: int) -> dict[int, int]:
        """Return positions of new keys by slot, chosen by reservoir sampling.

        The memory is a uniform sample of all arrived keys. Keys at slots below ``len(self)`` must
        be replaced. A deleted key still counts as arrived and occupies a slot at or above
        ``len(self)``: filling that at once would favor the next keys.
        """
        new_by_slot: dict[int, int] = {}
        for position in range(n_new):
            slot = self._n_arrived + position
            if slot >= capacity:
                slot = int(self._random.integers(slot + 1))
            if slot < capacity:
                new_by_slot[slot] = position
        return new_by_slot

    def _check_new_rows(
        self, keys: npt.ArrayLike, labels: npt.ArrayLike, ids: Iterable[object] | None
    ) -> tuple[Floats, Array, list[str]]:
        rows, values = check_rows(keys, labels, self.n_dimensions, self.n_classes)
        if self._n_arrived and values.shape[1:] != self._rows.labels.shape[1:]:
            raise ValueError(f"expected labels with the shape of earlier ones, got {values.shape}")
        return rows, values, self._names(len(rows), ids)

    def _names(self, n_rows: int, ids: Iterable[object] | None) -> list[str]:
        """Return names of new rows; raise if one is in use."""
        return new_names(ids, n_rows, self._rows, max(self._n_arrived, self._next_number))


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view
