"""A client of the broker, with scikit-learn's methods."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import httpx
import numpy as np

from fedneighbors._typing import Floats
from fedneighbors.errors import FederationError
from fedneighbors.service._tls import pinned_context

_WAIT_S = 10.0  # added to the broker's deadline


class ServiceError(FederationError):
    """The broker answered with an error.

    Parameters
    ----------
    status : int
        Status code of HTTP.
    code : str
        Stable code of the error, such as ``"provider-missing"``.
    detail : str
        Sentence for people.
    retryable : bool
        The same request may succeed later.
    """

    def __init__(self, status: int, code: str, detail: str, *, retryable: bool) -> None:
        super().__init__(f"{detail} ({code}, status {status})")
        self.status, self.code, self.detail, self.retryable = status, code, detail, retryable


class RemoteObject(NamedTuple):
    """An object of a provider."""

    provider: str
    id: str


class RemoteNeighbors:
    """Exact nearest neighbours over the providers of a broker.

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
        Seconds before providers without a reply are missing.
    allow_partial : bool, optional
        Answer without missing providers; by default as the collection is configured.
    certificate : path, optional
        Certificate of the broker, if it is self-signed. Only this certificate is then accepted,
        under any name.

    Attributes
    ----------
    results_ : list of dict
        The broker's answers to the last call: exactness, algorithm, rounds, and missing providers.

    Examples
    --------
    >>> search = RemoteNeighbors("https://broker.example", collection="titles", token="fn_...")
    >>> search.collection
    'titles'
    """

    def __init__(
        self,
        url: str,
        *,
        collection: str,
        token: str,
        algorithm: str | None = None,
        deadline_s: float = 30.0,
        allow_partial: bool | None = None,
        certificate: str | Path | None = None,
    ) -> None:
        self.url = url
        self.collection = collection
        self.algorithm = algorithm
        self.deadline_s = deadline_s
        self.allow_partial = allow_partial
        verify: Any = True
        if certificate is not None:
            verify = pinned_context(Path(certificate).read_text("ascii"))
        self.results_: list[dict[str, Any]] = []
        self._client = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            verify=verify,
            timeout=deadline_s + _WAIT_S,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
            Queries: vectors, places (longitude, latitude), strings, sets, or SMILES of molecules. A
            single string is one query.
        n_neighbors : int
            Number of neighbors, 1 or more; fewer are returned if the collection has fewer.
        return_distance : bool
            Return distances too.
        where : mapping, optional
            Filter of objects, as for :meth:`fedneighbors.FederatedNeighbors.kneighbors`.

        Returns
        -------
        distances : list of float64 arrays
            Ascending, in the unit of the metric; only with ``return_distance``.
        objects : list of lists of RemoteObject
            Provider and name of each object.

        Raises
        ------
        ServiceError
            If the broker answers with an error.
        FederationError
            If the broker cannot be reached.
        """
        self.results_ = []
        for query in [X] if isinstance(X, str) else X:
            body: dict[str, Any] = {
                "query": _to_json(query),
                "k": int(n_neighbors),
                "deadline_s": self.deadline_s,
            }
            optional = {
                "where": where,
                "algorithm": self.algorithm,
                "allow_partial": self.allow_partial,
            }
            body |= {name: value for name, value in optional.items() if value is not None}
            path = f"/v1/collections/{self.collection}/search"
            self.results_.append(self._request("POST", path, body))
        distances: list[Floats] = [
            np.array([found["distance"] for found in result["neighbors"]], np.float64)
            for result in self.results_
        ]
        objects = [
            [RemoteObject(found["provider"], found["id"]) for found in result["neighbors"]]
            for result in self.results_
        ]
        return (distances, objects) if return_distance else objects

    def describe(self) -> dict[str, Any]:
        """Return metric, providers and filters of the collection.

        Raises
        ------
        ServiceError, FederationError
            As for :meth:`kneighbors`.
        """
        for collection in self._request("GET", "/v1/collections", None)["collections"]:
            if collection["name"] == self.collection:
                return dict(collection)
        raise ServiceError(
            404, "unknown-collection", f"no collection {self.collection!r}", retryable=False
        )

    def _request(self, method: str, path: str, body: Any) -> dict[str, Any]:
        try:
            response = self._client.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise FederationError(f"cannot reach the broker at {self.url}: {error}") from error
        try:
            content = response.json()
        except ValueError:
            raise FederationError(f"{self.url} does not answer like a broker") from None
        if response.is_success and isinstance(content, dict):
            return content
        problem = content if isinstance(content, dict) else {}
        raise ServiceError(
            response.status_code,
            str(problem.get("code", "unknown")),
            str(problem.get("detail", "an error without a description")),
            retryable=bool(problem.get("retryable")),
        )


def _to_json(query: Any) -> Any:
    """Return a query as JSON."""
    if isinstance(query, str):
        return query
    if isinstance(query, set | frozenset):
        return sorted(query, key=lambda element: (isinstance(element, str), element))
    if hasattr(query, "node_labels"):
        edges = [list(edge) for edge in query.edges]
        return {
            "nodes": list(query.node_labels),
            "edges": [[*edge, label] for edge, label in zip(edges, query.edge_labels, strict=True)],
        }
    return np.asarray(query, np.float64).tolist()
