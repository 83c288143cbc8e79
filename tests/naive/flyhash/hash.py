"""FlyHash in plain Python: Philox4x32-10, Lemire's draws, Floyd's subsets, sums and a sort."""

from functools import reduce
from itertools import count
from operator import add

import numpy as np

WORD = 2**32


def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        high_0, low_0 = divmod(0xD2511F53 * c[0], WORD)
        high_1, low_1 = divmod(0xCD9E8D57 * c[2], WORD)
        c = [high_1 ^ c[1] ^ k[0], low_1, high_0 ^ c[3] ^ k[1], low_0]
        k = [(k[0] + 0x9E3779B9) % WORD, (k[1] + 0xBB67AE85) % WORD]
    return c


def stream_words(seed, unit):
    """Yield the endless stream of 32-bit words of one unit."""
    for block in count():
        yield from philox([block, unit % WORD, unit // WORD, 0], [seed % WORD, seed // WORD])


def draw_below(bound, stream):
    for word in stream:
        high, low = divmod(word * bound, WORD)
        if low >= WORD % bound:
            return high
    raise AssertionError("the stream is endless")


def draw_wiring(n_features, n_units, n_inputs, seed):
    return [draw_inputs(n_features, n_inputs, stream_words(seed, unit)) for unit in range(n_units)]


def draw_inputs(n_features, n_inputs, stream):
    features = set()
    for last in range(n_features - n_inputs, n_features):
        feature = draw_below(last + 1, stream)
        features.add(last if feature in features else feature)
    return sorted(features)


def winners(x, wiring, n_active):
    """Return the best units of each row, largest sum first.

    Ties go to the lower unit.
    """
    exact = x.astype(np.float64) if x.dtype.kind == "f" else x
    inputs = wiring.tolist()
    return [best_units(row, inputs, n_active) for row in exact.tolist()]


def best_units(row, inputs, n_active):
    sums = unit_sums(row, inputs)
    return sorted(range(len(sums)), key=lambda unit: (-sums[unit], unit))[:n_active]


def unit_sums(row, inputs):
    """Return exact integer sums, or floats added from left to right."""
    return [reduce(add, [row[feature] for feature in unit]) for unit in inputs]
