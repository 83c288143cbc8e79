"""DANN* over lists of numbers, and the exact distribution of one provider's view of a query."""

import itertools
import math
from functools import lru_cache


def first_counts(bounds, k):
    """Count how many of the k lowest bounds belong to each provider.

    Ties go to the lower name.
    """
    merged = sorted(
        (bound, name, j) for name in bounds for j, bound in enumerate(sorted(bounds[name]))
    )
    return {name: sum(owner == name for _, owner, _ in merged[:k]) for name in bounds}


def rank_of_last(objects, prefixes, viewer, k):
    """Return the rank of the viewer's last returned object.

    The rank is among all returned objects, and k if it is larger or if the viewer has no objects.
    """
    rows = {name: sorted(objects[name])[: prefixes[name]] for name in objects}
    if not rows[viewer]:
        return k
    merged = sorted(item for row in rows.values() for item in row)
    return min(merged.index(rows[viewer][-1]) + 1, k)


def noise_at_most(value, scale):
    """Return P(L <= value) for discrete Laplace noise L."""
    a = math.exp(-1 / float(scale))
    return a**-value / (1 + a) if value < 0 else 1 - a ** (value + 1) / (1 + a)


@lru_cache(maxsize=100_000)
def clipped_distribution(center, scale, low, high, *, floor=-math.inf):
    """Return the distribution of clipped noisy counts as a dict.

    The counts are ``center + max(noise, floor)``, clipped to [low, high].
    """
    distribution = {}
    for value in range(low, high + 1):
        at_most = 1.0 if value == high else _noisy_at_most(value - center, scale, floor)
        below = 0.0 if value == low else _noisy_at_most(value - 1 - center, scale, floor)
        distribution[value] = at_most - below
    return distribution


def _noisy_at_most(value, scale, floor):
    return 0.0 if value < floor else noise_at_most(value, scale)


def view(bounds, objects, viewer, k, noise):
    """Return the distribution of the two counts requested from the viewer.

    The result maps (first count, second count) of a DANN* query to probabilities. ``noise`` is a
    ``CountNoise``. Counts are totals, as in the paper.
    """
    counts = first_counts(bounds, k)
    firsts = {
        name: clipped_distribution(counts[name] + noise.first_shift, noise.first_scale, 1, k)
        for name in counts
    }
    floor = -noise.second_shift if noise.promise == "exact" else -math.inf

    def second(requested, rank):
        center = requested[viewer] + k - rank + noise.second_shift
        return clipped_distribution(center, noise.second_scale, requested[viewer], k, floor=floor)

    return _joint_distribution(objects, viewer, k, firsts, second)


def public_view(objects, viewer, k, noise):
    """Return the distribution of the two counts if first counts are public."""
    counts = dict.fromkeys(objects, noise.public_first)
    floor = -noise.second_shift if noise.promise == "exact" else -math.inf
    center = counts[viewer] + k - rank_of_last(objects, counts, viewer, k) + noise.second_shift
    totals = clipped_distribution(center, noise.second_scale, counts[viewer], k, floor=floor)
    return {(counts[viewer], total): p for total, p in totals.items()}


def printed_view(bounds, objects, viewer, k, noise):
    """Return the distribution for Algorithm 2 as printed in the paper.

    ``noise`` is a ``PaperNoise``; otherwise as for :func:`view`.
    """
    counts = {name: max(count, 1) for name, count in first_counts(bounds, k).items()}
    firsts = {
        name: clipped_distribution(counts[name] + noise.shift, noise.scale, 1, k) for name in counts
    }

    def second(requested, rank):
        return clipped_distribution(counts[viewer] + k - rank + noise.shift, noise.scale, 1, k)

    return _joint_distribution(objects, viewer, k, firsts, second)


def _joint_distribution(objects, viewer, k, firsts, second):
    names, joint = sorted(objects), {}
    for values in itertools.product(range(1, k + 1), repeat=len(names)):
        counts = dict(zip(names, values, strict=True))
        probability = math.prod(firsts[name][counts[name]] for name in names)
        rank = rank_of_last(objects, counts, viewer, k)
        for total, conditional in second(counts, rank).items():
            key = counts[viewer], total
            joint[key] = joint.get(key, 0.0) + probability * conditional
    return joint


def privacy_loss(first, second):
    """Return the largest absolute log-ratio of a view's probabilities."""
    largest = 0.0
    for key in {*first, *second}:
        p, q = first.get(key, 0.0), second.get(key, 0.0)
        if p > 0 and q > 0:
            largest = max(largest, abs(math.log(p / q)))
        elif max(p, q) > 0:
            return math.inf
    return largest


def excess_probability(first, second, epsilon):
    """Return the probability mass beyond exp(epsilon), in the worse direction."""
    factor = math.exp(epsilon)
    keys = {*first, *second}
    return max(
        sum(max(p.get(key, 0.0) - factor * q.get(key, 0.0), 0.0) for key in keys)
        for p, q in ((first, second), (second, first))
    )
