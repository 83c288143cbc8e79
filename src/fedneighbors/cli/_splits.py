"""Command-line options of a data set and its split over parties, and their effect."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedneighbors.cli._console import echo, print_warning
from fedneighbors.cli._files import Files, is_file
from fedneighbors.errors import PartitionError

if TYPE_CHECKING:
    from fedneighbors.datasets._dataset import Dataset
    from fedneighbors.partition import Manifest
    from fedneighbors.partition._assignment import Parties


_DEFAULT_LABEL = "target"
_MIN_PARTY_ROWS = 5


class SplitKind(StrEnum):
    """Kinds of splits on the command line."""

    DIRICHLET = "dirichlet"
    IID = "iid"
    PATHOLOGICAL = "pathological"
    PATHOLOGICAL_V2 = "pathological_v2"
    QUANTITY = "quantity"
    NATURAL = "natural"


class TaskName(StrEnum):
    """Kinds of targets."""

    CLASSIFICATION = "classification"
    REGRESSION = "regression"


TaskOption = Annotated[TaskName, typer.Option(help="Kind of the label.")]
SETTINGS: Mapping[str, str] = {
    SplitKind.DIRICHLET: "alpha",
    SplitKind.QUANTITY: "factor",
    SplitKind.PATHOLOGICAL: "classes_per_party",
    SplitKind.PATHOLOGICAL_V2: "classes_per_party",
}
"""The setting of each kind of split that has one."""

DataOption = Annotated[
    list[str],
    typer.Option(
        metavar="[NAME=]DATA",
        help="Table of all parties, or repeated: one table for each party, named by NAME or by its "
        "file. CSV, Parquet, ARFF or .npz; or a data set, openml:ID or openml:NAME.",
    ),
]
TestOption = Annotated[
    float, typer.Option(min=0.01, max=0.99, help="Fraction of rows to hold out.")
]
OutOption = Annotated[Path, typer.Option(help="Output directory.")]
LabelOption = Annotated[str, typer.Option(help="Label column of a file.")]
PartitionOption = Annotated[SplitKind, typer.Option(help="Split of the rows over the parties.")]
PartiesOption = Annotated[int, typer.Option(min=1, help="Number of parties.")]
AlphaOption = Annotated[
    float, typer.Option(help="Label skew of 'dirichlet'; lower is more skewed.")
]
FactorOption = Annotated[
    float, typer.Option(help="Size skew of 'quantity'; 0 gives parties of equal size.")
]
ClassesOption = Annotated[
    int,
    typer.Option(
        min=1, help="Classes per party: maximum in 'pathological', exact in 'pathological_v2'."
    ),
]
PartyColumnOption = Annotated[
    str | None,
    typer.Option(help="Column with the party of each row, instead of a simulated split."),
]
SeedOption = Annotated[int, typer.Option(help="Random seed.")]


@dataclass(frozen=True)
class Split:
    """A split as given on the command line."""

    kind: SplitKind
    n_parties: int
    alpha: float
    factor: float
    classes_per_party: int
    seed: int

    @property
    def parameters(self) -> Mapping[str, float]:
        """Return the parameters that the kind of split uses."""
        name = SETTINGS.get(self.kind)
        return {} if name is None else {name: getattr(self, name)}


def read_data(
    files: Files,
    *,
    label: str,
    party_column: str | None,
    schema: Path | None = None,
    keep_missing: bool = False,
    has_classes: bool = True,
) -> "Dataset":
    """Read a data set, named or from files; print notes about it.

    Parameters
    ----------
    files : Files
        Name of the data set, or files.
    label, party_column : str
        As on the command line.
    schema : Path, optional
        Schema of the files; its label and its rules for missing cells replace the other arguments.
    keep_missing : bool
        Leave missing cells of numeric columns NaN.
    has_classes : bool
        The label is a class, not a number to predict.

    Raises
    ------
    typer.BadParameter
        If a column is given for a data set that is not a table.
    DataError
        If there is no such data set, a file is invalid, or labels are not classes.
    """
    from fedneighbors.datasets._catalog import fetch_openml, load
    from fedneighbors.datasets._party_files import check_classes, read_party_files
    from fedneighbors.datasets._schema import Schema

    name = files.single
    if name is None or is_file(name):
        if any(source.endswith(".npz") for source in files.sources.values()):
            _check_columns(files, label, party_column, schema)
        declared = None if schema is None else Schema.load(schema)
        if declared is not None and set(files.drop) & set(declared.column_names):
            raise typer.BadParameter(f"--drop and --id name columns that {schema} declares")
        expected = declared.label if declared else ""
        if expected and label not in (_DEFAULT_LABEL, expected):
            raise typer.BadParameter(
                f"--label is {label!r}, but the label of {schema} is {expected!r}; omit "
                "--label, or correct the schema"
            )
        data = read_party_files(
            files.sources,
            label,
            party=party_column,
            drop=files.drop if declared is None else (),
            schema=declared,
            text_format=files.text_format,
            keep_missing=keep_missing,
        )
        label = expected or label
        for note in (*data.notes, *(check_classes(data, label) if has_classes else ())):
            print_warning(note)
        return data
    _check_columns(files, label, party_column, schema)
    if name.startswith("openml:"):
        key = name.removeprefix("openml:")
        return fetch_openml(int(key) if key.isdecimal() else key, keep_missing=keep_missing)
    return load(name, keep_missing=keep_missing)


def _check_columns(files: Files, label: str, party_column: str | None, schema: Path | None) -> None:
    """Raise if column options are given for data without named columns."""
    options = {
        "--label": None if label == _DEFAULT_LABEL else label,
        "--party-column": party_column,
        "--schema": None if schema is None else str(schema),
        "--drop or --id": ", ".join(files.drop) or None,
    }
    for option, column in options.items():
        if column is not None:
            raise typer.BadParameter(
                f"{option} {column!r} is for files, but {files.title!r} is not a file: it is read "
                f"as a data set, whose columns are fixed; omit {option}, or give a file"
                if files.single and not is_file(files.single)
                else f"{option} {column!r} is for tables, but arrays in .npz files have no named "
                f"columns; omit {option}"
            )


@dataclass(frozen=True, eq=False)
class SplitData:
    """A data set whose rows are split over parties, and its source for the record."""

    table: "Dataset"
    owners: "Parties"
    manifest: "Manifest"
    source: Mapping[str, str]


def read_and_split(
    files: Files,
    *,
    label: str,
    party_column: str | None,
    split: Split,
    schema: Path | None = None,
    keep_missing: bool = False,
    has_classes: bool = True,
    private: bool = False,
) -> SplitData:
    """Read a data set and split its rows over parties.

    Parameters
    ----------
    files, label, party_column, schema, keep_missing, has_classes
        As in :func:`read_data`. With a party column the parties are its values.
    split : Split
        Split of the rows; ignored if there is a party column or several files.
    private : bool
        Training has a privacy budget: rows of different parties are not compared.

    Raises
    ------
    typer.BadParameter
        If the party column is the label, or one of them is given for a data set that is not a
        table.
    DataError, PartitionError, ValueError
        As for :func:`read_data` and :func:`split_data`.
    """
    from fedneighbors.datasets._party_files import note_equal_rows

    if party_column == label:
        raise typer.BadParameter(f"--party-column and --label both name {label!r}")
    if party_column or files.single is None:
        split = replace(split, kind=SplitKind.NATURAL)
    table = read_data(
        files,
        label=label,
        party_column=party_column,
        schema=schema,
        keep_missing=keep_missing,
        has_classes=has_classes,
    )
    owners, manifest = split_data(table, split)
    _warn_of_small_parties(owners)
    if split.kind is SplitKind.NATURAL and not private:
        for note in note_equal_rows(table):
            print_warning(note)
    parties_by = party_column or (split.kind.value if files.single else "file")
    source = {"data": files.title, "label": label, "parties by": parties_by}
    return SplitData(table, owners, manifest, source)


def _warn_of_small_parties(owners: "Parties") -> None:
    """Print a note if parties have very few rows."""
    import numpy as np

    names, counts = np.unique(owners, return_counts=True)
    small = names[counts < _MIN_PARTY_ROWS].tolist()
    if small:
        print_warning(
            f"fewer than {_MIN_PARTY_ROWS} rows at {len(small)} of {len(names)} parties, such as "
            f"{small[0]!r}: too few to train alone, and scores on them are mostly chance"
        )


def split_data(data: "Dataset", split: Split) -> tuple["Parties", "Manifest"]:
    """Return the party of each row, and the manifest of the split.

    Raises
    ------
    ValueError
        If the split is natural but the data set has no owners of rows, or a number is out of
        range.
    PartitionError
        If no valid split was found.
    """
    from fedneighbors import partition

    if split.kind is SplitKind.NATURAL:
        if data.parties is None:
            raise ValueError(
                f"data set {data.name!r} has no owners of rows; "
                "name the column of a file with --party-column, or choose another split"
            )
        parties = partition.natural(data.parties)
        return parties, partition.describe(parties, data.y, kind="natural")
    kind = "quantity_skew" if split.kind is SplitKind.QUANTITY else split.kind.value
    try:
        parties = partition.split(
            kind, data.y, split.n_parties, seed=split.seed, **split.parameters
        )
    except PartitionError as error:
        raise PartitionError(
            f"{error} (--parties, --alpha, --partition; or one --data for each party)"
        ) from error
    return parties, partition.describe(
        parties, data.y, kind=kind, seed=split.seed, parameters=split.parameters
    )


def write_manifest(manifest: "Manifest", path: Path) -> None:
    """Write a manifest, creating its folder, and print the path."""
    from fedneighbors.records import replace_file

    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, manifest.to_json().encode("utf-8"))
    echo(f"manifest {path}", "green")
