"""SQLite files of the service: creation, upgrade of earlier versions, refusal of later ones."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

from fedneighbors.errors import FedneighborsError


def open_database(
    path: Path,
    tables: str,
    *,
    version: int,
    error: type[FedneighborsError],
    upgrade: Callable[[sqlite3.Connection], None] = lambda _: None,
    timeout_s: float = 5.0,
) -> sqlite3.Connection:
    """Open a file; create or upgrade it if necessary.

    Threads may share the connection.

    Parameters
    ----------
    path : path
        The file; its folder exists.
    tables : str
        Statements that create tables and indexes that do not exist.
    version : int
        Version of the tables, which the file states; 0 before versions were stated.
    error : type
        Raised if the file is of a later version, damaged or locked. It is then unchanged.
    upgrade : callable
        Changes the tables of an earlier version, in the transaction that states the new one.
    timeout_s : float
        Seconds to wait for another process.
    """
    try:
        connection = sqlite3.connect(path, check_same_thread=False, timeout=timeout_s)
        try:
            found = _read_version(connection)
            if found > version:
                raise error(
                    f"{path} has version {found}, this program reads up to {version}; use the "
                    "program that wrote it"
                )
            path.chmod(0o600)
            connection.execute("PRAGMA journal_mode=WAL")
            if found < version:
                with connection:
                    connection.execute("BEGIN IMMEDIATE")
                    if _read_version(connection) < version:  # not by another process meanwhile
                        upgrade(connection)
                        for statement in tables.split(";"):
                            connection.execute(statement)
                        connection.execute(f"PRAGMA user_version = {version}")
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as cause:
        raise error(f"{path} cannot be used: {cause}") from cause
    return connection


def _read_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
