"""Console output: results to standard output, progress and errors to standard error."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

Report = Callable[[int, int, str], None]
"""Function called with steps done, total steps, and the current step."""


def say(text: str, style: str = "") -> None:
    """Print a line to standard output, without interpreting markup."""
    Console(highlight=False, soft_wrap=True).print(Text(text, style=style))


def complain(text: str) -> None:
    """Print one red line to standard error."""
    line = " ".join(text.split())
    Console(stderr=True, highlight=False, soft_wrap=True).print(Text(line, style="bold red"))


def note(text: str) -> None:
    """Print a warning line to standard error."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(Text(f"note: {text}", "yellow"))


@contextmanager
def progress_bar() -> Iterator[Report]:
    """Show a progress bar during the block.

    The bar is on standard error, and only on a terminal.

    Yields
    ------
    callable
        Function of steps done, total steps and a message.
    """
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("starting", total=None)

        def report(done: int, total: int, message: str) -> None:
            bar.update(task, completed=done, total=total, description=message)

        yield report
