"""Objects in a table of PostgreSQL: snapshots, filters, and reads in ascending order."""

import math
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
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
from fedneighbors.sources._sql import CONNECT_S, has_password, read_password

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
_TYPES = {"number": "double precision", "text": "text", "boolean": "boolean"}


class Values(dict[str, Any]):
    """Values that are bound to a statement; none is ever part of its text."""

    def bind(self, value: Any) -> Any:
        """Return the placeholder of a value."""
        name = f"v{len(self)}"
        self[name] = value
        return optional_module("psycopg.sql", "sql").Placeholder(name)


def filter_sql(where: Where, kinds: Mapping[str, str], values: Values) -> Any:
    """Return a filter as a condition of SQL.

    Parameters
    ----------
    where : mapping
        A filter that suits the columns.
    kinds : mapping of str to {"number", "text", "boolean"}
        Kind of each column.
    values : Values
        Takes the operands.
    """
    sql = optional_module("psycopg.sql", "sql")

    def compare(name: str, symbol: str, operand: Any) -> Any:
        column = sql.SQL("{}::" + _TYPES[kinds[name]]).format(sql.Identifier(name))
        if kinds[name] == "number":  # NaN is a missing cell
            column = sql.SQL("nullif({}, 'NaN')").format(column)
        if symbol not in ("==", "in"):
            text = sql.SQL(f"coalesce({{}} {symbol} {{}}, false)")
            return text.format(column, values.bind(float(operand)))
        operands = list(operand) if symbol == "in" else [operand]
        known = [float(one) if type(one) is int else one for one in operands if _may_be_cell(one)]
        text = sql.SQL("(coalesce({0} = ANY({1}), false) OR {2} AND {0} IS NULL)")
        has_none = sql.SQL("true" if None in operands else "false")
        return text.format(column, values.bind(known), has_none)

    def join(word: str, parts: Sequence[Any]) -> Any:
        start = sql.SQL("true" if word == "and" else "false")
        return sql.SQL("({})").format(sql.SQL(f" {word} ").join([start, *parts]))

    parts = []
    for name, condition in where.items():
        if name == "not":
            parts.append(sql.SQL("(not {})").format(filter_sql(condition, kinds, values)))
        elif name in ("and", "or"):
            parts.append(join(name, [filter_sql(part, kinds, values) for part in condition]))
        elif isinstance(condition, Mapping):
            parts += [compare(name, symbol, operand) for symbol, operand in condition.items()]
        else:
            parts.append(compare(name, "==", condition))
    return join("and", parts)


def _may_be_cell(operand: Any) -> bool:
    """Return whether a cell may equal an operand."""
    if not isinstance(operand, str):
        return operand is not None
    return "\0" not in operand and operand.encode(errors="replace").decode() == operand


