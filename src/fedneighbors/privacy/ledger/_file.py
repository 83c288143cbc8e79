"""SQLite file of a ledger: atomic creation, checks on opening, readable errors."""

import os
import secrets
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from fedneighbors.errors import LedgerError
from fedneighbors.records._storage import sweep_parts

_APPLICATION = 0x666E6C67  # "fnlg", which marks the SQLite file as a ledger
_VERSION = 3  # version of the schema; files of version 2 are upgraded, others are refused
_KEY_BYTES = 32  # as long as the digests of data under this key

_OLD_ABOUT = "CREATE TABLE about (party TEXT NOT NULL, made TEXT NOT NULL) STRICT"  # version 2

# compared as text when a ledger is opened: any edit, even of white space, needs a new _VERSION
_SCHEMA = f"""
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {_VERSION};
CREATE TABLE about (party TEXT NOT NULL, made TEXT NOT NULL, key BLOB NOT NULL) STRICT;
CREATE TABLE epoch (digest TEXT PRIMARY KEY, id TEXT NOT NULL) STRICT;
CREATE TABLE entry (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    at TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('budget', 'reserved', 'released', 'voided')),
    dataset TEXT NOT NULL, user TEXT NOT NULL,
    notion TEXT NOT NULL, first TEXT NOT NULL, second TEXT NOT NULL,
    query TEXT NOT NULL, note TEXT NOT NULL, sha256 TEXT NOT NULL, size INTEGER NOT NULL,
    chain TEXT NOT NULL
) STRICT;
CREATE INDEX entry_budget ON entry (dataset, user, number) WHERE kind = 'budget';
CREATE TABLE charge (
    query TEXT PRIMARY KEY,
    dataset TEXT NOT NULL, user TEXT NOT NULL,
    notion TEXT NOT NULL, first TEXT NOT NULL, second TEXT NOT NULL
) STRICT;
CREATE INDEX charge_cost ON charge (dataset, notion, first, second);
CREATE INDEX charge_cost_of_user ON charge (dataset, user, notion, first, second);
CREATE TABLE answer (
    query TEXT PRIMARY KEY REFERENCES charge (query),
    sha256 TEXT NOT NULL, content BLOB NOT NULL
) STRICT;
CREATE TRIGGER entry_stays BEFORE DELETE ON entry
    BEGIN SELECT RAISE(ABORT, 'an entry is never deleted'); END;
CREATE TRIGGER entry_as_written BEFORE UPDATE ON entry
    BEGIN SELECT RAISE(ABORT, 'an entry is never changed'); END;
CREATE TRIGGER charge_as_made BEFORE UPDATE ON charge
    BEGIN SELECT RAISE(ABORT, 'a charge is never changed'); END;
CREATE TRIGGER answer_stays BEFORE DELETE ON answer
    BEGIN SELECT RAISE(ABORT, 'an answer is never deleted'); END;
CREATE TRIGGER answer_as_stored BEFORE UPDATE ON answer
    BEGIN SELECT RAISE(ABORT, 'an answer is never changed'); END;
"""

_STATEMENTS = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY type, name"


