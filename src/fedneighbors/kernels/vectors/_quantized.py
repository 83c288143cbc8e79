"""Rows as signed bytes, and lower bounds of their distances to a query.

A search that computes every distance reads every byte of the table, so this one reads a quarter of
them. A row is ``x = s z + e`` with bytes ``z``, a scale ``s`` and ``|e| = r``; a query is
``q = t w + f`` with integers ``w`` and ``|f| = rho``. By the triangle inequality ``|q - x|`` is at
least ``D - r - rho`` with ``D = |t w - s z|``. Euclidean:
``D**2 = t**2 |w|**2 - 2 t s <w, z> + s**2 |z|**2``, where the three sums of integers are exact.
Manhattan: all rows have the same scale, and ``t = s / 128``, so that ``D`` is ``t`` times a sum of
integers. Rows and query are clipped to 127 steps first. This decreases a distance by that of the
clipped parts ``a`` and ``b``, as two elements differ by the difference of their clipped values and
that of their clipped parts. It is at least ``||b| - |a||`` for the sums of magnitudes ``|a|`` and
``|b|``, which is added.

A stored bound is at most the distance. It is computed in float32; let ``u = 2**-24`` be the largest
relative error of one operation, and ``M = t**2 |w|**2 + s**2 |z|**2``. ``s |z|`` is stored.

- ``D**2`` has an error below ``12 u M``: five roundings in ``M``, four in ``2 t s <w, z>``, which
  is at most ``M``, and one of their difference, at most ``2 M``. ``16 u M`` are subtracted.
- Where the bound is positive, ``D`` (Manhattan: with ``||b| - |a||``) exceeds ``r + rho`` and,
  Euclidean, ``2**-11 M**0.5``. Fewer than 16 roundings, of ``D``, ``r``, ``rho``, ``|a|``, ``|b|``,
  sums and differences, and errors of up to ``2**-52`` in the elements of rows and query are
  therefore below ``16 u`` of ``D`` and the larger one of ``|a|`` and ``|b|``, which are subtracted.
- Manhattan, elements within the limit have errors of up to ``n 2**-37 t`` if clipped parts differ
  by little; ``2**-20 t`` is added to ``rho``.
- Numbers below ``2**-126`` have larger relative errors; ``2**-140`` is added to ``r``, and
  ``2**-70`` to ``rho``, as the error of ``D**2`` is then below ``2**-147``.

The distance may also be the negative inner product. As ``<q, x> = t s <w, z> + <q, e> + <f, s z>``,
it is at least ``-t s <w, z> - E`` with ``E = |q| r + rho s |z|``, by the Cauchy-Schwarz inequality,
and ``|q|`` is at most ``t |w| + rho``. Let ``P = |q| s |z|``. The bound is lower by ``2**-20 P``,
``2**-20 E`` and ``2**-140``, which covers

- errors of up to ``2**-52`` in the elements of rows and query: ``2**-51 (P + |q| r)``;
- relative errors of ``r`` below ``2**-23``, and of ``rho``, ``|q|`` and ``s |z|``: ``4 u E``;
- four roundings of ``t s <w, z>``, two of ``E``, and three differences: ``7 u P + 6 u E``, and
  numbers below ``2**-126``, which lose at most ``2**-150`` each;
- the rounding of a distance that is summed in eight lanes, ``(n / 8 + 12) 2**-53 |q| |x|`` for
  ``n`` columns, which is below ``2**-31 (P + |q| r)`` for up to ``2**24`` columns.

Codes are stored in blocks of 64 rows, in pairs of columns, so that loops over the rows of a block
become vector instructions.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils

from fedneighbors._typing import Floats, Integers
from fedneighbors.kernels._emission import intrinsic, locate
from fedneighbors.kernels.vectors._distances import (
    _sum_of_absolutes,
    _sum_of_products,
    _sum_of_squares,
)
from fedneighbors.kernels.vectors._nearest import _distance

# Digests of the kernel files used here; Numba's cache does not notice edits in other files.
USES = {
    "emission": "5e83461cfaba370e",
    "vectors/distances": "35a00e78ff528aba",
    "vectors/nearest": "be895dee9c71c294",
}

BLOCK = 64
_INDEX, _WORD = ir.IntType(32), ir.IntType(64)
_N_LANES = 8  # sums of a vector
_CODES, _TERMS = (ir.VectorType(ir.IntType(n_bits), 2 * _N_LANES) for n_bits in (8, 16))
_SUMS = ir.VectorType(_INDEX, _N_LANES)
MAX_CODE = 127
SQUARE, ABSOLUTE, PRODUCT = 0, 1, 2  # kinds of distances
_STEPS = 128  # steps of a query's element per step of a row's, for sums of absolute differences
_UNDERFLOW = 2.0**-70


@njit(cache=True, nogil=True, error_model="numpy")
def _encode(
    rows: Any, step: Any, first: Any, codes: Any, scales: Any, lengths: Any, radii: Any
) -> None:
    """Encode float64 rows; ``step`` is 0 or the common scale."""
    n, n_columns = rows.shape
    for i in range(n):
        block, lane = (first + i) // 64, (first + i) % 64
        scale = np.float32(step)
        if step == 0.0:
            largest = 0.0
            for j in range(n_columns):
                largest = max(largest, abs(rows[i, j]))
            scale = np.float32(largest / 127.0)
        factor = 1.0 / np.float64(scale) if scale > 1e-37 else 0.0
        residual, clipped, square = 0.0, 0.0, 0
        for j in range(n_columns):
            code = min(max(np.rint(rows[i, j] * factor), -127.0), 127.0)
            error = abs(rows[i, j] - code * np.float64(scale))
            beyond = abs(rows[i, j]) - 127.0 * step
            if step > 0.0 and beyond > 0.0:
                clipped += beyond
            else:
                residual += error if step > 0.0 else error * error
            square += int(code) * int(code)
            codes[block, j // 2, lane, j % 2] = np.int8(code)
        scales[first + i] = np.float32(clipped) if step > 0.0 else scale
        lengths[first + i] = np.float32(np.float64(scale) * math.sqrt(square))
        length = residual if step > 0.0 else math.sqrt(residual)
        radii[first + i] = np.float32(length + 2.0**-140)


@njit(cache=True, nogil=True, error_model="numpy")
def _encode_query(query: Any, step: Any, max_query: Any, codes: Any) -> Any:
    """Encode a query; return scale, length of the residual and clipped part."""
    largest, total, clipped = 0.0, 0.0, 0.0
    for j in range(query.shape[0]):
        largest = max(largest, abs(query[j]))
    scale = step / 128.0 if step > 0.0 else largest / max_query
    for j in range(query.shape[0]):
        code, inside = 0.0, query[j]
        if scale > 2.0**-900:
            code = min(max(np.rint(query[j] / scale), -max_query), max_query)
        if step > 0.0:
            inside = min(max(query[j], -127.0 * step), 127.0 * step)
        codes[j] = np.int16(code)
        clipped += abs(query[j] - inside)
        residual = abs(inside - scale * code)
        total += residual if step > 0.0 else residual * residual
    return scale, total if step > 0.0 else math.sqrt(total), clipped


def _block_sums(make_terms: Any) -> Any:
    """Return the generator of a block's sums of terms.

    Two adjacent columns are added at once: the loop that LLVM makes of the same sums one by one
    takes three times as long.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        table = context.make_array(signature.args[0])(context, builder, args[0])
        n_pairs = cgutils.unpack_tuple(builder, table.shape)[1]
        start = builder.mul(args[1], builder.mul(n_pairs, _WORD(2 * BLOCK)))
        elements = locate(context, builder, signature, args, 2)
        pairs = builder.bitcast(elements, _INDEX.as_pointer())
        totals = [cgutils.alloca_once_value(builder, _SUMS([0] * _N_LANES)) for _ in range(8)]
        with cgutils.for_range(builder, n_pairs) as loop:
            query = _repeat(builder, builder.load(builder.gep(pairs, [loop.index]), align=2))
            first = builder.add(start, builder.mul(loop.index, _WORD(2 * BLOCK)))
            for i, total in enumerate(totals):
                place = builder.add(first, _WORD(2 * _N_LANES * i))
                address = builder.bitcast(builder.gep(table.data, [place]), _CODES.as_pointer())
                codes = builder.sext(builder.load(address, align=1), _TERMS)
                terms = make_terms(builder, codes, builder.bitcast(query, _TERMS))
                builder.store(builder.add(builder.load(total), terms), total)
        target = locate(context, builder, signature, args, 3)
        for i, total in enumerate(totals):
            place = builder.gep(target, [_WORD(_N_LANES * i)])
            builder.store(builder.load(total), builder.bitcast(place, _SUMS.as_pointer()), align=4)
        return context.get_dummy_value()

    return codegen


