"""The k-th smallest of the values so far, by sorting them."""


def limit(values, start, wanted):
    """Return the k-th smallest of the values within the limit, or the limit if there are fewer."""
    within = sorted(value for value in values if value <= start)
    return within[wanted - 1] if len(within) >= wanted else start
