"""Dot products of float32 rows with 32 columns of a table, summed in registers.

Results depend on the machine, which may round a product and an addition once or twice. Use them for
proposals that are verified afterwards.
"""

# mypy: allow-untyped-defs
# (all functions here emit code; Numba infers their types)

from llvmlite import ir
from numba import types
from numba.core import cgutils

from fedneighbors.kernels._emission import intrinsic, locate

USES = {"emission": "42763a22ce349182"}

TILE = 32  # columns that are summed in parallel
# Number of rows that share the loads of a column: for a table of 224 x 29 this takes 0.16 us a row
# instead of 0.27.
GROUP = 4

_WORD, _INDEX, _FLOAT = ir.IntType(64), ir.IntType(32), ir.FloatType()
_COLUMNS = ir.VectorType(_FLOAT, TILE)


def _vector(builder, base, offset):
    """Return the address of ``TILE`` floats at an offset."""
    return builder.bitcast(builder.gep(base, [offset]), _COLUMNS.as_pointer())


def _load(builder, place):
    """Load ``TILE`` floats from an address of any alignment."""
    loaded = builder.load(place)
    loaded.align = 4
    return loaded


def _spread(builder, value):
    """Broadcast one float to a vector."""
    empty = ir.Constant(_COLUMNS, ir.Undefined)
    single = builder.insert_element(empty, value, _INDEX(0))
    everywhere = ir.Constant(ir.VectorType(_INDEX, TILE), [0] * TILE)
    return builder.shuffle_vector(single, single, everywhere)


def _sum_tile(builder, rows, table, place, size):
    """Sum ``TILE`` columns for several rows.

    Sums start from the last line of the table. ``size`` is the number of lines that are multiplied
    and the length of a line.
    """
    n, stride = size

    def line(k):
        return _load(builder, _vector(builder, table, builder.add(builder.mul(k, stride), place)))

    start = line(n)
    totals = [cgutils.alloca_once_value(builder, start) for _ in rows]
    for total in totals:
        builder.store(start, total)
    with cgutils.for_range(builder, n) as loop:
        column = line(loop.index)
        for row, total in zip(rows, totals, strict=True):
            value = _spread(builder, builder.load(builder.gep(row, [loop.index])))
            # allows a fused multiply-add, without which sums take 1.5 times as long
            product = builder.fmul(value, column, flags=("contract",))
            added = builder.fadd(builder.load(total), product, flags=("contract",))
            builder.store(added, total)
    return [builder.load(total) for total in totals]


def _multiplier(n_rows):
    """Make an intrinsic that multiplies ``n_rows`` rows with ``TILE`` columns.

    Its arguments are: float32 rows (n_rows, n); the table (n + 1, stride); the first column; n;
    stride; float32 (n_rows, stride) for the sums; float32 (n_rows, TILE), each element of which is
    raised to the sum if that is larger.
    """

    @intrinsic
    def multiply(_typing, rows, table, place, n, stride, dots, peaks):
        def codegen(context, builder, signature, args):
            first, table, dots, peaks = (
                locate(context, builder, signature, args, position) for position in (0, 1, 5, 6)
            )
            place, n, stride = args[2:5]
            rows = [builder.gep(first, [builder.mul(_WORD(r), n)]) for r in range(n_rows)]
            sums = _sum_tile(builder, rows, table, place, (n, stride))
            for r, value in enumerate(sums):
                target = builder.add(builder.mul(_WORD(r), stride), place)
                builder.store(value, _vector(builder, dots, target)).align = 4
                peak = _vector(builder, peaks, _WORD(r * TILE))
                old = _load(builder, peak)
                larger = builder.select(builder.fcmp_ordered(">", value, old), value, old)
                builder.store(larger, peak).align = 4
            return context.get_dummy_value()

        return types.void(rows, table, place, n, stride, dots, peaks), codegen

    return multiply


multiply_one, multiply_group = _multiplier(1), _multiplier(GROUP)


@intrinsic
def highest(_typing, peaks, row):
    """Return the largest of the ``TILE`` floats in a row.

    No float may be NaN; otherwise the result is unspecified.
    """

    def codegen(context, builder, signature, args):
        base = locate(context, builder, signature, args, 0)
        values = _load(builder, _vector(builder, base, builder.mul(args[1], _WORD(TILE))))
        size = TILE
        while size > 1:  # compare halves until one value is left
            size //= 2
            halves = [
                builder.shuffle_vector(
                    values, values, ir.Constant(ir.VectorType(_INDEX, size), list(places))
                )
                for places in (range(size), range(size, 2 * size))
            ]
            values = builder.select(builder.fcmp_ordered(">", *halves), *halves)
        return builder.extract_element(values, _INDEX(0))

    return types.float32(peaks, row), codegen


@intrinsic
def lanes_from(_typing, peaks, row, least):
    """Return a bit mask of a row's floats that reach a value.

    All bits are set if the value is NaN.
    """

    def codegen(context, builder, signature, args):
        base = locate(context, builder, signature, args, 0)
        values = _load(builder, _vector(builder, base, builder.mul(args[1], _WORD(TILE))))
        reached = builder.fcmp_unordered(">=", values, _spread(builder, args[2]))
        return builder.zext(builder.bitcast(reached, ir.IntType(TILE)), _WORD)

    return types.int64(peaks, row, least), codegen
