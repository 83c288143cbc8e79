"""Backups of a broker or provider: one archive with its whole state, and its restoration.

An archive is a line with the SHA-256 digest of all bytes after it, and then a ZIP file.
"""

import hashlib
import os
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from io import BufferedIOBase
from pathlib import Path
from typing import Literal
from zipfile import ZIP_DEFLATED, ZipFile

from fedneighbors.errors import DataError
from fedneighbors.privacy.ledger._file import sync
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.records._storage import sweep_parts, write_part
from fedneighbors.service._access_log import AccessLog
from fedneighbors.service._config import BrokerConfig, ProviderConfig
from fedneighbors.service._state import ledger_files, server_files

Role = Literal["broker", "provider"]
_VERSION = 1
_LINE = "fedneighbors {} backup {} {}\n"
_HEADER = re.compile(rb"fedneighbors (broker|provider) backup ([1-9][0-9]{0,3}) ([0-9a-f]{64})\n")
_MAX_HEADER = 200  # bytes, above any first line
_CONFIG, _LEDGER = "config", "ledger"
_DATABASES = ("state", "log", _LEDGER)  # beginnings of names in an archive


class BackupError(DataError):
    """A backup cannot be made."""


class ArchiveRefused(DataError):  # noqa: N818 - the name states the error
    """A file is no archive, or was changed, or is of a later version."""


