"""``fedneighbors ledger``: show releases and budgets, set budgets, export."""

import csv
import io
import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fractions import Fraction

    from fedneighbors.privacy._guarantees import Guarantee
    from fedneighbors.privacy.ledger._books import BudgetState, LedgerEntry


_BAR = 10  # cells
_EVERYONE = "(all)"
_WORDS = {
    "budget": "budget set",
    "reserved": "charged, no answer",
    "released": "released",
    "voided": "taken back",
}
_COLUMNS = ("number", "at", "kind", "dataset", "user", "query", "notion", "epsilon", "delta", "rho")
_REST = ("note", "sha256", "bytes")

ledger = typer.Typer(
    no_args_is_help=True,
    help="Show and export a party's privacy ledger, and set its budgets.",
)

LedgerArgument = Annotated[Path, typer.Argument(help="Ledger file.")]


class ExportFormat(StrEnum):
    """Formats of an export."""

    JSONL = "jsonl"
    CSV = "csv"


@ledger.command(epilog="Example: [bold]fedneighbors ledger show north.ledger --last 50[/bold]")
def show(
    path: LedgerArgument,
    dataset: Annotated[str, typer.Option(help="Show this data set only.")] = "",
    last: Annotated[int, typer.Option(min=1, help="Number of lines, newest first.")] = 20,
) -> None:
    """Show the budgets and the releases: time, recipient, cost.

    "charged, no answer" marks a release whose process is still running or has failed. It counts as
    spent and covers a repetition of the same query.
    """
    from fedneighbors.cli._console import say
    from fedneighbors.privacy.ledger._ledger import Ledger

    with Ledger(path) as opened:
        party, budgets, entries = opened.party, opened.budgets(), opened.entries()
    budgets = tuple(state for state in budgets if dataset in ("", state.dataset))
    entries = tuple(entry for entry in entries if dataset in ("", entry.dataset))
    say(f"Ledger of party {party}: {path}", "bold")
    if budgets:
        _print_budgets(budgets)
    else:
        say("No budget is set: every release is refused. Set one with: fedneighbors ledger budget")
    if entries:
        _print_history(entries, last)


@ledger.command(
    epilog="Example: [bold]fedneighbors ledger budget north.ledger --party north "
    "--dataset visits --epsilon 1 --delta 1e-6[/bold]"
)
def budget(
    path: LedgerArgument,
    dataset: Annotated[str, typer.Option(help="Name of the data set.")],
    epsilon: Annotated[
        str | None,
        typer.Option(
            help="Total epsilon, such as 0.5 or 1/3. Without --delta: pure differential privacy."
        ),
    ] = None,
    delta: Annotated[
        str | None, typer.Option(help="Probability of failure of --epsilon, such as 1e-6.")
    ] = None,
    rho: Annotated[
        str | None,
        typer.Option(help="Total rho of zero-concentrated privacy, instead of --epsilon."),
    ] = None,
    user: Annotated[str, typer.Option(help="Additional limit for this user.")] = "",
    note: Annotated[str, typer.Option(help="Reason, stored with the entry.")] = "",
    party: Annotated[
        str | None,
        typer.Option(help="Party of a new ledger; creates the file if it does not exist."),
    ] = None,
) -> None:
    """Set the budget of a data set.

    The budget limits the cost of all its releases together.

    Earlier charges count against it; earlier budgets stay in the ledger as entries. A data set
    without a budget refuses every release.
    """
    from fedneighbors.cli._console import say
    from fedneighbors.privacy.ledger._ledger import Ledger

    allowed = _guarantee(epsilon, delta, rho)
    with Ledger(path, party=party) as opened:
        opened.set_budget(dataset, allowed, user=user, note=note)
        spent, left = opened.spent(dataset, user), opened.left(dataset, user)
    whose = f"user {user} of data set {dataset}" if user else f"data set {dataset}"
    say(f"budget of {whose}: {allowed}; spent {spent}; left {left}", "green")


