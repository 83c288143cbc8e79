"""Comparison of the costs of all algorithms on the same queries."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.methods.fedknn._settings import ALGORITHMS
from fedneighbors.methods.fedknn.estimator import FederatedNeighbors
from fedneighbors.records import ResultTable, RunRecord, environment


def compare(
    objects: Sequence[Any],
    queries: Sequence[Any],
    parties: Sequence[Any] | npt.NDArray[Any],
    *,
    metric: Any,
    k: int,
) -> RunRecord:
    """Run the same queries with every algorithm and compare the costs.

    Parameters
    ----------
    objects : sequence
        Objects to search.
    queries : sequence
        Queries, at least one.
    parties : sequence of shape (n_objects,)
        Owner of each object.
    metric : str, Metric or callable
        As for :class:`FederatedNeighbors`.
    k : int
        Number of neighbors.

    Returns
    -------
    RunRecord
        The table ``algorithms``: medians over the queries of returned and verified objects
        (summed over the providers), exchanges, bytes and seconds. The note says whether all
        answers are equal.
    """
    started, clock = datetime.now(UTC), time.perf_counter()
    rows, answers = [], []
    for name in ALGORITHMS:
        search = FederatedNeighbors(metric=metric, algorithm=name)
        search.fit(objects, parties=parties)
        answers.append([indices.tolist() for indices in search.kneighbors(queries, k)[1]])
        records = search.query_records_
        rows.append(
            (
                name,
                float(np.median([sum(record.n_returned.values()) for record in records])),
                float(np.median([sum(record.verified.values()) for record in records])),
                float(np.median([record.n_rounds for record in records])),
                float(np.median([record.upload_bytes for record in records])),
                float(np.median([record.seconds for record in records])),
            )
        )
    is_equal = all(answer == answers[0] for answer in answers)
    return RunRecord(
        name="fedknn.compare",
        parameters={"k": k, "parties": len(set(map(str, parties))), "queries": len(queries)},
        tables=(
            ResultTable(
                name="algorithms",
                title="Costs of the same queries",
                columns=("algorithm", "asked", "verified", "rounds", "upload_bytes", "seconds"),
                rows=tuple(rows),
                caption="Medians over the queries. Asked: returned objects. Objects are summed "
                "over the providers.",
            ),
        ),
        notes=(
            "All algorithms give the same answers."
            if is_equal
            else "The algorithms return different answers, which is a defect.",
        ),
        started=started.isoformat(timespec="seconds"),
        seconds=time.perf_counter() - clock,
        environment=environment(),
    )
