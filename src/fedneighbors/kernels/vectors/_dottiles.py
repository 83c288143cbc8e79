"""Dot products of float32 rows with 32 columns of a table, summed in registers.

A line is a row of the table. Sums depend on the machine, because a product and its addition may be
rounded once or twice. They may be used only for choices that are verified afterwards.
"""

# mypy: allow-untyped-defs
# (all functions here emit code; Numba infers their types)

from llvmlite import ir
from numba import types
from numba.core import cgutils

from fedneighbors.kernels._emission import intrinsic, locate

# Digests of the kernel files used here; Numba's cache does not notice edits in other files.
USES = {"emission": "5e83461cfaba370e"}

TILE = 32  # columns that are summed in parallel
# Number of rows that are multiplied together, so that a column is loaded once for all of them. For
# a table of 224 x 29, a row takes 0.16 us instead of 0.27 us.
GROUP = 4

_WORD, _INDEX, _FLOAT = ir.IntType(64), ir.IntType(32), ir.FloatType()
_COLUMNS = ir.VectorType(_FLOAT, TILE)


def _vector(builder, base, offset):
    """Return the address of ``TILE`` floats at an offset."""
    return builder.bitcast(builder.gep(base, [offset]), _COLUMNS.as_pointer())


def _load(builder, address):
    """Load ``TILE`` floats from an address of any alignment."""
    loaded = builder.load(address)
    loaded.align = 4
    return loaded


def _broadcast(builder, value):
    """Broadcast one float to a vector."""
    undefined = ir.Constant(_COLUMNS, ir.Undefined)
    single = builder.insert_element(undefined, value, _INDEX(0))
    all_zero = ir.Constant(ir.VectorType(_INDEX, TILE), [0] * TILE)
    return builder.shuffle_vector(single, single, all_zero)


def _sum_tile(builder, rows, table, first, size):
    """Multiply several rows with the ``TILE`` columns from ``first``.

    Sums start from the last line of the table. ``size`` contains the number of lines before it
    and the length of a line.
    """
    n, stride = size

    def line(k):
        return _load(builder, _vector(builder, table, builder.add(builder.mul(k, stride), first)))

    last_line = line(n)
    totals = [cgutils.alloca_once_value(builder, last_line) for _ in rows]
    for total in totals:
        builder.store(last_line, total)
    with cgutils.for_range(builder, n) as loop:
        column = line(loop.index)
        for row, total in zip(rows, totals, strict=True):
            value = _broadcast(builder, builder.load(builder.gep(row, [loop.index])))
            # allows a fused multiply-add, without which sums take 1.5 times as long
            product = builder.fmul(value, column, flags=("contract",))
            new_total = builder.fadd(builder.load(total), product, flags=("contract",))
            builder.store(new_total, total)
    return [builder.load(total) for total in totals]


def _multiplier(n_rows):
    """Return an intrinsic that multiplies ``n_rows`` rows with ``TILE`` columns.

    Its arguments are: float32 rows (n_rows, n); the table (n + 1, stride); the first column; n;
    stride; float32 (n_rows, stride) for the sums; float32 (n_rows, TILE), each element of which is
    raised to the sum at its offset in the tile if that is larger.
    """

    @intrinsic
    def multiply(_typing, rows, table, first_column, n, stride, dots, maxima):
        def codegen(context, builder, signature, args):
            row_data, table, dots, maxima = (
                locate(context, builder, signature, args, position) for position in (0, 1, 5, 6)
            )
            first_column, n, stride = args[2:5]
            rows = [builder.gep(row_data, [builder.mul(_WORD(r), n)]) for r in range(n_rows)]
            all_sums = _sum_tile(builder, rows, table, first_column, (n, stride))
            for r, sums in enumerate(all_sums):
                target = builder.add(builder.mul(_WORD(r), stride), first_column)
                builder.store(sums, _vector(builder, dots, target)).align = 4
                tile_maxima = _vector(builder, maxima, _WORD(r * TILE))
                old = _load(builder, tile_maxima)
                new_maxima = builder.select(builder.fcmp_ordered(">", sums, old), sums, old)
                builder.store(new_maxima, tile_maxima).align = 4
            return context.get_dummy_value()

        return types.void(rows, table, first_column, n, stride, dots, maxima), codegen

    return multiply


multiply_one, multiply_group = _multiplier(1), _multiplier(GROUP)


@intrinsic
def highest(_typing, maxima, row):
    """Return the largest of the ``TILE`` floats in a row.

    No float may be NaN; otherwise the result is unspecified.
    """

    def codegen(context, builder, signature, args):
        row_data = locate(context, builder, signature, args, 0)
        values = _load(builder, _vector(builder, row_data, builder.mul(args[1], _WORD(TILE))))
        size = TILE
        while size > 1:  # compare halves until one value is left
            size //= 2
            halves = [
                builder.shuffle_vector(
                    values, values, ir.Constant(ir.VectorType(_INDEX, size), list(indices))
                )
                for indices in (range(size), range(size, 2 * size))
            ]
            values = builder.select(builder.fcmp_ordered(">", *halves), *halves)
        return builder.extract_element(values, _INDEX(0))

    return types.float32(maxima, row), codegen


@intrinsic
def positions_from(_typing, maxima, row, least):
    """Return a bit mask of floats that are at least ``least``.

    All bits are set if ``least`` is NaN.
    """

    def codegen(context, builder, signature, args):
        row_data = locate(context, builder, signature, args, 0)
        values = _load(builder, _vector(builder, row_data, builder.mul(args[1], _WORD(TILE))))
        reached = builder.fcmp_unordered(">=", values, _broadcast(builder, args[2]))
        return builder.zext(builder.bitcast(reached, ir.IntType(TILE)), _WORD)

    return types.int64(maxima, row, least), codegen
