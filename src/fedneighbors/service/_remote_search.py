"""Requests of clients to the REST API, and the reading of its answers."""

import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast
from urllib.parse import quote

import httpx
import numpy as np

from fedneighbors._lazy import optional_module
from fedneighbors._typing import Floats
from fedneighbors.errors import FederationError
from fedneighbors.service._tls import pinned_context

if TYPE_CHECKING:
    from fedneighbors.service._sealed import QuerySeal

_LATE_S = 0.05  # after the deadline, for an answer that is on its way
_NETWORK_SHARE, _MAX_NETWORK_S = 0.1, 0.25  # part of the deadline for the network
_STEPS = ("connect", "read", "write", "pool")  # names in httpx
_MIN_WAIT_S = 0.001  # sockets take 0 as: do not wait
_KEY_BYTES = 32
_BATCH = 50  # queries in one request; larger bodies are refused
_ROWS = 100  # rows in one query for votes: those of 100 columns fit into a body
_LINES = {"Content-Type": "application/x-ndjson"}


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
    party : str, optional
        The provider that failed.
    query_id : str, optional
        Name of the query in the broker's log.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        retryable: bool,
        party: str | None = None,
        query_id: str | None = None,
    ) -> None:
        super().__init__(f"{detail} ({code}, status {status})")
        self.status, self.code, self.detail, self.retryable = status, code, detail, retryable
        self.party, self.query_id = party, query_id

    @classmethod
    def of(cls, problem: Mapping[str, Any], status: int) -> "ServiceError":
        """Return the error of a problem, or of another server's JSON."""
        stated = problem.get("status")
        return cls(
            stated if isinstance(stated, int) else status,
            str(problem.get("code", "unknown")),
            str(problem.get("detail", "an error without a description")),
            retryable=bool(problem.get("retryable")),
            party=problem.get("party"),
            query_id=problem.get("query_id"),
        )


class BrokerUnreachable(FederationError):  # noqa: N818 - the name states the error
    """The broker cannot be reached, or does not answer in time.

    A private query may have been charged; the same query costs nothing again.

    Parameters
    ----------
    url : str
        Address of the broker.
    reason : str
        Sentence for people.

    Attributes
    ----------
    retryable : bool
        True: the same request may succeed later.
    """

    retryable = True

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"cannot reach the broker at {url}: {reason}")
        self.url, self.reason = url, reason


class TimeLeft(Mapping[str, float]):
    """Time-outs for httpx that shrink: each step of a request has the seconds that are left.

    Parameters
    ----------
    seconds : float
        Seconds for the whole request.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def __getitem__(self, step: str) -> float:
        if step not in _STEPS:
            raise KeyError(step)
        return max(self._end - time.monotonic(), _MIN_WAIT_S)

    def __iter__(self) -> Iterator[str]:
        return iter(_STEPS)

    def __len__(self) -> int:
        return len(_STEPS)


class RemoteObject(NamedTuple):
    """An object of a provider."""

    provider: str
    id: str


class RemoteResults(list[dict[str, Any]]):
    """The broker's answers to the queries of one call, in order."""

    def to_columns(self) -> dict[str, Any]:
        """Return one row for each found object, by column.

        The columns are ``query``, the position of the query, ``provider``, ``id``, ``distance``,
        and those of payloads. One of a payload with such a name is called ``payload_id``, for
        instance.
        """
        found = [
            (query, one) for query, answer in enumerate(self) for one in answer.get("neighbors", ())
        ]
        payload = dict.fromkeys(name for _, one in found for name in one.get("payload", {}))
        columns = {
            "query": np.array([query for query, _ in found], np.int64),
            "provider": [one["provider"] for _, one in found],
            "id": [one["id"] for _, one in found],
            "distance": np.array([one["distance"] for _, one in found], np.float64),
        }
        names = {f"payload_{name}" if name in columns else name: name for name in payload}
        cells = {new: [one["payload"].get(old) for _, one in found] for new, old in names.items()}
        return {**columns, **cells}

    def to_pandas(self) -> Any:
        """Return :meth:`to_columns` as a pandas DataFrame.

        Raises
        ------
        MissingExtraError
            If pandas is not installed.
        """
        return optional_module("pandas", "data").DataFrame(self.to_columns())

    def to_arrow(self) -> Any:
        """Return :meth:`to_columns` as an Arrow table.

        Raises
        ------
        MissingExtraError
            If pyarrow is not installed.
        """
        arrow, columns = optional_module("pyarrow", "data"), self.to_columns()
        texts = {name: arrow.array(columns[name], arrow.string()) for name in ("provider", "id")}
        return arrow.table({**columns, **texts})


