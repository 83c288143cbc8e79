"""``fedneighbors run fedknn``: search objects split over simulated parties."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
    Workers,
    WorkersOption,
    build_search,
    open_ledger,
    read_federation,
    read_queries,
)
from fedneighbors.cli._splits import PartiesOption, PartyColumnOption

if TYPE_CHECKING:
    from fedneighbors.records import ResultTable


_MAX_PRINTED_QUERIES = 10


def fedknn(
    data: DataOption,
    metric: MetricOption,
    query: QueryOption = None,
    queries: QueriesOption = None,
    k: NeighborsOption = 10,
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
) -> None:
    """Find the nearest objects of several parties with FedKNN.

    Splits the objects of one file over simulated parties, all on this machine.
    Prints the neighbors of each query and the cost of the search. The tables
    call the parties providers, as the paper does. The neighbors are exact; with
    --guarantee certified, each answer states whether it is exact.
    """
    from fedneighbors.cli._results import print_tables, write_results
    from fedneighbors.records._storage import lock_folder
    from fedneighbors.runs._fedknn import SearchInput, search_and_record

    search = build_search(
        metric,
        algorithm=algorithm,
        epsilon=epsilon,
        delta=delta,
        guarantee=guarantee,
        delay=delay,
        workers=workers,
        seed=seed,
    )
    source = Source(data, metric, columns, name_column, party_column, limit, schema)
    objects, owners = read_federation(source, partition, parties, seed)
    query_objects, labels = read_queries(query, queries, source=source, objects=objects)
    parameters = {
        "data": Path(data).name,
        "metric": metric.value,
        "algorithm": search.algorithm,
        "objects": len(objects),
        "parties by": party_column or partition,
        "round trip in ms": delay,
    }
    with lock_folder(out), open_ledger(ledger) as broker_ledger:
        search.fit(objects.items, parties=owners, ledger=broker_ledger)
        inputs = SearchInput(owners, objects.labels, query_objects, labels)
        record = search_and_record(search, inputs, k=k, parameters=parameters)
        _print_neighbors(record.tables[0])
        print_tables(record, ["cost", "providers"])
        write_results(record, out, name="record")


def _print_neighbors(table: "ResultTable") -> None:
    """Print the neighbors of each of the first queries."""
    from fedneighbors.cli._console import echo
    from fedneighbors.cli._results import print_grid

    queries = list(dict.fromkeys(row[0] for row in table.rows))
    for query in queries[:_MAX_PRINTED_QUERIES]:
        rows = tuple(row[1:] for row in table.rows if row[0] == query)
        title, columns = f"Nearest to {query}", table.columns[1:]
        print_grid(replace(table, title=title, columns=columns, rows=rows))
    if len(queries) > _MAX_PRINTED_QUERIES:
        echo(f"{len(queries) - _MAX_PRINTED_QUERIES} more queries are in the record.")
