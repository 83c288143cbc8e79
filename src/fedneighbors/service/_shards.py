"""A collection of another broker as the objects of one provider, such as its own shards."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from fedneighbors.errors import DataError, FederationError, SourceError
from fedneighbors.federation._roles import Refused
from fedneighbors.methods.fedknn._filters import Where
from fedneighbors.methods.fedknn.metrics._sessions import LATE
from fedneighbors.service._client import RemoteNeighbors
from fedneighbors.service._policy import OTHER_PURPOSE
from fedneighbors.service._remote_search import ServiceError
from fedneighbors.sources._candidates import (
    CandidateBatch,
    CandidateCount,
    Candidates,
    CandidateSource,
    SourceSettings,
)
from fedneighbors.sources._sql import read_password

_MIN_S = 0.25  # shorter deadlines would leave no time for the network
_REQUIRED = {"url", "collection", "token_file"}
_N_FIRST = 16  # objects of the first read
_UNKNOWN_LENGTH = 1 << 30  # no reply of fixed size fits


class BrokerSource(CandidateSource):
    """Objects of a broker's collection, searched over its providers.

    Options: ``url``, ``collection``, ``token_file``, and ``certificate`` for a self-signed one.
    Objects are named ``provider/name``. Private searches are refused. The broker is asked as the
    user of the token, with that user's groups, and with the purpose of each query.

    Parameters
    ----------
    settings : SourceSettings
        Metric, options and filters.

    Raises
    ------
    DataError
        If an option is unknown or missing, metric or filters differ from the broker's, or its
        collection is sealed.
    SourceError
        If the broker cannot be reached.
    """

    sample = None

    def __init__(self, settings: SourceSettings) -> None:
        options, known = settings.options, _REQUIRED | {"certificate"}
        if not _REQUIRED <= set(options) <= known:
            raise DataError(
                f"expected the options {', '.join(sorted(known))}, got {', '.join(sorted(options))}"
            )
        certificate = options.get("certificate")
        self.client = RemoteNeighbors(
            options["url"],
            collection=options["collection"],
            token=read_password(settings.folder / options["token_file"]),
            certificate=None if certificate is None else settings.folder / certificate,
            payload=bool(settings.payload),
            allow_partial=False,
        )
        self.payload, self._timeout_s = settings.payload, self.client.deadline_s
        with explain_errors():
            found = self.client.describe()
        expected_settings = {
            "metric": settings.metric,
            "filters": dict(settings.filters),
            "trust": "trusted",  # this provider has no keys of the shards
        }
        for name, expected in expected_settings.items():
            if found[name] != expected:
                raise DataError(f"expected the {name} {expected!r}, the broker has {found[name]!r}")
        if any(step != 0 for step in found["distance_steps"].values()):
            raise DataError(
                "the shards show no exact distances; set their level to 'distances' for the user "
                "of the token, and their distance_step to 0"
            )

    def ask(self, query: Any, deadline_s: float | None, **fields: Any) -> dict[str, Any]:
        """Return the broker's answer to a search or a count."""
        with self._limit(deadline_s):
            if "k" in fields:
                self.client.kneighbors([query], fields["k"], where=fields["where"])
            else:
                self.client.count([query], **fields)
        return self.client.results_[0]

    def _limit(self, deadline_s: float | None) -> AbstractContextManager[None]:
        """Set the deadline of the next request, and explain its errors."""
        seconds = self._timeout_s if deadline_s is None else max(deadline_s, _MIN_S)
        self.client.deadline_s = min(seconds, self._timeout_s)
        self.client.purpose = self.purpose or None
        is_timed = seconds < self._timeout_s
        return explain_errors(end=time.monotonic() + seconds if is_timed else np.inf)

    def open(
        self, query: Any, where: Where | None, *, deadline_s: float | None = None
    ) -> "BrokerCandidates":
        """Open a query over the objects that meet a filter."""
        candidates = BrokerCandidates(self, query, where)
        candidates.prefetch(deadline_s)
        return candidates

    def size(self, where: Where | None, *, deadline_s: float | None = None) -> int:
        """Count the objects that meet a filter."""
        with self._limit(deadline_s):
            if where is None:
                return int(self.client.describe()["n_objects"])
            return int(self.client.count_filtered(where))

    def longest_name(self) -> int:
        """Return a length that private searches refuse."""
        return _UNKNOWN_LENGTH

    def close(self) -> None:
        """Close the connections to the broker."""
        self.client.close()


