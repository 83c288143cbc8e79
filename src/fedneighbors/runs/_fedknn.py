"""Run record of searches: the neighbours found and their cost."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.datasets._object_cells import FEW_CELLS, SIMILARITIES
from fedneighbors.datasets._schema import Schema
from fedneighbors.methods.fedknn._filters import Where
from fedneighbors.methods.fedknn._queries import QueryRecord
from fedneighbors.methods.fedknn.estimator import FederatedNeighbors
from fedneighbors.records import Figure, ResultTable, RunRecord, Scalar, environment

_MAX_QUERIES_DRAWN = 6
_MAX_BARS = 16
_MAX_LABEL = 200  # characters


@dataclass(frozen=True, eq=False)
class SearchInput:
    """Parties and labels of the objects of a search, and its queries.

    Parameters
    ----------
    owners : str array of shape (n_objects,)
        Party of each object.
    labels : sequence of str
        Label of each object.
    queries : sequence of objects
        Search queries.
    query_labels : sequence of str
        Label of each query.
    rows : sequence of int, optional
        Row of each object in its file, from 1; by default the position.
    """

    owners: npt.NDArray[np.str_]
    labels: Sequence[str]
    queries: Sequence[Any]
    query_labels: Sequence[str]
    rows: Sequence[int] | None = None


def search_and_record(
    search: FederatedNeighbors,
    inputs: SearchInput,
    *,
    k: int,
    parameters: Mapping[str, Scalar | list[Scalar]],
    where: Where | None = None,
) -> RunRecord:
    """Search all queries and return the run record.

    Parameters
    ----------
    search : FederatedNeighbors
        Fitted on the objects.
    inputs : SearchInput
        Labels and parties of the objects, and the queries.
    k : int
        Number of neighbours.
    parameters : mapping
        Settings for the record.
    where : mapping, optional
        Filter by the columns of the objects.

    Returns
    -------
    RunRecord
        Tables ``neighbors`` (a row per query and neighbour), ``cost`` (a row per query),
        ``providers`` (a row per party) and ``phases`` (a row per query and kind of exchange), with
        figures.

    Raises
    ------
    ValueError, FedneighborsError
        As :meth:`FederatedNeighbors.kneighbors`.
    """
    started, clock = datetime.now(UTC), time.perf_counter()
    distances, indices = search.kneighbors(inputs.queries, k, where=where)
    seconds = time.perf_counter() - clock
    records = search.query_records_
    is_tabular = search.metric == "tabular" or isinstance(search.metric, Schema)
    return RunRecord(
        name="fedknn.search",
        parameters={**parameters, "k": k, "queries": len(records)},
        tables=(
            _tabulate_neighbors(
                inputs, distances, indices, with_similarity=search.metric in SIMILARITIES
            ),
            _tabulate_costs(records),
            _tabulate_providers(inputs, records),
            _tabulate_phases(records),
        ),
        figures=_list_figures(len(records)),
        notes=(*_write_notes(records), *([FEW_CELLS] if is_tabular else [])),
        started=started.isoformat(timespec="seconds"),
        seconds=seconds,
        environment=environment(),
        privacy=_describe_privacy(search),
    )


def _tabulate_neighbors(
    inputs: SearchInput,
    distances: Sequence[Any],
    indices: Sequence[Any],
    *,
    with_similarity: bool,
) -> ResultTable:
    owners, places = inputs.owners.tolist(), inputs.rows or range(1, len(inputs.labels) + 1)
    rows = [
        (
            *(name, rank, _shorten(inputs.labels[i]), places[i], float(distance)),
            *((1 - float(distance),) if with_similarity else ()),
            owners[i],
        )
        for name, query_distances, query_indices in zip(
            _number_labels(inputs.query_labels), distances, indices, strict=True
        )
        for rank, (distance, i) in enumerate(
            zip(query_distances, query_indices.tolist(), strict=True), start=1
        )
        if i >= 0  # fewer objects than k may meet a filter
    ]
    shown = ("distance", "similarity") if with_similarity else ("distance",)
    columns = ("query", "rank", "object", "row", *shown, "party")
    return ResultTable("neighbors", "Nearest objects", columns, tuple(rows))


def _number_labels(labels: Sequence[str]) -> list[str]:
    """Return labels of queries, numbered if there are several."""
    if len(labels) == 1:
        return [_shorten(labels[0])]
    return [f"{number}. {_shorten(label)}" for number, label in enumerate(labels, start=1)]


def _shorten(label: str) -> str:
    return label if len(label) <= _MAX_LABEL else f"{label[:_MAX_LABEL]}\N{HORIZONTAL ELLIPSIS}"


def _tabulate_costs(records: Sequence[QueryRecord]) -> ResultTable:
    rows = [
        (
            number,
            record.algorithm,
            _describe_exactness(record),
            sum(record.n_returned.values()),
            sum(record.verified.values()),
            record.n_rounds,
            record.upload_bytes,
            record.download_bytes,
            record.seconds,
        )
        for number, record in enumerate(records, start=1)
    ]
    columns = ("query", "algorithm", "answer", "returned", "verified", "rounds")
    return ResultTable(
        "cost",
        "Cost of the queries",
        (*columns, "upload_bytes", "download_bytes", "seconds"),
        tuple(rows),
        caption="Queries in order. Returned: objects that the parties returned; verified: objects "
        "whose distance they computed. Upload is from all parties, download to them.",
    )


def _describe_exactness(record: QueryRecord) -> str:
    if record.exact:
        return "exact"
    return "partial" if record.missing else "not certified"


def _tabulate_providers(inputs: SearchInput, records: Sequence[QueryRecord]) -> ResultTable:
    names, counts = np.unique(inputs.owners, return_counts=True)
    n_objects = dict(zip(names.tolist(), counts.tolist(), strict=True))
    rows = [
        (
            name,
            n_objects[name],
            float(np.mean([record.n_returned.get(name, 0) for record in records])),
            float(np.mean([record.verified.get(name, 0) for record in records])),
            float(np.mean([record.busy_seconds.get(name, 0.0) for record in records])),
        )
        for name in sorted(n_objects, key=_numeric_key)
    ]
    return ResultTable(
        "providers",
        "Work of each party",
        ("party", "holds", "returned", "verified", "busy_s"),
        tuple(rows),
        caption="Objects held, returned and verified, and working time including waits for the "
        "time grid; means over the queries.",
    )


def _numeric_key(name: str) -> tuple[str, int, str]:
    """Return a sort key that puts party-10 after party-9."""
    prefix = name.rstrip("0123456789")
    digits = name[len(prefix) :]
    return prefix, int(digits) if digits.isascii() and digits else 0, name


def _tabulate_phases(records: Sequence[QueryRecord]) -> ResultTable:
    rows = [
        (number, phase, seconds)
        for number, record in enumerate(records, start=1)
        for phase, seconds in record.phase_seconds.items()
    ]
    return ResultTable(
        "phases",
        "Time by exchange",
        ("query", "phase", "seconds"),
        tuple(rows),
        caption="Wall time of the exchanges: lower bounds, counts within a radius, objects.",
    )


def _list_figures(n_queries: int) -> tuple[Figure, ...]:
    is_small = n_queries <= _MAX_QUERIES_DRAWN
    return (
        Figure(
            "distances",
            "line" if is_small else "scatter",
            "Distances of the nearest objects",
            "neighbors",
            "rank",
            "distance",
            hue="query" if is_small and n_queries > 1 else "",
            caption="Where the curve is flat, the next objects are hardly farther away.",
        ),
        Figure(
            "returned",
            "bar",
            "Objects that each party returned",
            "providers",
            "party",
            "returned",
            caption="With the baseline, every party returns k objects.",
        ),
        Figure(
            "phases",
            "stacked" if n_queries <= _MAX_BARS else "scatter",
            "Time by exchange",
            "phases",
            "query",
            "seconds",
            hue="phase",
        ),
    )


def _write_notes(records: Sequence[QueryRecord]) -> tuple[str, ...]:
    n_exact = sum(record.exact for record in records)
    exactness = "Every answer is exact: no other object of any party comes before a returned one."
    if n_exact < len(records):
        exactness = (
            f"{len(records) - n_exact} of {len(records)} answers are not certified as exact."
        )
    missing = {name: reason for record in records for name, reason in record.missing.items()}
    missing_notes = [
        f"Party {name} is missing: {reason}." for name, reason in sorted(missing.items())
    ]
    trust = sorted({record.trust for record in records})
    return (
        exactness,
        *missing_notes,
        *sorted({_to_sentence(record.why) for record in records if record.why}),
        f"Trust in the broker: {', '.join(trust)}. Every party sees the queries.",
    )


def _describe_privacy(search: FederatedNeighbors) -> dict[str, Scalar]:
    """Return the largest privacy loss of a party towards another."""
    if search.ledger_ is None:
        return {}
    parties = {provider.name for provider in search.providers_}
    spent = [
        search.ledger_.spent(state.dataset)
        for state in search.ledger_.budgets()
        if state.dataset in parties and not state.user
    ]
    return {
        "epsilon": float(max(getattr(cost, "epsilon", 0) for cost in spent)),
        "delta": float(max(getattr(cost, "delta", 0) for cost in spent)),
        "towards": "each party, about the objects of all others",
        "neighbors": "one object of another party replaced, added or removed",
        "per query": str(search.privacy.total) if search.privacy else "",
    }


def _to_sentence(reason: str) -> str:
    return f"{reason[0].upper()}{reason[1:]}."
