"""Fingerprints of molecules under the Tanimoto distance.

A search scans a sketch of each fingerprint first, see :mod:`fedneighbors.kernels._fingerprints`. It
rates every object by an upper bound of its similarity, in 256 levels. Objects are verified from the
highest level down, whole levels at a time, until the next ones are certified.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Floats, Integers
from fedneighbors.datasets._molecules import fingerprint_from_smiles
from fedneighbors.errors import DataError
from fedneighbors.kernels._fingerprints import (
    BLOCK_ROWS,
    MAX_BITS,
    TOP_LEVEL,
    Words,
    bound_common,
    count_common,
    fold,
    rate,
)
from fedneighbors.methods.fedknn.metrics._sessions import (
    BrowsingSession,
    check_ranks,
    check_time,
    end_at,
)

_Bytes = npt.NDArray[np.uint8]

# Places of a sketch for each set bit of an average fingerprint. With 5 places, 41 bits of molecules
# have 256, and .01 % of 300,000 objects were verified for the 10 nearest, .1 % for 100.
_PLACES_PER_BIT = 5
_OWN_FRACTION = 4  # the most frequent bits have a place of their own: one fourth of the places
_SAMPLE_SIZE = 4096  # rows that determine the frequencies

_ROWS_AT_ONCE = 1 << 18  # rows scanned between two clock checks, less than 20 ms


class TanimotoMetric:
    """Tanimoto distance of fingerprints: ``1 - (bits of a & b) / (bits of a | b)``.

    A fingerprint is a uint8 array of packed bits, of equal length for all objects, or the SMILES of
    a molecule. SMILES need the extra ``chem``; they become Morgan fingerprints of radius 2 and
    2,048 bits, packed as by ``np.packbits(bits, bitorder="little")`` and RDKit's
    ``BitVectToBinaryText``, so that packed bits can be compared with them. Two fingerprints without
    bits have distance 0. Distances compare like exact fractions.

    Examples
    --------
    >>> TanimotoMetric().distance(np.array([7], np.uint8), np.array([14], np.uint8))
    0.5
    """

    name = "tanimoto"

    def distance(self, first: Any, second: Any) -> float:
        """Return the distance of two fingerprints or SMILES.

        Raises
        ------
        TypeError, ValueError
            If one is neither packed bits nor a string, or the lengths differ.
        DataError
            If a string is no SMILES.
        MissingExtraError
            If RDKit, for SMILES, is not installed.
        """
        index = self.index([first], ranks=np.zeros(1, np.int64))
        return float(index.open(second).bounds()[0])

    def index(self, objects: Sequence[Any], *, ranks: Integers) -> "_FingerprintIndex":
        """Return an index of fingerprints.

        Parameters
        ----------
        objects : uint8 array of shape (n_objects, n_bytes) or sequence
            Packed bits, or a sequence of packed bits and SMILES. May be empty.
        ranks : int64 array of shape (n_objects,)
            Distinct ranks; objects of equal distance are ordered by rank.

        Raises
        ------
        TypeError, ValueError, DataError, MissingExtraError
            As for ``distance``; the error names the position of the object.
        """
        rows = _as_rows(objects)
        return _FingerprintIndex(rows, check_ranks(ranks, len(rows)))


class _FingerprintIndex:
    def __init__(self, rows: _Bytes, ranks: Integers) -> None:
        self.n_objects, self.n_bytes = rows.shape
        self.ranks = ranks
        self.bits = _to_words(rows)
        self.sizes = np.bitwise_count(self.bits).sum(axis=1, dtype=np.uint16)
        self.sketch: _Sketch | None = None
        n_places = _choose_size(self.sizes)
        if n_places <= 32 * self.bits.shape[1]:
            self.sketch = _Sketch(self.bits, n_places)

    def open(self, query: Any) -> "_FingerprintSession":
        row = _as_bits(query, "the query")
        if self.n_objects:
            _check_length(row, self.n_bytes, "the query")
        return _FingerprintSession(self, _to_words(row[np.newaxis, : self.n_bytes])[0])


class _Sketch:
    """Sketches of the fingerprints, with at most half as many places as there are bits.

    The most frequent bits have a place each; the others share places, a frequent one with rare
    ones.
    """

    def __init__(self, bits: Words, n_places: int) -> None:
        n_bits, n_own = 64 * bits.shape[1], n_places // _OWN_FRACTION
        frequencies = _unpack(bits[:: max(1, len(bits) // _SAMPLE_SIZE)]).sum(axis=0, dtype=int)
        n_shared = n_places - n_own
        turn, place = np.divmod(np.arange(n_bits - n_own), n_shared)
        shared = np.where(turn % 2 == 0, place, n_shared - 1 - place)  # there and back
        self._places = np.empty(n_bits, np.int64)
        by_frequency = np.argsort(-frequencies, kind="stable")
        self._places[by_frequency] = np.concatenate([np.arange(n_own), n_own + shared])
        self._blocks = fold(bits, self._places, n_places // 64)

    def bound(self, query: Words, first: int, end: int) -> npt.NDArray[np.uint16]:
        """Return upper bounds of the bits that objects share with a query.

        ``first`` is the first object of a block.
        """
        blocks = self._blocks[first // BLOCK_ROWS : -(-end // BLOCK_ROWS)]
        places = self._places[np.flatnonzero(_unpack(query))]
        weights = np.bincount(places, minlength=64 * blocks.shape[1])
        return bound_common(blocks, weights, end - first)


_MIN_BATCH = 64  # objects verified at a time
_PASS_OBJECTS = 512  # verifying one object takes as long as reading the levels of so many


class _FingerprintSession(BrowsingSession):
    """A query session that verifies objects by level, the highest first.

    Distances compare like fractions of integers up to 2**26. The level of an object is
    ``floor(TOP_LEVEL * similarity)`` of an upper bound of its similarity, which is 1 minus the
    distance. All objects of at least ``_level`` are verified.
    """

    def __init__(self, index: _FingerprintIndex, query: Words) -> None:
        super().__init__(index.ranks, width=8 * index.bits.shape[1])
        self._index = index
        self._query = query
        self._n_query = int(np.bitwise_count(query).sum())
        self._n_scanned = 0
        self._levels = np.empty(self._n_objects, np.uint8)
        self._counts = np.zeros(TOP_LEVEL + 1, np.int64)  # objects of each level
        self._level = TOP_LEVEL + 1

    def bounds(self, *, deadline_s: float | None = None) -> Floats:
        """Return the distances themselves, the tightest bounds."""
        end, parts = end_at(deadline_s), [np.empty(0)]
        for first in range(0, self._n_objects, self._n_per_step):
            check_time(end)
            rows = np.arange(first, min(first + self._n_per_step, self._n_objects))
            parts.append(self._measure(rows))
        return np.concatenate(parts)

    def separate_bounds(self, *, deadline_s: float | None = None) -> Floats:
        """Return the distances, which do not depend on other objects."""
        return self.bounds(deadline_s=deadline_s)

    def _measure(self, positions: Integers) -> Floats:
        index = self._index
        common = count_common(index.bits, self._query, positions).astype(np.int64)
        union = self._n_query + index.sizes[positions] - common
        return np.where(union > 0, (union - common) / np.maximum(union, 1), 0.0)

    def _scan(self) -> None:
        """Compute the levels of the next objects."""
        index, first = self._index, self._n_scanned
        end = min(first + _ROWS_AT_ONCE, self._n_objects)
        if index.sketch is None:
            common = count_common(index.bits[first:end], self._query)
        else:
            common = index.sketch.bound(self._query, first, end)
        levels, sizes = self._levels[first:end], index.sizes[first:end]
        rate(common, sizes, self._n_query, levels, self._counts)
        self._n_scanned = end

    def _widen(self, k: int, cutoff: float) -> None:
        if self._n_scanned < self._n_objects:
            self._scan()
            return
        front = self._pool.front(k)
        farthest = min(cutoff, float(front[-1]) if 0 < len(front) == k else math.inf)
        batch_size = self._choose_batch(k - len(front)) if k else self._n_objects
        n_from = np.cumsum(self._counts[::-1])[::-1]  # objects of each level and above it
        level = int(np.flatnonzero(n_from >= min(self.n_verified + batch_size, n_from[0]))[-1])
        if self.n_verified >= n_from[0]:
            level = 0
        # Objects of lower levels are farther than the k-th known distance or the cutoff.
        self._verify_down_to(min(max(level, _level_of(farthest)), self._level - 1))

    def _choose_batch(self, n_missing: int) -> int:
        """Return the minimum number of objects to verify next."""
        return max(_MIN_BATCH, self._n_objects // _PASS_OBJECTS, n_missing, self.n_verified)

    def _verify_down_to(self, level: int) -> None:
        """Verify the remaining objects of a level and above it."""
        is_new = self._levels >= level
        if self._level <= TOP_LEVEL:
            is_new &= self._levels < self._level
        self._level = level
        # The similarity of all other objects is below level / TOP_LEVEL. Distances are rounded
        # fractions, and equal only if the fractions are, so that theirs are at least the next one.
        frontier = math.nextafter((TOP_LEVEL - level) / TOP_LEVEL, math.inf)
        self._verify_in_steps(np.flatnonzero(is_new), frontier)


def _level_of(distance: float) -> int:
    """Return a level that all objects within a distance reach."""
    similarity = min(max(1 - distance, 0.0), 1.0) - 2.0**-40  # minus more than the rounding error
    return max(math.floor(TOP_LEVEL * similarity), 0)


def _choose_size(sizes: npt.NDArray[np.uint16]) -> int:
    """Return the number of places of a sketch, a power of two."""
    n_places = 128
    while n_places < _PLACES_PER_BIT * float(sizes.sum()) / max(len(sizes), 1):
        n_places *= 2
    return n_places


def _to_words(rows: _Bytes) -> Words:
    """Return packed bits as words, padded with zeros."""
    padded = np.zeros((len(rows), -(-rows.shape[1] // 8) * 8), np.uint8)
    padded[:, : rows.shape[1]] = rows
    return padded.view("<u8").astype(np.uint64, copy=False)


def _unpack(words: Words) -> _Bytes:
    """Return the bits of words, the lowest first."""
    return np.unpackbits(words.astype("<u8").view(np.uint8), axis=-1, bitorder="little")


def _as_rows(objects: Sequence[Any]) -> _Bytes:
    """Return objects as a table of packed bits."""
    if isinstance(objects, np.ndarray) and objects.ndim == 2 and len(objects):
        _as_bits(objects[0], "object 0")
        return objects
    rows = [_as_bits(item, f"object {i}") for i, item in enumerate(objects)]
    for i, row in enumerate(rows):
        _check_length(row, len(rows[0]), f"object {i}")
    return np.stack(rows) if rows else np.empty((0, 0), np.uint8)


def _as_bits(item: Any, name: str) -> _Bytes:
    """Return packed bits; convert SMILES."""
    if isinstance(item, str):
        try:
            return fingerprint_from_smiles(item)
        except DataError as error:
            raise DataError(f"{name}: {error}") from None
    is_array = isinstance(item, np.ndarray)
    if not (is_array and item.dtype == np.uint8 and item.ndim == 1):
        found = f"{item.dtype} of shape {item.shape}" if is_array else type(item).__name__
        raise TypeError(
            f"{name}: expected packed bits, a uint8 array of one dimension as np.packbits returns, "
            f"or SMILES, got {found}"
        )
    if not 0 < 8 * len(item) <= MAX_BITS:
        raise ValueError(f"{name}: expected 1 to {MAX_BITS // 8} bytes, got {len(item)}")
    return np.asarray(item, np.uint8)


def _check_length(row: _Bytes, n_bytes: int, name: str) -> None:
    if len(row) != n_bytes:
        raise ValueError(f"{name}: expected {n_bytes} bytes of packed bits, got {len(row)}")