def _written_statements() -> list[tuple[str]]:
    """Return the statements of a new ledger's tables, indexes and triggers."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_SCHEMA)
        return connection.execute(_STATEMENTS).fetchall()


class LedgerFile:
    """Connection to the SQLite file of a ledger.

    Every commit is on disk before it returns (write-ahead log, ``synchronous=FULL``). Threads may
    share a connection; a forked process must open its own.

    Parameters
    ----------
    path : path or ":memory:"
        The file. SQLite keeps ``-wal`` and ``-shm`` files next to it.
    party : str or None
        Owner of the ledger; None opens an existing one of any owner.
    timeout_s : float
        Seconds to wait for another process.
    must_exist : bool
        Raise instead of creating a new ledger.
    time : str
        Time of creation, for a new ledger.

    Raises
    ------
    LedgerError
        If the file is not a usable ledger.
    """

    def __init__(
        self, path: str | Path, party: str | None, *, timeout_s: float, must_exist: bool, time: str
    ) -> None:
        self.path = str(path)
        self.timeout_s = timeout_s
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        with self._convert_errors():
            self._connection = self._open(party, must_exist, time)
        try:
            with self._convert_errors():
                self.party = self._check_file(party)
        except BaseException:
            self.close()
            raise

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query.

        Raises
        ------
        LedgerError
            If the file cannot be read.
        """
        with self._lock, self._convert_errors():
            return self._open_connection().execute(sql, values).fetchall()

    def write(self, sql: str, values: Sequence[object]) -> None:
        """Run a statement inside :meth:`transaction`.

        Raises
        ------
        LedgerError
            If the file cannot be written.
        """
        with self._convert_errors():
            self._open_connection().execute(sql, values)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block in a transaction, with the exclusive write lock.

        Its writes are on disk when the block ends.

        Raises
        ------
        LedgerError
            If the file cannot be written; the writes of the block are then rolled back.
        """
        with self._lock:
            connection = self._open_connection()
            with self._convert_errors():
                connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                with self._convert_errors():
                    connection.execute("COMMIT")
            except BaseException:
                # an error of SQLite may have rolled it back already
                if connection.in_transaction:
                    with suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                raise

    def reuse_log(self) -> None:
        """Move the log into the file, so that its space is reused.

        Raises
        ------
        LedgerError
            If the file cannot be written.
        """
        self.rows("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        """Close the file; no effect if already closed."""
        if self._connection is None or os.getpid() != self._process:
            return
        with self._lock, self._convert_errors():
            self._connection.close()
            self._connection = None

    def _open_connection(self) -> sqlite3.Connection:
        if self._connection is None:
            raise LedgerError(f"ledger {self.path} is closed; open it again")
        if os.getpid() != self._process:
            raise LedgerError(
                f"ledger {self.path} was opened by the parent of this process; "
                "open it again after the fork"
            )
        return self._connection

    def _open(self, party: str | None, must_exist: bool, time: str) -> sqlite3.Connection:
        if self.path == ":memory:":
            if party is None:
                raise LedgerError("a ledger in memory is new; name its party")
            connection = self._connect(":memory:")
            _create_tables(connection, party, time)
            return connection
        sweep_parts(Path(self.path).absolute().parent, Path(self.path).name)
        if not os.path.lexists(self.path):
            self._create(party, must_exist, time)
        _check_length(self.path)
        return self._connect(self.path)

    def _create(self, party: str | None, must_exist: bool, time: str) -> None:
        """Create a ledger atomically; keep one that another process created meanwhile."""
        if party is None or must_exist:
            raise LedgerError(
                f"no ledger at {self.path}; check the path, or name the party to create a ledger"
            )
        for ending in ("-wal", "-journal"):
            if os.path.lexists(self.path + ending):
                raise LedgerError(
                    f"{self.path} is missing but {self.path + ending} exists: restore the file; "
                    "a new ledger would lose the charges"
                )
        target = Path(self.path).absolute()
        # 6 random bytes: processes that create the same ledger write different files
        part = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
        try:
            os.close(os.open(part, os.O_CREAT | os.O_EXCL, 0o600))  # SQLite's files get this mode
            with closing(self._connect(str(part), mode="rwc")) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
                _create_tables(connection, party, time)
            sync(part)
            with suppress(FileExistsError):
                os.link(part, target)  # unlike a rename, it never replaces a file
            sync(target.parent)
        finally:
            for ending in ("", "-wal", "-shm", "-journal"):
                Path(f"{part}{ending}").unlink(missing_ok=True)

    def _connect(self, path: str, mode: str = "rw") -> sqlite3.Connection:
        uri = path if path == ":memory:" else f"{Path(path).absolute().as_uri()}?mode={mode}"
        connection = sqlite3.connect(
            uri,
            uri=path != ":memory:",
            timeout=self.timeout_s,
            isolation_level=None,  # no implicit transactions: `transaction` begins and ends them
            check_same_thread=False,  # `_lock` serializes threads
        )
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    def _check_file(self, party: str | None) -> str:
        """Check that the file is the party's intact ledger; return its owner."""
        (application,), (version,) = (
            self.rows(f"PRAGMA {name}")[0] for name in ("application_id", "user_version")
        )
        if application != _APPLICATION:
            raise LedgerError(f"{self.path} is not a fedneighbors ledger; it was not changed")
        if self.path != ":memory:":
            _check_mode(self.path)
        if version == 2 and self._upgrade():
            version = _VERSION
        if version != _VERSION:
            raise LedgerError(
                f"ledger {self.path} has version {version}, this program reads version "
                f"{_VERSION}; use the program that wrote it"
            )
        if self.rows(_STATEMENTS) != _written_statements():  # before a query of a hostile view
            raise LedgerError(
                f"ledger {self.path} has other tables than it was made with; {_RESTORE}"
            )
        damage = self.rows("PRAGMA integrity_check(1)")[0][0]
        if damage != "ok":
            raise LedgerError(f"ledger {self.path} is damaged ({damage}); {_RESTORE}")
        mode = self.rows("PRAGMA journal_mode")[0][0]
        if mode != ("memory" if self.path == ":memory:" else "wal"):
            raise LedgerError(f"ledger {self.path} is in journal mode {mode}, expected wal")
        owners = self.rows("SELECT party FROM about")
        if len(owners) != 1:
            raise LedgerError(
                f"ledger {self.path} has {len(owners)} owners, expected 1; {_RESTORE}"
            )
        ((owner,),) = owners
        if party not in (None, owner):
            raise LedgerError(
                f"ledger {self.path} belongs to party {owner!r}, not to {party!r}; use the "
                f"ledger of {party!r}"
            )
        return str(owner)

    def _upgrade(self) -> bool:
        """Convert the tables of version 2; return whether it was possible."""
        with self.transaction():
            new = set(_written_statements())
            found = set(self.rows(_STATEMENTS))
            if found != new:  # another process may have upgraded it
                if found - new != {(_OLD_ABOUT,)}:
                    return False
                owners = self.rows("SELECT * FROM about")
                self.write("DROP TABLE about", ())
                for (statement,) in new - found:
                    self.write(statement, ())
                for owner in owners:
                    key = secrets.token_bytes(_KEY_BYTES)
                    self.write("INSERT INTO about VALUES (?, ?, ?)", (*owner, key))
                self.write(f"PRAGMA user_version = {_VERSION}", ())
        return True

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        """Convert errors of SQLite and the system to LedgerError, with a remedy."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise LedgerError(f"ledger {self.path} {self._explain(error)}") from error
        except UnicodeDecodeError:  # SQLite's message quotes a damaged statement
            raise LedgerError(f"ledger {self.path} {_ADVICE[sqlite3.SQLITE_CORRUPT]}") from None

    def _explain(self, error: Exception) -> str:
        if isinstance(error, FileNotFoundError | NotADirectoryError | PermissionError):
            return f"{_ADVICE[sqlite3.SQLITE_CANTOPEN]} ({error})"
        code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF  # primary code: its low byte
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return (
                f"has been locked by another process for {self.timeout_s:g} s; let it finish, "
                "then try again"
            )
        return f"{_ADVICE.get(code, 'cannot be used')} ({error})"


# Attempts to read a header and a length that agree: another process may close the ledger, and so
# move its log into the file, between the two reads.
_MAX_READS = 3

_RESTORE = "restore it, with its -wal file, from a backup made after the last release"

_ADVICE = {
    sqlite3.SQLITE_READONLY: "is read-only; make file and folder writable for this user",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; make file and folder writable for this user",
    sqlite3.SQLITE_PERM: "cannot be used; make file and folder writable for this user",
    sqlite3.SQLITE_FULL: "could not be written: the disk is full; free some space",
    sqlite3.SQLITE_IOERR: "could not be written or read: the disk is full or fails; free space",
    sqlite3.SQLITE_CORRUPT: f"is truncated or damaged; {_RESTORE}",
    sqlite3.SQLITE_NOTADB: f"is not an SQLite file, or damaged; {_RESTORE}",
}


def _check_mode(path: str) -> None:
    """Raise if other users may read or write a ledger."""
    if os.name == "posix" and os.stat(path).st_mode & 0o077:  # permissions of group and others
        raise LedgerError(
            f"other users may read or write ledger {path}; expected mode 0600: chmod 600 {path}"
        )


def _check_length(path: str) -> None:
    """Raise if a file is empty or its header states another length.

    SQLite itself reads zeros for a missing end of the last page.
    """
    if os.path.getsize(path) == 0:
        raise LedgerError(
            f"{path} is empty: it is not a ledger, or it was wiped. Restore the file; "
            "a new ledger would lose the charges"
        )
    for _ in range(_MAX_READS):
        with open(path, "rb") as file:
            header = file.read(100)  # bytes 16-17: page size, 1 for 65536; 28-31: number of pages
        page_bytes, n_pages = int.from_bytes(header[16:18]), int.from_bytes(header[28:32])
        expected = n_pages * (65536 if page_bytes == 1 else page_bytes)
        actual = os.path.getsize(path)
        # With a log, the file may be older than the log; SQLite merges them.
        if actual == expected or not header.startswith(b"SQLite format 3") or _has_log(path):
            return
    raise LedgerError(
        f"ledger {path} is truncated or damaged (expected {expected} bytes, found {actual}); "
        f"{_RESTORE}"
    )


def _has_log(path: str) -> bool:
    return os.path.exists(path + "-wal")


def _create_tables(connection: sqlite3.Connection, party: str, time: str) -> None:
    connection.executescript(f"BEGIN;{_SCHEMA}")
    key = secrets.token_bytes(_KEY_BYTES)
    connection.execute("INSERT INTO about VALUES (?, ?, ?)", (party, time, key))
    connection.execute("COMMIT")


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
