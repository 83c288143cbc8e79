"""``fedneighbors explain``: cost of each search algorithm."""

from typing import TYPE_CHECKING, Any

from fedneighbors.cli._console import echo, note_compilation
from fedneighbors.cli._files import parse_sources, text_options
from fedneighbors.cli._search_options import (
    ColumnsOption,
    DataOption,
    DelayOption,
    Guarantee,
    GuaranteeOption,
    LimitOption,
    MetricOption,
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
    read_federation,
    read_queries,
)
from fedneighbors.cli._splits import PartiesOption, PartyColumnOption

if TYPE_CHECKING:
    from fedneighbors.methods.fedknn._planning import Plan


@text_options
def explain(
    data: DataOption,
    metric: MetricOption,
    query: QueryOption = None,
    queries: QueriesOption = None,
    k: NeighborsOption = 10,
    columns: ColumnsOption = "",
    schema: ObjectSchemaOption = None,
    limit: LimitOption = None,
    parties: PartiesOption = 8,
    partition: ObjectSplitOption = "uniform",
    party_column: PartyColumnOption = None,
    seed: TieSeedOption = 0,
    epsilon: QueryEpsilonOption = None,
    delta: QueryDeltaOption = None,
    guarantee: GuaranteeOption = Guarantee.EXACT,
    delay: DelayOption = 0.0,
    workers: WorkersOption = Workers.THREADS,
    *,
    text_format: Any,
) -> None:
    """Show the chosen search algorithm and the cost of each.

    Accepts the options of "run fedknn" that affect the cost. Runs the query
    with each algorithm; dann* is predicted. Charges nothing to a ledger.
    """
    files = parse_sources(data)
    source = Source(files, metric, columns, None, party_column, limit, schema, text_format)
    search = build_search(
        source.search_metric,
        epsilon=epsilon,
        delta=delta,
        guarantee=guarantee,
        delay=delay,
        workers=workers,
        seed=seed,
    )
    objects, owners = read_federation(source, partition, parties, seed)
    query_objects, labels = read_queries(query, queries, source=source, objects=objects)
    with note_compilation():
        search.fit(objects.items, parties=owners)
        for item, label in zip(query_objects, labels, strict=True):
            _print_plan(search.explain([item], k), label)


def _print_plan(plan: "Plan", label: str) -> None:
    from fedneighbors.cli._results import print_grid
    from fedneighbors.records import ResultTable
    from fedneighbors.reports._formatting import to_printable

    columns = ("algorithm", "exchanges", "returned", "local_s", "link_s", "broker_s", "total_s")
    rows = tuple(
        (p.algorithm, p.exchanges, p.n_returned, p.local_s, p.link_s, p.broker_s, p.total_s)
        for p in plan.costs
    )
    title, caption = f"The {plan.k} nearest to {label}", "Seconds of each algorithm."
    echo(f"{plan.algorithm}: {to_printable(plan.why, 1000)}", "green")
    print_grid(ResultTable("plan", title, columns, rows, caption=caption))