def _multiply(builder: Any, codes: Any, query: Any) -> Any:
    """Multiply pairs of columns, and add both products."""
    wide = ir.VectorType(_INDEX, 2 * _N_LANES)
    products = builder.mul(builder.sext(codes, wide), builder.sext(query, wide))
    halves = (
        builder.shuffle_vector(products, products, _SUMS(list(range(i, 2 * _N_LANES, 2))))
        for i in range(2)
    )
    return builder.add(*halves)


def _add_differences(builder: Any, codes: Any, query: Any) -> Any:
    """Add the absolute differences of pairs of columns."""
    # in steps of the query
    steps = builder.mul(codes, _TERMS([_STEPS] * 2 * _N_LANES))
    difference = builder.sub(query, steps)  # at most 2 * 127 * 128, below 2**15
    is_negative = builder.icmp_signed("<", difference, _TERMS([0] * 2 * _N_LANES))
    absolute = builder.select(is_negative, builder.neg(difference), difference)
    return _multiply(builder, absolute, _TERMS([1] * 2 * _N_LANES))


def _repeat(builder: Any, value: Any) -> Any:
    """Return a vector with the value in each lane."""
    first = builder.insert_element(_SUMS(ir.Undefined), value, _INDEX(0))
    return builder.shuffle_vector(first, first, _SUMS([0] * _N_LANES))


