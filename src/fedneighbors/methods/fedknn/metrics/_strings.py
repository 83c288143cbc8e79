"""Edit distance of strings: tables of strings, and an exact search."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.kernels.edit._bands import (
    LIMIT,
    WITHIN,
    KnownDistances,
    OpenBand,
    Strings,
    bound_bands,
    count_pieces,
    init_state,
    verify_bands,
)
from fedneighbors.kernels.edit._lanes import N_LANES
from fedneighbors.kernels.edit._slices import (
    OpenScan,
    Slices,
    cut_slices,
    locate_digits,
    scan_slices,
)
from fedneighbors.methods.fedknn.metrics._interfaces import SessionBatch
from fedneighbors.methods.fedknn.metrics._sessions import (
    LATE,
    check_request,
    end_at,
    objects_per_step,
)

Codes = npt.NDArray[np.int32]

MAX_SHORT = 256  # letters, see build_table
MIN_GROUP = 64


@dataclass(frozen=True)
class StringTable:
    """Strings in ascending order of length, in groups of similar length.

    A *letter* is any character (one Unicode code point), also a digit or a space. A *code* is the
    number of a letter of the table, from 1.

    Parameters
    ----------
    order : int64 array of shape (n_strings,)
        Original position of each string, by ascending length.
    alphabet : uint32 array
        Code points in use, ascending; the code of ``alphabet[i]`` is i + 1.
    slices : Slices
        The groups as bit planes; small groups of long strings have none.
    n_short : int
        Number of short strings; they come first.
    n_short_groups : int
        Number of groups of short strings.
    long : Strings
        Codes of the long strings.
    pieces : uint16 array of shape (n_strings - n_short, N_BINS + N_BUCKETS)
        Counts of letters and of q-grams (*pieces*) of the long strings, by bin and by bucket.
    group_of_long : int64 array of shape (n_strings - n_short,)
        Group of each long string.
    """

    order: Integers
    alphabet: npt.NDArray[np.uint32]
    slices: Slices
    n_short: int
    n_short_groups: int
    long: Strings
    pieces: npt.NDArray[np.uint16]
    group_of_long: Integers

    def encode(self, query: str) -> Codes:
        """Encode a query, with 0 for letters absent from the table."""
        points = code_points([query])
        indices = np.searchsorted(self.alphabet, points)
        padded = np.append(self.alphabet, np.uint32(0))
        in_alphabet = (padded[indices] == points) & (indices < len(self.alphabet))
        return np.where(in_alphabet, indices + 1, 0).astype(np.int32)


def code_points(strings: Sequence[str]) -> npt.NDArray[np.uint32]:
    """Return the concatenated code points of strings.

    Lone surrogates are included.
    """
    return np.frombuffer("".join(strings).encode("utf-32-le", "surrogatepass"), np.uint32)


def build_table(
    strings: Sequence[Any], *, max_short: int = MAX_SHORT, min_group: int = MIN_GROUP
) -> StringTable:
    """Return the table of strings.

    Parameters
    ----------
    strings : sequence of str
        May be empty.
    max_short : int
        Maximum length of short strings. For long strings a lower bound is computed before the
        distance. For short ones the exact distance, computed from bit planes, takes no longer than
        a bound (30 to 200 ns per string).
    min_group : int
        Minimum size of a group of long strings that is sliced: the bit planes of any group take as
        much memory as those of 512 strings.

    Raises
    ------
    TypeError
        If an object is not a string; the error names its position.
    """
    for position, string in enumerate(strings):
        if not isinstance(string, str):
            raise TypeError(
                f"expected strings, got {type(string).__name__} at position {position}; convert "
                "it with str() or remove it"
            )
    input_lengths = np.fromiter((len(string) for string in strings), np.int64, len(strings))
    order = np.argsort(input_lengths, kind="stable")
    points = code_points([strings[position] for position in order.tolist()])
    alphabet = np.flatnonzero(np.bincount(points, minlength=1)).astype(np.uint32)
    codes = np.searchsorted(alphabet, points).astype(np.int32) + np.int32(1)
    lengths = input_lengths[order]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    n_short = int(np.searchsorted(lengths, max_short, side="right"))
    firsts = np.array([*_group(lengths[:n_short]), *(n_short + _group(lengths[n_short:]))[1:]])
    sizes = np.diff(firsts)
    n_short_groups = int(np.searchsorted(firsts, n_short))
    sliced = (np.arange(len(sizes)) < n_short_groups) | (sizes >= min_group)
    n_bits = max(1, len(alphabet).bit_length())
    long = Strings(codes[offsets[n_short] :].copy(), offsets[n_short:] - offsets[n_short])
    return StringTable(
        order=order,
        alphabet=alphabet,
        slices=cut_slices(codes, offsets, firsts, sliced=sliced, n_bits=n_bits),
        n_short=n_short,
        n_short_groups=n_short_groups,
        long=long,
        # code points, not codes, because codes depend on the letters of other strings
        pieces=count_pieces(Strings(points[offsets[n_short] :].astype(np.int32), long.offsets)),
        group_of_long=np.repeat(np.arange(len(sizes)), sizes)[n_short:],
    )


def _group(lengths: Integers) -> Integers:
    """Group up to 512 similar lengths; return the boundaries of the groups.

    The longest string of a group is at most 4 letters and an eighth longer than the first.
    """
    firsts = [0]
    while firsts[-1] < len(lengths):
        group = lengths[firsts[-1] : firsts[-1] + N_LANES]
        longest = int(group[0]) + 4 + int(group[0]) // 8
        firsts.append(firsts[-1] + int(np.searchsorted(group, longest, side="right")))
    return np.array(firsts, np.int64)


UNKNOWN = np.iinfo(np.int32).max
"""Marks a distance that is not computed."""

WORD_STEP, CELL_STEP = 2, 1
"""Relative costs of two kernel operations on matrices of the dynamic programming.