@ledger.command(
    epilog="Example: [bold]fedneighbors ledger export north.ledger --out ledger.csv[/bold]"
)
def export(
    path: LedgerArgument,
    out: Annotated[
        Path | None, typer.Option(help="Output file; standard output by default.")
    ] = None,
    form: Annotated[
        ExportFormat | None, typer.Option(help="jsonl or csv; by default from the ending of --out.")
    ] = None,
) -> None:
    """Write every entry as JSON lines or CSV.

    Answers are represented by digest and size.
    """
    from fedneighbors.privacy.ledger._ledger import Ledger
    from fedneighbors.records import replace_file

    with Ledger(path) as opened:
        rows = [_row(entry) for entry in opened.entries()]
    by_name = (
        ExportFormat.CSV if out is not None and out.suffix.lower() == ".csv" else ExportFormat.JSONL
    )
    text = _as_csv(rows) if (form or by_name) is ExportFormat.CSV else _as_json_lines(rows)
    if out is None:
        typer.echo(text, nl=False)
    else:
        replace_file(out, text.encode("utf-8"))


def _guarantee(epsilon: str | None, delta: str | None, rho: str | None) -> "Guarantee":
    from fedneighbors.privacy._guarantees import ZCDP, ApproxDP, PureDP, exact

    if (epsilon is None) == (rho is None) or (rho is not None and delta is not None):
        raise typer.BadParameter("give --epsilon, or --epsilon and --delta, or only --rho")
    if rho is not None:
        return ZCDP(exact(rho, "rho"))
    allowed = exact(epsilon or "", "epsilon")
    return PureDP(allowed) if delta is None else ApproxDP(allowed, exact(delta, "delta"))


def _print_budgets(budgets: tuple["BudgetState", ...]) -> None:
    from fedneighbors.cli._results import print_grid
    from fedneighbors.records import ResultTable

    rows = tuple(
        (
            state.dataset,
            state.user or _EVERYONE,
            str(state.allowed),
            _bar(_share(state)),
            str(state.left).partition(",")[0],  # without delta
        )
        for state in budgets
    )
    columns = ("data set", "user", "budget", "used", "left")
    print_grid(ResultTable("budgets", "Budgets", columns, rows))


def _print_history(entries: tuple["LedgerEntry", ...], last: int) -> None:
    from fedneighbors.cli._results import print_grid
    from fedneighbors.records import ResultTable

    rows = _history(entries)
    shown = tuple(
        (
            entry.at[:16].replace("T", " "),
            _WORDS[entry.kind],
            entry.dataset,
            entry.user or _EVERYONE,
            str(entry.guarantee),
            f"{entry.query} {entry.note}".strip(),
        )
        for entry in rows[-last:]
    )
    columns = ("UTC", "what", "data set", "user", "how much", "query and purpose")
    n_before = len(rows) - len(shown)
    caption = f"{n_before} earlier lines: raise --last, or export." if n_before else ""
    print_grid(
        ResultTable("history", "Budgets set and releases, newest last", columns, shown, caption)
    )


def _history(entries: tuple["LedgerEntry", ...]) -> list["LedgerEntry"]:
    """Return the last entry of each budget and release.

    It states how the release ended.
    """
    rows: list[LedgerEntry] = []
    place: dict[str, int] = {}
    for entry in entries:
        if entry.kind in ("released", "voided"):
            rows[place[entry.query]] = entry
        else:
            place[entry.query] = len(rows)
            rows.append(entry)
    return rows


def _share(state: "BudgetState") -> float:
    """Return the spent share of a budget; 1 for a zero budget."""
    spent, allowed = _first_number(state.spent), _first_number(state.allowed)
    return min(1.0, float(spent / allowed)) if allowed else 1.0


def _first_number(guarantee: "Guarantee") -> "Fraction":
    from fedneighbors.privacy._guarantees import ZCDP

    return guarantee.rho if isinstance(guarantee, ZCDP) else guarantee.epsilon


def _bar(share: float) -> str:
    full = round(share * _BAR)
    return "█" * full + "░" * (_BAR - full) + f" {share:4.0%}"


def _row(entry: "LedgerEntry") -> dict[str, str | int]:
    from fedneighbors.privacy.ledger._books import to_columns

    notion, first, second = to_columns(entry.guarantee)
    epsilon, rho = ("", first) if notion == "zcdp" else (first, "")
    values = (entry.number, entry.at, entry.kind, entry.dataset, entry.user, entry.query)
    numbers = (notion, epsilon, second, rho)
    rest = (entry.note, entry.sha256, entry.size)
    return dict(zip(_COLUMNS + _REST, values + numbers + rest, strict=True))


def _as_json_lines(rows: list[dict[str, str | int]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _as_csv(rows: list[dict[str, str | int]]) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, _COLUMNS + _REST)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
