"""``fedneighbors data``: list, describe and split data sets."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedneighbors.cli._console import echo
from fedneighbors.cli._files import (
    DropOption,
    IdOption,
    StrictCommand,
    choose_files,
    text_options,
)
from fedneighbors.cli._splits import (
    AlphaOption,
    ClassesOption,
    FactorOption,
    LabelOption,
    PartiesOption,
    PartitionOption,
    PartyColumnOption,
    SeedOption,
    Split,
    SplitKind,
    read_data,
    split_data,
    write_manifest,
)

if TYPE_CHECKING:
    from fedneighbors.partition import Manifest


_MAX_CLASS_COLUMNS = 12  # with more classes, a party's rows are not shown by class

data = typer.Typer(no_args_is_help=True, help="List, describe and split data sets.")

NameArgument = Annotated[str, typer.Argument(help="Data set, file, openml:ID or openml:NAME.")]


@data.command("list", epilog="Example: [bold]fedneighbors data list[/bold]")
def list_sets() -> None:
    """List the data sets that can be read here."""
    from fedneighbors.cli._results import print_grid
    from fedneighbors.datasets._catalog import available
    from fedneighbors.records import ResultTable

    rows = tuple(
        (entry.name, entry.n_rows, entry.n_features, entry.n_classes, entry.source)
        for entry in available()
    )
    print_grid(
        ResultTable("sets", "Data sets", ("name", "rows", "features", "classes", "source"), rows)
    )


@data.command(epilog="Example: [bold]fedneighbors data describe digits[/bold]")
@text_options
def describe(
    name: NameArgument,
    label: LabelOption = "target",
    party_column: PartyColumnOption = None,
    drop: DropOption = None,
    identifier: IdOption = None,
    *,
    text_format: Any,
) -> None:
    """Show the source, size and classes of NAME, with notes on columns.

    NAME is a data set or a file.
    """
    import numpy as np

    from fedneighbors.cli._results import print_grid
    from fedneighbors.datasets._dataset import Dataset
    from fedneighbors.records import ResultTable

    files = choose_files([name], drop, identifier, text_format)
    dataset: Dataset = read_data(files, label=label, party_column=party_column)
    echo(f"{dataset.name}: {dataset.n_rows} rows, {dataset.n_features} features", "bold")
    echo(dataset.source)
    labels, counts = np.unique(dataset.y, return_counts=True)
    rows = tuple(
        (str(label), int(count), float(count / dataset.n_rows))
        for label, count in zip(labels.tolist(), counts, strict=True)
    )
    print_grid(ResultTable("classes", "Classes", ("class", "rows", "share"), rows))


@data.command(
    cls=StrictCommand,
    epilog="Example: [bold]fedneighbors data partition digits --parties 8 --alpha 0.3[/bold]",
)
@text_options
def partition(
    name: NameArgument,
    label: LabelOption = "target",
    kind: PartitionOption = SplitKind.DIRICHLET,
    parties: PartiesOption = 8,
    alpha: AlphaOption = 0.3,
    factor: FactorOption = 1.0,
    classes_per_party: ClassesOption = 2,
    party_column: PartyColumnOption = None,
    seed: SeedOption = 0,
    drop: DropOption = None,
    identifier: IdOption = None,
    out: Annotated[Path, typer.Option(help="Manifest file (JSON).")] = Path("manifest.json"),
    *,
    text_format: Any,
) -> None:
    """Split NAME over parties and write the manifest of the split.

    NAME is a data set or a file.
    """
    kind = SplitKind.NATURAL if party_column else kind
    files = choose_files([name], drop, identifier, text_format)
    dataset = read_data(files, label=label, party_column=party_column)
    _, manifest = split_data(dataset, Split(kind, parties, alpha, factor, classes_per_party, seed))
    _print_split(manifest)
    write_manifest(manifest, out)


def _print_split(manifest: "Manifest") -> None:
    from fedneighbors.cli._results import print_grid
    from fedneighbors.records import ResultTable

    labels = manifest.classes if len(manifest.classes) <= _MAX_CLASS_COLUMNS else ()
    rows: tuple[tuple[str | int, ...], ...] = tuple(
        (party, total, sum(count > 0 for count in counts), *counts[: len(labels)])
        for party, total, counts in zip(
            manifest.parties, manifest.rows_per_party, manifest.class_counts, strict=True
        )
    )
    columns = ("party", "rows", "classes", *(str(label) for label in labels))
    print_grid(ResultTable("split", "Rows of each party: total, then by class", columns, rows))
