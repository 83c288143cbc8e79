"""``fedneighbors privacy-audit``: try to disprove a node's guarantee on two files."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedneighbors.cli._console import echo, progress_bar

if TYPE_CHECKING:
    from fedneighbors.runs._node_audit import NodeAudit, ReplyAudit

_COLUMNS = (
    "reply to",
    "charged",
    "l1",
    "stated l1",
    "l2 squared",
    "stated l2 squared",
    "certified loss",
)


def privacy_audit(
    node: Annotated[Path, typer.Argument(help="Folder of the node, with its node.toml.")],
    first: Annotated[Path, typer.Argument(help="A table of the node.")],
    second: Annotated[Path, typer.Argument(help="The same table, but for one row.")],
    runs: Annotated[
        int, typer.Option(min=1, help="Runs on each file; more runs certify larger losses.")
    ] = 1000,
    confidence: Annotated[
        float, typer.Option(min=0.5, max=0.999999, help="Confidence of the verdict.")
    ] = 0.999,
) -> None:
    """Audit a node: try to disprove its guarantee on two files.

    FIRST and SECOND are tables that differ by one row: added or removed, or
    replaced, as "neighbors" of the node says. Synthetic rows serve as well as
    real ones; try an extreme value, an unknown category or label, or a broken
    line. NODE is a folder with a file node.toml: the keys of the node's
    --node-config, and the method:

        method = "flynn"
        party-name = "north"
        schema = "stays.toml"
        epsilon = "1"

    The node reads each file many times and answers the requests of one
    training with default settings. (1) Sensitivity: the exact difference
    between the replies to both files must be within the stated one. (2) Loss:
    events that are likely for one file and unlikely for the other certify a
    lower bound on epsilon (or rho), which must not exceed the charge. (3)
    Everything else that leaves the node must be equal in all runs: replies
    without a charge, refusals, sizes, charges.

    Nothing is written to the folder, and the node's ledger is not charged. The
    output has exact facts about the rows: do not share it. The exit code is 1
    if the guarantee is disproved, or if not everything could be compared. An
    audit can disprove a guarantee, not prove it.
    """
    from fedneighbors.runs._node_audit import audit_node

    with progress_bar() as report:
        audit = audit_node(node, first, second, n_runs=runs, confidence=confidence, on_run=report)
    _print_replies(audit)
    if audit.certificate is not None:
        loss = audit.certificate.loss(audit.stated)
        echo(f"all charged replies: certified loss {loss:.3f}, stated {audit.stated}")
        echo(f"largest loss that {audit.n_runs} runs can certify: {audit.max_loss:.3f}")
    for reply in audit.replies:
        for violation in reply.violations:
            echo(f"{reply.request}: {violation}", "red")
    for difference in audit.differences:
        echo(f"not equal in all runs: {difference}", "red")
    for omission in audit.omissions:
        echo(f"not compared: {omission}", "yellow")
    if not audit.differences:
        echo("everything else that leaves the node is equal in all runs, charges included")
    subject = f"at {confidence:.4%} confidence, {audit.n_runs} runs on each file"
    if audit.breached:
        echo(f"BREACH: the guarantee is disproved {subject}", "bold red")
        raise typer.Exit(1)
    if audit.inconclusive:
        echo(f"INCONCLUSIVE: no breach found, but not everything was compared {subject}", "yellow")
        raise typer.Exit(1)
    echo(f"no breach found {subject}", "green")


def _print_replies(audit: "NodeAudit") -> None:
    from fedneighbors.cli._results import print_grid
    from fedneighbors.records import ResultTable

    rows = tuple(_cells(reply) for reply in audit.replies)
    caption = (
        "Differences between the files, exact and as stated; losses as the charge states them."
    )
    print_grid(ResultTable("replies", "Charged replies", _COLUMNS, rows, caption=caption))


def _cells(reply: "ReplyAudit") -> tuple[str | int | float, ...]:
    measured, stated = reply.measured, reply.stated
    return (
        reply.request,
        str(reply.cost),
        reply.reason if measured is None else measured.l1,
        stated.l1,
        "-" if measured is None else measured.l2_squared,
        stated.l2_squared,
        round(reply.certificate.loss(reply.cost), 3),
    )