@intrinsic
def _multiply_block(_typing: Any, codes: Any, block: Any, query: Any, sums: Any) -> Any:
    """Store the inner products of a query and a block's rows."""
    return types.void(codes, types.unliteral(block), query, sums), _block_sums(_multiply)


@intrinsic
def _subtract_block(_typing: Any, codes: Any, block: Any, query: Any, sums: Any) -> Any:
    """Store the sums of absolute differences, as ``_multiply_block``."""
    return types.void(codes, types.unliteral(block), query, sums), _block_sums(_add_differences)


@njit(cache=True, nogil=True, error_model="numpy")
def _least(bounds: Any, block: Any, lowest: Any) -> Any:
    """Return the lowest bound of a block; ``lowest`` has room for 16."""
    first = np.uint64(block * 64)
    for lane in range(np.uint64(16)):
        i = first + lane
        low = min(bounds[i], bounds[i + np.uint64(16)])
        lowest[lane] = min(low, min(bounds[i + np.uint64(32)], bounds[i + np.uint64(48)]))
    for half in (8, 4, 2, 1):
        for lane in range(half):
            lowest[lane] = min(lowest[lane], lowest[lane + half])
    return lowest[0]


@njit(cache=True, nogil=True, error_model="numpy")
def _bound(
    rows: Any, n_rows: Any, query: Any, kind: Any, bounds: Any, minima: Any, blocks: Any
) -> None:
    """Compute lower bounds of distances in some blocks, and their minima."""
    codes, scales, lengths, radii = rows
    query_codes, scale, radius, clipped = query
    sums, lowest = np.empty(64, np.int32), np.empty(16, np.float32)
    square = 0.0
    for j in range(query_codes.shape[0]):
        square += np.float64(query_codes[j]) * np.float64(query_codes[j])
    size = scale * math.sqrt(square) + radius  # at least the length of the query
    margin, underflow = np.float32(2.0**-20), np.float32(2.0**-140)
    own, factor = np.float32(scale * scale * square), np.float32(1.0 - 2.0**-20)
    row_factor = np.float32(size * (1.0 + 2.0**-20))
    code_factor = np.float32(radius * (1.0 + 2.0**-20) + 2.0**-20 * size)
    step = np.float32(2.0 * scale if kind == SQUARE else scale)
    rho = np.float32(radius + scale * 2.0**-20 if kind == ABSOLUTE else radius)
    beyond = np.float32(clipped)
    for block in range(blocks[0], blocks[1]):
        # checks of negative indices would prevent vector instructions
        first = np.uint64(block * 64)
        if kind == ABSOLUTE:
            _subtract_block(codes, block, query_codes, sums)
        else:
            _multiply_block(codes, block, query_codes, sums)
        if kind == SQUARE:
            for lane in range(np.uint64(64)):
                i = first + lane
                total = (own + lengths[i] * lengths[i]) * factor
                total -= scales[i] * (step * np.float32(sums[lane]))
                bounds[i] = math.sqrt(max(total, np.float32(0.0))) * factor - (radii[i] + rho)
        elif kind == PRODUCT:
            for lane in range(np.uint64(64)):
                i = first + lane
                total = -(scales[i] * (step * np.float32(sums[lane]))) - code_factor * lengths[i]
                bounds[i] = total - row_factor * radii[i] - underflow
        else:
            for lane in range(np.uint64(64)):
                i = first + lane
                total = np.float32(sums[lane]) * step * factor
                total += abs(beyond - scales[i]) - margin * max(beyond, scales[i])
                bounds[i] = total - (radii[i] + rho)
        for row in range(n_rows, block * 64 + 64):
            bounds[row] = np.float32(math.inf)
        minima[block] = _least(bounds, block, lowest)


