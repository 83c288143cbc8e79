"""Distribution of Algorithm 2's DP() step, summed over all picks and noise values."""

import math
from collections import defaultdict


def laplace(k, scale):
    a = math.exp(-1 / scale)
    return (1 - a) / (1 + a) * a ** abs(k)


def law(counts, epsilon, n_picks, reach):
    """Return {released counts: probability}, with noise truncated at +-reach."""
    states = {(tuple(counts), frozenset()): 1.0}
    for _ in range(n_picks):  # lines 18-23
        after = defaultdict(float)
        for (c, picked), mass in states.items():
            total = sum(math.exp(epsilon * x / (4 * n_picks)) for x in c)
            for i, x in enumerate(c):
                chance = mass * math.exp(epsilon * x / (4 * n_picks)) / total
                for eta in range(-reach, reach + 1):
                    changed = (*c[:i], max(x + eta, 0), *c[i + 1 :])
                    after[changed, picked | {i}] += chance * laplace(eta, 2 * n_picks / epsilon)
        states = after
    released = defaultdict(float)
    for (c, picked), mass in states.items():
        released[tuple(x if i in picked else 0 for i, x in enumerate(c))] += mass
    return dict(released)
