"""``fedneighbors ledger``: show releases and budgets, set budgets, export, verify."""

import csv
import io
import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedneighbors.cli._console import echo
from fedneighbors.cli._files import StrictCommand, example

if TYPE_CHECKING:
    from fractions import Fraction

    from fedneighbors.privacy._guarantees import Guarantee
    from fedneighbors.privacy.ledger._tables import BudgetState, LedgerEntry


_BAR_WIDTH = 10  # characters
_ALL_USERS = "(all)"
_ENTRY_TITLES = {
    "budget": "budget set",
    "reserved": "charged, no answer",
    "released": "released",
    "voided": "charge voided",
}
_COLUMNS = ("number", "at", "kind", "dataset", "user", "query", "notion", "epsilon", "delta", "rho")
_ANSWER_COLUMNS = ("note", "sha256", "bytes")

ledger = typer.Typer(
    no_args_is_help=True, help="Show and export a party's privacy ledger, and set its budgets."
)

LedgerArgument = Annotated[Path, typer.Argument(help="Ledger file.")]


class ExportFormat(StrEnum):
    """Formats of an export."""

    JSONL = "jsonl"
    CSV = "csv"


@ledger.command(epilog=example("ledger show north.ledger --last 50"))
def show(
    path: LedgerArgument,
    dataset: Annotated[str, typer.Option(help="Show this data set only.")] = "",
    last: Annotated[int, typer.Option(min=1, help="Number of entries; the newest are shown.")] = 20,
) -> None:
    """Show the budgets and the releases: time, recipient, cost.

    "charged, no answer" marks a release whose process is still running or has
    failed. Its cost counts as spent; a repeated request is not charged again.
    """
    from fedneighbors.privacy.ledger._ledger import Ledger

    with Ledger(path) as party_ledger:
        party, budgets, entries = party_ledger.party, party_ledger.budgets(), party_ledger.entries()
    budgets = tuple(state for state in budgets if dataset in ("", state.dataset))
    entries = tuple(entry for entry in entries if dataset in ("", entry.dataset))
    echo(f"Ledger of party {party}: {path}", "bold")
    if budgets:
        _print_budgets(budgets)
    else:
        echo("No budget is set: every release is refused. Set one with: fedneighbors ledger budget")
    if entries:
        _print_history(entries, last)


@ledger.command(
    epilog=example(
        "ledger budget north.ledger --party north --dataset visits --epsilon 1 --delta 1e-6"
    )
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
        str | None, typer.Option(help="Total delta, for --epsilon, such as 1e-6.")
    ] = None,
    rho: Annotated[
        str | None, typer.Option(help="Total rho of zero-concentrated DP, instead of --epsilon.")
    ] = None,
    user: Annotated[str, typer.Option(help="Additional limit for this user.")] = "",
    note: Annotated[str, typer.Option(help="Reason, stored with the entry.")] = "",
    party: Annotated[
        str | None,
        typer.Option(help="Name of the party; creates the ledger if the file does not exist."),
    ] = None,
) -> None:
    """Set the budget of a data set.

    The budget limits the total cost of all releases of the data set, earlier
    ones included. It replaces earlier budgets, which remain in the ledger as
    entries. Without a budget, every release of a data set is refused.
    """
    from fedneighbors.privacy.ledger._ledger import Ledger

    allowed = _guarantee(epsilon, delta, rho)
    with Ledger(path, party=party) as party_ledger:
        party_ledger.set_budget(dataset, allowed, user=user, note=note)
        spent, left = party_ledger.spent(dataset, user), party_ledger.left(dataset, user)
    scope = f"user {user} of data set {dataset}" if user else f"data set {dataset}"
    echo(f"budget of {scope}: {allowed}; spent {spent}; left {left}", "green")


