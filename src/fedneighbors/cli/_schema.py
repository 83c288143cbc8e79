"""``fedneighbors schema``: draft a schema, and check a table against one."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedneighbors.cli._console import echo, print_warning
from fedneighbors.cli._files import (
    DropOption,
    IdOption,
    StrictCommand,
    choose_files,
    text_options,
)
from fedneighbors.cli._splits import LabelOption

schema = typer.Typer(
    no_args_is_help=True,
    help="Declare the columns of a table: draft a schema, check a table against one.",
)

_HEADER = """\
# Columns and labels of a table: kinds, ranges and categories, and a rule for missing cells.
# missing: a value to fill in, "drop" to drop the row, or "keep" to leave it missing.
# Drafted from rows. If these are private, this file discloses facts about them: replace ranges,
# categories, classes and values by publicly known ones before you share or use it.

"""


@schema.command(
    cls=StrictCommand,
    epilog="Example: [bold]fedneighbors schema draft --data public.csv --label outcome[/bold]",
)
@text_options
def draft(
    data: Annotated[
        Path, typer.Option(help="Public or synthetic table: CSV, Parquet or ARFF file.")
    ],
    label: LabelOption = "target",
    out: Annotated[Path, typer.Option(help="Schema file (TOML).")] = Path("schema.toml"),
    drop: DropOption = None,
    identifier: IdOption = None,
    *,
    text_format: Any,
) -> None:
    """Draft a schema from a public or synthetic table.

    Columns that identify rows are left out, with a comment. A draft from private rows is itself a
    disclosure: it has their smallest and largest values, their categories and their labels.
    """
    import json

    from fedneighbors.datasets._party_files import check_text_column
    from fedneighbors.datasets._reading import read_columns
    from fedneighbors.datasets._schema import Schema
    from fedneighbors.datasets._schema_columns import (
        check_measurement,
        is_identifier,
        read_labels,
    )
    from fedneighbors.datasets._table import check_present
    from fedneighbors.records import replace_file

    if out.exists():
        raise FileExistsError(f"{out} exists; delete it, or name another file with --out")
    table = read_columns(data, nominal=[label], text_format=text_format)
    dropped = choose_files([str(data)], drop, identifier, text_format).drop
    check_present(dropped, table.names, source=table.source)
    table = table.without(dropped)
    labels, known = read_labels(table.columns[label], ())
    for note in check_measurement(labels[known], label, source=table.source):
        print_warning(note)
    features = table.without([label]).columns
    for name in features:
        check_text_column(table, name)
    ids = [name for name, cells in features.items() if is_identifier(name, cells)]
    schema_draft = Schema.draft(table.without(ids), label)
    left_out = [f"# left out, as it identifies rows: {json.dumps(name)}\n" for name in ids]
    content = "".join([_HEADER, *left_out, "\n" if ids else "", schema_draft.to_toml()])
    replace_file(out, content.encode("utf-8"))
    if ids:
        print_warning(f"left out, as they identify rows: {', '.join(ids)}")
    print_warning(
        f"{out} has ranges, categories and labels of {data}; a draft from private rows is itself "
        "a disclosure: replace them by publicly known ones"
    )
    echo(f"schema {out}", "green")


@schema.command(
    cls=StrictCommand,
    epilog="Example: [bold]fedneighbors schema check --data visits.csv --schema schema.toml[/bold]",
)
@text_options
def check(
    data: Annotated[Path, typer.Option(help="Table: CSV, Parquet, ARFF or JSON lines file.")],
    schema: Annotated[Path, typer.Option(help="Schema file (TOML).")] = Path("schema.toml"),
    *,
    text_format: Any,
) -> None:
    """Count the cells and rows that a schema clips, fills or drops.

    Prints an example of cells outside of the schema. The counts are exact and not covered by a
    privacy budget: do not share them.
    """
    from fedneighbors.cli._results import print_grid
    from fedneighbors.datasets._reading import read_declared_cells
    from fedneighbors.datasets._schema import Schema
    from fedneighbors.datasets._schema_columns import kind_of
    from fedneighbors.records import ResultTable

    declared = Schema.load(schema)
    label = [declared.label] if declared.label else []
    found, n_unreadable = read_declared_cells(data, declared, label, text_format)
    rows = declared.check_rows(found)
    cells = tuple(
        (
            column.name,
            kind_of(column),
            rows.clipped[column.name],
            rows.missing[column.name],
            str(column.missing),
        )
        for column in declared.columns
    )
    columns = ("column", "kind", "clipped", "missing or invalid", "rule")
    print_grid(ResultTable("cells", "Cells of each column", columns, cells))
    for name, faults in rows.faults.items():
        if faults.example:
            joined = f", {faults.n_joined} join codes without spaces" if faults.n_joined else ""
            echo(
                f"column {name!r}: {faults.n_invalid} cells are invalid, {rows.clipped[name]} "
                f"clipped{joined}; an example from your rows: {faults.example!r}",
                "yellow",
            )
        if faults.n_garbled:
            echo(
                f"column {name!r}: {faults.n_garbled} cells are text of another encoding; state it "
                "(--encoding), often cp1252",
                "yellow",
            )
    echo(f"{len(rows.x)} of {len(rows.kept) + n_unreadable} rows are used")
    echo(f"{n_unreadable:>8} rows have another number of cells than the header")
    echo(f"{rows.n_unlabelled:>8} rows have no declared label")
