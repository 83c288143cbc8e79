"""Numba loops on plain arrays, one self-contained file per group of functions."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def watch_compilation(
    start: Callable[[], object], end: Callable[[], object]
) -> Iterator[Callable[[], float]]:
    """Call functions before and after each compilation of a kernel.

    Yields a clock that stands still meanwhile, in seconds.
    """
    from numba.core import event

    class Watcher(event.Listener):
        depth, seconds, started = 0, 0.0, 0.0  # a kernel may compile others

        def on_start(self, _: object) -> None:
            self.depth += 1
            if self.depth == 1:
                self.started = time.perf_counter()
                start()

        def on_end(self, _: object) -> None:
            self.depth -= 1
            if self.depth == 0:
                end()
                self.seconds += time.perf_counter() - self.started

    watcher = Watcher()
    with event.install_listener("numba:compile", watcher):
        yield lambda: time.perf_counter() - watcher.seconds