class FileInTheWay(DataError):  # noqa: N818 - the name states the error
    """A file exists that would be replaced; nothing was written."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"expected no file {path}, which is never replaced; move it away")


def write_backup(role: Role, config_file: Path, out: Path) -> str:
    """Write the state of a broker or provider into an archive.

    It may run meanwhile.

    Parameters
    ----------
    role : {"broker", "provider"}
        Owner of the configuration.
    config_file : path
        The configuration.
    out : path
        The archive, with mode 0600; it must not exist.

    Returns
    -------
    str
        Hexadecimal digest of the archive, with which :func:`restore_backup` detects another one.

    Raises
    ------
    FileInTheWay
        If the archive exists.
    BackupError
        If there is nothing to save, or a database cannot be copied.
    DataError, OSError
        If the configuration is invalid, or the archive cannot be written.
    """
    files = {name: path for name, path in _list_files(role, config_file).items() if path.exists()}
    if len(files) < 2:
        raise BackupError(f"expected the state of a {role} at the paths of {config_file}, got none")
    if os.path.lexists(out):
        raise FileInTheWay(out)
    sweep_parts(out.parent, out.name)
    with write_part(out, b"", mode=0o600) as part:
        with part.open("r+b") as file:
            header = _LINE.format(role, _VERSION, "0" * 64)
            file.write(header.encode())
            with ZipFile(file, "w", ZIP_DEFLATED) as archive:
                for name, path in files.items():
                    with _copy(name, path, out) as copy:
                        archive.write(copy, name)
            digest = _digest(file, len(header))
            file.seek(0)
            file.write(_LINE.format(role, _VERSION, digest).encode())
        sync(part)
        _link(part, out)
    return digest


def restore_backup(
    role: Role, archive_file: Path, config_file: Path, *, digest: str = ""
) -> list[Path]:
    """Write the files of an archive to the paths of its configuration.

    After an error, none of them is left. Ledgers are held, because releases after the backup are
    unknown.

    Parameters
    ----------
    role : {"broker", "provider"}
        Owner of the archive.
    archive_file : path
        The archive.
    config_file : path
        Place of the configuration, whose other paths may be relative to it.
    digest : str
        Digest of the archive, kept elsewhere; empty if unknown.

    Returns
    -------
    list of path
        The restored ledgers.

    Raises
    ------
    ArchiveRefused
        If the file is no such archive, or was changed.
    FileInTheWay
        If one of the files exists.
    DataError, LedgerError, OSError
        If the content is invalid, or the files cannot be written.
    """
    with ExitStack() as stack:
        archive = stack.enter_context(_open_archive(role, archive_file, digest))
        parts: dict[str, Path] = {}
        targets = {_CONFIG: config_file}
        for name in archive.namelist():  # the configuration is the first
            if name not in targets:
                raise ArchiveRefused(f"{archive_file}: unknown file {name!r}")
            parts[name] = stack.enter_context(_new_part(targets[name]))
            with archive.open(name) as source, parts[name].open("wb") as target:
                shutil.copyfileobj(source, target)
            sync(parts[name])
            if name == _CONFIG:
                targets |= _list_files(role, parts[name]) | targets
        _check_databases(parts)
        undo = stack.enter_context(ExitStack())
        for name in reversed(parts):  # without a configuration, no command uses the other files
            _link(parts[name], targets[name])
            undo.callback(targets[name].unlink)
        undo.pop_all()
    return [targets[name] for name in parts if name.startswith(_LEDGER)]


def read_digest(archive: Path) -> str:
    """Return the digest that a verified archive states."""
    with archive.open("rb") as file:
        return file.readline(_MAX_HEADER).split()[-1].decode()


def _list_files(role: Role, config_file: Path) -> dict[str, Path]:
    """Return the files of a configuration by their names in an archive."""
    files = {_CONFIG: config_file}
    if role == "provider":
        own = ProviderConfig.read(config_file)
        section = own.provider
        for name in ("key", "certificate", "log", _LEDGER):
            files[name] = own.path(getattr(section, name))
        files |= {"forgotten": own.forgotten_file, "paused": own.pause_file}
        return files | _list_schemas(own)
    config = BrokerConfig.read(config_file)
    certificate, key = server_files(config)
    files |= {"state": config.path(config.state), "log": config.path(config.log)}
    if certificate is not None and key is not None:  # otherwise, both are a proxy's
        files |= {"certificate": certificate, "key": key}
    files |= {f"{_LEDGER}-{name}": path for name, path in ledger_files(config).items()}
    return files | _list_schemas(config)


def _list_schemas(config: BrokerConfig | ProviderConfig) -> dict[str, Path]:
    """Return the files with schemas; collections may share one."""
    names = {one.schema_file for one in config.collections.values() if one.schema_file}
    return {f"schema-{n}": config.path(name) for n, name in enumerate(sorted(names))}


@contextmanager
def _copy(name: str, path: Path, out: Path) -> Iterator[Path]:
    """Yield a consistent copy of a file, next to an archive."""
    is_database = name.startswith(_DATABASES)
    with write_part(out, b"" if is_database else path.read_bytes(), mode=0o600) as copy:
        if is_database:
            uri = f"{path.absolute().as_uri()}?mode=rw"
            try:
                with (
                    closing(sqlite3.connect(uri, uri=True)) as source,
                    closing(sqlite3.connect(copy)) as target,
                ):
                    source.backup(target)
            except sqlite3.Error as error:
                raise BackupError(f"{path} cannot be copied: {error}") from error
        yield copy


def _check_databases(parts: dict[str, Path]) -> None:
    """Verify logs and ledgers, and hold ledgers."""
    for name, part in parts.items():
        if name == "log":
            with closing(AccessLog(part)) as log:
                log.verify()
        elif name.startswith(_LEDGER):
            with Ledger(part) as ledger:
                ledger.hold()


@contextmanager
def _open_archive(role: Role, path: Path, digest: str) -> Iterator[ZipFile]:
    with path.open("rb") as file:
        match = _HEADER.fullmatch(file.readline(_MAX_HEADER))
        if match is None:
            raise ArchiveRefused(
                f"{path} is no archive of `fedneighbors broker backup` or `provider backup`"
            )
        owner, version, stated = (group.decode() for group in match.groups())
        if int(version) != _VERSION:
            raise ArchiveRefused(
                f"{path} has version {version}, this program reads version {_VERSION}; use the "
                "program that wrote it"
            )
        if owner != role:
            raise ArchiveRefused(f"{path} is the backup of a {owner}, expected that of a {role}")
        found = _digest(file, match.end())
        if found != stated or digest not in ("", found):
            raise ArchiveRefused(
                f"{path} was changed, or is another archive: expected the digest "
                f"{digest or stated}, found {found}"
            )
        with ZipFile(file) as archive:
            yield archive


@contextmanager
def _new_part(target: Path) -> Iterator[Path]:
    """Yield a new file next to a missing one; make its folders."""
    if any(os.path.lexists(f"{target}{end}") for end in ("", "-wal", "-journal")):
        raise FileInTheWay(target)
    missing = [folder for folder in target.absolute().parents if not folder.exists()]
    try:
        for folder in reversed(missing):
            folder.mkdir(mode=0o700)
        with write_part(target, b"", mode=0o600) as part:
            yield part
    finally:
        for folder in missing:
            with suppress(OSError):  # it is in use
                folder.rmdir()


def _link(part: Path, target: Path) -> None:
    """Give a complete file its name, unless there is such a file."""
    try:
        os.link(part, target)  # unlike a rename, it never replaces a file
    except FileExistsError:
        raise FileInTheWay(target) from None
    sync(target.parent)


def _digest(file: BufferedIOBase, start: int) -> str:
    file.seek(start)
    return hashlib.file_digest(file, "sha256").hexdigest()