@ledger.command(cls=StrictCommand, epilog=example("ledger export north.ledger --out ledger.csv"))
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

    Stored answers are written as their size and SHA-256 digest only.
    """
    from fedneighbors.privacy.ledger._ledger import Ledger
    from fedneighbors.records import replace_file

    with Ledger(path) as party_ledger:
        rows = [_export_row(entry) for entry in party_ledger.entries()]
    default_form = (
        ExportFormat.CSV if out is not None and out.suffix.lower() == ".csv" else ExportFormat.JSONL
    )
    text = _as_csv(rows) if (form or default_form) is ExportFormat.CSV else _as_json_lines(rows)
    if out is None:
        typer.echo(text, nl=False)
    else:
        replace_file(out, text.encode("utf-8"))


@ledger.command(epilog=example("ledger verify north.ledger --head 12:5f0c..."))
def verify(
    path: LedgerArgument,
    head: Annotated[str, typer.Option(help="Earlier head, as this command prints it.")] = "",
) -> None:
    """Check that nothing in a ledger was altered, and print its head.

    The head is the number and digest of the last entry. Keep it elsewhere, and
    pass it as --head later: a ledger that has since lost or changed an entry is
    refused.
    """
    from fedneighbors.privacy.ledger._ledger import Ledger

    with Ledger(path) as party_ledger:
        if head:
            party_ledger.check_head(head)
        echo(party_ledger.head())


@ledger.command(epilog=example("ledger reconcile north.ledger --head /backup/north.head"))
def reconcile(
    path: LedgerArgument,
    head: Annotated[
        Path | None,
        typer.Option(help="Head file of the ledger (ledger-head of a node), to write again."),
    ] = None,
) -> None:
    """Accept a ledger that was restored from a backup.

    Releases after the backup were charged, but are not in the ledger: lower the
    budgets by their cost before you reconcile, or, of a broker or provider,
    max_queries in the configuration. Budgets that `broker restore` or `provider
    restore` has set to zero are set from there at the next start.
    """
    from fedneighbors.privacy.ledger._ledger import Ledger
    from fedneighbors.records import replace_file

    with Ledger(path) as party_ledger:
        party_ledger.end_hold()
        if head is not None:
            replace_file(head, party_ledger.head().encode("ascii"))
        echo(f"the head is now {party_ledger.head()}", "green")


def _guarantee(epsilon: str | None, delta: str | None, rho: str | None) -> "Guarantee":
    from fedneighbors.privacy._guarantees import ZCDP, ApproxDP, PureDP, exact

    if (epsilon is None) == (rho is None) or (rho is not None and delta is not None):
        raise typer.BadParameter("give --epsilon, or --epsilon and --delta, or only --rho")
    if rho is not None:
        return ZCDP(exact(rho, "rho"))
    total = exact(epsilon or "", "epsilon")
    return PureDP(total) if delta is None else ApproxDP(total, exact(delta, "delta"))


def _print_budgets(budgets: tuple["BudgetState", ...]) -> None:
    from fedneighbors.cli._results import print_grid
    from fedneighbors.records import ResultTable

    rows = tuple(
        (
            state.dataset,
            state.user or _ALL_USERS,
            str(state.allowed),
            _draw_bar(_compute_spent_fraction(state)),
            str(state.left).partition(",")[0],  # omit the delta of epsilon=..., delta=...
        )
        for state in budgets
    )
    columns = ("data set", "user", "budget", "used", "left")
    print_grid(ResultTable("budgets", "Budgets", columns, rows))


def _print_history(entries: tuple["LedgerEntry", ...], last: int) -> None:
    from fedneighbors.cli._results import print_grid
    from fedneighbors.records import ResultTable

    latest = _latest_entries(entries)
    rows = tuple(
        (
            entry.at[:16].replace("T", " "),
            _ENTRY_TITLES[entry.kind],
            entry.dataset,
            entry.user or _ALL_USERS,
            str(entry.guarantee),
            f"{entry.query} {entry.note}".strip(),
        )
        for entry in latest[-last:]
    )
    columns = ("UTC", "entry", "data set", "user", "budget or cost", "id and note")
    n_earlier = len(latest) - len(rows)
    caption = f"{n_earlier} earlier entries: raise --last, or export." if n_earlier else ""
    print_grid(
        ResultTable("history", "Budgets set and releases, newest last", columns, rows, caption)
    )


def _latest_entries(entries: tuple["LedgerEntry", ...]) -> list["LedgerEntry"]:
    """Return the entries of budgets, and the last entry of each release.

    A release is in the position of its charge; its last entry states how it ended.
    """
    latest: list[LedgerEntry] = []
    index: dict[str, int] = {}
    for entry in entries:
        if entry.kind in ("released", "voided"):
            latest[index[entry.query]] = entry
        else:
            index[entry.query] = len(latest)
            latest.append(entry)
    return latest


def _compute_spent_fraction(state: "BudgetState") -> float:
    """Return the spent fraction of a budget; 1 for a zero budget.

    Delta is ignored.
    """
    spent, allowed = _epsilon_or_rho(state.spent), _epsilon_or_rho(state.allowed)
    return min(1.0, float(spent / allowed)) if allowed else 1.0


def _epsilon_or_rho(guarantee: "Guarantee") -> "Fraction":
    from fedneighbors.privacy._guarantees import ZCDP

    return guarantee.rho if isinstance(guarantee, ZCDP) else guarantee.epsilon


def _draw_bar(fraction: float) -> str:
    n_full = round(fraction * _BAR_WIDTH)
    return "█" * n_full + "░" * (_BAR_WIDTH - n_full) + f" {fraction:4.0%}"


def _export_row(entry: "LedgerEntry") -> dict[str, str | int]:
    from fedneighbors.privacy.ledger._tables import to_columns

    notion, first, second = to_columns(entry.guarantee)
    epsilon, rho = ("", first) if notion == "zcdp" else (first, "")
    release = (entry.number, entry.at, entry.kind, entry.dataset, entry.user, entry.query)
    cost = (notion, epsilon, second, rho)
    answer = (entry.note, entry.sha256, entry.size)
    return dict(zip(_COLUMNS + _ANSWER_COLUMNS, release + cost + answer, strict=True))


def _as_json_lines(rows: list[dict[str, str | int]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _as_csv(rows: list[dict[str, str | int]]) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, _COLUMNS + _ANSWER_COLUMNS)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
