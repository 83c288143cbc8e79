"""Columns of a query to PostgreSQL, DuckDB or SQLite, read without changing the database."""

import re
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import numpy as np

from fedneighbors._lazy import optional_module
from fedneighbors._typing import Floats
from fedneighbors.datasets._cells import cell_to_json
from fedneighbors.datasets._table import check_names
from fedneighbors.errors import DataError, MissingDataError, SourceError

# a database that vanishes is noticed after some 30 s; names are libpq's, times are in seconds, the
# last in milliseconds
_CONNECTION = {
    "application_name": "fedneighbors",
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}
_CONNECT_S, _MIN_CONNECT_S = 10, 2  # seconds to wait for a PostgreSQL server; libpq's minimum
_BATCH_ROWS = 10_000
_PROGRESS_STEPS = 100_000  # steps of SQLite between looks at the clock, some milliseconds

_TEXT_TYPES = {"text", "varchar", "bpchar", "name", "citext", "enum"}
_INTEGER_TYPES = {"int2", "int4", "int8"}
_FILTER_TYPES: dict[str, set[str]] = {
    "number": {*_INTEGER_TYPES, "float4", "float8", "numeric"},
    # those that are the same text in SQL and in memory
    "text": {
        *_TEXT_TYPES, *_INTEGER_TYPES, "numeric", "uuid", "date", "timestamp", "timestamptz"
    },
    "boolean": {"bool"},
    "molecule": {"text", "varchar", "mol"},
}  # fmt: skip
# every type has a cast to text, but few to others
_CASTS = dict.fromkeys(_FILTER_TYPES, '"{}"::text') | {
    "number": '"{}"::text::double precision', "boolean": '"{}"::text::boolean',
}  # fmt: skip
_SHORT_CASTS = {
    **{("boolean", type_): '"{}" <> 0' for type_ in _FILTER_TYPES["number"]},
    **{
        ("number", type_): 'extract(epoch FROM "{}")'
        for type_ in ("date", "time", "timetz", "timestamp", "timestamptz", "interval")
    },
    ("number", "bool"): '"{}"::int',
}
# names of types, of domains those that they are made of
_READ_TYPES = (
    "WITH RECURSIVE base AS ("
    "SELECT i, oid FROM unnest(%(oids)s::oid[]) WITH ORDINALITY AS given(oid, i) "
    "UNION ALL SELECT i, typbasetype FROM base JOIN pg_type USING (oid) WHERE typtype = 'd') "
    "SELECT oid, CASE typtype WHEN 'e' THEN 'enum' ELSE typname END "
    "FROM base JOIN pg_type USING (oid) WHERE typtype <> 'd' ORDER BY i"
)

# TRUNCATE and ALTER TABLE give a table another file, which seems empty to older snapshots
IS_WHOLE = (
    "SELECT coalesce(bool_and(pg_relation_filenode(oid) = relfilenode), true) FROM pg_class "
    "WHERE relfilenode <> 0 AND oid IN (SELECT relation FROM pg_locks WHERE pid = pg_backend_pid())"
)
"""Statement that is true if a transaction sees the rows of all tables that it locks."""


def has_password(database: str) -> bool:
    """Return whether the address of a database has a password in it."""
    try:
        address = urlsplit(database)
        if not address.scheme:  # libpq's "host=h password=p"
            return re.search(r"password\s*=", database, re.IGNORECASE) is not None
        names = {name.lower() for name in parse_qs(address.query, keep_blank_values=True)}
        return address.password is not None or any("password" in name for name in names)
    except ValueError:  # no address at all; nothing of it is shown
        return True


def connect(database: str, password: str | None, deadline_s: float | None = None) -> Any:
    """Connect to PostgreSQL, within a deadline if there is one.

    Raises
    ------
    psycopg.Error
        If the server cannot be reached or refuses.
    """
    psycopg = optional_module("psycopg", "sql")
    chosen = psycopg.conninfo.conninfo_to_dict(database)
    seconds = min(_CONNECT_S, _CONNECT_S if deadline_s is None else int(deadline_s))
    options = {"connect_timeout": max(seconds, _MIN_CONNECT_S), **_CONNECTION, **chosen}
    return psycopg.connect(**options, **({} if password is None else {"password": password}))


