"""Distribution of Algorithm 2's DP() step, summed over all picks and noise values."""

import math
from collections import defaultdict


def laplace_probability(k, scale):
    a = math.exp(-1 / scale)
    return (1 - a) / (1 + a) * a ** abs(k)


def released_distribution(counts, epsilon, n_picks, max_noise):
    """Return {released counts: probability}, with noise truncated at +-max_noise."""
    states = {(tuple(counts), frozenset()): 1.0}
    for _ in range(n_picks):  # lines 18-23
        next_states = defaultdict(float)
        for (c, picked), probability in states.items():
            total = sum(math.exp(epsilon * x / (4 * n_picks)) for x in c)
            for i, x in enumerate(c):
                pick_probability = probability * math.exp(epsilon * x / (4 * n_picks)) / total
                for eta in range(-max_noise, max_noise + 1):
                    noisy_counts = (*c[:i], max(x + eta, 0), *c[i + 1 :])
                    next_states[noisy_counts, picked | {i}] += (
                        pick_probability * laplace_probability(eta, 2 * n_picks / epsilon)
                    )
        states = next_states
    released = defaultdict(float)
    for (c, picked), probability in states.items():
        released[tuple(x if i in picked else 0 for i, x in enumerate(c))] += probability
    return dict(released)
