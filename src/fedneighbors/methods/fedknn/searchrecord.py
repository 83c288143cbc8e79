"""What a run of searches leaves: the neighbours found, and what finding them cost, as a record."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.methods.fedknn.estimator import FederatedNeighbors, QueryRecord
from fedneighbors.records import Figure, RunRecord, Scalar, Table, environment

__all__ = ["Searched", "search_and_record"]

_MOST_QUERIES_DRAWN = 6


@dataclass(frozen=True, eq=False)
class Searched:
    """Objects of a federation, as they are told to people.

    Parameters
    ----------
    owners : str array of shape (n_objects,)
        Party of each object.
    labels : sequence of str
        What each object is called.
    queries : sequence of objects
        What to search for.
    query_labels : sequence of str
        What each query is called.
    """

    owners: npt.NDArray[np.str_]
    labels: Sequence[str]
    queries: Sequence[Any]
    query_labels: Sequence[str]


def search_and_record(
    search: FederatedNeighbors,
    about: Searched,
    *,
    k: int,
    parameters: Mapping[str, Scalar | list[Scalar]],
) -> RunRecord:
    """Ask a fitted search for the neighbours of all queries and return the record of it.

    Parameters
    ----------
    search : FederatedNeighbors
        Fitted on the objects.
    about : Searched
        Queries, and what objects are called.
    k : int
        Neighbours of each.
    parameters : mapping
        Settings to keep in the record.

    Returns
    -------
    RunRecord
        Tables ``neighbors`` (one row per query and neighbour), ``cost`` (one per query),
        ``providers`` (one per party) and ``phases`` (one per query and exchange), with pictures.

    Raises
    ------
    ValueError, FedneighborsError
        As :meth:`FederatedNeighbors.kneighbors`.
    """
    started, clock = datetime.now(UTC), time.perf_counter()
    distances, found = search.kneighbors(about.queries, k)
    seconds = time.perf_counter() - clock
    records = search.query_records_
    names = _distinct(about.query_labels)
    tables = (
        _neighbors(about, names, distances, found),
        _cost(records),
        _providers(about, records),
    )
    return RunRecord(
        name="fedknn.search",
        parameters={**parameters, "k": k, "queries": len(names)},
        tables=tables,
        figures=_figures(len(names)),
        notes=_notes(records),
        started=started.isoformat(timespec="seconds"),
        seconds=seconds,
        environment=environment(),
    )


def _distinct(labels: Sequence[str]) -> list[str]:
    """Return labels of queries, numbered if there are several."""
    if len(labels) == 1:
        return list(labels)
    return [f"{number}. {label}" for number, label in enumerate(labels, start=1)]


def _neighbors(
    about: Searched, names: Sequence[str], distances: Sequence[Any], found: Sequence[Any]
) -> Table:
    rows = [
        (name, rank, about.labels[place], float(distance), str(about.owners[place]))
        for name, far, places in zip(names, distances, found, strict=True)
        for rank, (distance, place) in enumerate(zip(far, places, strict=True), start=1)
    ]
    return Table(
        "neighbors",
        "Nearest objects",
        ("query", "rank", "object", "distance", "party"),
        tuple(rows),
    )


def _cost(records: Sequence[QueryRecord]) -> Table:
    rows = [
        (
            number,
            record.algorithm,
            "exact" if record.exact else "not certain",
            sum(record.asked.values()),
            sum(record.verified.values()),
            record.n_rounds,
            record.upload_bytes,
            record.download_bytes,
            record.seconds,
        )
        for number, record in enumerate(records, start=1)
    ]
    columns = ("query", "algorithm", "answer", "asked", "verified", "rounds")
    return Table(
        "cost",
        "What it cost",
        (*columns, "upload_bytes", "download_bytes", "seconds"),
        tuple(rows),
        caption="Queries in the order in which they were asked. Asked: objects that the parties "
        "returned; verified: objects whose distance they computed. Upload is from all parties, "
        "download to them.",
    )


def _providers(about: Searched, records: Sequence[QueryRecord]) -> Table:
    held = dict(zip(*np.unique(about.owners, return_counts=True), strict=True))
    parties = sorted({name for record in records for name in record.asked}, key=_by_number)
    rows = [
        (
            name,
            int(held.get(name, 0)),
            float(np.mean([record.asked.get(name, 0) for record in records])),
            float(np.mean([record.verified.get(name, 0) for record in records])),
        )
        for name in parties
    ]
    return Table(
        "providers",
        "What each party was asked",
        ("party", "holds", "asked", "verified"),
        tuple(rows),
        caption="Objects that it returned and verified, means over the queries.",
    )


def _by_number(name: str) -> tuple[str, int, str]:
    """Put party-10 after party-9."""
    word = name.rstrip("0123456789")
    return word, int(name[len(word) :] or 0), name


def _figures(n_queries: int) -> tuple[Figure, ...]:
    hue = "query" if n_queries <= _MOST_QUERIES_DRAWN else ""
    return (
        Figure(
            "distances",
            "line" if hue else "scatter",
            "Distances of the nearest objects",
            "neighbors",
            "rank",
            "distance",
            hue=hue if n_queries > 1 else "",
            caption="Where the line is flat, objects further on are hardly farther away.",
        ),
        Figure(
            "asked",
            "bar",
            "Objects that each party returned",
            "providers",
            "party",
            "asked",
            caption="The baseline asks every party for k.",
        ),
    )


def _notes(records: Sequence[QueryRecord]) -> tuple[str, ...]:
    n_exact = sum(record.exact for record in records)
    if n_exact == len(records):
        return ("Every answer is exact: no object of any party comes before one of it.",)
    return (f"{len(records) - n_exact} of {len(records)} answers are not certainly exact.",)
