"""Console output: results to standard output, progress and errors to standard error."""

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedneighbors.kernels import watch_compilation

ProgressCallback = Callable[[int, int, str], None]
"""Function called with steps done, total steps, and the current step."""


def echo(text: str, style: str = "") -> None:
    """Print a line to standard output, without interpreting markup."""
    _print(text, style)


def print_error(text: str) -> None:
    """Print an error to standard error, as one red line."""
    _print(" ".join(text.split()), "bold red", to_stderr=True)


def print_warning(text: str) -> None:
    """Print a warning to standard error, as one yellow line."""
    _print(f"note: {text}", "yellow", to_stderr=True)


def _print(text: str, style: str, *, to_stderr: bool = False) -> None:
    from rich.console import Console  # takes a tenth of a second, here and below
    from rich.text import Text

    Console(stderr=to_stderr, highlight=False, soft_wrap=True).print(Text(text, style=style))


def log_with_times() -> None:
    """Write the log of a server to standard error, with times (UTC)."""
    formatter = logging.Formatter(
        "%(asctime)s %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%SZ"
    )
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler])
    logging.getLogger("fedneighbors.service").setLevel(logging.INFO)


@contextmanager
def delay_interrupt() -> Iterator[None]:
    """Hold Ctrl-C until the block ends, so that files are complete.

    A second one interrupts the block.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []

    def handle(number: int, _: object) -> None:
        if pending:
            raise KeyboardInterrupt
        pending.append(number)

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if pending:
        raise KeyboardInterrupt


@contextmanager
def progress_bar() -> Iterator[ProgressCallback]:
    """Show a progress bar during the block.

    It is drawn on standard error, and only if that is a terminal.

    Yields
    ------
    callable
        Updates the bar; takes steps done, total steps and the name of the current step.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with note_compilation(), bar:
        task = bar.add_task("starting", total=None)

        def report(done: int, total: int, message: str) -> None:
            bar.update(task, completed=done, total=total, description=message)

        yield report


@contextmanager
def note_compilation(log: logging.Logger | None = None) -> Iterator[None]:
    """Print a note before the first kernel is compiled in the block.

    It is written to a server's log, or else to standard error if that is a terminal.
    """
    from rich.console import Console

    tell = print_warning if log is None else log.warning
    if log is None and not Console(stderr=True).is_terminal:
        yield
        return
    notes = [
        "compiling kernels, which takes seconds; later runs read the stored results. "
        "fedneighbors warmup compiles all in advance"
    ]
    with watch_compilation(lambda: notes and tell(notes.pop()), lambda: None):
        yield
