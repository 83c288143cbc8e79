"""Objects in a table of PostgreSQL: snapshots, filters, and reads in ascending order."""

import math
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Self

from fedneighbors._lazy import optional_module
from fedneighbors.errors import DataError, SourceError
from fedneighbors.methods.fedknn._filters import Where
from fedneighbors.methods.fedknn.metrics._sessions import LATE
from fedneighbors.sources._candidates import (
    CandidateBatch,
    Candidates,
    CandidateSource,
    SourceSettings,
)
from fedneighbors.sources._filter_sql import Values, filter_sql, quote_name, sql, text_sql
from fedneighbors.sources._sql import (
    IS_WHOLE,
    ColumnTypes,
    connect,
    describe,
    has_password,
    read_password,
)

SNAPSHOT_S = 1.0
"""Maximum age of a snapshot for a new query, in seconds."""

MAX_SNAPSHOTS = 8
"""Maximum number of snapshots; beyond it, new queries share the latest."""

TIMEOUT_S = 30.0
"""Default of the option ``timeout_s``: maximum time of a statement."""

_MAX_TIMEOUT_S = 2_000_000  # milliseconds fit into 32 bits
_MIN_STATEMENT_MS = 50  # a shorter limit could also end the return to the savepoint
_COMMON = {"database", "password_file", "table", "id", "version", "timeout_s"}
_FAILED = 3  # libpq's PQTRANS_INERROR
_SETTINGS = {"DateStyle": "ISO"}  # dates as text do not depend on the role


