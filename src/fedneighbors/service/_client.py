"""Clients of the broker, with scikit-learn's methods."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import httpx

from fedneighbors._typing import Floats
from fedneighbors.service._remote_search import (
    ApiRequest,
    RemoteResults,
    RemoteSearch,
    check_one_query,
    read_counts,
    read_neighbors,
    read_votes,
)


class RemoteNeighbors(RemoteSearch):
    """Exact nearest neighbours over the providers of a broker.

    Several queries of one call are sent together, and the broker runs some of them at the same
    time. Several threads may use one client. :class:`AsyncRemoteNeighbors` has the same methods for
    asyncio.

    Parameters
    ----------
    url : str
        Address of the broker, such as ``"https://broker.example"``.
    collection : str
        Name of the collection.
    token : str
        Token of the user.
    algorithm : str, optional
        In place of the collection's, as for :class:`~fedneighbors.FederatedNeighbors`.
    deadline_s : float
        Seconds for a query. Providers without a reply are missing a little earlier: a tenth, but
        at most 0.25 s, is for the network. 0.05 s after the deadline, the broker is unreachable.
    allow_partial : bool, optional
        Answer without missing providers; by default as the collection is configured.
    payload : bool
        Ask for the columns of each neighbour that its provider allows, in ``results_``.
    purpose : str, optional
        Purpose of the queries, which policies of providers may require. It is logged.
    certificate : path, optional
        Certificate of the broker, if it is self-signed. Only this certificate is then accepted,
        under any name.
    keys : mapping of str to str, optional
        Key of each provider of a sealed collection, as ``fedneighbors provider key`` prints it at
        the provider. Queries, names and payloads are then encrypted between this client and the
        providers; the broker sees distances and counts.
    provider_tokens : mapping of str to str, optional
        Token for each provider that verifies users of sealed queries itself. Only this provider can
        read it.

    Attributes
    ----------
    results_ : list of dict
        The broker's answers to the last call of the thread: exactness, algorithm, rounds, and
        missing providers. ``results_.to_pandas()`` and ``results_.to_arrow()`` return the found
        objects as a table.

    Examples
    --------
    >>> search = RemoteNeighbors("https://broker.example", collection="titles", token="fn_...")
    >>> search.collection
    'titles'
    """

    _client_class = httpx.Client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to the broker."""
        self._client.close()

    def kneighbors(
        self,
        X: Sequence[Any],
        n_neighbors: int = 5,
        *,
        return_distance: bool = True,
        where: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the nearest objects of each query.

        Parameters
        ----------
        X : sequence of objects
            Queries: vectors, places (longitude, latitude), strings, sets, SMILES of molecules, or
            rows as mappings or a data frame. A single string or mapping is one query.
        n_neighbors : int
            Number of neighbors, 1 or more; fewer are returned if the collection has fewer.
        return_distance : bool
            Return distances too.
        where : mapping, optional
            Filter of objects, as for :meth:`fedneighbors.FederatedNeighbors.kneighbors`.

        Returns
        -------
        distances : list of float64 arrays
            Ascending, in the unit of the metric; NaN if a provider's policy shows the user none.
            Only with ``return_distance``.
        objects : list of lists of RemoteObject
            Provider and name of each object.

        Raises
        ------
        ServiceError
            If the broker answers with an error.
        BrokerUnreachable
            If the broker cannot be reached, or does not answer in time.
        """
        results = self._query("search", X, k=int(n_neighbors), where=where)
        return read_neighbors(results, return_distance=return_distance)

    def radius_neighbors(
        self,
        X: Sequence[Any],
        radius: float,
        *,
        return_distance: bool = True,
        where: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return all objects within a distance of each query, the nearest first.

        Parameters
        ----------
        X : sequence of objects
            Queries, as for :meth:`kneighbors`.
        radius : float
            Radius in the unit of the metric; objects at this distance are included.
        return_distance : bool
            Return distances too.
        where : mapping, optional
            Filter of objects, as for :meth:`kneighbors`.

        Returns
        -------
        distances, objects
            As :meth:`kneighbors` does.

        Raises
        ------
        ServiceError
            If the broker answers with an error, such as ``"too-many-objects"`` for more objects
            than its ``max_k``.
        BrokerUnreachable
            If the broker cannot be reached, or does not answer in time.
        """
        results = self._query("search", X, radius=float(radius), where=where)
        return read_neighbors(results, return_distance=return_distance)

    def count(
        self, X: Sequence[Any], radius: float, *, where: Mapping[str, Any] | None = None
    ) -> Any:
        """Return the number of objects within a distance of each query.

        Parameters
        ----------
        X, radius, where
            As for :meth:`radius_neighbors`.

        Returns
        -------
        int64 array of shape (n_queries,)

        Raises
        ------
        ServiceError, BrokerUnreachable
            As for :meth:`kneighbors`.
        """
        return read_counts(self._query("count", X, radius=float(radius), where=where))

    def count_filtered(self, where: Mapping[str, Any]) -> int:
        """Return the number of objects that meet a filter.

        Parameters
        ----------
        where : mapping
            Filter of objects, as for :meth:`kneighbors`.

        Raises
        ------
        ServiceError, BrokerUnreachable
            As for :meth:`kneighbors`.
        """
        return int(read_counts(self._query("count", [None], where=where))[0])

    def vote(self, X: Sequence[Any]) -> tuple[list[Any], Floats]:
        """Return the average vote of the providers' classifiers on each row.

        Parameters
        ----------
        X : sequence of mappings, or data frame
            Rows: cells by column. A single mapping is one row.

        Returns
        -------
        classes : list of str or int
            All classes, in the order of the collection's schema.
        probabilities : float64 array of shape (n_rows, n_classes)
            Mean of the providers' probabilities, weighted by the balanced accuracy that each states
            of itself, which is in ``results_`` as ``weights``. The most probable class is
            ``classes[probabilities[row].argmax()]``, the first of equal ones.

        Raises
        ------
        ServiceError
            If the broker answers with an error, such as ``"invalid-query"`` for an unknown column
            or category, or ``"model-failed"``.
        BrokerUnreachable
            If the broker cannot be reached, or does not answer in time.
        """
        return read_votes(self._query("votes", X))

    def explain(self, X: Any, n_neighbors: int = 5) -> dict[str, Any]:
        """Return the costs of a query's algorithms, and the choice of "auto".

        Parameters
        ----------
        X : object or sequence of one object
            The query.
        n_neighbors : int
            Number of neighbors, 1 or more.

        Returns
        -------
        dict
            ``algorithm``, ``why``, ``k`` and ``costs``, the fields of the plan of
            :meth:`fedneighbors.FederatedNeighbors.explain`.

        Raises
        ------
        ValueError
            If there is not exactly one query.
        ServiceError, BrokerUnreachable
            As for :meth:`kneighbors`.
        """
        (result,) = self._query("explain", check_one_query(X), k=int(n_neighbors))
        return dict(result["plan"])

    def describe(self) -> dict[str, Any]:
        """Return metric, providers and filters of the collection.

        Raises
        ------
        ServiceError, BrokerUnreachable
            As for :meth:`kneighbors`.
        """
        return self._send(self._describe())[0]

    def _query(self, kind: str, queries: Any, **fields: Any) -> RemoteResults:
        return self._read(self._send(request) for request in self._ask(kind, queries, **fields))

    def _send(self, request: ApiRequest) -> list[dict[str, Any]]:
        method, path, content, headers, *_ = request
        try:
            response = self._client.request(
                method, path, content=content, headers=headers, extensions=self._extend(request)
            )
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        return request.read(response)


class AsyncRemoteNeighbors(RemoteSearch):
    """Exact nearest neighbours over the providers of a broker, for asyncio.

    Parameters
    ----------
    url, collection, token, algorithm, deadline_s, allow_partial : optional
        As for :class:`RemoteNeighbors`.
    payload, purpose, certificate, keys, provider_tokens : optional
        As for :class:`RemoteNeighbors`.

    Attributes
    ----------
    results_ : list of dict
        As for :class:`RemoteNeighbors`, of the call that ended last.

    Examples
    --------
    >>> async def find_similar(titles):
    ...     options = {"collection": "titles", "token": "fn_..."}
    ...     async with AsyncRemoteNeighbors("https://broker.example", **options) as search:
    ...         return await search.kneighbors(titles, 3)
    """

    _client_class = httpx.AsyncClient

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections to the broker."""
        await self._client.aclose()

    async def kneighbors(
        self,
        X: Sequence[Any],
        n_neighbors: int = 5,
        *,
        return_distance: bool = True,
        where: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return what :meth:`RemoteNeighbors.kneighbors` does."""
        results = await self._query("search", X, k=int(n_neighbors), where=where)
        return read_neighbors(results, return_distance=return_distance)

    async def radius_neighbors(
        self,
        X: Sequence[Any],
        radius: float,
        *,
        return_distance: bool = True,
        where: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return what :meth:`RemoteNeighbors.radius_neighbors` does."""
        results = await self._query("search", X, radius=float(radius), where=where)
        return read_neighbors(results, return_distance=return_distance)

    async def count(
        self, X: Sequence[Any], radius: float, *, where: Mapping[str, Any] | None = None
    ) -> Any:
        """Return what :meth:`RemoteNeighbors.count` does."""
        return read_counts(await self._query("count", X, radius=float(radius), where=where))

    async def count_filtered(self, where: Mapping[str, Any]) -> int:
        """Return what :meth:`RemoteNeighbors.count_filtered` does."""
        return int(read_counts(await self._query("count", [None], where=where))[0])

    async def vote(self, X: Sequence[Any]) -> tuple[list[Any], Floats]:
        """Return what :meth:`RemoteNeighbors.vote` does."""
        return read_votes(await self._query("votes", X))

    async def explain(self, X: Any, n_neighbors: int = 5) -> dict[str, Any]:
        """Return what :meth:`RemoteNeighbors.explain` does."""
        (result,) = await self._query("explain", check_one_query(X), k=int(n_neighbors))
        return dict(result["plan"])

    async def describe(self) -> dict[str, Any]:
        """Return what :meth:`RemoteNeighbors.describe` does."""
        return (await self._send(self._describe()))[0]

    async def _query(self, kind: str, queries: Any, **fields: Any) -> RemoteResults:
        requests = self._ask(kind, queries, **fields)
        return self._read([await self._send(request) for request in requests])

    async def _send(self, request: ApiRequest) -> list[dict[str, Any]]:
        method, path, content, headers, *_ = request
        try:
            response = await self._client.request(
                method, path, content=content, headers=headers, extensions=self._extend(request)
            )
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        return request.read(response)