class ApiRequest(NamedTuple):
    """A request of the REST API.

    ``n_queries`` is the number of lines of the answer, or None for one JSON object. ``seals`` are
    those of the queries, if they are sealed.
    """

    method: str
    path: str
    content: bytes | None = None
    headers: Mapping[str, str] | None = None
    n_queries: int | None = None
    seals: Sequence["QuerySeal"] = ()

    def read(self, response: httpx.Response) -> list[dict[str, Any]]:
        """Return the answers of a response.

        Raises
        ------
        ServiceError
            If one is a problem.
        FederationError
            If the server is no broker, or the answer to a sealed query was changed.
        """
        is_lines = self.n_queries is not None and response.is_success
        try:
            answers = (
                [json.loads(line) for line in response.content.splitlines()]
                if is_lines
                else [response.json()]
            )
        except ValueError:
            answers = []
        expected = self.n_queries if is_lines else 1
        if len(answers) != expected or not all(isinstance(one, dict) for one in answers):
            if response.is_success:
                raise FederationError(f"{response.url} does not answer like a broker")
            answers = [{}]
        for answer in answers:
            if not response.is_success or "code" in answer:
                raise ServiceError.of(answer, response.status_code)
        if not self.seals:
            return answers
        return [seal.open_answer(one) for seal, one in zip(self.seals, answers, strict=True)]


class RemoteSearch:
    """Settings of a client, its requests, and the reading of their answers."""

    _client_class: ClassVar[type[Any]]

    def __init__(
        self,
        url: str,
        *,
        collection: str,
        token: str,
        algorithm: str | None = None,
        deadline_s: float = 30.0,
        allow_partial: bool | None = None,
        payload: bool = False,
        purpose: str | None = None,
        certificate: str | Path | None = None,
        keys: Mapping[str, str] | None = None,
        provider_tokens: Mapping[str, str] | None = None,
    ) -> None:
        self.url = url
        self.collection = collection
        self.algorithm = algorithm
        self.deadline_s = deadline_s
        self.allow_partial = allow_partial
        self.payload = payload
        self.purpose = purpose
        self._keys = None if keys is None else _read_keys(keys)
        self._tokens = dict(provider_tokens or {})
        unknown = sorted(self._tokens.keys() - (self._keys or {}).keys())
        if unknown:
            raise ValueError(f"expected a key of {unknown[0]!r}, for which its token is sealed")
        self._local = threading.local()  # calls of other threads have other results
        verify: Any = True
        if certificate is not None:
            verify = pinned_context(Path(certificate).read_text("ascii"))
        self._client = self._client_class(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            verify=verify,
        )

    @property
    def _patience_s(self) -> float:
        """Return the seconds after which an answer is missing."""
        return self.deadline_s + _LATE_S

    def _extend(self, request: ApiRequest) -> dict[str, Any]:
        """Return the time-outs of a request.

        Each answer of many has its own deadline.
        """
        left = TimeLeft(self._patience_s)
        return {"timeout": left if request.n_queries is None else dict(left)}

    def _describe(self) -> ApiRequest:
        return ApiRequest("GET", f"/v1/collections/{quote(self.collection, safe='')}")

    def check_objects(self, description: Mapping[str, Any]) -> None:
        """Raise if the collection has voters, or is sealed without keys.

        Parameters
        ----------
        description : mapping
            The broker's description of the collection.

        Raises
        ------
        ValueError
            If it has no objects, or queries would be sent in plain text.
        """
        if description.get("objects") == "voters":
            raise ValueError(
                f"collection {self.collection!r} has voters and no objects: use `fedneighbors "
                "vote` or RemoteNeighbors.vote"
            )
        if description.get("trust") == "sealed" and self._keys is None:
            raise ValueError(
                f"collection {self.collection!r} is sealed: pass the file of the providers' keys "
                "with --keys, or the argument keys; nothing was sent"
            )

    def _ask(self, kind: str, queries: Iterable[Any], **fields: Any) -> Iterator[ApiRequest]:
        """Yield the requests for queries: one query, or lines of several."""
        is_vote = kind == "votes"
        if is_vote and self._keys is not None:
            raise ValueError("votes cannot be sealed, as the broker averages them: omit keys")
        options = {
            "deadline_s": self.deadline_s - min(_NETWORK_SHARE * self.deadline_s, _MAX_NETWORK_S),
            "allow_partial": self.allow_partial,
            "purpose": self.purpose,
            **({"algorithm": self.algorithm} if "k" in fields else {}),
            **({"payload": True} if self.payload and kind == "search" else {}),
            **fields,
        }
        listed = _list_queries(queries)
        if is_vote:  # many rows in a query
            listed = [listed[first : first + _ROWS] for first in range(0, len(listed), _ROWS)]
        given = {name: value for name, value in options.items() if value is not None}
        bodies: list[dict[str, Any]] = [
            {"rows" if is_vote else "query": _to_json(query), **given} for query in listed
        ]
        seals = () if self._keys is None else [self._seal(body) for body in bodies]
        lines = [json.dumps(body, allow_nan=False).encode() for body in bodies]
        path = f"/v1/collections/{quote(self.collection, safe='')}/{kind}"
        if len(lines) == 1:
            yield ApiRequest("POST", path, lines[0], seals=seals)
            return
        for first in range(0, len(lines), _BATCH):
            part = slice(first, first + _BATCH)
            batch = lines[part]
            yield ApiRequest("POST", path, b"\n".join(batch), _LINES, len(batch), seals[part])

    def _seal(self, body: dict[str, Any]) -> "QuerySeal":
        """Move the query of a body into a seal, which is returned."""
        from fedneighbors.service._sealed import QuerySeal

        assert self._keys is not None
        content: dict[str, Any] = {
            name: body.pop(name) for name in ("query", "where") if name in body
        }
        seal = QuerySeal(content, self._keys, self.collection, self._tokens)
        body["sealed"] = seal.text
        return seal

    def _read(self, answers: Iterable[list[dict[str, Any]]]) -> RemoteResults:
        results = RemoteResults(answer for batch in answers for answer in batch)
        self._local.results = results
        return results

    @property
    def results_(self) -> RemoteResults:
        """Return the broker's answers to the last call of this thread."""
        return cast("RemoteResults", getattr(self._local, "results", RemoteResults()))

    def _unreachable(self, error: httpx.HTTPError) -> BrokerUnreachable:
        reason = str(error) or type(error).__name__
        if isinstance(error, httpx.TimeoutException):
            reason = f"no answer within {self._patience_s:g} s"
        elif "not yet valid" in reason or "has expired" in reason:
            reason += "; set the clock of this machine, or renew the broker's certificate"
        elif "CERTIFICATE_VERIFY_FAILED" in reason:
            reason += "; pass the file of a self-signed certificate as certificate, --certificate"
        elif isinstance(error, httpx.RemoteProtocolError) and self.url.startswith("http:"):
            reason += " A broker with TLS needs an address https://..."
        return BrokerUnreachable(self.url, reason)