class BrokerCandidates(Candidates):
    """Candidates of one query; each read repeats it for more neighbours.

    Parameters
    ----------
    source : BrokerSource
        The collection.
    query : object
        The query.
    where : mapping, optional
        Filter of the objects.
    """

    def __init__(self, source: BrokerSource, query: Any, where: Where | None) -> None:
        self._source, self._query, self._where = source, query, where
        self._payloads: dict[str, Mapping[str, Any]] = {}
        self._epochs: dict[str, str] | None = None
        self._first: CandidateBatch | None = None

    def prefetch(self, deadline_s: float | None) -> None:
        """Read some objects; the broker checks the query."""
        self._first = self.read(_N_FIRST, deadline_s=deadline_s)

    def read(self, n: int, *, deadline_s: float | None) -> CandidateBatch:
        """Read at least ``n`` further objects, or all that are left."""
        first, self._first = self._first, None
        if first is not None and (n <= len(first.ids) or first.rest == np.inf):
            return first
        if first is not None:  # all are read again
            self._payloads = {}
        k = len(self._payloads) + n
        try:
            answer = self._source.ask(self._query, deadline_s, k=k, where=self._where)
        except ValueError as error:  # the query is valid, k is above the broker's limit
            if self._epochs is None:
                raise
            raise SourceError(f"the broker of the shards refuses {k} objects: {error}") from None
        self.exact = self.exact and answer["exact"]
        self._check_epochs(answer["epochs"])
        found = {f"{one['provider']}/{one['id']}": one for one in answer["neighbors"]}
        fresh = {name: one for name, one in found.items() if name not in self._payloads}
        self._payloads |= {name: one.get("payload", {}) for name, one in fresh.items()}
        rest = answer["neighbors"][-1]["distance"] if len(found) == k else np.inf
        distances = np.array([one["distance"] for one in fresh.values()], np.float64)
        return CandidateBatch(list(fresh), None, rest, distances)

    def _check_epochs(self, epochs: dict[str, str]) -> None:
        """Raise if objects have changed during the query."""
        if self._epochs not in (None, epochs):
            raise SourceError("the objects of a shard have changed during the query")
        self._epochs = epochs

    def count(self, radius: float, *, deadline_s: float | None) -> CandidateCount | None:
        """Count the objects within a radius."""
        if not np.isfinite(radius):
            return None
        answer = self._source.ask(self._query, deadline_s, radius=radius, where=self._where)
        self.exact = self.exact and answer["exact"]
        self._check_epochs(answer["epochs"])
        return CandidateCount(int(answer["count"]), ())

    def payload(self, ids: Sequence[str]) -> list[Mapping[str, Any]]:
        """Return columns of objects that were read."""
        names = self._source.payload
        return [{name: self._payloads[one].get(name) for name in names} for one in ids]


@contextmanager
def explain_errors(*, end: float = np.inf) -> Iterator[None]:
    """Turn errors of the client into those of a source.

    After the monotonic time ``end``, a missing provider or broker was late.
    """
    try:
        yield
    except ServiceError as error:
        if error.code == "invalid-query":
            raise ValueError(error.detail) from None
        if error.code == "purpose-refused":
            raise Refused(OTHER_PURPOSE) from None
        is_late = error.code == "provider-missing" and time.monotonic() >= end
        if is_late or (error.code == "deadline-passed" and end < np.inf):
            raise TimeoutError(LATE) from None
        raise SourceError(f"the broker of the shards failed: {error}") from None
    except FederationError as error:
        if time.monotonic() >= end:
            raise TimeoutError(LATE) from None
        raise SourceError(str(error)) from None
