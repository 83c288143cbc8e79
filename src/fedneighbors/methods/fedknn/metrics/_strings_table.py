"""The strings of one party, laid out for searches by edit distance."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors._typing import Integers
from fedneighbors.kernels.edit._bands import Strings, count_pieces
from fedneighbors.kernels.edit._lanes import N_LANES
from fedneighbors.kernels.edit._slices import Slices, cut_slices

Codes = npt.NDArray[np.int32]

LONGEST_SHORT = 256
LEAST_GROUP = 64


@dataclass(frozen=True)
class StringTable:
    """Strings by ascending length, in groups of like length.

    Parameters
    ----------
    order : int64 array of shape (n_strings,)
        Where each string, by ascending length, stood in the table as it was given.
    alphabet : uint32 array
        Code points in use, ascending; the code of ``alphabet[i]`` is i + 1.
    slices : Slices
        All groups; some long ones are not sliced.
    n_short : int
        Strings in groups of short ones; they come first.
    n_short_groups : int
        Groups of short strings.
    long : Strings
        The letters of the long strings.
    pieces : uint16 array of shape (n_strings - n_short, N_BINS + N_BUCKETS)
        Counts of their letters and pieces.
    group_of_long : int64 array of shape (n_strings - n_short,)
        The groups of the long strings.
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
        """Return the codes of a query, 0 for letters that no string of the table has."""
        points = code_points([query])
        places = np.searchsorted(self.alphabet, points)
        padded = np.append(self.alphabet, np.uint32(0))
        known = (padded[places] == points) & (places < len(self.alphabet))
        return np.where(known, places + 1, 0).astype(np.int32)


def code_points(strings: Sequence[str]) -> npt.NDArray[np.uint32]:
    """Return the code points of strings, one after the other; lone surrogates are letters too."""
    return np.frombuffer("".join(strings).encode("utf-32-le", "surrogatepass"), np.uint32)


def lay_out(
    strings: Sequence[Any], *, longest_short: int = LONGEST_SHORT, least_group: int = LEAST_GROUP
) -> StringTable:
    """Return the table of strings.

    Parameters
    ----------
    strings : sequence of str
        May be empty.
    longest_short : int
        Longer strings are bounded before they are compared; for shorter ones the exact distance in
        slices costs no more than a bound (30 to 200 ns a string).
    least_group : int
        Long strings are sliced in groups of at least this many: their planes take as much memory
        as those of 512.

    Raises
    ------
    TypeError
        If an object is not a string; its position is named.
    """
    for position, string in enumerate(strings):
        if not isinstance(string, str):
            raise TypeError(
                f"expected strings, got {type(string).__name__} at position {position}; convert "
                "it with str() or leave it out"
            )
    given = np.fromiter((len(string) for string in strings), np.int64, len(strings))
    order = np.argsort(given, kind="stable")
    points = code_points([strings[position] for position in order.tolist()])
    alphabet = np.flatnonzero(np.bincount(points, minlength=1)).astype(np.uint32)
    codes = np.searchsorted(alphabet, points).astype(np.int32) + np.int32(1)
    lengths = given[order]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    n_short = int(np.searchsorted(lengths, longest_short, side="right"))
    firsts = np.array([*_groups(lengths[:n_short]), *(n_short + _groups(lengths[n_short:]))[1:]])
    sizes = np.diff(firsts)
    n_short_groups = int(np.searchsorted(firsts, n_short))
    sliced = (np.arange(len(sizes)) < n_short_groups) | (sizes >= least_group)
    n_bits = max(1, len(alphabet).bit_length())
    long = Strings(codes[offsets[n_short] :].copy(), offsets[n_short:] - offsets[n_short])
    return StringTable(
        order=order,
        alphabet=alphabet,
        slices=cut_slices(codes, offsets, firsts, sliced=sliced, n_bits=n_bits),
        n_short=n_short,
        n_short_groups=n_short_groups,
        long=long,
        # of code points, not of codes: those depend on which letters other strings have
        pieces=count_pieces(Strings(points[offsets[n_short] :].astype(np.int32), long.offsets)),
        group_of_long=np.repeat(np.arange(len(sizes)), sizes)[n_short:],
    )


def _groups(lengths: Integers) -> Integers:
    """Return where groups begin: at most 512 strings, the longest little longer than the first."""
    firsts = [0]
    while firsts[-1] < len(lengths):
        group = lengths[firsts[-1] : firsts[-1] + N_LANES]
        longest = int(group[0]) + 4 + int(group[0]) // 8
        firsts.append(firsts[-1] + int(np.searchsorted(group, longest, side="right")))
    return np.array(firsts, np.int64)