def read_neighbors(results: RemoteResults, *, return_distance: bool) -> Any:
    """Return distances and objects of each query, or only the objects."""
    distances: list[Floats] = [
        np.array([found["distance"] for found in result["neighbors"]], np.float64)
        for result in results
    ]
    objects = [
        [RemoteObject(found["provider"], found["id"]) for found in result["neighbors"]]
        for result in results
    ]
    return (distances, objects) if return_distance else objects


def read_votes(results: RemoteResults) -> tuple[list[Any], Floats]:
    """Return the classes, and the probabilities of all rows."""
    if not results:
        raise ValueError("expected at least one row")
    rows = [row for result in results for row in result["probabilities"]]
    return results[0]["classes"], np.array(rows, np.float64)


def read_counts(results: RemoteResults) -> Any:
    """Return the count of each query."""
    return np.array([result["count"] for result in results], np.int64)


def check_one_query(X: Any) -> Any:
    """Return the queries; raise unless there is exactly one."""
    n_queries = len(_list_queries(X))
    if n_queries != 1:
        raise ValueError(f"expected one query, got {n_queries}; pass a list with one query")
    return X


def _read_keys(keys: Mapping[str, str]) -> dict[str, bytes]:
    """Return the sealing keys of providers."""
    if not isinstance(keys, Mapping):
        raise TypeError(f"expected keys as a mapping, such as of tomllib.load, got {keys!r:.80}")
    found = {}
    for provider, text in keys.items():
        try:
            found[str(provider)] = bytes.fromhex(text)
        except (TypeError, ValueError):
            found[str(provider)] = b""
        if len(found[str(provider)]) != _KEY_BYTES:
            raise ValueError(
                f"expected the key of {provider!r} as {2 * _KEY_BYTES} hexadecimal digits, as "
                f"`fedneighbors provider key` prints it, got {text!r:.80}"
            )
    return found


def _list_queries(queries: Any) -> Any:
    """Return the queries, rows of a data frame as mappings."""
    if hasattr(queries, "iloc") and hasattr(queries, "columns"):
        return queries.astype(object).where(queries.notna(), None).to_dict("records")
    return [queries] if isinstance(queries, str | Mapping) else queries


def _to_json(query: Any) -> Any:
    """Return a query as JSON."""
    if query is None or isinstance(query, str):
        return query
    if isinstance(query, list) and query and all(isinstance(row, Mapping) for row in query):
        return list(map(_to_json, query))
    if isinstance(query, Mapping):
        return {str(name): _to_cell(cell) for name, cell in query.items()}
    if isinstance(query, set | frozenset):
        return sorted(query, key=lambda element: (isinstance(element, str), element))
    if hasattr(query, "node_labels"):
        edges = [list(edge) for edge in query.edges]
        return {
            "nodes": list(query.node_labels),
            "edges": [[*edge, label] for edge, label in zip(edges, query.edge_labels, strict=True)],
        }
    return np.asarray(query, np.float64).tolist()


def _to_cell(cell: Any) -> Any:
    """Return a cell of a row as JSON; null for NaN."""
    plain = cell.item() if isinstance(cell, np.generic) else cell
    return None if plain != plain else plain
