"""``fedneighbors compare``: recommend a method for a user's tables."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedneighbors.cli._files import DropOption, IdOption, choose_files, text_options
from fedneighbors.cli._splits import (
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
    from fedneighbors.cli._console import print_warning, progress_bar
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
        _report_result(result, out)


def _report_result(result: "Comparison", out: Path) -> None:
    """Print the first tables and the recommendation; write record and report."""
    from fedneighbors.cli._console import echo
    from fedneighbors.cli._results import print_tables, write_results

    print_tables(result.record, [table.name for table in result.record.tables][:2])
    write_results(result.record, out, name="comparison", figures=False)
    echo(result.reason, "bold")
