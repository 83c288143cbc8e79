"""Compiled FlyHash of 64 rows at a time: a quantized filter followed by exact sums.

Each row is quantized to six bits and occupies one lane, a byte of each vector. One vector (a line)
holds a feature of all 64 rows, and a unit's quantized sums for all rows take one addition per
input. A unit is skipped if its quantized sum cannot reach a row's current threshold. Any other unit
is summed exactly from the row itself, and the best units are kept as candidates. The initial
thresholds come from the quantized sums of the first units, or of all, by bisection. The result is
exact for any data: quantization affects only the number of exact sums that are computed
unnecessarily.
"""

# mypy: allow-untyped-defs
# (all functions here are compiled or emit code; Numba infers their types)

import numpy as np
from llvmlite import ir
from numba import njit, types, uint64
from numba.core import cgutils

from fedneighbors.kernels._emission import intrinsic, locate, lowest_bit

# Digests of the kernel files used here; Numba's cache does not notice edits in other files.
USES = {"emission": "5e83461cfaba370e"}

LEVELS = 63  # largest quantized value: the sum of four fits into a byte
_LANES = 64  # rows that are hashed together, one byte each
_MAX_SUM = 65534  # largest quantized sum, below the threshold _NEVER, which no sum reaches
_UNREACHABLE = 65535
_CHUNK = 512  # units that are filtered before those that passed are summed exactly
_MIN_SPARE = 32  # minimum number of candidates in addition to the winners before a lane is trimmed
_SUBSET = 4096  # units in the subset whose sums give a bracket for the bisection over all units

_INT16, _INT64 = ir.IntType(16), ir.IntType(64)
_BYTES, _HALVES = ir.VectorType(ir.IntType(8), 64), ir.VectorType(_INT16, 32)
_EIGHT_BITS = ir.Constant(_HALVES, [8] * 32)


def _load(builder, pointer, kind, alignment):
    """Load a scalar or a vector from an address."""
    loaded = builder.load(builder.bitcast(pointer, kind.as_pointer()))
    loaded.align = alignment
    return loaded


def _load_sums(builder, pointer):
    """Load the sums of 64 lanes as two vectors of 32."""
    addresses = (pointer, builder.gep(pointer, [_INT64(32)]))
    return [_load(builder, address, _HALVES, 2) for address in addresses]


def _store_sums(builder, sums, pointer):
    """Write two vectors of 32 sums, one after the other."""
    for half, address in zip(sums, (pointer, builder.gep(pointer, [_INT64(32)])), strict=True):
        builder.store(half, builder.bitcast(address, _HALVES.as_pointer())).align = 2


def _compare_sums(builder, sums, thresholds):
    """Compare sums with their thresholds and return two vectors of 32 bits."""
    pairs = zip(sums, thresholds, strict=True)
    return [builder.icmp_unsigned(">=", values, limits) for values, limits in pairs]


