"""Naive version of ``fedneighbors.kernels.vectors._quantized``."""

import math
from fractions import Fraction

import numpy as np

from tests.naive.vectors import distances


def encode_row(row, step):
    """Return a row's scale or clipped part, its codes and residual.

    ``step`` is 0 for a scale of its own.
    """
    scale = np.float32(step)
    if step == 0.0:
        scale = np.float32(max(abs(value) for value in row) / 127.0)
    factor = 1.0 / float(scale) if scale > 1e-37 else 0.0
    codes = [int(min(max(np.rint(value * factor), -127.0), 127.0)) for value in row]
    errors = [abs(value - code * float(scale)) for value, code in zip(row, codes, strict=True)]
    residual, clipped = 0.0, 0.0
    for value, error in zip(row, errors, strict=True):
        if step and abs(value) > 127.0 * step:
            clipped += abs(value) - 127.0 * step
        else:
            residual += error if step else error * error
    radius = np.float32((residual if step else math.sqrt(residual)) + 2.0**-140)
    return np.float32(clipped) if step else scale, codes, radius


def encode_query(query, step):
    """Return a query's scale, codes, residual and clipped part."""
    largest = 128 * 127 if step else min(2**15 - 1, (2**31 - 1) // (127 * len(query)))
    scale = step / 128 if step else max(abs(value) for value in query) / largest
    codes = [0] * len(query)
    if scale > 2.0**-900:
        codes = [int(min(max(np.rint(v / scale), -largest), largest)) for v in query]
    inside = [min(max(v, -127 * step), 127 * step) if step else v for v in query]
    errors = np.array([abs(v - scale * code) for v, code in zip(inside, codes, strict=True)])
    residual = float(errors.sum() if step else math.sqrt(np.dot(errors, errors)))
    clipped = float(np.abs(np.array(query) - np.array(inside)).sum())
    return scale, codes, residual + 2.0**-70, clipped


def lower_bounds(rows, query, step, of_products=False):
    """Return the float32 lower bound of each row, as the kernel rounds it."""
    single = np.float32
    t, w, rho, clipped = encode_query(query, step)
    square = float(sum(code * code for code in w))
    size, factor, margin = t * math.sqrt(square) + rho, single(1 - 2.0**-20), single(2.0**-20)
    bounds = []
    for row in rows:
        s, z, r = encode_row(row, step)
        length = single(float(s) * math.sqrt(sum(code * code for code in z)))
        product = single(sum(first * second for first, second in zip(w, z, strict=True)))
        if of_products:
            code_factor = single(rho * (1.0 + 2.0**-20) + 2.0**-20 * size)
            bound = -(s * (single(t) * product)) - code_factor * length
            bound = bound - single(size * (1.0 + 2.0**-20)) * r - single(2.0**-140)
        elif step:
            steps = sum(abs(first - 128 * second) for first, second in zip(w, z, strict=True))
            bound = single(steps) * single(t) * factor
            b = single(clipped)
            bound += abs(b - s) - margin * max(b, s)
            bound -= r + single(rho + t * 2.0**-20)
        else:
            total = (single(t * t * square) + length * length) * factor
            total -= s * (single(2.0 * t) * product)
            bound = np.sqrt(max(total, single(0))) * factor - (r + single(rho))
        bounds.append(bound)
    return bounds


def verify_within(table, order, query, kind, bounds, limit, most):
    """Return rows within a limit, their distances and the lowest bound of the others."""
    rows = [row for row, bound in enumerate(bounds) if bound <= limit]
    rows = rows if len(rows) <= most else []
    lowest = min((bound for row, bound in enumerate(bounds) if row not in rows), default=math.inf)
    taken = [table[order[row]] for row in rows]
    if kind == "PLAIN":
        return rows, distances.absolute_sums(taken, query), lowest
    if kind == "PRODUCT":
        return rows, distances.negative_products(taken, query), lowest
    squares = distances.square_sums(taken, query)
    convert = {"ROOT": math.sqrt, "HALF": lambda square: square * 0.5}.get(kind, float)
    return rows, [convert(square) for square in squares], lowest


def exceeds_distance(bound, row, query, step, of_products=False):
    """Return whether a bound is above the exact distance."""
    pairs = [(Fraction(a), Fraction(b)) for a, b in zip(row, query, strict=True)]
    if of_products:
        return Fraction(float(bound)) > -sum(a * b for a, b in pairs)
    if not bound > 0:
        return False
    if step:
        return Fraction(float(bound)) > sum(abs(a - b) for a, b in pairs)
    return Fraction(float(bound)) ** 2 > sum((a - b) ** 2 for a, b in pairs)
