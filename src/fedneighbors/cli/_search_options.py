"""Command-line options of searches, and the objects and search that they describe."""

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedneighbors.cli._console import print_warning

if TYPE_CHECKING:
    from fedneighbors.datasets import Schema
    from fedneighbors.datasets._object_cells import Kind, Objects
    from fedneighbors.datasets._text_format import TextFormat
    from fedneighbors.methods.fedknn import FederatedNeighbors
    from fedneighbors.partition._assignment import Parties
    from fedneighbors.privacy.ledger._ledger import Ledger

_ROW = re.compile(r"row:(?:(.+):)?([0-9]{1,12})")
# titles of the panels of options in the help text
_DATA = "Objects"
_QUERY = "Queries"
_PRIVACY = "Privacy"
_LINKS = "Workers and links"


class MetricName(StrEnum):
    """Metrics on the command line."""

    EUCLIDEAN = "euclidean"
    MANHATTAN = "manhattan"
    COSINE = "cosine"
    INNER_PRODUCT = "inner_product"
    HAVERSINE = "haversine"
    EDIT = "edit"
    JACCARD = "jaccard"
    GRAPH_EDIT = "graph_edit"
    TANIMOTO = "tanimoto"
    TABULAR = "tabular"

    @property
    def kind(self) -> "Kind":
        """Return the kind of object that the metric compares."""
        from fedneighbors.datasets._object_cells import METRIC_KINDS

        return METRIC_KINDS[self.value]


DataOption = Annotated[
    list[str],
    typer.Option(
        metavar="[NAME=]DATA",
        help="File of all parties, or repeated: one file for each party, named by NAME or by its "
        "file. CSV, Parquet or .npz; text with one string per line (edit) or the words of one "
        "set per line (jaccard); .smi (SMILES: tanimoto, graph_edit) or any other file in gSpan "
        "format (graph_edit); or the name of a data set.",
        rich_help_panel=_DATA,
    ),
]
MetricOption = Annotated[MetricName, typer.Option(help="Distance metric.", rich_help_panel=_DATA)]
ColumnsOption = Annotated[
    str,
    typer.Option(
        help="Comma-separated columns of a table: vector components (all numeric columns by "
        "default), longitude and latitude, or the one column of strings, sets or SMILES.",
        rich_help_panel=_DATA,
    ),
]
ObjectSchemaOption = Annotated[
    Path | None,
    typer.Option(
        "--schema",
        help="Schema of a table of vectors or rows (TOML), in place of --columns: scales numbers "
        "(tabular), converts categories, fills missing cells. See fedneighbors schema draft.",
        rich_help_panel=_DATA,
    ),
]
NameColumnOption = Annotated[
    str | None,
    typer.Option(help="Column of a table with the name of each object.", rich_help_panel=_DATA),
]
LimitOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Use only the first objects of a file, at most this number.",
        rich_help_panel=_DATA,
    ),
]
ObjectSplitOption = Annotated[
    str,
    typer.Option(
        help="Split of the objects: uniform, zipf:S (the i-th party's size is proportional to "
        "i**-S), or natural (by --party-column).",
        rich_help_panel=_DATA,
    ),
]
TieSeedOption = Annotated[
    int, typer.Option(min=0, help="Seed of the split and of the order of tied objects.")
]
QueryOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Query, as for fedneighbors search: a string, comma-separated numbers, the words of a "
        "set, SMILES, or with --schema a row (cells in order, or JSON); or row:17 for the 17th row "
        "of the data (row:NAME:17 for that of a party's file); repeatable.",
        rich_help_panel=_QUERY,
    ),
]
QueriesOption = Annotated[
    Path | None,
    typer.Option(help="File of queries, in the format of --data.", rich_help_panel=_QUERY),
]
WhereOption = Annotated[
    str,
    typer.Option(
        help='Filter by columns of the tables, as JSON such as \'{"age": {">=": 50}}\', like that '
        "of fedneighbors search; of .smi files, the column is smiles.",
        rich_help_panel=_QUERY,
    ),
]
NeighborsOption = Annotated[
    int, typer.Option("-k", "--n-neighbors", min=1, help="Number of neighbors (k).")
]


