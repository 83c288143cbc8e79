"""k-nearest-neighbour search over a federation in one process, as a scikit-learn estimator."""

import itertools
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from functools import partial
from operator import attrgetter, is_
from typing import Any, Self, cast

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from fedneighbors._typing import Array, Floats, Integers
from fedneighbors.errors import PartyRefused
from fedneighbors.federation._direct import run_here
from fedneighbors.federation._inprocess import ConnectedParties, connected
from fedneighbors.federation._loop import Outcome
from fedneighbors.kernels.vectors._table import TableRows
from fedneighbors.methods.fedknn._batch import BatchCost, search_blocks
from fedneighbors.methods.fedknn._filters import FilterColumns, Where
from fedneighbors.methods.fedknn._names import group_by_party
from fedneighbors.methods.fedknn._planning import Plan, Planner, Run
from fedneighbors.methods.fedknn._provider import Provider
from fedneighbors.methods.fedknn._queries import (
    EncodedQuery,
    OpenQueries,
    QueryRecord,
    check_ids,
    check_sequence,
    decode_query,
    encode_queries,
    objects_digest,
    recheck_distances,
)
from fedneighbors.methods.fedknn._radius import range_search
from fedneighbors.methods.fedknn._settings import (
    SearchParameters,
    SearchSettings,
    check_n_neighbors,
)
from fedneighbors.methods.fedknn._sources import MemorySource
from fedneighbors.methods.fedknn.metrics import Metric, metric_of
from fedneighbors.methods.fedknn.protocol import Answer
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.tabular._ownership import validate_rows

_NUMBERS = ("step", "least")  # attributes of a metric
_SETTINGS = [field.name for field in fields(SearchSettings) if field.name not in _NUMBERS]
_get_settings = attrgetter(*_SETTINGS)


