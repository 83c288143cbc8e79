"""Log of the queries of users, a chain of digests, and their use of daily quotas."""

import hashlib
import json
import math
import re
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedneighbors.errors import DataError, FederationError
from fedneighbors.privacy.ledger._chain import extend_chain
from fedneighbors.service._database import open_database

_TABLES = """
CREATE TABLE IF NOT EXISTS entry (number INTEGER PRIMARY KEY, content TEXT, chain TEXT);
CREATE INDEX IF NOT EXISTS entry_user ON entry (json_extract(content, '$.user'));
CREATE TABLE IF NOT EXISTS usage (day INTEGER, collection TEXT, user TEXT, n_queries INTEGER,
    n_objects INTEGER, PRIMARY KEY (day, collection, user));
CREATE TABLE IF NOT EXISTS view (day INTEGER, collection TEXT, user TEXT, object BLOB, query BLOB,
    PRIMARY KEY (day, collection, user, object, query)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS filter (day INTEGER, collection TEXT, user TEXT, content TEXT,
    PRIMARY KEY (day, collection, user, content)) WITHOUT ROWID;
"""
_VERSION = 2  # entries have the fields of the program that wrote them
_LATER_FIELDS = {"purpose": "", "subject": ""}  # fields that entries of earlier programs lack
LOG_FAILED = "the provider cannot write its log of queries"
"""Code of the refusal of a request that cannot be logged."""

_DAY_S = 86400
_SCANNED = 10_000  # entries that are read at once
_ID_LENGTH = 16  # characters of a query's name that all of its runs have
_NEAREST = ("NearestRequest", "EagerRequest")  # kinds of requests for objects, one reply each
_KEPT_DAYS = 2  # usage; a corrected clock must not give a quota again at once


class LogFailed(FederationError):  # noqa: N818 - the name states the error
    """The log of queries cannot be written or read."""


@dataclass(frozen=True)
class AccessEntry:
    """A query of a user, a request of it, or a change of an administrator.

    Parameters
    ----------
    query : str
        Name of the query or change. At a provider, two digits follow for each run of it.
    user, collection : str
        User, and the collection that was searched.
    kind : str
        Kind of the query, request or change.
    size : float or None
        Number of neighbours, or radius.
    outcome : str
        Empty for an answer, "running", "failed", "cancelled", or the code of the error.
    n_objects : int
        Number of objects returned.
    providers : tuple of str
        Providers whose objects the broker searched; empty at a provider.
    digest : str
        Hexadecimal digest of the query.
    purpose : str
        Purpose that the user stated; empty if there was none.
    subject : str
        Provider or token that an administrator changed; empty for a query.
    """

    query: str
    user: str
    collection: str
    kind: str
    size: float | None
    outcome: str = ""
    n_objects: int = 0
    providers: tuple[str, ...] = ()
    digest: str = ""
    purpose: str = ""
    subject: str = ""