@njit(cache=True, nogil=True, error_model="numpy")
def _count_within(bounds: Any, minima: Any, limit: Any, most: Any) -> int:
    """Count the rows within a limit, until there are more than ``most``."""
    n = 0
    for block in range(minima.shape[0]):
        if minima[block] <= limit:
            first = np.uint64(block * 64)
            for i in range(np.uint64(64)):
                n += bounds[first + i] <= limit
            if n > most:
                break
    return n


@njit(cache=True, nogil=True, error_model="numpy")
def _take_within(bounds: Any, minima: Any, limit: Any) -> Any:
    n = _count_within(bounds, minima, limit, bounds.shape[0])
    positions, lowest = np.empty(n, np.int64), np.empty(16, np.float32)
    n = 0
    for block in range(minima.shape[0]):
        if minima[block] <= limit:
            for i in range(block * 64, block * 64 + 64):
                if bounds[i] <= limit:
                    positions[n], bounds[i] = i, np.float32(math.inf)
                    n += 1
            minima[block] = _least(bounds, block, lowest)
    return positions


@njit(cache=True, nogil=True)
def verify_within(
    kind: Any, table: Any, order: Any, point: Any, bounds: Any, minima: Any, limit: Any, most: Any
) -> Any:
    """Take the rows with bounds within a limit; compute their distances.

    Parameters
    ----------
    kind : int
        As for :class:`fedneighbors.kernels.vectors._nearest.RowSearch`.
    table, order : array of shape (n_table_rows, n_columns) and int64 array, or None
        A table, and the position of each row in it; by default all rows.
    point : float64 array of shape (n_columns,)
        The query.
    bounds, minima
        As for :class:`RowBounds`; rows that are taken become infinite.
    limit : float
        Finite limit of bounds.
    most : int
        Largest number of rows; none is taken if there are more.

    Returns
    -------
    rows, distances : int64 and float64 array of shape (n_taken,)
        Rows, ascending, and their distances.
    lowest : float
        Lowest bound of the others.
    """
    if _count_within(bounds, minima, limit, most) > most:
        limit = -math.inf
    rows = _take_within(bounds, minima, limit)
    distances = np.empty(rows.shape[0])
    for i in range(rows.shape[0]):
        row = rows[i] if order is None else order[rows[i]]
        if kind == 1:
            distances[i] = _sum_of_absolutes(table, row, point, 0)
        elif kind == 4:
            distances[i] = _sum_of_products(table, row, point, 0)
        else:
            distances[i] = _distance(kind, _sum_of_squares(table, row, point, 0))
    return rows, distances, minima.min()


