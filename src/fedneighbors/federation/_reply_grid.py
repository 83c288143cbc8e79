"""Times at which a party replies: on a grid, so that no single row moves them, and not late."""

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

REPLY_GRID_S = 1.0
"""Default step of the grid: most replies on tables of some thousand rows take less."""

MAX_GRID_S = 600.0
"""Maximum step of a grid, in seconds."""


def next_on_grid(elapsed_s: float, grid_s: float) -> float:
    """Return the first time on a grid, not before ``elapsed_s``.

    The times are ``grid_s`` times powers of two. Multiples of ``grid_s`` would lie so close
    together for long replies that one row could easily move a reply to the next.

    Examples
    --------
    >>> [next_on_grid(elapsed, 0.5) for elapsed in (0.0, 0.5, 0.6, 2.1)]
    [0.5, 0.5, 1.0, 4.0]
    """
    while grid_s < elapsed_s:
        grid_s *= 2
    return grid_s


@contextmanager
def delay_to_grid(grid_s: float, end: float = math.inf) -> Iterator[float]:
    """Extend the duration of the block to a time of :func:`next_on_grid`.

    Exceptions are delayed too. The duration then reveals only the step of the grid in which the
    reply was ready.

    Parameters
    ----------
    grid_s : float
        Step in seconds; 0 for no delay. A step longer than any reply reveals nothing.
    end : float
        Monotonic time of a public deadline. What would be delayed beyond it leaves at this time.

    Yields
    ------
    float
        Monotonic time of the last step up to ``end``, minus infinity if there is none: a reply that
        is ready later would be late.
    """
    start = time.monotonic()
    left_s = end - start
    if grid_s <= 0 or math.isinf(end):
        last = end
    elif left_s < grid_s:
        last = -math.inf
    else:
        step_s = next_on_grid(left_s, grid_s)
        last = start + (step_s if step_s == left_s else step_s / 2)
    try:
        yield last
    finally:
        if grid_s > 0:
            elapsed = time.monotonic() - start
            until = next_on_grid(elapsed, grid_s)
            time.sleep((left_s if elapsed <= left_s < until else until) - elapsed)


@contextmanager
def limit_work(limit_s: float) -> Iterator[None]:
    """End this process if the block takes longer, on POSIX systems.

    The system's alarm ends it, also in a compiled loop, which lets no other Python code run.
    """
    if not hasattr(signal, "setitimer"):
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
