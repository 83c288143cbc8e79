"""``fedneighbors run fedknn``: search objects split over simulated parties."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedneighbors.cli._console import delay_interrupt, echo, note_compilation
from fedneighbors.cli._files import parse_sources, text_options
from fedneighbors.cli._search_options import (
    AlgorithmName,
    AlgorithmOption,
    ColumnsOption,
    DataOption,
    DelayOption,
    Guarantee,
    GuaranteeOption,
    LedgerOption,
    LimitOption,
    MetricOption,
    NameColumnOption,
    NeighborsOption,
    ObjectSchemaOption,
    ObjectSplitOption,
    QueriesOption,
    QueryDeltaOption,
    QueryEpsilonOption,
    QueryOption,
    Source,
    TieSeedOption,
    WhereOption,
    Workers,
    WorkersOption,
    build_search,
    open_ledger,
    read_federation,
    read_filter,
    read_queries,
)
from fedneighbors.cli._splits import PartiesOption, PartyColumnOption

if TYPE_CHECKING:
    from fedneighbors.records import ResultTable, RunRecord


_MAX_PRINTED_QUERIES = 10


@text_options
def fedknn(
    data: DataOption,
    metric: MetricOption,
    query: QueryOption = None,
    queries: QueriesOption = None,
    k: NeighborsOption = 10,
    where: WhereOption = "",
    columns: ColumnsOption = "",
    schema: ObjectSchemaOption = None,
    name_column: NameColumnOption = None,
    limit: LimitOption = None,
    parties: PartiesOption = 8,
    partition: ObjectSplitOption = "uniform",
    party_column: PartyColumnOption = None,
    seed: TieSeedOption = 0,
    algorithm: AlgorithmOption = AlgorithmName.AUTO,
    epsilon: QueryEpsilonOption = None,
    delta: QueryDeltaOption = None,
    guarantee: GuaranteeOption = Guarantee.EXACT,
    ledger: LedgerOption = None,
    delay: DelayOption = 0.0,
    workers: WorkersOption = Workers.THREADS,
    out: Annotated[Path, typer.Option(help="Output directory.")] = Path("fedneighbors-search"),
    *,
    text_format: Any,
) -> None:
    """Find the nearest objects of several parties with FedKNN.

    Each file is a party; the objects of a single one are split over simulated
    parties. All run on this machine. Prints the neighbors of each query and the
    cost of the search, and writes neighbors.csv. The tables call the parties
    providers, as the paper does. The neighbors are exact; with --guarantee
    certified, each answer states whether it is exact.
    """
    from fedneighbors.records._storage import lock_folder
    from fedneighbors.runs._fedknn import SearchInput, search_and_record

    files = parse_sources(data)
    source = Source(files, metric, columns, name_column, party_column, limit, schema, text_format)
    search = build_search(
        source.search_metric,
        algorithm=algorithm,
        epsilon=epsilon,
        delta=delta,
        guarantee=guarantee,
        delay=delay,
        workers=workers,
        seed=seed,
    )
    objects, owners = read_federation(source, partition, parties, seed)
    query_objects, labels = read_queries(query, queries, source=source, objects=objects)
    condition, filter_columns = read_filter(where, source=source, objects=objects)
    parameters = {
        "data": ", ".join(Path(file).name for file in files.values()),
        "metric": metric.value,
        "algorithm": search.algorithm,
        "objects": len(objects),
        "parties by": party_column or (partition if "" in files else "file"),
        "round trip in ms": delay,
        **({"where": where} if where else {}),
    }
    with lock_folder(out), open_ledger(ledger) as broker_ledger, note_compilation():
        search.fit(objects.items, parties=owners, ledger=broker_ledger, columns=filter_columns)
        inputs = SearchInput(owners, objects.labels, query_objects, labels, objects.rows)
        record = search_and_record(search, inputs, k=k, parameters=parameters, where=condition)
        _report_search(record, out)


def _report_search(record: "RunRecord", out: Path) -> None:
    """Print neighbors and cost; write record, report and neighbors."""
    from fedneighbors.cli._results import print_tables, write_results, write_table

    _print_neighbors(record.tables[0])
    print_tables(record, ["cost", "providers"])
    with delay_interrupt():
        write_results(record, out, name="record")
        write_table(record.tables[0], out / "neighbors.csv")


def _print_neighbors(table: "ResultTable") -> None:
    """Print the neighbors of each of the first queries."""
    from fedneighbors.cli._results import print_grid

    queries = list(dict.fromkeys(row[0] for row in table.rows))
    for query in queries[:_MAX_PRINTED_QUERIES]:
        rows = tuple(row[1:] for row in table.rows if row[0] == query)
        title, columns = f"Nearest to {query}", table.columns[1:]
        print_grid(replace(table, title=title, columns=columns, rows=rows))
    if len(queries) > _MAX_PRINTED_QUERIES:
        echo(f"{len(queries) - _MAX_PRINTED_QUERIES} more queries are in the record.")