class FederatedNeighbors(SearchParameters, BaseEstimator):  # type: ignore[misc]
    """Exact nearest neighbours over the objects of several parties.

    Every algorithm gives the same answer, including ties: objects of equal distance are ordered by
    keyed digests of their party and name.

    Parameters
    ----------
    metric : str, Schema, Metric or callable
        ``"euclidean"``, ``"manhattan"``, ``"cosine"``, ``"inner_product"``, ``"haversine"``,
        ``"edit"``, ``"jaccard"``, ``"graph_edit"``, ``"tanimoto"``, ``"tabular"`` or a Schema, or
        your own metric or function. The distance ``"inner_product"`` has the opposite sign, so that
        the nearest vectors have the largest inner products; it may be negative.
    algorithm : {"auto", "baseline", "dann", "dann*", "eager", "hufu", "hufu+"}
        Search algorithm, see [1]_. ``"baseline"`` requests the k nearest of each party; ``"dann"``
        requests lower bounds first, and then only as many objects as a party probably has among
        the nearest; ``"dann*"`` is ``"dann"`` with noise on the requested numbers, for ``privacy``;
        ``"hufu"`` and ``"hufu+"`` find a radius with k objects by range counts; ``"eager"``
        requests the nearest objects within a time budget, and more only where they may be missing.
        ``"auto"`` is ``"eager"`` with limits from the times of earlier queries, or ``"dann"`` if
        parties share processor cores and searches are slow; under ``privacy`` it chooses
        ``"baseline"`` or ``"dann*"`` by public numbers.
    privacy : Privacy, optional
        Limit on what one query reveals to each party about the objects of the others. Without it,
        all algorithms but ``"baseline"`` reveal to each party about how many of the nearest objects
        are its own.
    guarantee : {"exact", "certified"}
        For ``"dann*"``. ``"exact"``: all answers are exact; this requires ``privacy.delta``.
        ``"certified"``: each answer states whether it is exact; no delta.
    variant : {"mended", "two_exchanges", "paper"}
        Variant of ``"dann*"``. ``"two_exchanges"`` first requests a public number of objects, in
        place of bounds and then a noisy number. ``"paper"`` runs Algorithm 2 of [1]_ as printed,
        for comparison: it is not exact and costs twice the epsilon stated in the paper.
    random_state : int
        Public key of the order of ties. Noise never comes from it.
    failure : number
        For ``guarantee="certified"``: probability that an answer is not exact.
    max_queries : int
        Number of distinct private queries, if ``fit`` gets no ledger.
    grid_s : float
        Time grid of ``"dann*"`` in seconds. Replies are delayed to this time, its double, fourfold
        and so on, so that response times reveal less. 0 for no delay.
    allow_partial : bool
        Answer without missing parties, and report it; not under ``"dann*"``.
    check_distances : bool
        Recompute the distances of the returned objects.
    workers : {"threads", "processes"}
        Run parties as threads or processes.
    link : Link or mapping of str to Link, optional
        Emulated network link to the parties.
    deadline_s : float, optional
        Seconds after which a party without a reply counts as missing.

    Attributes
    ----------
    ids_ : list
        Name of each object, as given to ``fit``, or its position.
    ledger_ : Ledger or None
        Budgets of each party for information about the others; None if no query needs one.
    query_records_ : list of QueryRecord
        Cost of each query of the last call.

    References
    ----------
    .. [1] Zhang et al., "FedKNN: Secure Federated k-Nearest Neighbor Search", SIGMOD 2024,
       Algorithms 1 and 2.

    Examples
    --------
    >>> titles = ["federated search", "federated learning", "graph search", "deep learning"]
    >>> search = FederatedNeighbors(metric="edit").fit(titles, parties=["a", "b", "b", "c"])
    >>> distances, positions = search.kneighbors(["federated searching"], n_neighbors=2)
    >>> [titles[position] for position in positions[0]]
    ['federated search', 'federated learning']
    """

    def fit(
        self,
        X: Sequence[Any],
        y: Any = None,  # noqa: ARG002 - scikit-learn's signature
        *,
        parties: Sequence[Any] | Array | None = None,
        ids: Sequence[Any] | None = None,
        columns: Any = None,
        ledger: Ledger | None = None,
    ) -> Self:
        """Assign the objects to their parties.

        Parameters
        ----------
        X : sequence of objects
            Vectors (a matrix), strings, sets, graphs, a data frame of mixed columns, or others. An
            array of float64, float32 or uint8 in C order is not copied, except for ``"cosine"``:
            do not change it while it is searched.
        y : ignored
            For scikit-learn.
        parties : sequence of shape (n_objects,), optional
            Party of each object. None assigns all objects to one party.
        ids : sequence of shape (n_objects,), optional
            Unique names of the objects. Their positions if None.
        columns : mapping of str to sequence of shape (n_objects,), or DataFrame, optional
            Numbers, text or booleans of each object for the filters of queries; None and NaN are
            missing cells.
        ledger : Ledger, optional
            Budgets for private queries. The data set with a party's name limits what that party may
            learn about the others. None creates a ledger in memory for ``max_queries`` queries. A
            query that another process ran on the same objects is charged once, if the metric is
            given by name and the objects are an array, strings, sets or graphs.

        Raises
        ------
        ValueError, TypeError
            If a setting is unknown or conflicts with another, an object or a column is invalid, or
            there is not one owner, one name and one cell of each column for each object.
        """
        check_sequence(X)
        metric = metric_of(self.metric)
        if hasattr(metric, "prepare"):
            metric, X = metric.prepare(X, private=self.privacy is not None)
        X = self._read_frame(X, metric, reset=True)
        settings = self._settings(metric)
        rows_of, self.ids_ = group_by_party(len(X), parties=parties, ids=ids)
        settings.check_names(self.ids_)
        self._metric, self._objects = metric, X
        self._columns = None if columns is None else FilterColumns.of(columns, len(X))
        self._positions = {str(name): position for position, name in enumerate(self.ids_)}
        self._rows_of = rows_of
        names = list(self._positions)
        ids_of = {name: [names[row] for row in rows.tolist()] for name, rows in rows_of.items()}
        self._ids_of = {name: frozenset(ids) for name, ids in ids_of.items()}
        self.ledger_ = settings.make_ledger(tuple(rows_of), ledger)
        self.providers_ = [self._provider(name, ids, ledger) for name, ids in ids_of.items()]
        self._planner = Planner(
            {name: len(ids) for name, ids in ids_of.items()},
            shares_cores=self.workers == "threads" or len(ids_of) > (os.cpu_count() or 1),
        )
        self.n_objects_ = len(X)
        # one counter for all threads; names of one length, so that frame sizes reveal nothing
        self._names = map("query {:012d}".format, itertools.count())
        self._costs, self._records = list[BatchCost](), list[QueryRecord]()
        return self

    @property
    def query_records_(self) -> list[QueryRecord]:
        """Return the cost of each query of the last call."""
        check_is_fitted(self, "providers_")
        self._records += [record for cost in self._costs for record in cost.list_records()]
        self._costs = []
        return self._records

    def kneighbors(
        self,
        X: Sequence[Any],
        n_neighbors: int = 5,
        *,
        return_distance: bool = True,
        where: Where | None = None,
    ) -> Any:
        """Return the nearest objects of each query.

        Parameters
        ----------
        X : sequence of objects
            Queries; a single string, set or graph is one query. The rows of an array of vectors
            share one exchange with ``"baseline"``, and with ``"auto"`` if several or of one party.
        n_neighbors : int
            Number of neighbors, 1 or more; fewer are returned if the federation holds fewer.
        return_distance : bool
            Return distances too.
        where : mapping, optional
            Filter of objects by the columns of ``fit``, such as
            ``{"age": {">=": 40, "<": 65}, "sex": "f", "or": [{"site": {"in": ["a", "b"]}},
            {"site": None}]}``. All entries must hold; the operators are ``"=="``, ``"in"``,
            ``"<"``, ``"<="``, ``">"`` and ``">="``; None finds missing cells; ``"and"`` and
            ``"or"`` have a list of filters, ``"not"`` has one. A comparison with a missing cell
            does not hold.

        Returns
        -------
        distances : list of float64 arrays
            Ascending, in the unit of the metric; only with ``return_distance``.
        positions : list of int64 arrays
            Positions of the objects in the order of ``fit``.

        Raises
        ------
        ValueError
            If ``n_neighbors`` is below 1, or the filter does not suit the columns.
        TypeError, ValueError
            If a query is not an object of the metric.
        PartyMissing
            If a party does not reply.
        ProtocolError
            If a party violates the protocol.
        BudgetExceeded
            If the budget of private queries is spent.
        """
        if "providers_" not in self.__dict__:  # the check itself takes as long as a small search
            check_is_fitted(self, "providers_")
        k, X = check_n_neighbors(n_neighbors), self._read_frame(X, self._metric)
        if (batch := self._search_at_once(X, k, where)) is not None:
            return batch if return_distance else batch[1]
        settings, queries = self._settings(self._metric), self._encode(X, where)
        return self._run_queries(
            queries,
            lambda query, run: self._planner.run(run, settings, query, k, ledger=self.ledger_),
            return_distance=return_distance,
        )

    def radius_neighbors(
        self,
        X: Sequence[Any],
        radius: float,
        *,
        return_distance: bool = True,
        where: Where | None = None,
    ) -> Any:
        """Return all objects within a distance of each query, the nearest first.

        Each party returns its objects within the radius; it learns nothing about the others.

        Parameters
        ----------
        X : sequence of objects
            Queries, as for :meth:`kneighbors`.
        radius : float
            Radius in the unit of the metric, 0 or more except for ``"inner_product"``; objects at
            this distance are included.
        return_distance : bool
            Return distances too.
        where : mapping, optional
            Filter of objects, as for :meth:`kneighbors`.

        Returns
        -------
        distances, positions
            As :meth:`kneighbors` does.

        Raises
        ------
        ValueError
            If the radius is out of range or not a finite number, or the filter does not suit the
            columns.
        PartyRefused, PartyMissing, ProtocolError
            As for :meth:`kneighbors`.
        """
        check_is_fitted(self, "providers_")
        least = self._settings(self._metric).least
        if not least <= float(radius) < np.inf:
            expected = "a radius of 0 or more" if least == 0 else "a finite radius"
            raise ValueError(f"expected {expected}, got {radius!r}")
        limits: Any = {"allow_partial": self.allow_partial, "budget_s": self.deadline_s}

        def search(query: bytes, run: Run) -> tuple[Outcome[Answer], str]:
            return run(lambda name: range_search(query, float(radius), name=name, **limits)), ""

        return self._run_queries(self._encode(X, where), search, return_distance=return_distance)

    def explain(self, X: Any, n_neighbors: int = 5) -> Plan:
        """Measure each algorithm's cost and return the choice of "auto".

        The query is run with each algorithm. The cost of ``"dann*"`` is predicted from a search of
        public sizes; no budget is charged.

        Parameters
        ----------
        X : object or sequence of one object
            The query.
        n_neighbors : int
            Number of neighbors, 1 or more.

        Returns
        -------
        Plan
            The algorithm, the reason for it, and the predicted costs; prints as a table.

        Raises
        ------
        ValueError
            If there is not exactly one query, or ``n_neighbors`` is below 1.
        PartyRefused, PartyMissing, ProtocolError
            As for :meth:`kneighbors`.
        """
        check_is_fitted(self, "providers_")
        queries, k = self._encode(X, None), check_n_neighbors(n_neighbors)
        if len(queries) != 1:
            raise ValueError(f"expected one query, got {len(queries)}; pass a list with one query")
        settings = self._settings(self._metric)
        with self._connect() as federation, OpenQueries(federation, self._names) as open_queries:
            return self._planner.explain(settings, open_queries.run, queries[0][1], k)

    def _search_at_once(
        self, X: Any, k: int, where: Where | None
    ) -> tuple[list[Floats], list[Integers]] | None:
        """Return the results of vectors in one exchange, if possible."""
        is_table = isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "buif" and len(X)
        is_eager = self.algorithm == "auto" and (len(self.providers_) > 1 or self.deadline_s)
        if where is not None or not is_table or (len(X) == 1 and is_eager):
            return None
        try:
            batch = self._nearest_batch(np.ascontiguousarray(X, np.float64), k)
        except PartyRefused:  # the search of one query at a time says what is wrong
            return None
        return None if batch is None else (list(batch[0]), list(batch[1]))

    def _nearest_batch(self, points: Floats, k: int) -> tuple[Floats, Integers] | None:
        """Return all results from one exchange; None if not possible."""
        can_answer = getattr(self._metric, "answers_batches", False) and self.privacy is None
        if not can_answer or self.algorithm not in ("auto", "baseline") or self.check_distances:
            return None
        self._settings(self._metric)
        objects_of = {
            it.name: (self._rows_of[it.name], cast(MemorySource, it.source).ties)
            for it in self.providers_
        }
        # the request changes nothing at a party, so that an interrupt may stop it
        is_plain = self.workers == "threads" and self.link is None and self.deadline_s is None
        with nullcontext() if is_plain else self._connect() as federation:
            run = federation.run if federation else partial(run_here, parties=self.providers_)
            distances, positions, self._costs = search_blocks(
                run, points, k, objects_of=objects_of, allow_partial=self.allow_partial
            )
        self._records = []
        return distances, positions

    def _provider(self, name: str, ids: list[str], ledger: Ledger | None) -> Provider:
        """Return a party's provider; a given ledger stores the epoch."""
        X: Any = self._objects
        rows, key, epoch = self._rows_of[name], str(self.random_state), None
        if isinstance(X, np.ndarray):
            is_shared = X.ndim == 2 and getattr(self._metric, "accepts_tables", False)
            objects: Any = TableRows(X, rows) if is_shared else X[rows]
        else:
            objects = [X[row] for row in rows]
        columns = None if self._columns is None else self._columns.select(rows)
        if ledger is not None and isinstance(self.metric, str):
            settings = f"{self.metric} {key}" + ("" if columns is None else columns.digest())
            content = objects_digest(objects[:], ids, settings)
            epoch = None if content is None else ledger.epoch(name, content)
        return Provider.of(
            name,
            objects,
            self._metric,
            decode=decode_query,
            ids=ids,
            key=key.encode(),
            epoch=epoch,
            columns=columns,
        )

    def _encode(self, X: Any, where: Where | None) -> list[EncodedQuery]:
        """Return the queries with their frames; check them and the filter."""
        if where is not None:
            if self._columns is None:
                raise ValueError("where needs columns: pass columns= to fit")
            self._columns.select(np.empty(0, np.int64)).match(where)
        X = self._read_frame(X, self._metric)
        X = self._metric.read_queries(X) if hasattr(self._metric, "read_queries") else X
        queries = encode_queries(X, where)
        if self.n_objects_:
            one = self._metric.index(self._objects[:1], ranks=np.zeros(1, np.int64))
            for query, _ in queries:
                one.open(query)  # raises for objects of another kind
        return queries

    def _read_frame(self, X: Any, metric: Metric, *, reset: bool = False) -> Any:
        """Return the numbers of a data frame, unless the metric compares rows."""
        if not hasattr(X, "columns") or hasattr(metric, "read"):
            return X
        if self.privacy is not None:
            raise TypeError(
                "a private search of a data frame needs a Schema as metric; or pass an array of "
                "its numbers"
            )
        try:
            return validate_rows(self, X, dtype=np.float64, reset=reset)
        except ValueError as error:
            raise ValueError(
                f"{error}; metric='tabular' compares rows with text and missing cells"
            ) from error

    def _settings(self, metric: Metric) -> SearchSettings:
        """Return the settings, checked for conflicts."""
        given, checked = (metric, *_get_settings(self)), self.__dict__.get("_checked")
        if checked is None or not all(map(is_, given, checked[0])):
            numbers: dict[str, Any] = {n: float(getattr(metric, n, 0.0)) for n in _NUMBERS}
            values = dict(zip(_SETTINGS, given[1:], strict=True))
            self._checked = checked = given, SearchSettings(**values, **numbers)
        return checked[1]

    def _connect(self) -> AbstractContextManager[ConnectedParties]:
        return connected(
            self.providers_,
            workers=self.workers,
            n_workers=len(self.providers_) if self.privacy else None,  # all wait for the time grid
            link=self.link,
            deadline_s=self.deadline_s,
        )

    def _run_queries(
        self,
        queries: list[EncodedQuery],
        search: Callable[[bytes, Run], tuple[Outcome[Answer], str]],
        *,
        return_distance: bool,
    ) -> Any:
        """Run every query and return the results.

        ``search`` runs a coordinator for a query, and returns its outcome with a reason.
        """
        self._costs, self._records, answers = [], [], list[Answer]()
        with self._connect() as federation, OpenQueries(federation, self._names) as open_queries:
            for query, frame in queries:
                start = time.perf_counter()
                outcome, why = search(frame, open_queries.run)
                self._check_answer(query, outcome.result)
                seconds = time.perf_counter() - start
                answers.append(outcome.result)
                self._records.append(QueryRecord.of(outcome, seconds=seconds, why=why))
        distances = [answer.merged.distances for answer in answers]
        positions = [
            np.array([self._positions[name] for name in answer.merged.ids], np.int64)
            for answer in answers
        ]
        return (distances, positions) if return_distance else positions

    def _check_answer(self, query: Any, answer: Answer) -> None:
        """Raise for objects that do not exist, or whose distance is wrong."""
        merged = answer.merged
        check_ids(merged, self._ids_of)
        if self.check_distances:
            objects = [self._objects[self._positions[name]] for name in merged.ids]
            recheck_distances(self._metric, query, objects, merged.distances, merged.owners)
