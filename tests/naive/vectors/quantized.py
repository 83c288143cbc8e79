"""Naive version of ``fedneighbors.kernels.vectors._quantized``."""

import math
from fractions import Fraction

import numpy as np


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
    return scale, codes, residual + 2.0**-140, clipped


def lower_bounds(rows, query, step, of_products=False):
    """Return the float32 lower bound of each row, as the kernel rounds it."""
    t, w, rho, b = encode_query(query, step)
    own = t * t * float(sum(code * code for code in w))
    bounds = []
    for row in rows:
        scale, z, r = encode_row(row, step)
        s = float(scale)
        if of_products:
            size = math.sqrt(own) + rho
            other = math.sqrt(sum(code * code for code in z))
            code_factor = rho * (1.0 + 2.0**-20) + 2.0**-20 * size
            product = sum(a * b for a, b in zip(w, z, strict=True))
            bounds.append(
                np.float32(
                    -s * (t * product + code_factor * other)
                    - size * (1.0 + 2.0**-20) * float(r)
                    - 2.0**-140
                )
            )
        elif step:
            length = sum(abs(first - 128 * second) for first, second in zip(w, z, strict=True)) * t
            beyond = max(b * (1.0 - 2.0**-20) - s, 0.0)
            bounds.append(np.float32(length * (1.0 - 2.0**-20) + beyond - (float(r) + rho)))
        else:
            other = s * s * sum(code * code for code in z)
            product = sum(a * b for a, b in zip(w, z, strict=True))
            square = own - 2.0 * t * s * product + other - 2.0**-50 * (own + other)
            length = math.sqrt(max(square, 0.0))
            bounds.append(np.float32(length * (1.0 - 2.0**-20) - (float(r) + rho)))
    return bounds


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
