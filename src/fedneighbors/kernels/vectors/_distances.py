"""Distances from one query to rows of a table, summed in a fixed order.

Terms are squared or absolute differences, or negative products.

A distance depends on its row and the query alone, not on the machine, the other rows or the row's
position. It is summed in eight accumulators (lanes): element ``j`` is added to lane ``j % 8``, a
remainder of fewer than eight elements to lane 0; the lanes are then added as
``((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7))``. Great-circle distances between points on the Earth
use the haversine formula.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.errors import TypingError

from fedneighbors._typing import Floats
from fedneighbors.kernels._emission import intrinsic

# Digests of the kernel files used here; Numba's cache does not notice edits in other files.
USES = {"emission": "5e83461cfaba370e"}

EARTH_RADIUS_M = 6_371_008.8
"""Mean radius of the Earth (IUGG), metres."""

_RADIANS = math.pi / 180.0


# Numba does not combine scalar operations into vector instructions, so sums are emitted as such.
_WORD, _INDEX, _FLOAT = ir.IntType(64), ir.IntType(32), ir.DoubleType()
_N_LANES = 8
TILE = 4  # rows of which eight sums fit the registers


def _square(builder: Any, first: Any, second: Any) -> Any:
    difference = builder.fsub(first, second)
    return builder.fmul(difference, difference)


def _multiply(builder: Any, first: Any, second: Any) -> Any:
    """Return the negative product, so that sums start from positive zero."""
    return builder.fneg(builder.fmul(first, second))


def _absolute(builder: Any, first: Any, second: Any) -> Any:
    """Return the absolute differences of numbers or of vectors."""
    difference = builder.fsub(first, second)
    kind, bits = difference.type, _WORD
    mask: Any = 2**63 - 1
    if isinstance(kind, ir.VectorType):
        bits, mask = ir.VectorType(_WORD, kind.count), [mask] * kind.count
    cleared = builder.and_(builder.bitcast(difference, bits), ir.Constant(bits, mask))
    return builder.bitcast(cleared, kind)


def _load(builder: Any, address: Any, size: int) -> Any:
    """Load one or several numbers from an address, converted to float64."""
    stored = address.type.pointee
    n_bytes = {ir.FloatType(): 4, _FLOAT: 8}.get(stored, 1)
    if size > 1:
        stored = ir.VectorType(stored, size)
        address = builder.bitcast(address, stored.as_pointer())
    value = builder.load(address)
    value.align = n_bytes
    kind = _FLOAT if size == 1 else ir.VectorType(_FLOAT, size)
    if n_bytes == 8:
        return value
    return builder.fpext(value, kind) if n_bytes == 4 else builder.uitofp(value, kind)


def _fold(builder: Any, lanes: Any) -> Any:
    """Add the upper half of the lanes to the lower half."""
    n = lanes.type.count
    halves = [
        builder.shuffle_vector(
            lanes, lanes, ir.Constant(ir.VectorType(_INDEX, n // 2), list(indices))
        )
        for indices in (range(n // 2), range(n // 2, n))
    ]
    return builder.fadd(*halves)


def _emit_sum(builder: Any, row: Any, query: Any, n: Any, make_term: Any) -> Any:
    """Emit the sum of the terms of ``n`` pairs of elements."""

    def emit_term(j: Any, size: int) -> Any:
        values = [_load(builder, builder.gep(base, [j]), size) for base in (row, query)]
        return make_term(builder, *values)

    total = cgutils.alloca_once_value(builder, _zeros(_N_LANES))
    n_vectors = builder.udiv(n, _WORD(_N_LANES))
    with cgutils.for_range(builder, n_vectors) as loop:
        term = emit_term(builder.mul(loop.index, _WORD(_N_LANES)), _N_LANES)
        builder.store(builder.fadd(builder.load(total), term), total)
    lanes = builder.load(total)
    first = cgutils.alloca_once_value(builder, builder.extract_element(lanes, _INDEX(0)))
    n_in_lanes = builder.mul(n_vectors, _WORD(_N_LANES))
    with cgutils.for_range(builder, n, start=n_in_lanes) as loop:
        builder.store(builder.fadd(builder.load(first), emit_term(loop.index, 1)), first)
    lanes = builder.insert_element(lanes, builder.load(first), _INDEX(0))
    for _ in range(3):
        lanes = _fold(builder, lanes)
    return builder.extract_element(lanes, _INDEX(0))


def _emit_tile(builder: Any, column: Any, query: Any, size: tuple[Any, Any], make_term: Any) -> Any:
    """Emit the sums of ``TILE`` adjacent rows of a table of columns.

    ``size`` contains the number of columns and the length of a column.
    """
    n, stride = size
    lanes = [cgutils.alloca_once_value(builder, _zeros(TILE)) for _ in range(_N_LANES)]

    def add_term(j: Any, lane: Any) -> None:
        values = _load(builder, builder.gep(column, [builder.mul(j, stride)]), TILE)
        element = builder.insert_element(
            ir.Constant(values.type, ir.Undefined), builder.load(builder.gep(query, [j])), _INDEX(0)
        )
        all_zero = ir.Constant(ir.VectorType(_INDEX, TILE), [0] * TILE)
        element = builder.shuffle_vector(element, element, all_zero)
        term = make_term(builder, values, element)
        builder.store(builder.fadd(builder.load(lane), term), lane)

    n_vectors = builder.udiv(n, _WORD(_N_LANES))
    with cgutils.for_range(builder, n_vectors) as loop:
        for i, lane in enumerate(lanes):
            add_term(builder.add(builder.mul(loop.index, _WORD(_N_LANES)), _WORD(i)), lane)
    n_in_lanes = builder.mul(n_vectors, _WORD(_N_LANES))
    with cgutils.for_range(builder, n, start=n_in_lanes) as loop:
        add_term(loop.index, lanes[0])
    with builder.if_then(builder.icmp_unsigned("!=", n_vectors, _WORD(0))):
        totals = [builder.load(lane) for lane in lanes]
        while len(totals) > 1:
            half = len(totals) // 2
            pairs = zip(totals[:half], totals[half:], strict=True)
            totals = [builder.fadd(*pair) for pair in pairs]
        builder.store(totals[0], lanes[0])
    return builder.load(lanes[0])


def _zeros(n: int) -> Any:
    return ir.Constant(ir.VectorType(_FLOAT, n), [0.0] * n)


def _locate_row(context: Any, builder: Any, signature: Any, args: Any, position: int) -> Any:
    """Return the address and length of a row ``table[index]``."""
    kind = signature.args[position]
    if kind.layout != "C":
        raise TypingError("expected arrays in C order")
    table = context.make_array(kind)(context, builder, args[position])
    n = cgutils.unpack_tuple(builder, table.shape)[-1]
    return builder.gep(table.data, [builder.mul(args[position + 1], n)]), n


def _row_sum(make_term: Any) -> Any:
    """Return the generator of a row's sum."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        row, n = _locate_row(context, builder, signature, args, 0)
        query, _ = _locate_row(context, builder, signature, args, 2)
        return _emit_sum(builder, row, query, n, make_term)

    return codegen