class AccessLog:
    """Entries in an SQLite file; each has a digest of all entries before it.

    A crash of the process loses no entry. A program that can write the file can also compute new
    digests: keep :attr:`head` elsewhere, to find changes of earlier entries. Threads may share a
    log.

    Parameters
    ----------
    path : path
        The file; created if it does not exist.

    Raises
    ------
    LogFailed
        If the file is damaged, or a later version of the program wrote it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock, self._day = threading.Lock(), 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = open_database(
            path, _TABLES, version=_VERSION, error=LogFailed, timeout_s=30
        )
        self._connection.execute("PRAGMA synchronous=NORMAL")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def append(self, entry: AccessEntry, *, n_queries: int = 0) -> None:
        """Add an entry, and its use of the user's quota.

        Parameters
        ----------
        entry : AccessEntry
            The entry; its objects are added to the use of the quota.
        n_queries : int
            Number of queries that are added to it.

        Raises
        ------
        LogFailed
            If the file cannot be written; nothing was added.
        """
        now = time.time()
        content = json.dumps({"time": round(now, 3), **vars(entry)}, allow_nan=False)
        with self._lock, self._convert_errors(), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")  # another process may append
            rows = self._connection.execute(
                "SELECT number, chain FROM entry ORDER BY number DESC LIMIT 1"
            ).fetchall()
            number, chain = rows[0] if rows else (0, "")
            values = number + 1, content, extend_chain(chain, [number + 1, content])
            self._connection.execute("INSERT INTO entry VALUES (?, ?, ?)", values)
            if n_queries or entry.n_objects:
                day = int(now // _DAY_S)
                self._connection.execute(
                    "INSERT INTO usage VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                    "n_queries = n_queries + excluded.n_queries, "
                    "n_objects = n_objects + excluded.n_objects",
                    (day, entry.collection, entry.user, n_queries, entry.n_objects),
                )
                if day != self._day:
                    for table in ("usage", "view", "filter"):
                        self._connection.execute(
                            f"DELETE FROM {table} WHERE day < ?", (day - _KEPT_DAYS,)
                        )
                    self._day = day

    def usage(self, collection: str, user: str) -> tuple[int, int]:
        """Return the numbers of queries and objects of a user today (UTC)."""
        values = int(time.time() // _DAY_S), collection, user
        rows = self._rows(
            "SELECT n_queries, n_objects FROM usage WHERE day = ? AND collection = ? AND user = ?",
            *values,
        )
        return rows[0] if rows else (0, 0)

    def add_views(
        self, collection: str, user: str, query: bytes, names: Iterable[str], limit: int
    ) -> bool:
        """Add views of objects; return whether all are within a limit.

        Parameters
        ----------
        collection, user : str
            Who sees them, and where.
        query : bytes
            The query; equal ones count once a day (UTC).
        names : iterable of str
            Names of the objects; digests of them are kept.
        limit : int
            Maximum number of queries that show an object. Beyond it, nothing is noted.

        Raises
        ------
        LogFailed
            If the file cannot be used.
        """
        day, digest = int(time.time() // _DAY_S), _shorten(query)
        rows = [(day, collection, user, _shorten(name.encode()), digest) for name in names]
        with self._lock, self._convert_errors(), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            for *key, query_digest in rows:
                ((n,),) = self._connection.execute(
                    "SELECT count(*) FROM view WHERE day = ? AND collection = ? AND user = ? "
                    "AND object = ? AND query != ?",
                    (*key, query_digest),
                ).fetchall()
                if n >= limit:
                    return False
            self._connection.executemany("INSERT OR IGNORE INTO view VALUES (?, ?, ?, ?, ?)", rows)
        return True

    def filters(self, collection: str, user: str) -> list[str]:
        """Return the filters of a user today (UTC), sorted."""
        rows = self._rows(
            "SELECT content FROM filter WHERE day = ? AND collection = ? AND user = ? "
            "ORDER BY content",
            *(int(time.time() // _DAY_S), collection, user),
        )
        return [content for (content,) in rows]

    def add_filter(self, collection: str, user: str, content: str) -> None:
        """Add a filter of a user, or raise LogFailed."""
        values = int(time.time() // _DAY_S), collection, user, content
        with self._lock, self._convert_errors(), self._connection:
            self._connection.execute("INSERT OR IGNORE INTO filter VALUES (?, ?, ?, ?)", values)

    def entries(self) -> Iterator[dict[str, Any]]:
        """Yield the entries in order, with their ``number`` and ``time``."""
        for number, content, _ in self._scan():
            yield {"number": number, **_LATER_FIELDS, **json.loads(content)}

    def entries_of(
        self, user: str | None, n: int, *, query: str = "", before: int | None = None
    ) -> list[dict[str, Any]]:
        """Return the last ``n`` entries of a user, the latest first.

        Parameters
        ----------
        user : str or None
            Name of the user; None for all users.
        n : int
            Maximum number of entries.
        query : str
            Only entries of this query; empty for all.
        before : int, optional
            Only entries with a smaller number.
        """
        values = {"user": user, "query": query or None, "before": before}
        limits = {
            "user": "json_extract(content, '$.user') = ?",
            "query": "json_extract(content, '$.query') = ?",
            "before": "number < ?",
        }
        given = [name for name, value in values.items() if value is not None]
        where = " AND ".join(limits[name] for name in given) or "1"
        rows = self._rows(
            f"SELECT number, content FROM entry WHERE {where} ORDER BY number DESC LIMIT ?",
            *(values[name] for name in given),
            n,
        )
        return [
            {"number": number, **_LATER_FIELDS, **json.loads(content)} for number, content in rows
        ]

    def _scan(self) -> Iterator[tuple[int, str, str]]:
        """Yield all rows in order.

        Some are read at a time, so that others can append.
        """
        last: float = -math.inf
        statement = "SELECT number, content, chain FROM entry WHERE number > ? ORDER BY number"
        while rows := self._rows(f"{statement} LIMIT {_SCANNED}", last):
            yield from rows
            last = rows[-1][0]

    @property
    def head(self) -> str:
        """Return the number and the digest of the last entry."""
        rows = self._rows("SELECT number, chain FROM entry ORDER BY number DESC LIMIT 1")
        return f"{rows[0][0]}:{rows[0][1]}" if rows else "0:"

    def verify(self, head: str = "0:") -> int:
        """Check all digests; return the number of entries.

        Parameters
        ----------
        head : str
            Earlier :attr:`head`, from which the log must continue.

        Raises
        ------
        DataError
            If an entry was altered, removed or added; the error names the first.
        """
        if not re.fullmatch(r"0:|[1-9][0-9]{0,18}:[0-9a-f]{64}", head):
            raise DataError(f"expected the head of a log, such as 12:5f0c..., got {head[:80]!r}")
        number, chain, heads = 0, "", {"0:"}
        for found, content, stored in self._scan():
            number, chain = number + 1, extend_chain(chain, [number + 1, content])
            if found != number or stored != chain:
                raise DataError(f"{self.path}: entry {number} was altered or removed")
            if f"{number}:{chain}" == head:
                heads.add(head)
        if head not in heads:
            raise DataError(
                f"{self.path}: the log does not continue from entry {head.partition(':')[0]} of "
                "the given head: it was rolled back or replaced"
            )
        return number

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise LogFailed(f"{self.path} cannot be used: {error}") from error

    def _rows(self, statement: str, *values: object) -> list[Any]:
        with self._lock, self._convert_errors():
            return self._connection.execute(statement, values).fetchall()


def _shorten(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()[:16]


def compare_logs(
    provider: str, own: Iterator[Mapping[str, Any]], broker: Iterator[Mapping[str, Any]]
) -> list[str]:
    """Return a sentence for each difference of two logs.

    Parameters
    ----------
    provider : str
        Name of the provider.
    own : iterator of mapping
        Entries of the provider.
    broker : iterator of mapping
        All entries of the broker.
    """
    asked = {entry["query"]: entry for entry in broker}
    seen: set[str] = set()
    differences: dict[str, None] = {}  # ordered
    n_shown, counted = Counter[str](), set[str]()  # by run
    for entry in own:
        query = entry["query"][:_ID_LENGTH]
        seen.add(query)
        if entry["kind"] in _NEAREST:
            n_shown[entry["query"]] += entry["n_objects"]
        elif entry["kind"] == "RangeCountRequest" and not entry["outcome"]:
            counted.add(entry["query"])
        if query not in asked:
            differences[f"the broker's log lacks query {query} of {entry['user']!r}"] = None
            continue
        for name in ("user", "collection", "digest", "purpose"):
            if asked[query][name] != entry[name]:
                differences[
                    f"query {query} has {name} {asked[query][name]!r} in the broker's log, "
                    f"{entry[name]!r} here"
                ] = None
    for run, n in n_shown.items():
        one = asked.get(run[:_ID_LENGTH], {})
        # k is an integer, a radius none; a broker that has counted fetches all within a radius
        most = 0 if one.get("kind") == "count" else one.get("size")
        if isinstance(most, int) and n > most and (run not in counted or not most):
            differences[
                f"query {run[:_ID_LENGTH]} is for {most} objects in the broker's log, and showed "
                f"it {n} here"
            ] = None
    unseen = [
        f"the log of {provider!r} lacks query {query} of {entry['user']!r}"
        for query, entry in asked.items()
        if provider in entry["providers"] and query not in seen
    ]
    return [*differences, *unseen]