class Snapshot:
    """A connection that sees one version of the database while queries are open.

    Without open queries it has no transaction, so that it keeps no lock. As a context, it counts as
    an open query. Until the last is released, the table cannot be truncated or rewritten.

    Parameters
    ----------
    database : str
        Connection string of libpq.
    password : str, optional
        Password; by default as libpq finds it.
    timeout_s : float
        Maximum time of a statement.
    version : str, optional
        Statement that returns the version of the objects.
    deadline_s : float, optional
        Seconds for the connection.
    table : psycopg.sql.Composable, optional
        The table of the objects, kept in its version.

    Raises
    ------
    SourceError
        If the database cannot be reached or refuses the connection.
    """

    def __init__(
        self,
        database: str,
        password: str | None,
        timeout_s: float,
        version: str | None,
        deadline_s: float | None = None,
        table: Any = None,
    ) -> None:
        psycopg = optional_module("psycopg", "sql")
        self._error, self._cancelled = psycopg.Error, psycopg.errors.QueryCanceled
        self._timeout_s, self._version_sql, self._table = timeout_s, version, table
        self.begun, self.n_open = 0.0, 0
        self.version: str | None = None
        try:
            self._connection = connect(database, password, deadline_s)
        except psycopg.Error as error:
            raise SourceError(f"cannot connect to the database: {describe(error)}") from None
        self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        self._connection.read_only = True

    def acquire(self, deadline_s: float | None = None) -> Self:
        """Add an open query; the first begins the transaction.

        Raises
        ------
        TimeoutError
            If a lock, or the statement of the version, takes longer than ``deadline_s``.
        SourceError
            If the connection is lost, or a statement fails.
        """
        if not self.n_open:
            while not self._begin(deadline_s):
                self._connection.rollback()
            self.begun = time.monotonic()
            if self._version_sql is not None:
                self.version = self._read_version(self._version_sql, deadline_s)
        self.n_open += 1
        return self

    def _begin(self, deadline_s: float | None) -> bool:
        """Begin a transaction; return whether its snapshot has all rows."""
        lock = sql.SQL("SELECT 1")
        if self._table is not None:  # keeps the lock of a reader, also on the tables of a view
            lock = sql.SQL("SELECT 1 FROM {} LIMIT 0").format(self._table)
        try:
            self._limit(deadline_s)
            self._connection.execute(lock, {})
            last = f"SELECT ({IS_WHOLE}), set_config('statement_timeout', '0', true)"
            return bool(self._connection.execute(last).fetchone()[0])
        except self._error as error:
            self.close()
            if isinstance(error, self._cancelled) and self._is_hurried(deadline_s):
                raise TimeoutError(LATE) from None
            raise SourceError(f"the database failed: {describe(error)}") from None

    def _is_hurried(self, deadline_s: float | None) -> bool:
        return deadline_s is not None and deadline_s < self._timeout_s

    def _limit(self, deadline_s: float | None, settings: Mapping[str, str] | None = None) -> None:
        """Set limit and settings until the end of the transaction."""
        seconds = self._timeout_s if deadline_s is None else min(deadline_s, self._timeout_s)
        limit_ms = max(_MIN_STATEMENT_MS, int(1000 * seconds))
        chosen = {**_SETTINGS, **(settings or {}), "statement_timeout": str(limit_ms)}
        assign = "SELECT " + ", ".join(["set_config(%s, %s, true)"] * len(chosen))
        self._connection.execute(assign, [it for pair in chosen.items() for it in pair])

    def _read_version(self, statement: str, deadline_s: float | None) -> str:
        try:
            rows = self.run(statement, None, deadline_s)
            if len(rows) != 1 or rows[0][0] is None:
                raise SourceError(f"expected one row from the statement of the version, got {rows}")
        except (SourceError, TimeoutError):
            self.close()
            raise
        return str(rows[0][0])

    def release(self) -> None:
        """Remove an open query; the last ends the transaction."""
        self.n_open -= 1
        if not self.n_open and self.is_alive:
            with suppress(self._error):
                self._connection.rollback()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def is_alive(self) -> bool:
        """Return whether the connection is open."""
        return not self._connection.closed

    def run(
        self,
        statement: Any,
        values: Mapping[str, Any] | None,
        deadline_s: float | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> list[tuple[Any, ...]]:
        """Return the rows of a statement, run with settings of the database.

        Only with ``values``, a ``%`` in the statement has to be doubled.

        Raises
        ------
        TimeoutError
            If it takes longer than ``deadline_s``; the snapshot remains.
        SourceError
            If it takes longer than the timeout, or fails.
        """
        try:
            # a savepoint; going back to it ends the settings
            with self._connection.transaction(force_rollback=True):
                self._limit(deadline_s, settings)
                found: list[tuple[Any, ...]] = self._connection.execute(
                    statement, values, binary=True
                ).fetchall()
                return found
        except self._cancelled as error:
            if self._is_hurried(deadline_s):
                raise TimeoutError(LATE) from None
            raise SourceError(f"the database stopped a statement: {describe(error)}") from None
        except self._error as error:
            raise SourceError(f"the database failed: {describe(error)}") from None
        finally:
            if self._connection.info.transaction_status == _FAILED:  # no statement can follow
                self.close()

    def close(self) -> None:
        """Close the connection; a running statement ends."""
        self._connection.close()


class PostgresSource(CandidateSource):
    """Objects in a table of PostgreSQL.

    Options: ``database``, a connection string of libpq without a password; ``password_file`` (by
    default libpq reads ``PGPASSFILE`` or ``PGPASSWORD``); ``table``, with its schema if needed;
    ``id``, the column of names; ``version``, a statement whose single value changes with the table
    (private searches need it); ``timeout_s``.

    Parameters
    ----------
    settings : SourceSettings
        Metric, options and filters.

    Raises
    ------
    DataError
        If an option is unknown, missing or invalid.
    SourceError
        If the database cannot be reached, or the table cannot be read.
    """

    column_option: str
    """Option that names the column of the objects."""

    def __init__(self, settings: SourceSettings) -> None:
        options = dict(settings.options)
        known = {*_COMMON, self.column_option, *self._more_options()}
        for name in sorted(set(options) - known):
            raise DataError(f"unknown option {name!r}; expected {', '.join(sorted(known))}")
        texts = {"version": "", "password_file": "", **options}
        for name in ("database", "table", "id", self.column_option, "version", "password_file"):
            if not isinstance(texts.get(name), str):
                raise DataError(f"expected a text for the option {name!r}, got {texts.get(name)}")
        seconds = options.get("timeout_s", TIMEOUT_S)
        if type(seconds) not in (int, float) or not 0 < seconds <= _MAX_TIMEOUT_S:
            raise DataError(
                f"expected 0 to {_MAX_TIMEOUT_S} seconds for the option 'timeout_s', got {seconds}"
            )
        if has_password(options["database"]):
            raise DataError("the database has a password; put it into a file, name password_file")
        self.options, self.metric, self._folder = options, settings.metric, settings.folder
        self._kinds, self._payload = settings.filters, settings.payload
        parts = options["table"].split(".")
        self._table, self._table_text = quote_name(*parts), sql.Identifier(*parts).as_string(None)
        self.column = quote_name(options[self.column_option])
        self._snapshots: list[Snapshot] = []
        self._longest: tuple[str | None, int] | None = None
        with ExitStack() as opened:  # closed after an error
            opened.callback(self.close)
            own = (options["id"], options[self.column_option])
            names = list(dict.fromkeys((*own, *self._kinds, *self._payload)))
            self._check_privileges(names)
            self._types = self._read_types(names)
            self._types.check({options["id"]}, self._kinds, read=self._payload)
            self._id = text_sql(quote_name(options["id"]), self._types.names[options["id"]])
            self._prepare()
            opened.pop_all()

    def _check_privileges(self, names: list[str]) -> None:
        """Raise SourceError if the role may not read a column."""
        table, values = self.options["table"], {"table": self._table_text, "names": names}
        refused = (
            "SELECT name FROM unnest(%(names)s::text[]) AS name "
            "WHERE NOT has_column_privilege(%(table)s::text, name, 'SELECT')"
        )
        with self.snapshot() as snapshot:
            columns = ", ".join(name for (name,) in snapshot.run(refused, values))
        if columns:
            text = f"the role of the database may not read {columns} of {table}"
            raise SourceError(f"{text}; GRANT SELECT ({columns}) ON {table} to it")

    def _read_types(self, names: Sequence[str]) -> ColumnTypes:
        """Return the types of columns, even of an empty table."""
        one = sql.SQL("pg_typeof((SELECT {} FROM {} LIMIT 0))::oid")
        types = sql.SQL(", ").join(one.format(quote_name(name), self._table) for name in names)
        with self.snapshot() as snapshot:
            oids = snapshot.run(sql.SQL("SELECT {}").format(types), {})[0]
            return ColumnTypes.read(self.options["table"], names, oids, snapshot.run)

    def check_type(self, *accepted: str) -> None:
        """Raise DataError if the column of the objects has another type."""
        name = self.options[self.column_option]
        if (type_ := self._types.names[name]) not in accepted:
            raise DataError(
                f"the column {name} has type {type_}, expected {' or '.join(accepted)} for the "
                f"metric {self.metric}; a view can cast it"
            )

    def read_modifier(self) -> int:
        """Return the modifier of the column's type, such as its length."""
        values = {"table": self._table_text, "name": self.options[self.column_option]}
        modifier = (
            "SELECT atttypmod FROM pg_attribute "
            "WHERE attrelid = %(table)s::regclass AND attname = %(name)s"
        )
        with self.snapshot() as snapshot:
            return int(snapshot.run(modifier, values)[0][0])

    def _more_options(self) -> set[str]:
        """Return the names of further options."""
        return set()

    def _prepare(self) -> None:
        """Check the table; called once."""
        self.size(None)

    @abstractmethod
    def order(self, query: Any, values: Values) -> Any:
        """Return the expression of a distance or its lower bound."""

    @abstractmethod
    def columns(self) -> Any:
        """Return the columns of an object."""

    @abstractmethod
    def decode(self, rows: list[tuple[Any, ...]]) -> Any:
        """Return objects from rows of their columns."""

    @abstractmethod
    def bound(self, distance: Any, query: Any) -> float:
        """Return a lower bound of distances, given a value of ``order``."""

    def run_once(self, columns: Any, values: Values) -> tuple[Any, ...]:
        """Return the first row of columns over all objects."""
        with self.snapshot() as snapshot:
            return snapshot.run(self.select(columns, None, values), values)[0]

    def condition(self, where: Where | None, values: Values) -> Any:
        """Return the condition of rows with an object that meet a filter."""
        present = sql.SQL("{} IS NOT NULL").format(self.column)
        if where is None:
            return present
        condition = filter_sql(where, self._kinds, self._types.names, values)
        return sql.SQL("{} AND {}").format(present, condition)

    def select(self, columns: Any, where: Where | None, values: Values, rest: Any = None) -> Any:
        """Return a statement over the rows that meet a filter."""
        return sql.SQL("SELECT {} FROM {} WHERE {} {}").format(
            columns, self._table, self.condition(where, values), rest or sql.SQL("")
        )

    def snapshot(self, deadline_s: float | None = None) -> Snapshot:
        """Return a recent snapshot for a new query, which must release it."""
        self._snapshots = [one for one in self._snapshots if one.is_alive]
        used = [one for one in self._snapshots if one.n_open]
        newest = max(used, key=lambda one: one.begun, default=None)
        if newest and (time.monotonic() - newest.begun < SNAPSHOT_S or len(used) >= MAX_SNAPSHOTS):
            return newest.acquire(deadline_s)
        for one in self._snapshots:
            if not one.n_open:
                with suppress(SourceError):  # the database closed an idle connection
                    return one.acquire(deadline_s)
        options, file = self.options, self.options.get("password_file")
        password = None if file is None else read_password(self._folder / file)
        timeout_s = float(options.get("timeout_s", TIMEOUT_S))
        database, version = options["database"], options.get("version")
        one = Snapshot(database, password, timeout_s, version, deadline_s, self._table)
        self._snapshots.append(one.acquire(deadline_s))
        return one

    def open(
        self, query: Any, where: Where | None, *, deadline_s: float | None = None
    ) -> "PostgresCandidates":
        """Open a query over the objects that meet a filter."""
        return PostgresCandidates(self, self.snapshot(deadline_s), query, where)

    def size(self, where: Where | None, *, deadline_s: float | None = None) -> int:
        """Count the objects that meet a filter."""
        values = Values()
        statement = self.select(sql.SQL("count(*)"), where, values)
        with self.snapshot(deadline_s) as snapshot:
            return int(snapshot.run(statement, values, deadline_s)[0][0])

    def longest_name(self) -> int:
        """Return the length of the longest name in bytes of UTF-8."""
        values = Values()
        longest = sql.SQL("coalesce(max(octet_length({})), 0)").format(self._id)
        statement = self.select(longest, None, values)
        with self.snapshot() as snapshot:
            known, version = self._longest, snapshot.version
            if known is None or version is None or known[0] != version:
                known = version, int(snapshot.run(statement, values)[0][0])
            self._longest = known
        return known[1]

    def read(
        self,
        snapshot: Snapshot,
        query: Any,
        where: Where | None,
        limit: int,
        deadline_s: float | None,
    ) -> list[tuple[Any, ...]]:
        """Return ``limit`` rows in ascending order: name, order, and the object's columns."""
        values = Values()
        order = self.order(query, values)
        columns = sql.SQL("{}, {}, {}").format(self._id, order, self.columns())
        rest = sql.SQL("ORDER BY {} LIMIT {}").format(order, values.bind(limit))
        statement = self.select(columns, where, values, rest)
        try:
            return snapshot.run(statement, values, deadline_s, self.settings(limit))
        except SourceError as error:
            settings = self.settings_after(error)
            if settings is None:
                raise
        return snapshot.run(statement, values, deadline_s, settings)

    def settings_after(self, error: SourceError) -> Mapping[str, str] | None:  # noqa: ARG002
        """Return settings for another try after an error, if any."""
        return None

    def read_payload(self, snapshot: Snapshot, ids: Sequence[str]) -> list[Mapping[str, Any]]:
        """Return the payload columns of objects."""
        if not self._payload:
            return [{} for _ in ids]
        values = Values()
        columns = sql.SQL(", ").join([self._id, *map(quote_name, self._payload)])
        rest = sql.SQL("AND {} = ANY({})").format(self._id, values.bind(list(ids)))
        rows = snapshot.run(self.select(columns, None, values, rest), values)
        found = self._types.payloads(self._payload, rows)
        return [found[name] for name in ids]

    def settings(self, limit: int) -> Mapping[str, str]:  # noqa: ARG002 - of subclasses
        """Return settings of the database for a read of ``limit`` rows."""
        return {}

    def close(self) -> None:
        """Close all connections."""
        for snapshot in self._snapshots:
            snapshot.close()
        self._snapshots = []


class PostgresCandidates(Candidates):
    """Candidates in the order of the database.

    Each read repeats the query with a larger limit: no cursor is kept open. Rows that were read
    before are recognized by their names, because rows of equal order have none.

    Parameters
    ----------
    source : PostgresSource
        The table.
    snapshot : Snapshot
        The version that the query sees.
    query : object
        The query.
    where : mapping, optional
        Filter of the objects.
    """

    def __init__(
        self, source: PostgresSource, snapshot: Snapshot, query: Any, where: Where | None
    ) -> None:
        self._source, self._snapshot, self._query, self._where = source, snapshot, query, where
        self.version = snapshot.version
        self._seen: set[str] = set()

    def read(self, n: int, *, deadline_s: float | None) -> CandidateBatch:
        """Read at least ``n`` further objects, or all that are left."""
        limit = len(self._seen) + n
        rows = self._source.read(self._snapshot, self._query, self._where, limit, deadline_s)
        fresh = self._keep_fresh(rows)
        return CandidateBatch(
            ids=[row[0] for row in fresh],
            objects=self._source.decode([row[2:] for row in fresh]),
            rest=self._source.bound(rows[-1][1], self._query) if len(rows) == limit else math.inf,
        )

    def payload(self, ids: Sequence[str]) -> list[Mapping[str, Any]]:
        """Return columns of objects that were read."""
        return self._source.read_payload(self._snapshot, ids)

    def _keep_fresh(self, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Return the rows with names that were not read before."""
        if any(row[0] is None for row in rows):
            raise SourceError("an object has no name: the column of names has a NULL")
        if len({row[0] for row in rows}) < len(rows):
            raise SourceError("two objects have one name; the column of names must be unique")
        fresh = [row for row in rows if row[0] not in self._seen]
        self._seen |= {row[0] for row in fresh}
        return fresh

    def close(self) -> None:
        """Release the snapshot."""
        self._snapshot.release()