They are 64 cells of one column for one string (3 ns), and one cell for 512 strings (1.5 ns)."""


class StringSession:
    """A search for the nearest strings of one query.

    Short strings are compared group by group, in ascending order of the smallest difference between
    lengths in the group and the length of the query. For each long string a lower bound is computed
    first, and long strings are compared in ascending order of their bounds. Both are compared up to
    a limit, at first the k-th lowest bound of the long strings; while too few strings are within
    it, it is at least doubled. A comparison of a long string yields the distance, or one more than
    the limit as a new bound.

    Parameters
    ----------
    table : StringTable
        Table to search.
    ranks : int64 array of shape (n_strings,)
        Rank of each string, indexed like the (sorted) table: at equal distance, lower ranks come
        first.
    query : str
        Search query.
    """

    exact = True

    def __init__(self, table: StringTable, ranks: Integers, query: str) -> None:
        self.n_verified = 0
        self._table = table
        self._ranks = ranks
        codes = table.encode(query)
        self._length = len(codes)
        letters, indices = np.unique(codes, return_inverse=True)
        self._letters, self._letter_indices = letters.astype(np.int64), indices.astype(np.int64)
        self._digits = locate_digits(self._letters, table.slices.n_bits)
        lengths = table.slices.lengths
        self._distances = np.full(len(lengths), UNKNOWN, np.int32)
        self._max_distance = max(self._length, int(lengths[-1]) if len(lengths) else 0)
        self._tally = np.zeros(self._max_distance + 1, np.int64)  # number of strings by distance
        self._n_emitted = 0
        self._open_scan: OpenScan | None = None  # only of an interrupted group: it is large
        self._open_band = OpenBand.of(self._length)
        self._bound_groups()
        self._bound_long(query)
        if not self._length:
            self._set_to_lengths(lengths)

    def bounds(self, *, deadline_s: float | None = None) -> Floats:
        """Return distances of short strings and lower bounds of long ones."""
        state = self._make_state(len(self._distances) + 1, self._max_distance)
        if not self._scan_short(state, end_at(deadline_s)):
            raise TimeoutError(LATE)
        self._count_verified()
        bounds = np.empty(len(self._distances))
        bounds[self._table.order[: self._table.n_short]] = self._distances[: self._table.n_short]
        bounds[self._table.order[self._table.n_short :]] = self._long_bounds
        return bounds

    def separate_bounds(self, *, deadline_s: float | None = None) -> Floats:
        """Return the bounds, which do not depend on the party's other strings."""
        return self.bounds(deadline_s=deadline_s)

    def next(
        self, k: int, *, cutoff: float = math.inf, deadline_s: float | None = None
    ) -> SessionBatch:
        """Emit the next ``k`` strings.

        Raises
        ------
        ValueError
            If ``k`` is negative or ``cutoff`` is not a number.
        """
        check_request(k, cutoff)
        end = end_at(deadline_s)
        limit = math.floor(min(max(cutoff, -1), self._max_distance))
        wanted = self._n_emitted + k
        complete = k == 0 or self._compute_within(wanted, limit, end)
        certified_limit = limit if complete else min(limit, self._bound_unknown() - 1)
        nearest = self._select_nearest(wanted, limit)
        n_certified = int((self._distances[nearest] <= certified_limit).sum()) if k else 0
        self._n_emitted += n_certified
        return SessionBatch(
            positions=self._table.order[nearest],
            distances=self._distances[nearest].astype(np.float64),
            exhausted=complete and self._is_exhausted(limit),
            n_certified=n_certified,
            frontier=certified_limit + 1.0 if n_certified < k and not complete else 0.0,
        )

    def count(self, radius: float, *, deadline_s: float | None = None) -> int:
        """Return the number of strings within ``radius``."""
        limit = math.floor(min(max(radius, -1), self._max_distance))
        if not self._compute_within(len(self._distances) + 1, limit, end_at(deadline_s)):
            raise TimeoutError(LATE)
        return int(self._tally[: limit + 1].sum())

    def _bound_groups(self) -> None:
        slices, n_groups = self._table.slices, self._table.n_short_groups
        shortest = slices.lengths[slices.firsts[:n_groups]]
        bounds = np.maximum(shortest - self._length, self._length - slices.rows[:n_groups])
        self._groups = np.argsort(np.maximum(bounds, 0), kind="stable")
        self._group_bounds = np.maximum(bounds, 0)[self._groups]
        self._n_scanned = 0
        self._scanned_long = slices.starts < 0  # also true for groups that cannot be scanned

    def _bound_long(self, text: str) -> None:
        table = self._table
        lengths = table.slices.lengths[table.n_short :]
        self._compared = np.zeros(len(lengths), np.bool_)
        if not len(lengths) or not self._length:
            self._long_bounds = lengths.astype(np.int32)
            return
        letters = Strings(code_points([text]).astype(np.int32), np.array([0, self._length]))
        query = count_pieces(letters)[0]
        self._long_bounds = bound_bands(table.pieces, lengths, query, self._length)
        # index of each code's letter in the query, -1 for letters that the query does not contain
        self._letter_of = np.full(len(table.alphabet) + 1, -1, np.int32)
        self._letter_of[self._letters] = np.arange(len(self._letters))

    def _set_to_lengths(self, lengths: Integers) -> None:
        """Set the distances to the lengths, for an empty query."""
        self._distances[:] = lengths
        self._tally += np.bincount(lengths, minlength=len(self._tally))
        self._n_scanned = len(self._groups)
        self._scanned_long[:] = True
        self._compared[:] = True

    def _make_state(self, wanted: int, limit: int) -> Integers:
        return init_state(self._tally, limit=limit, wanted=wanted)

    def _compute_within(self, wanted: int, limit: int, end: float) -> bool:
        """Compute the distances of the ``wanted`` nearest strings within ``limit``.

        Returns whether this was finished before ``end``.
        """
        current = self._choose_first_limit(wanted, limit)
        while True:
            state = self._make_state(wanted, min(current, limit))
            complete = self._scan_short(state, end) and self._verify_long(state, end)
            self._count_verified()
            if not complete:
                return False
            if state[WITHIN] >= wanted or current >= limit:
                return True
            current = max(2 * current, current + 8)

    def _count_verified(self) -> None:
        scanned = self._groups[: self._n_scanned]
        firsts = self._table.slices.firsts
        n_short = (firsts[scanned + 1] - firsts[scanned]).sum()
        self.n_verified = int(n_short + np.count_nonzero(self._compared))

    def _choose_first_limit(self, wanted: int, limit: int) -> int:
        """Return the ``wanted``-th lowest bound of long strings.

        If there are fewer long strings, return ``limit``.
        """
        if wanted > len(self._long_bounds):
            return limit
        return int(np.partition(self._long_bounds, wanted - 1)[wanted - 1])

    def _scan_short(self, state: Integers, end: float) -> bool:
        while True:
            first = self._n_scanned
            self._n_scanned += self._scan(self._groups[first:], self._group_bounds[first:], state)
            remaining = self._group_bounds[self._n_scanned :]
            if not len(remaining) or remaining[0] > state[LIMIT]:
                return True
            if time.monotonic() > end:
                return False

    def _scan(self, groups: Integers, bounds: Integers, state: Integers) -> int:
        known = KnownDistances(self._distances, self._tally, state)
        query = self._digits, self._letter_indices
        scan = self._open_scan or OpenScan.of(self._length)
        slices = self._table.slices
        n = int(scan_slices(slices, groups, bounds, query, known, scan, objects_per_step(1)))
        self._open_scan = scan if scan.place[0] >= 0 else None
        return n

    def _verify_long(self, state: Integers, end: float) -> bool:
        open_long = self._list_open_long(state)
        if not len(open_long):
            return True
        if not self._scan_long(open_long, state, end):
            return False
        open_long = self._list_open_long(state)
        open_long = open_long[np.argsort(self._long_bounds[open_long], kind="stable")]
        while len(open_long) and self._long_bounds[open_long[0]] <= state[LIMIT]:
            if time.monotonic() > end:
                return False
            open_long = open_long[self._verify(open_long, state) :]
        return True

    def _list_open_long(self, state: Integers) -> Integers:
        """Return long strings of unknown distance with bounds within the limit."""
        unknown = self._distances[self._table.n_short :] == UNKNOWN
        return np.flatnonzero(unknown & (self._long_bounds <= state[LIMIT]))

    def _scan_long(self, open_long: Integers, state: Integers, end: float) -> bool:
        """Scan the groups for which comparing each candidate alone costs more."""
        slices, n_short = self._table.slices, self._table.n_short
        n_groups = len(slices.rows)
        n_open = np.bincount(self._table.group_of_long[open_long], minlength=n_groups)
        n_words = np.minimum(state[LIMIT] // 64 + 2, self._length // 64 + 1)
        # the comparison of an unrelated string stops early
        n_columns = np.minimum(slices.rows, 2 * state[LIMIT] + 128)
        costly = n_open * n_words * n_columns * WORD_STEP > self._length * slices.rows * CELL_STEP
        groups = np.flatnonzero(costly & ~self._scanned_long)
        for group in groups.tolist():
            n_scanned = 0
            while not n_scanned:
                if time.monotonic() > end:
                    return False
                n_scanned = self._scan(np.array([group]), np.zeros(1, np.int64), state)
            self._scanned_long[group] = True
            first, last = slices.firsts[group], slices.firsts[group + 1]
            self._long_bounds[first - n_short : last - n_short] = self._distances[first:last]
            self._compared[first - n_short : last - n_short] = True
        return True

    def _verify(self, order: Integers, state: Integers) -> int:
        known = KnownDistances(self._distances[self._table.n_short :], self._tally, state)
        query, bounds = (self._letter_of, self._letter_indices), self._long_bounds
        long, band = self._table.long, self._open_band
        n = int(verify_bands(long, order, query, bounds, known, band, objects_per_step(1)))
        self._compared[order[:n]] = True
        return n

    def _bound_unknown(self) -> int:
        """Return a lower bound of all unknown distances."""
        remaining = self._group_bounds[self._n_scanned :]
        lowest = int(remaining[0]) if len(remaining) else self._max_distance + 1
        unknown = self._long_bounds[self._distances[self._table.n_short :] == UNKNOWN]
        return min(lowest, int(unknown.min())) if len(unknown) else lowest

    def _select_nearest(self, wanted: int, limit: int) -> Integers:
        """Return those of the ``wanted`` nearest known strings that were not emitted."""
        farthest = self._make_state(max(wanted, 1), limit)[LIMIT]
        nearer = np.flatnonzero(self._distances < farthest)
        equal = np.flatnonzero(self._distances == farthest)
        n_equal = max(wanted - len(nearer), 0)
        if 0 < n_equal < len(equal):  # sort only the tied strings of lowest rank
            equal = equal[np.argpartition(self._ranks[equal], n_equal - 1)[:n_equal]]
        candidates = np.concatenate([nearer, equal])
        order = np.lexsort((self._ranks[candidates], self._distances[candidates]))
        return candidates[order][self._n_emitted : wanted]

    def _is_exhausted(self, limit: int) -> bool:
        n_known = int(self._tally[: limit + 1].sum())
        return self._bound_unknown() > limit and n_known <= self._n_emitted


class EditMetric:
    """Levenshtein distance of Unicode strings.

    A letter is a code point. Composed and decomposed forms of one character differ: normalize
    strings before (``unicodedata.normalize``) if both forms may occur. For strings of at most 256
    letters, the lower bounds of a session are the distances themselves.

    Examples
    --------
    >>> import numpy as np
    >>> metric = EditMetric()
    >>> session = metric.index(["kitten", "mitten", "sitting"], ranks=np.arange(3)).open("sitten")
    >>> batch = session.next(2)
    >>> batch.positions.tolist(), batch.distances.tolist()
    ([0, 1], [1.0, 1.0])
    >>> session.next(2).distances.tolist()
    [2.0]
    """

    name = "edit"
    step = 1.0  # distances are integers

    def distance(self, first: Any, second: Any) -> float:
        """Return the distance of two strings.

        Raises
        ------
        TypeError
            If one of them is not a string.
        """
        index = self.index([first], ranks=np.zeros(1, np.int64))
        return float(index.open(second).next(1).distances[0])

    def index(self, objects: Sequence[Any], *, ranks: Integers) -> "StringIndex":
        """Return an index of strings.

        Raises
        ------
        TypeError
            If an object is not a string; the error names its position.
        """
        table = build_table(objects)
        return StringIndex(table, np.asarray(ranks, np.int64)[table.order])


class StringIndex:
    """The search index of one party's strings.

    Parameters
    ----------
    table : StringTable
        The strings.
    ranks : int64 array of shape (n_strings,)
        Rank of each string, indexed like the (sorted) table: at equal distance, lower ranks come
        first.
    """

    def __init__(self, table: StringTable, ranks: Integers) -> None:
        self.n_objects = len(table.order)
        self._table = table
        self._ranks = ranks

    def open(self, query: Any) -> StringSession:
        """Open a session for a query.

        Raises
        ------
        TypeError
            If the query is not a string.
        """
        if not isinstance(query, str):
            raise TypeError(f"expected a string as the query, got {type(query).__name__}")
        return StringSession(self._table, self._ranks, query)