def _sum_lines(context, builder, signature, args):
    """Emit code for a unit's quantized sums in all lanes.

    The arguments begin with (lines, wiring, start, n_inputs). Bytes are added in groups of four,
    then widened. Even and odd bytes form one vector each; therefore row ``i`` of a block occupies
    byte ``2 i`` of a line if ``i < 32``, and byte ``2 i - 63`` otherwise.
    """
    lines, wiring = (locate(context, builder, signature, args, k) for k in (0, 1))
    inputs, n_inputs = builder.gep(wiring, [args[2]]), args[3]
    both, odd = (cgutils.alloca_once_value(builder, _HALVES(None)) for _ in range(2))

    def line_offsets(first, size):
        """Return offsets of lines in words of 8 bytes."""
        # x86 addressing multiplies an index by 8 at no cost.
        address = builder.gep(inputs, [first])
        if size == 4 and address.type.pointee == _INT16:  # shift four 13-bit indices at once
            four = builder.shl(_load(builder, address, _INT64, 2), _INT64(3))
            shifted = [builder.lshr(four, _INT64(16 * k)) for k in range(4)]
            return [builder.and_(value, _INT64(0xFFFF)) for value in shifted]
        indices = [builder.load(builder.gep(address, [_INT64(k)])) for k in range(size)]
        return [builder.shl(builder.zext(index, _INT64), _INT64(3)) for index in indices]

    def add_group(first, size):
        group = _BYTES(None)
        for offset in line_offsets(first, size):
            line = builder.gep(builder.bitcast(lines, _INT64.as_pointer()), [offset])
            group = builder.add(group, _load(builder, line, _BYTES, _LANES))
        pairs = builder.bitcast(group, _HALVES)
        builder.store(builder.add(builder.load(both), pairs), both)
        builder.store(builder.add(builder.load(odd), builder.lshr(pairs, _EIGHT_BITS)), odd)

    with cgutils.for_range(builder, builder.lshr(n_inputs, _INT64(2))) as loop:
        add_group(builder.shl(loop.index, _INT64(2)), 4)
    n_rest = builder.and_(n_inputs, _INT64(3))
    for size in (1, 2, 3):
        with builder.if_then(builder.icmp_unsigned("==", n_rest, _INT64(size))):
            add_group(builder.sub(n_inputs, n_rest), size)
    odd_total = builder.load(odd)
    return builder.sub(builder.load(both), builder.shl(odd_total, _EIGHT_BITS)), odd_total


def _emit_mask(builder, sums, thresholds):
    """Return a bit mask of the sums that reach their thresholds."""
    low, high = (
        builder.zext(builder.bitcast(reached, ir.IntType(32)), _INT64)
        for reached in _compare_sums(builder, sums, thresholds)
    )
    return builder.or_(low, builder.shl(high, _INT64(32)))


@intrinsic
def _sum_unit(_typing, lines, wiring, start, n_inputs, sums, offset):
    """Write a unit's quantized sums to ``sums``, beginning at ``offset``.

    The unit's inputs begin at ``wiring[start]``.
    """

    def codegen(context, builder, signature, args):
        values = _sum_lines(context, builder, signature, args)
        address = builder.gep(locate(context, builder, signature, args, 4), [args[5]])
        _store_sums(builder, values, address)
        return context.get_dummy_value()

    return types.void(lines, wiring, start, n_inputs, sums, offset), codegen


@intrinsic
def _filter_unit(_typing, lines, wiring, start, n_inputs, thresholds):
    """Return a bit mask of lanes where a unit reaches the threshold."""

    def codegen(context, builder, signature, args):
        values = _sum_lines(context, builder, signature, args)
        limits = locate(context, builder, signature, args, 4)
        return _emit_mask(builder, values, _load_sums(builder, limits))

    return types.uint64(lines, wiring, start, n_inputs, thresholds), codegen


@intrinsic
def _compare_unit(_typing, sums, offset, thresholds):
    """Return a bit mask of stored sums that reach the thresholds.

    The unit's stored sums begin at ``sums[offset]``.
    """

    def codegen(context, builder, signature, args):
        sums, limits = (locate(context, builder, signature, args, k) for k in (0, 2))
        values = _load_sums(builder, builder.gep(sums, [args[1]]))
        return _emit_mask(builder, values, _load_sums(builder, limits))

    return types.uint64(sums, offset, thresholds), codegen


@intrinsic
def _count_units(_typing, sums, n_units, thresholds, counts):
    """Count the stored sums that reach the threshold, by lane.

    Counts over ``n_units`` units are written modulo 65536.
    """

    def codegen(context, builder, signature, args):
        sums, limits, counts = (locate(context, builder, signature, args, k) for k in (0, 2, 3))
        limits = _load_sums(builder, limits)
        totals = [cgutils.alloca_once_value(builder, _HALVES(None)) for _ in limits]
        with cgutils.for_range(builder, args[1]) as loop:
            address = builder.gep(sums, [builder.shl(loop.index, _INT64(6))])
            reached = _compare_sums(builder, _load_sums(builder, address), limits)
            for total, bits in zip(totals, reached, strict=True):
                builder.store(builder.sub(builder.load(total), builder.sext(bits, _HALVES)), total)
        _store_sums(builder, [builder.load(total) for total in totals], counts)
        return context.get_dummy_value()

    return types.void(sums, n_units, thresholds, counts), codegen


