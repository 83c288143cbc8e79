"""``fedneighbors compare``: recommend a method for a user's tables."""

import shlex
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedneighbors.cli._console import echo, print_warning, progress_bar
from fedneighbors.cli._files import DropOption, IdOption, choose_files, text_options
from fedneighbors.cli._run import run
from fedneighbors.cli._splits import (
    SETTINGS,
    AlphaOption,
    ClassesOption,
    DataOption,
    FactorOption,
    LabelOption,
    PartiesOption,
    PartitionOption,
    PartyColumnOption,
    SeedOption,
    Split,
    SplitKind,
    TaskName,
    TaskOption,
    read_and_split,
)

if TYPE_CHECKING:
    from fedneighbors.comparison import Comparison


MinutesOption = Annotated[
    float,
    typer.Option(
        min=0.1, help="Time budget; with less time there are fewer splits, then fewer methods."
    ),
]
CandidateOption = Annotated[
    list[str] | None, typer.Option(help="Method to compare; repeatable; by default all.")
]


@text_options
def compare(
    data: DataOption,
    label: LabelOption = "target",
    task: TaskOption = TaskName.CLASSIFICATION,
    minutes: MinutesOption = 10.0,
    candidate: CandidateOption = None,
    partition: PartitionOption = SplitKind.IID,
    parties: PartiesOption = 10,
    alpha: AlphaOption = 0.5,
    factor: FactorOption = 1.0,
    classes_per_party: ClassesOption = 2,
    party_column: PartyColumnOption = None,
    drop: DropOption = None,
    identifier: IdOption = None,
    seed: SeedOption = 0,
    out: Annotated[
        Path, typer.Option(help="Output directory; an interrupted comparison resumes from it.")
    ] = Path("comparison"),
    *,
    context: typer.Context,
    text_format: Any,
) -> None:
    """Compare all methods on your tables, and recommend one.

    Each file is a party; the rows of a single one are split over simulated
    parties. Every method is trained on three quarters of each party's rows and
    scored on the others, in up to ten splits; after three, only the methods
    that may be the best. Needs all files on this machine: take a sample that
    may be shared, or public data like yours.
    """
    started = time.monotonic()
    from fedneighbors.comparison import compare as compare_methods
    from fedneighbors.records._storage import lock_folder

    data_split = read_and_split(
        choose_files(data, drop, identifier, text_format),
        label=label,
        party_column=party_column,
        split=Split(partition, parties, alpha, factor, classes_per_party, seed),
        keep_missing=True,
        has_classes=task is TaskName.CLASSIFICATION,
    )
    table = data_split.table
    with lock_folder(out):
        try:
            with progress_bar() as progress:
                result = compare_methods(
                    table.x,
                    table.y,
                    parties=data_split.owners,
                    task=task.value,
                    minutes=round(max(minutes - (time.monotonic() - started) / 60, 0.05), 2),
                    candidates=candidate,
                    seed=seed,
                    path=out / "results.jsonl",
                    progress=progress,
                )
        except KeyboardInterrupt:
            print_warning(f"finished trainings are in {out}; the same command resumes")
            raise
        _report_result(result, out, _list_steps(result, context))


def _report_result(result: "Comparison", out: Path, steps: list[str]) -> None:
    """Print the first tables and the recommendation; write record and report."""
    from fedneighbors.cli._results import print_tables, write_results

    reason, _, *others = result.record.notes
    print_tables(replace(result.record, notes=tuple(others)), ["scores", "parties", "failures"])
    record = replace(result.record, notes=(reason, *steps, *others))
    write_results(record, out, name="comparison", figures=False)
    echo(reason, "bold")
    for step in steps:
        echo(step)


def _list_steps(result: "Comparison", context: typer.Context) -> list[str]:
    """Return sentences with the commands that train the recommended methods."""
    from fedneighbors.comparison._candidates import DELTA, EPSILON

    command = _write_command(result.recommended, context)
    if command:
        steps = [f"Train it: {command}"]
    else:
        is_alone = result.recommended == "alone"
        reason = "Nothing needs to be joined." if is_alone else "No command trains it."
        steps = [f"{reason} {result.record.notes[1]}"]
    if private := result.recommended_private:
        budget = ["--epsilon", f"{EPSILON}", "--schema", "schema.toml"]
        if private == "kNN-Per":
            budget += ["--delta", f"{DELTA:g}"]
        (table,) = (table for table in result.record.tables if table.name == "disclosures")
        score = next(row[-1] for row in table.rows if row[0] == private)
        steps.append(
            f"Under a privacy budget, {private} has the best score, {score}. A schema of the "
            "columns is needed, see fedneighbors schema draft. Train it: "
            f"{_write_command(private, context, *budget)}"
        )
    return steps


def _write_command(name: str, context: typer.Context, *more: str) -> str:
    """Return the command that trains a method; empty if none does."""
    from fedneighbors.comparison._summary import COMMANDS

    arguments, given = COMMANDS.get(name, ("",)), context.params
    commands: dict[str, Any] = typer.main.get_command(run).commands  # type: ignore[attr-defined]
    if arguments[0] not in commands:
        return ""
    options = {option.name: option for option in commands[arguments[0]].params}
    if "task" not in options and given["task"] != TaskName.CLASSIFICATION:
        return ""
    left_out = {"out", *_list_unused(given)}
    words = ["fedneighbors", "run", *arguments]
    for option in context.command.params:
        value = given[option.name]
        if option.name in left_out or value is None or option.name not in options:
            continue
        if value != options[option.name].default:
            for each in value if isinstance(value, list | tuple) else [value]:
                words += [option.opts[0], str(each)]
    return shlex.join([*words, *more])


def _list_unused(given: Mapping[str, Any]) -> set[str]:
    """Return the options of a split that have no effect."""
    settings = {"partition", "parties", "alpha", "factor", "classes_per_party"}
    if given["party_column"] or len(given["data"]) > 1:
        return settings
    if given["partition"] == SplitKind.NATURAL:
        return settings - {"partition"}
    return settings - {"partition", "parties", SETTINGS.get(given["partition"], "")}
