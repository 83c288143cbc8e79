"""Console entry point: command tree, exit codes, one-line error messages.

Exit codes: 0 success; 1 failure, with a one-line reason on standard error; 2 invalid command line;
130 interrupted.
"""

import warnings
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fedneighbors._version import __version__
from fedneighbors.cli._compare import compare
from fedneighbors.cli._console import print_error, print_warning
from fedneighbors.cli._data import data
from fedneighbors.cli._demo import demo
from fedneighbors.cli._explain import explain
from fedneighbors.cli._files import add_command
from fedneighbors.cli._keys import keys
from fedneighbors.cli._ledger import ledger
from fedneighbors.cli._operations import bench
from fedneighbors.cli._predict import predict
from fedneighbors.cli._preflight import preflight
from fedneighbors.cli._privacy_audit import privacy_audit
from fedneighbors.cli._report import report
from fedneighbors.cli._run import run
from fedneighbors.cli._schema import schema
from fedneighbors.cli._search import mcp, search, vote
from fedneighbors.cli._service import broker, doctor, provider, serve
from fedneighbors.cli._synthesize import synthesize
from fedneighbors.cli._warmup import warmup
from fedneighbors.errors import FedneighborsError


class OneLineFailures(TyperGroup):
    """Command group that prints user errors and warnings as one line each."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; print a failure as one line, without a traceback.

        If tracebacks are requested, the error is raised unchanged.
        """
        try:
            with warnings.catch_warnings():
                if not ctx.params["traceback"]:
                    warnings.showwarning = _make_warning_printer()
                return super().invoke(ctx)
        except KeyboardInterrupt:
            print_error("interrupted")
            raise typer.Exit(130) from None  # 128 + the number of SIGINT
        except BrokenPipeError:  # the reader closed the pipe, which is not an error
            raise
        except (FedneighborsError, ValueError, OSError) as error:
            if ctx.params["traceback"]:
                raise
            for text in (error, *getattr(error, "__notes__", ())):
                print_error(f"error: {text}")
            raise typer.Exit(1) from error


def _make_warning_printer() -> Callable[..., None]:
    """Return a function that prints each warning text once, on one line.

    It replaces ``warnings.showwarning``, and omits the location in the code.
    """
    printed: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        text = " ".join(str(message).split())
        if text not in printed:
            print_warning(text)
        printed.add(text)

    return show


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"fedneighbors {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="fedneighbors",
    cls=OneLineFailures,
    no_args_is_help=True,
    suggest_commands=False,  # click suggests them, too
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Begin with: [bold]fedneighbors demo[/bold]",
)


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    traceback: Annotated[
        bool,
        typer.Option(
            "--traceback",
            envvar="FEDNEIGHBORS_TRACEBACK",
            help="Show the traceback of an error.",
        ),
    ] = False,
) -> None:
    """Search and classify across parties whose data must not leave them."""


add_command(app, demo, "demo --out results")
app.add_typer(run, name="run")
add_command(app, compare, "compare --data north.csv --data south.csv --label outcome --minutes 3")
add_command(app, explain, "explain --data titles.txt --metric edit --query graph")
add_command(app, predict, "predict --model fedneighbors-run/model.fnn --data new.csv")
add_command(
    app,
    synthesize,
    "synthesize --data loans.csv --label default --report quality.html",
    "\n\nSynthetic rows from a saved model: "
    "[bold]fedneighbors synthesize --model loans.syn --label default --rows 5000[/bold]",
)
add_command(app, serve, "serve --demo")
add_command(app, search, "search https://broker.example titles 'exact search' -k 3")
add_command(app, vote, "vote https://broker.example mortality '{\"age\": 64}'")
add_command(app, mcp, "mcp --url https://broker.example --collection titles")
add_command(app, doctor, "doctor https://broker.example")
add_command(app, bench, "bench https://broker.example titles --queries titles.txt")
app.add_typer(broker, name="broker")
app.add_typer(provider, name="provider")
add_command(app, report, "report fedneighbors-run/record.jsonl --out report.html")
app.add_typer(data, name="data")
app.add_typer(schema, name="schema")
app.add_typer(ledger, name="ledger")
app.add_typer(keys, name="keys")
add_command(app, preflight, "preflight --port 8000 --data patients.csv --label outcome")
add_command(app, privacy_audit, "privacy-audit node stays.csv stays-with-one-more.csv")
add_command(app, warmup, "warmup")


def main() -> None:
    """Run the command line and exit with its code."""
    app()