class RowBounds:
    """Lower bounds of the distances of one query to rows.

    Parameters
    ----------
    values : float32 array of shape (n_blocks * 64,)
        Bound of each row; infinity for rows that were taken, and after the last row.
    minima : float32 array of shape (n_blocks,)
        Lowest bound of each block.
    compute : callable, optional
        Function that computes them, from one block to another; by default they are known.
    """

    def __init__(
        self,
        values: npt.NDArray[np.float32],
        minima: npt.NDArray[np.float32],
        compute: Callable[[int, int], None] | None = None,
    ) -> None:
        self.values, self.minima = values, minima
        self._compute = compute
        self._n_blocks = 0 if compute else len(minima)

    @property
    def is_complete(self) -> bool:
        """Return whether all bounds are known."""
        return self._n_blocks == len(self.minima)

    def extend(self, n_rows: int) -> None:
        """Compute the bounds of about ``n_rows`` more rows."""
        if self._compute and not self.is_complete:
            first = self._n_blocks
            self._n_blocks = min(first + max(1, n_rows // BLOCK), len(self.minima))
            self._compute(first, self._n_blocks)

    def lowest(self) -> float:
        """Return the lowest bound of the rows that were not taken."""
        return float(self.minima.min())

    def has_more(self, limit: float, n: float) -> bool:
        """Return whether more than ``n`` rows are left within a finite limit."""
        return bool(_count_within(self.values, self.minima, limit, n) > n)

    def quantile(self, n: int) -> float:
        """Return a limit of at least ``n`` rows that were not taken."""
        limit = math.inf
        if n <= len(self.minima):
            limit = float(np.partition(self.minima, n - 1)[n - 1])
        return limit if limit < math.inf else float(np.partition(self.values, n - 1)[n - 1])

    def take(self, limit: float) -> Integers:
        """Remove the rows within a finite limit; return their positions, ascending."""
        return np.asarray(_take_within(self.values, self.minima, limit))


class QuantizedRows:
    """Rows as bytes, for lower bounds of distances (8-bit scalar quantization).

    Parameters
    ----------
    n_rows, n_columns : int
        Size of the table.
    step : float
        0 for Euclidean distances; for Manhattan distances the scale of all rows, which clips their
        elements to 127 steps.
    """

    def __init__(self, n_rows: int, n_columns: int, *, step: float = 0.0) -> None:
        n_blocks = -(-n_rows // BLOCK)
        self.n_rows = n_rows
        self._step = float(np.float32(step))
        self._codes = np.zeros((n_blocks, -(-n_columns // 2), BLOCK, 2), np.int8)
        # scale of each row; with one scale, the sum of its clipped parts
        self._scales, self._lengths, self._radii = np.zeros((3, n_blocks * BLOCK), np.float32)
        # sums of products of codes, or of differences, are below 2**31
        largest = (2**31 - 1) // (MAX_CODE * n_columns)
        self._max_query = _STEPS * MAX_CODE if step else min(2**15 - 1, largest)

    @staticmethod
    def max_columns(*, is_square: bool) -> int:
        """Return the largest number of columns of which sums are exact."""
        return (2**31 - 1) // (MAX_CODE**2 if is_square else 2 * _STEPS * MAX_CODE)

    def put(self, rows: Floats, first: int) -> None:
        """Encode rows from position ``first``, of lengths below 2**60."""
        _encode(rows, self._step, first, self._codes, self._scales, self._lengths, self._radii)

    def bound(self, query: Floats, *, of_products: bool = False) -> RowBounds:
        """Return lower bounds of distances, to be computed by ``extend``.

        Its length is below 2**60. ``of_products``: the distance is the negative inner
        product; ``step`` must be 0.
        """
        pairs = np.zeros(2 * self._codes.shape[1], np.int16)
        scale, radius, clipped = _encode_query(query, self._step, self._max_query, pairs)
        values = np.empty(len(self._scales), np.float32)
        minima = np.empty(len(self._codes), np.float32)
        rows = self._codes, self._scales, self._lengths, self._radii
        numbers = pairs, scale, radius + _UNDERFLOW, clipped
        kind = PRODUCT if of_products else ABSOLUTE if self._step else SQUARE

        def compute(first: int, end: int) -> None:
            _bound(rows, self.n_rows, numbers, kind, values, minima, (first, end))

        return RowBounds(values, minima, compute)
