"""Threads in which parties of one process answer."""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar, cast

R = TypeVar("R")

_START_TIMEOUT_S = 5.0
"""Maximum wait for a thread to start, which takes milliseconds unless an interrupt prevents it."""


class ThreadPool:
    """Reusable pool of threads that deliver frames.

    The pool grows to the largest number of concurrent tasks. Its threads are daemons, so that a
    party that hangs does not prevent the program from exiting.
    """

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[tuple[threading.Thread, threading.Event]] = []
        self._n_idle = 0
        self._lock = threading.Lock()

    def submit(self, task: Callable[[], None]) -> None:
        """Run a task in an idle thread or in a new one."""
        with self._lock:
            has_idle = self._n_idle > 0
            self._n_idle -= has_idle
        self._tasks.put(task)
        if not has_idle:
            self._start()

    def call(self, task: Callable[[], R]) -> R:
        """Run a task in a thread; return its result."""
        results: SimpleQueue[tuple[R | None, BaseException | None]] = SimpleQueue()

        def run() -> None:
            try:
                results.put((task(), None))
            except BaseException as error:
                results.put((None, error))

        self.submit(run)
        result, error = results.get()
        if error is not None:
            raise error
        return cast(R, result)

    def shutdown(self, *, wait: bool) -> None:
        """End idle threads now and the others after their tasks."""
        for _ in self._threads:
            self._tasks.put(None)
        if wait:
            for thread, started in self._threads:
                if started.wait(_START_TIMEOUT_S):
                    thread.join()

    def _start(self) -> None:
        started = threading.Event()  # an interrupt may come before start() returns
        thread = threading.Thread(
            target=self._work, args=(started,), name="connection to a party", daemon=True
        )
        self._threads.append((thread, started))
        thread.start()

    def _work(self, started: threading.Event) -> None:
        started.set()
        while (task := self._tasks.get()) is not None:
            task()
            with self._lock:
                self._n_idle += 1


class CallerThread:
    """Pool that runs each task in the calling thread."""

    def submit(self, task: Callable[[], None]) -> None:
        """Run a task."""
        task()
