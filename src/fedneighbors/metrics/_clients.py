"""Scores over the clients of a federation: of all their rows, and of those who fare worst."""

from collections.abc import Mapping, Sequence


def average_accuracy(right: Mapping[str, tuple[int, int]], names: Sequence[str]) -> float:
    """Return the share of rows that are right over all rows of some clients.

    Parameters
    ----------
    right : mapping of str to (int, int)
        For each client how many of its rows are right, and how many it has.
    names : sequence of str
        Which clients count; each by its rows.

    Returns
    -------
    float
        NaN if they have no rows.
    """
    found = [right[name] for name in names]
    n_rows = sum(n for _, n in found)
    return sum(n for n, _ in found) / n_rows if n_rows else float("nan")


def bottom_decile(right: Mapping[str, tuple[int, int]], names: Sequence[str]) -> float:
    """Return the accuracy of the client at the lowest tenth: of M, the (M/10)-th worst.

    Parameters
    ----------
    right, names
        As :func:`average_accuracy` takes them. Clients without rows do not count.

    Returns
    -------
    float
        NaN if no client has rows.

    References
    ----------
    .. [1] Marfoq et al., "Personalized Federated Learning through Local Memorization", ICML 2022,
       section 6.
    """
    each = sorted(right[name][0] / right[name][1] for name in names if right[name][1])
    return each[max(len(each) // 10 - 1, 0)] if each else float("nan")