@dataclass(frozen=True)
class Source:
    """Source of the objects, as given on the command line."""

    data: Mapping[str, str]  # the file of each party, or one under ""
    metric: MetricName
    columns: str
    name_column: str | None
    party_column: str | None
    limit: int | None
    schema_path: Path | None
    text_format: "TextFormat"

    @cached_property
    def schema(self) -> "Schema | None":
        """Return the schema, if given."""
        from fedneighbors.datasets import Schema

        return None if self.schema_path is None else Schema.load(self.schema_path)

    @property
    def search_metric(self) -> "str | Schema":
        """Return the metric of the search; that of rows is their schema.

        Raises
        ------
        typer.BadParameter
            If the schema of rows is missing, or declares no range of a number.
        """
        from fedneighbors.methods.fedknn.metrics import metric_of

        if self.metric is not MetricName.TABULAR:
            return self.metric.value
        if self.schema is None:
            raise typer.BadParameter("--metric tabular needs --schema, with ranges and categories")
        try:
            metric_of(self.schema)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        return self.schema

    @property
    def options(self) -> dict[str, Any]:
        """Return the arguments for reading a file."""
        return {
            "columns": self.column_names,
            "label": self.name_column,
            "schema": self.schema,
            "text_format": self.text_format,
        }

    def read(self) -> "Objects":
        """Read the objects of all parties."""
        from fedneighbors.datasets._objects import read_objects, read_party_objects

        kind = self.metric.kind
        if "" not in self.data:
            return read_party_objects(self.data, kind, limit=self.limit, **self.options)
        objects = read_objects(self.data[""], kind, owner=self.party_column, **self.options)
        return objects if self.limit is None else objects.first(self.limit)

    def read_queries(self, file: Path, columns: Sequence[str]) -> "Objects":
        """Read a file of queries with the columns of the objects."""
        from fedneighbors.datasets._objects import read_objects

        options = {**self.options, "columns": columns or self.column_names}
        return read_objects(file, self.metric.kind, complete=True, **options)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Return the names in ``columns``."""
        return tuple(name.strip() for name in self.columns.split(",") if name.strip())


def read_federation(
    source: Source, partition: str, n_parties: int, seed: int
) -> "tuple[Objects, Parties]":
    """Return the objects of the command line, and their parties.

    Raises
    ------
    typer.BadParameter
        If ``partition`` is invalid, or "natural" without a party column.
    DataError, PartitionError
        If the data cannot be read or split.
    """
    objects = source.read()
    for note in objects.notes:
        print_warning(note)
    return objects, _owners(objects, partition, n_parties, seed)


def _owners(objects: "Objects", partition: str, n_parties: int, seed: int) -> "Parties":
    """Return the party of each object."""
    from fedneighbors.partition import natural, quantity_skew

    if objects.owners is not None:
        return natural(objects.owners)
    if partition == "natural":
        raise typer.BadParameter("--partition natural needs --party-column")
    kind, _, factor = partition.partition(":")
    if partition != "uniform" and not (kind == "zipf" and factor):
        raise typer.BadParameter(
            f"expected --partition uniform, zipf:S or natural, got {partition!r}"
        )
    try:
        skew = float(factor or 0)
    except ValueError:
        raise typer.BadParameter(f"expected a number after zipf:, got {factor!r}") from None
    return quantity_skew(len(objects), n_parties, factor=skew, seed=seed)


def read_queries(
    texts: list[str] | None, file: Path | None, *, source: Source, objects: "Objects"
) -> tuple[list[Any], list[str]]:
    """Return the queries given on the command line, and their labels.

    Raises
    ------
    typer.BadParameter
        If there are no queries, or a query ``row:N`` does not exist.
    DataError
        If a query cannot be parsed, or the file cannot be read.
    """
    if not texts and file is None:
        raise typer.BadParameter("give a --query, or a file of queries with --queries")
    labelled = [_parse_query(text, source=source, objects=objects) for text in texts or ()]
    if file is not None:
        from_file = source.read_queries(file, objects.columns)
        for note in from_file.notes:
            print_warning(f"{file}: {note}")
        labelled += zip(from_file.items, from_file.labels, strict=True)
    return [query for query, _ in labelled], [label for _, label in labelled]


def _parse_query(text: str, *, source: Source, objects: "Objects") -> tuple[Any, str]:
    """Return the query of a text, and its label."""
    from fedneighbors.datasets._molecules import MOLECULES
    from fedneighbors.datasets._object_cells import parse_object
    from fedneighbors.datasets._objects import read_text_query

    row, kind = _ROW.fullmatch(text), source.metric.kind
    if row is None and source.schema is not None:
        return _parse_row(text, source.schema, is_tabular=source.metric is MetricName.TABULAR), text
    if row is None:
        n_columns = None if kind != "vectors" else len(objects.items[0])
        query = read_text_query(text, kind, n_columns=n_columns)
        return parse_object(text, kind) if kind in MOLECULES else query, text
    if row[1] is None and len(source.data) > 1:
        raise typer.BadParameter(f"{text} may be of any file; name the party: row:NAME:{row[2]}")
    position = objects.find_row(int(row[2]), row[1])
    if position is None:
        last = objects.rows[-1] if objects.rows else len(objects)
        dropped = "; a dropped row is no query" if objects.rows else ""
        raise typer.BadParameter(f"expected a row from 1 to {last}, got {text}{dropped}")
    return objects.items[position], objects.labels[position]


def read_filter(where: str, *, source: Source, objects: "Objects") -> "tuple[Any, Any]":
    """Return the filter of the command line, and its columns.

    Both are None without a filter.

    Raises
    ------
    ValueError
        If the filter is no JSON.
    DataError
        If a file cannot be read as a table.
    """
    from fedneighbors.datasets._molecules import Molecules
    from fedneighbors.datasets._objects import read_filter_cells, read_json
    from fedneighbors.methods.fedknn._filters import list_columns

    if not where:
        return None, None
    found = read_json(where, "--where")
    names = list_columns(found)
    columns: dict[str, list[Any]] = {}
    rows = objects.rows or range(1, len(objects) + 1)
    for party, file in source.data.items():
        own = [i for i in range(len(objects)) if not party or objects.owner_of(i) == party]
        cells = read_filter_cells(
            Path(file),
            names,
            labels=[objects.labels[i] for i in own],
            text_format=source.text_format,
        )
        for name, column in cells.items():
            columns.setdefault(name, []).extend(column[rows[i] - 1] for i in own)
    molecules = {name: Molecules(cells) for name, cells in columns.items() if names[name]}
    return found, {**columns, **molecules}


def _parse_row(text: str, schema: "Schema", *, is_tabular: bool) -> Any:
    """Return the cells of a row, or their features.

    Raises
    ------
    DataError
        If a column is unknown, or a cell outside of the schema.
    """
    from fedneighbors.datasets._cell_faults import check_row
    from fedneighbors.datasets._objects import read_text_query

    row = read_text_query(text, "rows", columns=schema.column_names)
    check_row(schema.columns, row)
    if is_tabular:
        return tuple(row.get(name) for name in schema.column_names)
    return schema.encode_all({name: [row.get(name)] for name in schema.column_names})[0]


class AlgorithmName(StrEnum):
    """Algorithms on the command line."""

    AUTO = "auto"
    DANN = "dann"
    BASELINE = "baseline"
    DANN_STAR = "dann*"
    EAGER = "eager"
    HUFU = "hufu"
    HUFU_PLUS = "hufu+"


class Guarantee(StrEnum):
    """Guarantees of private answers."""

    EXACT = "exact"
    CERTIFIED = "certified"


class Workers(StrEnum):
    """Workers that run the parties."""

    THREADS = "threads"
    PROCESSES = "processes"


AlgorithmOption = Annotated[
    AlgorithmName,
    typer.Option(
        help="Search algorithm; all give the same answers. auto adapts to the times of "
        "earlier queries, see fedneighbors explain."
    ),
]
QueryEpsilonOption = Annotated[
    str | None,
    typer.Option(
        help="Epsilon of one query: limits what each party learns about objects of the others. "
        "A number such as 1 or 1/2.",
        rich_help_panel=_PRIVACY,
    ),
]
QueryDeltaOption = Annotated[
    str | None,
    typer.Option(
        help="Delta of the guarantee, such as 1e-6; for --guarantee exact.",
        rich_help_panel=_PRIVACY,
    ),
]
GuaranteeOption = Annotated[
    Guarantee,
    typer.Option(
        help="With --epsilon: exact (answers are always exact, needs --delta), or certified "
        "(each answer states whether it is exact).",
        rich_help_panel=_PRIVACY,
    ),
]
LedgerOption = Annotated[
    Path | None,
    typer.Option(
        help="Ledger file of the broker, with a budget for each party; by default a ledger in "
        "memory that is discarded after the run.",
        rich_help_panel=_PRIVACY,
    ),
]
DelayOption = Annotated[
    float,
    typer.Option(
        min=0,
        help="Emulated round-trip time to each party in milliseconds.",
        rich_help_panel=_LINKS,
    ),
]
WorkersOption = Annotated[
    Workers, typer.Option(help="Run parties as threads or processes.", rich_help_panel=_LINKS)
]


def build_search(
    metric: "str | Schema",
    *,
    algorithm: AlgorithmName = AlgorithmName.AUTO,
    epsilon: str | None,
    delta: str | None,
    guarantee: Guarantee,
    delay: float,
    workers: Workers,
    seed: int,
) -> "FederatedNeighbors":
    """Return the unfitted search that the options describe.

    Raises
    ------
    typer.BadParameter
        If --delta or --guarantee certified is given without --epsilon, or a number is invalid.
    """
    from fedneighbors.federation._links import Link
    from fedneighbors.methods.fedknn import FederatedNeighbors
    from fedneighbors.privacy._policy import Privacy

    privacy = None
    if epsilon is None and (delta or guarantee is Guarantee.CERTIFIED):
        raise typer.BadParameter("--delta and --guarantee need --epsilon, the budget")
    if epsilon is not None:
        try:
            privacy = Privacy(epsilon=epsilon, delta=delta or 0)
        except (ValueError, TypeError) as error:
            raise typer.BadParameter(str(error)) from error
    return FederatedNeighbors(
        metric=metric,
        algorithm=algorithm.value,
        privacy=privacy,
        guarantee=guarantee.value,
        random_state=seed,
        workers=workers.value,
        link=Link(delay / 1e3) if delay else None,
    )


def open_ledger(ledger: Path | None) -> "AbstractContextManager[Ledger | None]":
    """Open a ledger for the block; yield None without a file.

    Raises
    ------
    LedgerError
        If the ledger does not exist, or cannot be opened.
    """
    if ledger is None:
        return nullcontext()
    from fedneighbors.privacy.ledger._ledger import Ledger

    return Ledger(ledger, must_exist=True)