class Snapshot:
    """A connection that sees one version of the database while queries are open.

    Without open queries it has no transaction, so that it keeps no lock. As a context, it counts as
    an open query.

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

    Raises
    ------
    SourceError
        If the database cannot be reached or refuses the connection.
    """

    def __init__(
        self, database: str, password: str | None, timeout_s: float, version: str | None
    ) -> None:
        psycopg = optional_module("psycopg", "sql")
        self._error, self._cancelled = psycopg.Error, psycopg.errors.QueryCanceled
        self._timeout_s, self._version_sql = timeout_s, version
        self.begun, self.n_open = 0.0, 0
        self.version: str | None = None
        try:
            self._connection = psycopg.connect(
                database,
                password=password,
                connect_timeout=CONNECT_S,
                application_name="fedneighbors",
            )
        except psycopg.Error as error:
            raise SourceError(f"cannot connect to the database: {error}") from None
        self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        self._connection.read_only = True

    def acquire(self) -> Self:
        """Add an open query; the first begins the transaction.

        Raises
        ------
        SourceError
            If the connection is lost, or the statement of the version fails.
        """
        if not self.n_open:
            try:
                self._connection.execute("SELECT 1")
            except self._error as error:
                self.close()
                raise SourceError(f"the database failed: {error}") from None
            self.begun = time.monotonic()
            if self._version_sql is not None:
                self.version = self._read_version(self._version_sql)
        self.n_open += 1
        return self

    def _read_version(self, statement: str) -> str:
        try:
            rows = self.run(statement, {})
            if len(rows) != 1 or rows[0][0] is None:
                raise SourceError(f"expected one row from the statement of the version, got {rows}")
        except SourceError:
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
        values: Mapping[str, Any],
        deadline_s: float | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> list[tuple[Any, ...]]:
        """Return the rows of a statement, run with settings of the database.

        Raises
        ------
        TimeoutError
            If it takes longer than ``deadline_s``; the snapshot remains.
        SourceError
            If it takes longer than the timeout, or fails.
        """
        is_hurried = deadline_s is not None and deadline_s < self._timeout_s
        limit_s = deadline_s if is_hurried and deadline_s is not None else self._timeout_s
        limit_ms = max(_MIN_STATEMENT_MS, int(1000 * limit_s))
        chosen = {**(settings or {}), "statement_timeout": str(limit_ms)}
        assign = "SELECT " + ", ".join(["set_config(%s, %s, true)"] * len(chosen))
        try:
            # a savepoint; going back to it ends the settings
            with self._connection.transaction(force_rollback=True):
                self._connection.execute(assign, [it for pair in chosen.items() for it in pair])
                found: list[tuple[Any, ...]] = self._connection.execute(
                    statement, values or None, binary=True
                ).fetchall()
                return found
        except self._cancelled as error:
            if is_hurried:
                raise TimeoutError(LATE) from None
            raise SourceError(f"the database stopped a statement: {error}") from None
        except self._error as error:
            raise SourceError(f"the database failed: {error}") from None
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
        sql = optional_module("psycopg.sql", "sql")
        options = dict(settings.options)
        known = {*_COMMON, self.column_option, *self._more_options()}
        for name in sorted(set(options) - known):
            raise DataError(f"unknown option {name!r}; expected {', '.join(sorted(known))}")
        texts = {"version": "", "password_file": "", **options}
        for name in ("database", "table", "id", self.column_option, "version", "password_file"):
            if not isinstance(texts.get(name), str):
                raise DataError(f"expected a text for the option {name!r}, got {texts.get(name)}")
        seconds = options.get("timeout_s", TIMEOUT_S)
        if not isinstance(seconds, int | float) or not 0 < seconds <= _MAX_TIMEOUT_S:
            raise DataError(
                f"expected 0 to {_MAX_TIMEOUT_S} seconds for the option 'timeout_s', got {seconds}"
            )
        if has_password(options["database"]):
            raise DataError("the database has a password; put it into a file, name password_file")
        self.options, self.metric, self._folder = options, settings.metric, settings.folder
        self._kinds, self._payload = settings.filters, settings.payload
        self._table = sql.Identifier(*options["table"].split("."))
        self._id = sql.SQL("{}::text").format(sql.Identifier(options["id"]))
        self.column = sql.Identifier(options[self.column_option])
        self._snapshots: list[Snapshot] = []
        self._longest: tuple[str | None, int] | None = None
        self._prepare()

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
    def bound(self, distance: float, query: Any) -> float:
        """Return a lower bound of distances, given a value of ``order``."""

    def run_once(self, columns: Any, values: Values) -> tuple[Any, ...]:
        """Return the first row of columns over all objects."""
        with self.snapshot() as snapshot:
            return snapshot.run(self.select(columns, None, values), values)[0]

    def condition(self, where: Where | None, values: Values) -> Any:
        """Return the condition of rows with an object that meet a filter."""
        sql = optional_module("psycopg.sql", "sql")
        present = sql.SQL("{} IS NOT NULL").format(self.column)
        if where is None:
            return present
        return sql.SQL("{} AND {}").format(present, filter_sql(where, self._kinds, values))

    def select(self, columns: Any, where: Where | None, values: Values, rest: Any = None) -> Any:
        """Return a statement over the rows that meet a filter."""
        sql = optional_module("psycopg.sql", "sql")
        return sql.SQL("SELECT {} FROM {} WHERE {} {}").format(
            columns, self._table, self.condition(where, values), rest or sql.SQL("")
        )

    def snapshot(self) -> Snapshot:
        """Return a recent snapshot for a new query, which must release it."""
        self._snapshots = [one for one in self._snapshots if one.is_alive]
        used = [one for one in self._snapshots if one.n_open]
        newest = max(used, key=lambda one: one.begun, default=None)
        if newest and (time.monotonic() - newest.begun < SNAPSHOT_S or len(used) >= MAX_SNAPSHOTS):
            return newest.acquire()
        for one in self._snapshots:
            if not one.n_open:
                with suppress(SourceError):  # the database closed an idle connection
                    return one.acquire()
        options, file = self.options, self.options.get("password_file")
        password = None if file is None else read_password(self._folder / file)
        timeout_s = float(options.get("timeout_s", TIMEOUT_S))
        one = Snapshot(options["database"], password, timeout_s, options.get("version")).acquire()
        self._snapshots.append(one)
        return one

    def open(self, query: Any, where: Where | None) -> "PostgresCandidates":
        """Open a query over the objects that meet a filter."""
        return PostgresCandidates(self, self.snapshot(), query, where)

    def size(self, where: Where | None) -> int:
        """Count the objects that meet a filter."""
        sql, values = optional_module("psycopg.sql", "sql"), Values()
        statement = self.select(sql.SQL("count(*)"), where, values)
        with self.snapshot() as snapshot:
            return int(snapshot.run(statement, values)[0][0])

    def longest_name(self) -> int:
        """Return the length of the longest name in bytes of UTF-8."""
        sql, values = optional_module("psycopg.sql", "sql"), Values()
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
        sql, values = optional_module("psycopg.sql", "sql"), Values()
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
        sql, values = optional_module("psycopg.sql", "sql"), Values()
        pairs = [
            part for name in self._payload for part in (sql.Literal(name), sql.Identifier(name))
        ]
        columns = sql.SQL("{}, json_build_object({})").format(self._id, sql.SQL(", ").join(pairs))
        rest = sql.SQL("AND {} = ANY({})").format(self._id, values.bind(list(ids)))
        found = dict(snapshot.run(self.select(columns, None, values, rest), values))
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