def _tile_sums(make_term: Any) -> Any:
    """Return the generator of a tile's sums."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        columns = context.make_array(signature.args[0])(context, builder, args[0])
        size = tuple(cgutils.unpack_tuple(builder, columns.shape))
        query, _ = _locate_row(context, builder, signature, args, 2)
        column = builder.gep(columns.data, [args[1]])
        totals = _emit_tile(builder, column, query, size, make_term)
        sums = context.make_array(signature.args[4])(context, builder, args[4]).data
        target = builder.gep(sums, [args[5]])
        target = builder.bitcast(target, totals.type.as_pointer())
        builder.store(totals, target).align = 8
        return context.get_dummy_value()

    return codegen


@intrinsic
def _sum_of_squares(_typing: Any, x: Any, i: Any, queries: Any, q: Any) -> Any:
    """Return the sum of squared differences of row ``x[i]`` and ``queries[q]``.

    Indices are not checked. ``queries`` may be a vector; then ``q`` must be 0.
    """
    i, q = types.unliteral(i), types.unliteral(q)
    return types.float64(x, i, queries, q), _row_sum(_square)


@intrinsic
def _sum_of_absolutes(_typing: Any, x: Any, i: Any, queries: Any, q: Any) -> Any:
    """Return the sum of absolute differences, as ``_sum_of_squares``."""
    i, q = types.unliteral(i), types.unliteral(q)
    return types.float64(x, i, queries, q), _row_sum(_absolute)


@intrinsic
def _sum_of_products(_typing: Any, x: Any, i: Any, queries: Any, q: Any) -> Any:
    """Return the negative inner product, as ``_sum_of_squares``."""
    i, q = types.unliteral(i), types.unliteral(q)
    return types.float64(x, i, queries, q), _row_sum(_multiply)


@intrinsic
def _sum_squares_of_tile(
    _typing: Any, columns: Any, first: Any, queries: Any, q: Any, sums: Any, start: Any
) -> Any:
    """Store the sums of ``TILE`` rows from ``first`` at ``sums[start:]``.

    ``columns`` is a table of one column a row. Indices are not checked.
    """
    return types.void(columns, first, queries, q, sums, start), _tile_sums(_square)


@intrinsic
def _sum_absolutes_of_tile(
    _typing: Any, columns: Any, first: Any, queries: Any, q: Any, sums: Any, start: Any
) -> Any:
    """Store the sums of absolute differences, as ``_sum_squares_of_tile``."""
    return types.void(columns, first, queries, q, sums, start), _tile_sums(_absolute)


@intrinsic
def _sum_products_of_tile(
    _typing: Any, columns: Any, first: Any, queries: Any, q: Any, sums: Any, start: Any
) -> Any:
    """Store the negative inner products, as ``_sum_squares_of_tile``."""
    return types.void(columns, first, queries, q, sums, start), _tile_sums(_multiply)


@njit(cache=True, nogil=True)
def _square_sums(x: Any, query: Any, positions: Any, out: Any) -> None:
    for i in range(out.shape[0]):
        row = i if positions is None else positions[i]
        out[i] = _sum_of_squares(x, row, query, 0)


@njit(cache=True, nogil=True)
def _absolute_sums(x: Any, query: Any, positions: Any, out: Any) -> None:
    for i in range(out.shape[0]):
        row = i if positions is None else positions[i]
        out[i] = _sum_of_absolutes(x, row, query, 0)


@njit(cache=True, nogil=True)
def _negative_products(x: Any, query: Any, positions: Any, out: Any) -> None:
    for i in range(out.shape[0]):
        row = i if positions is None else positions[i]
        out[i] = _sum_of_products(x, row, query, 0)


def square_sums(
    x: npt.NDArray[Any],
    query: Floats,
    positions: npt.NDArray[np.int64] | None = None,
) -> Floats:
    """Return the sums of squared differences between rows and a query.

    Parameters
    ----------
    x : float64, float32 or uint8 array of shape (n_rows, n_columns), C order
        Rows. Elements are converted to float64 first; sums are float64.
    query : float64 array of shape (n_columns,)
        The query.
    positions : int64 array of shape (n,), optional
        Indices of rows, in any order; all rows by default.

    Returns
    -------
    float64 array of shape (n,) or (n_rows,)
        Non-negative; infinite if a square overflows.

    Raises
    ------
    ValueError
        If the lengths disagree or a position is out of range.
    """
    return _sum_rows(_square_sums, x, query, positions)


def absolute_sums(
    x: npt.NDArray[Any],
    query: Floats,
    positions: npt.NDArray[np.int64] | None = None,
) -> Floats:
    """Return the sums of absolute differences between rows and a query.

    Parameters
    ----------
    x : float64, float32 or uint8 array of shape (n_rows, n_columns), C order
        Rows. Elements are converted to float64 first; sums are float64.
    query : float64 array of shape (n_columns,)
        The query.
    positions : int64 array of shape (n,), optional
        Indices of rows, in any order; all rows by default.

    Returns
    -------
    float64 array of shape (n,) or (n_rows,)
        Non-negative.

    Raises
    ------
    ValueError
        If the lengths disagree or a position is out of range.
    """
    return _sum_rows(_absolute_sums, x, query, positions)


def negative_products(
    x: npt.NDArray[Any],
    query: Floats,
    positions: npt.NDArray[np.int64] | None = None,
) -> Floats:
    """Return the negative inner products of rows and a query.

    Parameters
    ----------
    x : float64, float32 or uint8 array of shape (n_rows, n_columns), C order
        Rows. Elements are converted to float64 first; sums are float64.
    query : float64 array of shape (n_columns,)
        The query.
    positions : int64 array of shape (n,), optional
        Indices of rows, in any order; all rows by default.

    Returns
    -------
    float64 array of shape (n,) or (n_rows,)
        Never negative zero; not finite if a product or a sum overflows.

    Raises
    ------
    ValueError
        If the lengths disagree or a position is out of range.
    """
    return _sum_rows(_negative_products, x, query, positions)


def _sum_rows(
    loop: Any,
    x: npt.NDArray[Any],
    query: Floats,
    positions: npt.NDArray[np.int64] | None,
) -> Floats:
    """Check the arguments and run the loop over the rows."""
    if query.shape != x.shape[1:]:
        raise ValueError(f"expected a query of shape {x.shape[1:]}, got {query.shape}")
    if positions is not None:
        _check_positions(positions, len(x))
    out = np.empty(len(x) if positions is None else len(positions))
    loop(x, query, positions, out)
    return out


def _check_positions(positions: npt.NDArray[np.int64], n: int) -> None:
    if len(positions) and positions.view(np.uint64).max() >= n:  # negative ones are large
        raise ValueError(f"expected positions from 0 to {n - 1}, got one out of range")


@njit(cache=True, nogil=True)
def to_angles(longitude: Any, latitude: Any) -> Any:
    """Return longitude, latitude and the cosine of the latitude, given degrees."""
    return longitude * _RADIANS, latitude * _RADIANS, math.cos(latitude * _RADIANS)


@njit(cache=True, nogil=True)
def measure_m(
    longitude: float,
    latitude: float,
    cosine: float,
    longitude2: float,
    latitude2: float,
    cosine2: float,
) -> Any:
    """Return the distance of two places in metres, given their angles."""
    sine_lat = math.sin((latitude - latitude2) * 0.5)
    sine_lon = math.sin((longitude - longitude2) * 0.5)
    sine = math.sqrt(sine_lat * sine_lat + cosine * cosine2 * (sine_lon * sine_lon))
    if sine > 1.0:  # by rounding; min() would hide NaN
        sine = 1.0
    return 2.0 * EARTH_RADIUS_M * math.asin(sine)


@njit(cache=True, nogil=True)
def _great_circle(places: Any, query: Any, positions: Any, out: Any) -> int:
    # The return on NaN keeps the compiler from vectorizing the loop. If a vector math library was
    # installed, a place's distance could otherwise depend on its position in the loop.
    longitude, latitude, cosine = to_angles(query[0], query[1])
    for i in range(positions.shape[0]):
        p = positions[i]
        longitude2, latitude2, cosine2 = to_angles(places[p, 0], places[p, 1])
        metres = measure_m(longitude, latitude, cosine, longitude2, latitude2, cosine2)
        if math.isnan(metres):
            return i
        out[i] = metres
    return -1


def great_circle_m(places: Floats, query: Floats, positions: npt.NDArray[np.int64]) -> Floats:
    """Return the great-circle distances from a query to places, in metres.

    The distance is ``2 R asin(sqrt(h))`` with
    ``h = sin(dlat / 2)**2 + cos(lat1) cos(lat2) sin(dlon / 2)**2``. It is symmetric bit for bit.

    Parameters
    ----------
    places : float64 array of shape (n_places, 2), C order
        Longitude and latitude in degrees.
    query : float64 array of shape (2,)
        Longitude and latitude in degrees.
    positions : int64 array of shape (n,)
        Indices of places.

    Returns
    -------
    float64 array of shape (n,)
        Metres, from 0 to half the circumference.

    Raises
    ------
    ValueError
        If shapes disagree, a position is out of range or a coordinate is not finite.
    """
    if places.shape[1:] != (2,) or query.shape != (2,):
        raise ValueError(
            f"expected places of shape (n, 2) and a query of shape (2,), got {places.shape} and "
            f"{query.shape}"
        )
    _check_positions(positions, len(places))
    out = np.empty(len(positions))
    failed = _great_circle(places, query, positions, out)
    if failed >= 0:
        raise ValueError(f"place {positions[failed]} or the query is not finite; expected degrees")
    return out
