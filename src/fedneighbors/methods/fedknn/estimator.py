"""k-nearest-neighbour search over a federation in one process, in scikit-learn's manner."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from fedneighbors.federation.inprocess import run
from fedneighbors.federation.roles import Coordinator
from fedneighbors.methods.fedknn.metrics import metric_of
from fedneighbors.methods.fedknn.protocol import Answer, baseline, dann, hufu, hufu_plus
from fedneighbors.methods.fedknn.provider import Provider
from fedneighbors.methods.fedknn.queries import decode_query, encode_query

__all__ = ["ALGORITHMS", "FederatedNeighbors", "QueryRecord"]

ALGORITHMS: dict[str, Callable[..., Coordinator[Answer]]] = {
    "baseline": baseline,
    "dann": dann,
    "hufu": hufu,
    "hufu+": hufu_plus,
}
"""Coordinators by name."""


@dataclass(frozen=True)
class QueryRecord:
    """What one query cost.

    Parameters
    ----------
    algorithm : str
        What was run.
    exact : bool
        Whether the answer is certainly that of all objects.
    asked, verified : dict of str to int
        Objects that each provider returned, and whose distance it computed.
    n_rounds : int
        Exchanges, the farewell included.
    upload_bytes, download_bytes : int
        From and to all providers.
    seconds : float
        Wall time.
    """

    algorithm: str
    exact: bool
    asked: dict[str, int]
    verified: dict[str, int]
    n_rounds: int
    upload_bytes: int
    download_bytes: int
    seconds: float


class FederatedNeighbors(BaseEstimator):  # type: ignore[misc]
    """Exact nearest neighbours over the objects of parties that may not pool them.

    Every algorithm gives the same answer, to the last tie: objects of equal distance stand in the
    order of keyed digests of their names, which tells nothing of who holds them.

    Parameters
    ----------
    metric : str, Metric or callable
        ``"euclidean"``, ``"manhattan"``, ``"cosine"``, ``"haversine"``, ``"edit"``,
        ``"graph_edit"``, ``"jaccard"``, or a metric or distance function of your own.
    algorithm : {"dann", "baseline", "hufu", "hufu+"}
        How the parties are asked, see [1]_: ``"dann"`` first asks for lower bounds and then only
        for as many objects as a party is likely to have among the nearest.
    random_state : int
        Public key of the order of ties.

    Attributes
    ----------
    ids_ : list
        Name of each object, as given to ``fit``, or its position.
    query_records_ : list of QueryRecord
        What each query of the last call cost.

    References
    ----------
    .. [1] Zhang et al., "FedKNN: Secure Federated k-Nearest Neighbor Search", SIGMOD 2024,
       Algorithm 1.

    Examples
    --------
    >>> titles = ["federated search", "federated learning", "graph search", "deep learning"]
    >>> search = FederatedNeighbors(metric="edit").fit(titles, parties=["a", "b", "b", "c"])
    >>> distances, found = search.kneighbors(["federated searching"], n_neighbors=2)
    >>> [titles[place] for place in found[0]]
    ['federated search', 'federated learning']
    """

    def __init__(
        self, metric: Any = "euclidean", algorithm: str = "dann", random_state: int = 0
    ) -> None:
        self.metric = metric
        self.algorithm = algorithm
        self.random_state = random_state

    def fit(
        self,
        X: Sequence[Any],
        y: Any = None,  # noqa: ARG002 - scikit-learn's signature
        *,
        parties: Sequence[Any] | npt.NDArray[Any] | None = None,
        ids: Sequence[Any] | None = None,
    ) -> Self:
        """Give every party its objects.

        Parameters
        ----------
        X : sequence of objects
            Vectors (a matrix), strings, sets, graphs, or what the metric takes.
        y : ignored
            For scikit-learn.
        parties : sequence of shape (n_objects,), optional
            Which party owns each object. None means one party.
        ids : sequence of shape (n_objects,), optional
            Names of the objects, each once. Their positions if None.

        Raises
        ------
        ValueError, TypeError
            If the metric or algorithm is unknown, an object is not one of the metric, or owners or
            names are not one for each object.
        """
        if self.algorithm not in ALGORITHMS:
            raise ValueError(
                f"expected algorithm as one of {sorted(ALGORITHMS)}, got {self.algorithm!r}"
            )
        if not isinstance(self.random_state, int | np.integer) or self.random_state < 0:
            raise ValueError(f"expected random_state of 0 or more, got {self.random_state!r}")
        metric = metric_of(self.metric)
        self._step = float(getattr(metric, "step", 0.0))
        n_objects = len(X)
        owners = ["all"] * n_objects if parties is None else [str(name) for name in parties]
        if len(owners) != n_objects:
            raise ValueError(f"expected one party for each of {n_objects} objects")
        self.ids_ = list(range(n_objects)) if ids is None else list(ids)
        if len(self.ids_) != n_objects or len(set(map(str, self.ids_))) < n_objects:
            raise ValueError(f"expected a name of its own for each of {n_objects} objects")
        self._places = {str(name): place for place, name in enumerate(self.ids_)}
        members: dict[str, list[int]] = {name: [] for name in sorted(set(owners))}
        for place, name in enumerate(owners):
            members[name].append(place)
        if not members:
            members["all"] = []
        self.providers_ = [
            Provider(
                name,
                X[np.array(rows, int)] if isinstance(X, np.ndarray) else [X[row] for row in rows],
                metric,
                decode=decode_query,
                ids=[str(self.ids_[row]) for row in rows],
                key=str(self.random_state).encode(),
            )
            for name, rows in members.items()
        ]
        self.n_objects_ = n_objects
        self.query_records_: list[QueryRecord] = []
        return self

    def kneighbors(
        self, X: Sequence[Any], n_neighbors: int = 5, *, return_distance: bool = True
    ) -> Any:
        """Return the nearest objects of each query.

        Parameters
        ----------
        X : sequence of objects
            Queries; a single string, set or graph is one query.
        n_neighbors : int
            How many, 1 or more; fewer come if the federation holds fewer.
        return_distance : bool
            Return distances too.

        Returns
        -------
        distances : list of float64 arrays
            Ascending, in the unit of the metric; only with ``return_distance``.
        positions : list of int64 arrays
            Places of the objects in what ``fit`` was given.

        Raises
        ------
        ValueError
            If ``n_neighbors`` is below 1.
        PartyRefused
            If a query is no object of the metric.
        """
        check_is_fitted(self, "providers_")
        if isinstance(n_neighbors, bool) or not isinstance(n_neighbors, int | np.integer):
            raise TypeError(f"expected n_neighbors as an integer, got {n_neighbors!r}")
        if n_neighbors < 1:
            raise ValueError(f"expected n_neighbors of 1 or more, got {n_neighbors}")
        queries = [X] if isinstance(X, str | set | frozenset) else list(X)
        self.query_records_ = []
        answers = [
            self._ask(query, int(n_neighbors), number) for number, query in enumerate(queries)
        ]
        distances = [answer.merged.distances for answer in answers]
        positions = [
            np.array([self._places[name] for name in answer.merged.ids], np.int64)
            for answer in answers
        ]
        return (distances, positions) if return_distance else positions

    def _ask(self, query: Any, k: int, number: int) -> Answer:
        clock = time.perf_counter()
        options = {"step": self._step} if self.algorithm in ("hufu", "hufu+") else {}
        coordinator = ALGORITHMS[self.algorithm](
            encode_query(query), k, name=f"query {number}", **options
        )
        outcome = run(coordinator, self.providers_)
        answer = outcome.result
        self.query_records_.append(
            QueryRecord(
                algorithm=answer.algorithm,
                exact=answer.exact,
                asked=dict(answer.asked),
                verified=dict(answer.verified),
                n_rounds=len(outcome.rounds),
                upload_bytes=sum(sum(r.upload_bytes.values()) for r in outcome.rounds),
                download_bytes=sum(sum(r.download_bytes.values()) for r in outcome.rounds),
                seconds=time.perf_counter() - clock,
            )
        )
        return answer
