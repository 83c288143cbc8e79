"""Naive inverse transform sampling from a table of thresholds."""

UNDECIDED = -(2**63)


def invert_words(words, limits, symmetric):
    """Return the value of each word, or UNDECIDED."""
    return [invert_word(int(word), [int(limit) for limit in limits], symmetric) for word in words]


def invert_word(word, limits, symmetric):
    prefix, sign = word >> 1, word & 1
    if any(limit - 1 <= prefix <= limit for limit in limits) or prefix > max(limits):
        return UNDECIDED
    magnitude = sum(limit < prefix for limit in limits)
    return -magnitude if symmetric and sign else magnitude