@njit(cache=True, nogil=True)
def _allocate_aligned(size):
    """Return zero bytes aligned to a cache line."""
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size]


@njit(cache=True, nogil=True)
def _quantize(row, n_inputs, lane, lines):
    """Write a row's quantized values to its lane.

    Returns (scale, origin, slack) of their sums: a unit with exact sum ``t`` has a quantized sum of
    at least ``scale * (t - origin) - slack``. Rounding loses at most half a step for each input,
    and the last term of the slack exceeds all float errors of the sum itself and of this formula. A
    slack of 0 means that quantized sums are exact. If no scale satisfies the bound, all values are
    quantized to 0, and every unit passes.
    """
    levels = min(LEVELS, _MAX_SUM // n_inputs)
    lowest, highest = float(row.min()), float(row.max())
    value_range = highest - lowest
    is_exact = row.min() == row.max() or (value_range <= levels and row.itemsize <= 4)
    scale = 1.0 if is_exact else (levels / value_range if value_range > 0.0 else np.inf)
    float_error = (n_inputs + 4.0) * n_inputs * 4e-16 * max(abs(lowest), abs(highest))
    slack = 0.0 if is_exact else n_inputs * (0.5 + 1e-9) + 1e-6 + scale * float_error
    if not 0.0 < scale < np.inf or not slack < _MAX_SUM:
        scale, lowest, slack = 0.0, 0.0, 1.0
    origin = 0.0
    for _ in range(n_inputs):  # added up like the sums, so that it is exact for constant rows
        origin += lowest
    byte = 2 * lane if lane < 32 else 2 * lane - 63
    for feature in range(row.size):
        level = 0.0 if scale == 0.0 else scale * (float(row[feature]) - lowest)
        lines[feature * _LANES + byte] = np.uint8(level + 0.5)
    return scale, origin, slack


@njit(cache=True, nogil=True)
def _bisect(sums, n_units, n_wanted, low, high):
    """Find the largest threshold that ``n_wanted`` sums reach, by lane.

    The threshold is at least ``low``, to which it is written, and below ``high``.
    """
    middle, counts = np.empty(_LANES, np.uint16), np.empty(_LANES, np.uint16)
    while (high - low).max() > 1:
        middle[:] = (low + high) // 2
        _count_units(sums, n_units, middle, counts)
        for lane in range(_LANES):
            if counts[lane] >= n_wanted:
                low[lane] = middle[lane]
            else:
                high[lane] = middle[lane]


@njit(cache=True, nogil=True)
def _set_thresholds(sums, n_units, n_wanted, highest, thresholds):
    """Set the largest thresholds that ``n_wanted`` stored sums reach, by lane.

    With many units, a subset first gives a bracket: three standard deviations around the count
    expected in the subset. Counting over all units then checks both ends of the bracket.
    """
    low, high = np.zeros(_LANES, np.int64), np.full(_LANES, highest + 1)
    if n_units > 2 * _SUBSET:
        expected = n_wanted * _SUBSET / n_units
        margin = 3.0 * np.sqrt(expected)
        guess_low, guess_high = low.copy(), low.copy()
        _bisect(sums, _SUBSET, np.ceil(expected + margin), guess_low, high.copy())
        _bisect(sums, _SUBSET, max(np.floor(expected - margin), 1.0), guess_high, high.copy())
        counts = np.empty(_LANES, np.uint16)
        for guess in (guess_low, guess_high + 1):
            thresholds[:] = guess
            _count_units(sums, n_units, thresholds, counts)
            for lane in range(_LANES):
                if counts[lane] >= n_wanted:
                    low[lane] = max(low[lane], guess[lane])
                else:
                    high[lane] = min(high[lane], guess[lane])
    _bisect(sums, n_units, n_wanted, low, high)
    thresholds[:] = low


@njit(cache=True, nogil=True)
def _collect(sums, n_units, thresholds, units):
    """Write the winners from exact sums of all units.

    ``thresholds`` holds the least winning sum of each lane.
    """
    n_rows, n_active = units.shape
    least = thresholds.copy()
    above, n_above = thresholds + np.uint16(1), np.empty(_LANES, np.uint16)
    _count_units(sums, n_units, above, n_above)
    # number of winners with the least winning sum; the lowest such units win
    n_ties = n_active - n_above.astype(np.int64)
    n_written = np.zeros(_LANES, np.int64)
    thresholds[n_rows:] = _UNREACHABLE
    for unit in range(n_units):
        mask = _compare_unit(sums, unit * _LANES, thresholds)
        while mask != uint64(0):
            lane = lowest_bit(mask)
            mask &= mask - uint64(1)
            units[lane, n_written[lane]] = unit
            n_written[lane] += 1
            if sums[unit * _LANES + lane] == least[lane]:
                n_ties[lane] -= 1
                if n_ties[lane] == 0:
                    thresholds[lane] = above[lane]


@njit(cache=True, nogil=True)
def _filter_chunk(lines, wiring, n_inputs, stored, start, thresholds, passed_units, masks):
    """Record the units of a chunk that pass the filter.

    These units reach the threshold in at least one lane. Returns their number.
    """
    n_passed = 0
    for unit in range(start, min(start + _CHUNK, wiring.size // n_inputs)):
        if unit * _LANES < stored.size:
            mask = _compare_unit(stored, unit * _LANES, thresholds)
        else:
            mask = _filter_unit(lines, wiring, unit * n_inputs, n_inputs, thresholds)
        passed_units[n_passed], masks[n_passed] = unit, mask
        n_passed += mask != uint64(0)
    return n_passed


@njit(cache=True, nogil=True)
def _threshold(affine, lane, least, is_candidate):
    """Return the least quantized sum that may displace a sum of ``least``.

    If quantized sums are exact, an existing candidate is displaced only by larger sums, because
    later units have higher indices.
    """
    scale, origin, slack = affine[lane, 0], affine[lane, 1], affine[lane, 2]
    bound = scale * (float(least) - origin) - slack
    if slack == 0.0 and is_candidate:
        bound += 1.0
    return np.uint16(min(max(np.floor(bound), 0.0), float(_MAX_SUM)))


@njit(cache=True, nogil=True)
def _select_best(sums, units, n_keep):
    """Move the best ``n_keep`` units to the front by quickselect.

    Returns the least sum among them.
    """
    first, last = 0, sums.size - 1
    while first < last:
        middle = (first + last) // 2
        pivot, pivot_unit, low, high = sums[middle], units[middle], first, last
        while low <= high:
            while sums[low] > pivot or (sums[low] == pivot and units[low] < pivot_unit):
                low += 1
            while sums[high] < pivot or (sums[high] == pivot and units[high] > pivot_unit):
                high -= 1
            if low <= high:
                sums[low], sums[high] = sums[high], sums[low]
                units[low], units[high] = units[high], units[low]
                low, high = low + 1, high - 1
        if n_keep <= high + 1:
            last = high
        elif n_keep > low:
            first = low
        else:
            break
    return sums[:n_keep].min()


@njit(cache=True, nogil=True)
def _add_candidates(x, wiring, zero, passed, affine, limits, candidates, n_active):
    """Add the units that passed, with exact sums, to the candidates.

    A lane that is full is trimmed to its best ``n_active`` candidates.
    """
    width, n_inputs = x.shape[1], wiring.shape[1]
    rows, inputs = x.reshape(-1), wiring.reshape(-1)
    (passed_units, masks), (sums, units, n_candidates) = passed, candidates
    for i in range(passed_units.size):
        unit, mask = passed_units[i], masks[i]
        while mask != uint64(0):
            lane = lowest_bit(mask)
            mask &= mask - uint64(1)
            total, row, first = zero, uint64(lane * width), uint64(unit * n_inputs)
            # unsigned indices avoid the wraparound check for negative ones
            for k in range(first, first + uint64(n_inputs)):
                total += rows[row + uint64(inputs[k])]
            sums[lane, n_candidates[lane]], units[lane, n_candidates[lane]] = total, unit
            n_candidates[lane] += 1
            if n_candidates[lane] == sums.shape[1]:
                least = _select_best(sums[lane], units[lane], n_active)
                limits[lane] = max(limits[lane], _threshold(affine, lane, least, True))
                n_candidates[lane] = n_active


@njit(cache=True, nogil=True)
def _hash_block(x, wiring, zero, lines, stored, units):
    """Write the winners of up to 64 rows in arbitrary order."""
    (n_units, n_inputs), inputs, n_stored = wiring.shape, wiring.reshape(-1), stored.size // _LANES
    affine = np.ones((_LANES, 3))  # scale, origin and slack of each lane
    n_candidates, n_active = np.zeros(_LANES, np.int64), units.shape[1]
    passed_units, masks = np.empty(_CHUNK, np.int64), np.empty(_CHUNK, np.uint64)
    limits = np.zeros(_LANES, np.uint16)
    shape = _LANES, n_active + max(_MIN_SPARE, min(n_active, 4 * _CHUNK))
    sums, best_units = np.empty(shape, type(zero)), np.empty(shape, np.int32)
    for lane in range(x.shape[0]):
        affine[lane] = _quantize(x[lane], n_inputs, lane, lines)
    for unit in range(n_stored):
        _sum_unit(lines, inputs, unit * n_inputs, n_inputs, stored, unit * _LANES)
    if n_stored > 0:
        _set_thresholds(stored, n_stored, n_active, min(LEVELS * n_inputs, _MAX_SUM), limits)
    if n_stored == n_units:
        if affine[: x.shape[0], 2].max() == 0.0:
            _collect(stored, n_units, limits, units)
            return
        # n_active units have exact sums (scaled) of at least the limit minus one slack, so the
        # quantized sum of a winner is at least the limit minus two slacks
        limits[:] = np.maximum(limits - np.ceil(2.0 * affine[:, 2]), 0.0).astype(np.uint16)
        n_stored = 0
    limits[x.shape[0] :] = _UNREACHABLE
    for end in (n_stored, n_units):
        n_candidates[:] = 0
        for start in range(0, end, _CHUNK):
            n = _filter_chunk(lines, inputs, n_inputs, stored, start, limits, passed_units, masks)
            passed, candidates = (passed_units[:n], masks), (sums, best_units, n_candidates)
            _add_candidates(x, wiring, zero, passed, affine, limits, candidates, n_active)
        for lane in range(x.shape[0]):
            if n_candidates[lane] >= n_active:  # after the first pass, only a lower bound
                least = _select_best(sums[lane, : n_candidates[lane]], best_units[lane], n_active)
                limits[lane] = _threshold(affine, lane, least, False)
    units[:] = best_units[: x.shape[0], :n_active]


@njit(cache=True, nogil=True)
def hash_rows(x, wiring, zero, n_stored, units):
    """Write the winners of each row to ``units`` in arbitrary order.

    ``x`` and ``wiring`` are in C order; sums have the type of ``zero``. The quantized sums of the
    first ``n_stored`` units are stored and give the initial thresholds. ``n_stored`` is 0, or at
    least the number of winners and at most 65535.
    """
    lines = _allocate_aligned(_LANES * x.shape[1])
    stored = _allocate_aligned(2 * _LANES * n_stored).view(np.uint16)
    for first in range(0, x.shape[0], _LANES):
        rows = slice(first, min(first + _LANES, x.shape[0]))
        _hash_block(x[rows], wiring, zero, lines, stored, units[rows])