def read_password(path: Path) -> str:
    """Read the password of a role.

    Raises
    ------
    DataError
        If the file cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError):
        raise DataError(f"cannot read the password file {path}") from None


def describe(error: Any) -> str:
    """Return the sentence of an error in one line, without the statement."""
    return " ".join((error.diag.message_primary or str(error)).split())


@dataclass(frozen=True)
class ColumnTypes:
    """Types of columns of PostgreSQL: the one place where their cells become values.

    Objects that are loaded and objects that stay in the database have the same values thus.

    Parameters
    ----------
    place : str
        Table or query, for messages.
    oids : mapping of str to int
        Number of each column's type.
    names : mapping of str to str
        Name of each column's type; ``enum`` for enumerations.
    """

    place: str
    oids: Mapping[str, int]
    names: Mapping[str, str]

    @classmethod
    def read(
        cls,
        place: str,
        names: Sequence[str],
        oids: Sequence[int],
        run: Callable[[str, dict[str, Any]], Any],
    ) -> "ColumnTypes":
        """Read the names of types; ``run`` returns rows of a statement."""
        rows = list(zip(names, run(_READ_TYPES, {"oids": list(oids)}), strict=True))
        return cls(
            place, {name: oid for name, (oid, _) in rows}, {name: one for name, (_, one) in rows}
        )

    def check(self, ids: Collection[str], kinds: Mapping[str, str], *, read: Iterable[str]) -> None:
        """Raise DataError for a column whose type does not suit its use.

        Columns of names are text, those of filters of a kind; others are only read.
        """
        psycopg = optional_module("psycopg", "sql")
        for name in read:
            get_loader, oid = psycopg.adapters.get_loader, self.oids[name]
            if self.names[name] in _DECODERS or get_loader(oid, psycopg.pq.Format.BINARY):
                continue
            raise DataError(
                f"{self.place}: column {name!r} has the type {self.names[name]}, which cannot be "
                "read; cast it, for example to text"
            )
        for name, kind in [*((one, "text") for one in ids), *kinds.items()]:
            type_ = self.names.get(name)  # a column that is missing is an error of others
            if type_ is None or type_ in _FILTER_TYPES[kind]:
                continue
            suited = [repr(one) for one, types in _FILTER_TYPES.items() if type_ in types]
            declare = f"declare it as {' or '.join(suited)}, or " if suited else ""
            use = "has the names" if name in ids else f"is declared as {kind!r}"
            cast = _SHORT_CASTS.get((kind, type_), _CASTS[kind])
            raise DataError(
                f"{self.place}: column {name!r} {use}, but has the type {type_} in the database; "
                f"{'' if name in ids else declare}cast it in the query or in a view, for example "
                f"{cast.format(name)}"
            )

    def decode(self, name: str, cells: Sequence[Any]) -> Sequence[Any]:
        """Return the values of cells that the driver read in binary."""
        decode = _DECODERS.get(self.names[name])
        return cells if decode is None else [None if one is None else decode(one) for one in cells]

    def payloads(
        self, names: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> dict[str, Mapping[str, Any]]:
        """Return the payload of each row by its first cell."""
        return {
            row[0]: {
                name: cell_to_json(*self.decode(name, [cell]))
                for name, cell in zip(names, row[1:], strict=True)
            }
            for row in rows
        }


class SqlQuery:
    """A query that reads all objects of a collection.

    Parameters
    ----------
    database : str
        ``postgresql://...``, or ``duckdb:`` or ``sqlite:`` and the path of a file. A password comes
        from ``password_file``, or as libpq finds it: ``PGPASSFILE``, ``PGPASSWORD``.
    sql : str
        A SELECT.
    folder : path
        Folder to which paths are relative.
    password_file : str, optional
        File with the password of a PostgreSQL role.
    timeout_s : float
        Seconds after which the query is cancelled.
    id : str, optional
        Column of names.
    kinds : mapping of str to str, optional
        Columns for filters and the kind of their cells, which PostgreSQL's types must suit.
    """

    def __init__(
        self,
        database: str,
        sql: str,
        folder: Path,
        *,
        password_file: str | None = None,
        timeout_s: float = 600.0,
        id: str | None = None,
        kinds: Mapping[str, str] | None = None,
    ) -> None:
        self._database, self._sql, self._folder = database, sql, folder
        self._password_file, self._timeout_s = password_file, timeout_s
        self._ids, self._kinds = set() if id is None else {id}, kinds or {}
        self._end, self._is_cancelled = 0.0, False
        self._interrupt: Callable[[], object] = lambda: None

    def __str__(self) -> str:
        text = " ".join(self._sql.split())
        return f"{text[:80]}{'...' * (len(text) > 80)} ({self._database})"

    def read(self) -> dict[str, list[Any]]:
        """Return the columns of the result, None for missing cells.

        PostgreSQL reads one snapshot (``REPEATABLE READ READ ONLY``). Of its extensions, vectors
        become arrays and points EWKB; bits become text.

        Raises
        ------
        SourceError
            If the database cannot be opened, or the query fails, takes too long or is cancelled.
        DataError
            If a column has no name or an unknown type; MissingDataError if there is no such file.
        MissingExtraError
            If the driver is not installed.
        """
        self._end = time.monotonic() + self._timeout_s
        kind = self._database.partition(":")[0]
        readers = {"duckdb": self._read_duckdb, "sqlite": self._read_sqlite}
        # the timer ends what a server does not
        timer = threading.Timer(self._timeout_s, self._stop)
        timer.daemon = True
        timer.start()
        try:
            return readers.get(kind, self._read_postgresql)()
        finally:
            timer.cancel()
            self._interrupt = lambda: None

    def cancel(self) -> None:
        """Stop a read of another thread."""
        self._is_cancelled = True
        self._stop()

    def _stop(self) -> None:
        with suppress(Exception):  # the connection may have been closed
            self._interrupt()

    def _check_time(self) -> None:
        if self._is_cancelled:
            raise SourceError(f"{self}: cancelled")
        if time.monotonic() > self._end:
            raise SourceError(
                f"{self}: took longer than timeout_s = {self._timeout_s:g} seconds; raise it, or "
                "let the query do less"
            )

    @contextmanager
    def _explain(self, error_class: type[Exception], remedy: str) -> Iterator[None]:
        """Convert errors of a driver."""
        try:
            yield
        except error_class as error:
            self._check_time()  # it was interrupted
            first = next(iter(str(error).splitlines()), type(error).__name__)
            raise SourceError(f"{self}: {first}; {remedy}") from None

    def _file(self) -> Path:
        path = self._folder / self._database.partition(":")[2]
        if not path.is_file():
            raise MissingDataError(f"{self}: there is no file {path}; check the name")
        return path

    def _collect(self, names: Sequence[str], fetch: Callable[[int], Any]) -> dict[str, list[Any]]:
        """Fetch all rows in batches."""
        check_names(names, source=str(self))
        columns: list[list[Any]] = [[] for _ in names]
        while rows := fetch(_BATCH_ROWS):
            for column, cells in zip(columns, zip(*rows, strict=True), strict=True):
                column += cells
            self._check_time()
        return dict(zip(names, columns, strict=True))

    def _read_sqlite(self) -> dict[str, list[Any]]:
        def is_late() -> bool:
            return self._is_cancelled or time.monotonic() > self._end

        path = self._file()
        remedy = "check the query, and that the file is a database of SQLite"
        with (
            self._explain(sqlite3.Error, remedy),
            closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as connection,
        ):
            connection.execute("PRAGMA query_only = ON")
            connection.set_authorizer(_authorize)
            connection.set_progress_handler(is_late, _PROGRESS_STEPS)
            cursor = connection.execute(self._sql)
            if cursor.description is None:
                raise DataError(f"{self}: expected a single SELECT")
            return self._collect([name for name, *_ in cursor.description], cursor.fetchmany)

    def _read_duckdb(self) -> dict[str, list[Any]]:
        duckdb = optional_module("duckdb", "sql")
        path = self._file()
        # extensions are programs of their own, from the network; settings name files for logs
        config = {"autoinstall_known_extensions": "false", "lock_configuration": "true"}
        remedy = "check the query, and that no other process has opened the file to write"
        with (
            self._explain(duckdb.Error, remedy),
            closing(duckdb.connect(str(path), read_only=True, config=config)) as connection,
        ):
            self._interrupt = connection.interrupt
            self._check_time()  # it may have been cancelled before
            # a read-only database does not keep COPY or ATTACH from writing other files
            statements = connection.extract_statements(self._sql)
            if [one.type for one in statements] != [duckdb.StatementType.SELECT]:
                raise DataError(f"{self}: expected a single SELECT")
            result = connection.execute(statements[0])
            return self._collect([name for name, *_ in result.description], result.fetchmany)

    def _read_postgresql(self) -> dict[str, list[Any]]:
        psycopg = optional_module("psycopg", "sql")
        password = None
        if self._password_file is not None:
            password = read_password(self._folder / self._password_file)
        remedy = (
            "check the address, the role, and its password in password_file, PGPASSFILE or "
            "PGPASSWORD"
        )
        with self._explain(psycopg.Error, remedy):
            connection = connect(self._database, password)
        remedy = "check the query, and that the role may read its tables (GRANT SELECT)"
        with self._explain(psycopg.Error, remedy), closing(connection):
            self._interrupt = connection.cancel_safe
            self._check_time()
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            milliseconds = str(max(1, int(1000 * self._timeout_s)))
            timeout = "SELECT set_config('statement_timeout', %s, true)"
            while True:
                connection.execute(timeout, [milliseconds])
                # in binary, numbers of four bytes are exact; on the server, memory holds one batch
                cursor = connection.cursor("objects", binary=True)
                cursor.execute(self._sql)
                if connection.execute(IS_WHOLE).fetchone()[0]:
                    break
                connection.rollback()  # a table was rewritten while the query waited for it
                self._check_time()
            names = [column.name for column in cursor.description]
            check_names(names, source=str(self))
            types = ColumnTypes.read(
                str(self),
                names,
                [column.type_code for column in cursor.description],
                lambda statement, values: connection.execute(statement, values).fetchall(),
            )
            types.check(self._ids, self._kinds, read=names)
            columns = self._collect(names, cursor.fetchmany)
        return {name: list(types.decode(name, cells)) for name, cells in columns.items()}


def _authorize(action: int, *_: str | None) -> int:
    """Refuse other databases; VACUUM INTO attaches the one that it writes."""
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_ATTACH else sqlite3.SQLITE_OK


def _decode_floats(dtype: str) -> Callable[[bytes], Floats]:
    """Return the decoder of pgvector's vectors.

    They are their length, two unused bytes, and the numbers.
    """
    return lambda cell: np.frombuffer(cell, dtype, offset=4).astype(np.float64)


def _decode_bits(cell: bytes) -> str:
    """Decode the number of bits and the bits, the highest first."""
    bits = np.unpackbits(np.frombuffer(cell, np.uint8, offset=4))
    return "".join(map(str, bits[: int.from_bytes(cell[:4], "big")]))


def _strip_padding(cell: str) -> str:
    """Remove the blanks of char(n), which PostgreSQL's comparisons and casts ignore."""
    return cell.rstrip(" ")


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "vector": _decode_floats(">f4"),
    "halfvec": _decode_floats(">f2"),
    "geometry": bytes,  # EWKB
    "geography": bytes,
    "bit": _decode_bits,
    "varbit": _decode_bits,
    "bpchar": _strip_padding,
    "citext": bytes.decode,
    "cstring": bytes.decode,
    "enum": bytes.decode,
}
