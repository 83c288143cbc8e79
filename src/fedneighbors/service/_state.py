"""The broker's durable state: enrolled providers, enrolment codes and tokens of users.

Codes, links and tokens are stored as digests only.
"""

import base64
import hashlib
import json
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedneighbors.datasets._table import suggest
from fedneighbors.errors import DataError, FederationError, PartyRefused
from fedneighbors.privacy.ledger._ledger import Ledger
from fedneighbors.secure_sum._keys import Roster, digest
from fedneighbors.service._config import BrokerConfig
from fedneighbors.service._database import open_database
from fedneighbors.service._messages import MAX_GROUPS_LENGTH, MAX_USER_LENGTH, has_short_names
from fedneighbors.service._tls import make_certificate, read_fingerprint

CODE_LIFETIME_S = 900.0
SECRET_BYTES = 16
_TABLES = """
CREATE TABLE IF NOT EXISTS codes (digest BLOB PRIMARY KEY, provider TEXT, expires REAL);
CREATE TABLE IF NOT EXISTS providers
    (name TEXT PRIMARY KEY, key BLOB UNIQUE, enrolled REAL, revoked REAL);
CREATE TABLE IF NOT EXISTS tokens
    (digest BLOB PRIMARY KEY, user TEXT, expires REAL, scopes TEXT, member TEXT);
CREATE TABLE IF NOT EXISTS links (digest BLOB PRIMARY KEY, expires REAL);
"""
_ID_BYTES = 8  # enough of a digest, so that ids are not equal by chance
_LAST_TIME = 253_402_300_799.0  # the end of year 9999, the last that can be written
_VERSION = 1
# columns of tokens that were added before versions were stated, and their former meaning
_TOKEN_COLUMNS = {"scopes": "search", "member": "[]"}
_PREFIX = "fn"  # so that a code does not begin like an option of a command
_NO_CODE = (
    "the enrolment code is wrong, was used, or has expired; ask the operator of the broker for a "
    "new one: fedneighbors broker enrol {}"
)
_OTHER_CODE = (
    "the enrolment code is for another provider: set its name in provider.toml, or ask the "
    "operator of the broker for a code: fedneighbors broker enrol {}"
)


class StateFailed(FederationError):  # noqa: N818 - the name states the error
    """The broker's state cannot be written or read."""


@dataclass(frozen=True)
class EnrolmentCode:
    """A one-time code for one provider.

    Parameters
    ----------
    secret : bytes
        Random bytes.
    fingerprint : bytes
        SHA-256 digest of the broker's certificate; empty without TLS.
    """

    secret: bytes
    fingerprint: bytes

    def __str__(self) -> str:
        content = base64.urlsafe_b64encode(self.secret + self.fingerprint)
        return _PREFIX + content.decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> "EnrolmentCode":
        """Return the code of a text.

        Raises
        ------
        DataError
            If the text is no code.
        """
        try:
            encoded = text.strip().removeprefix(_PREFIX)
            content = base64.b64decode(encoded + "==", altchars=b"-_", validate=True)
        except ValueError:
            content = b""
        if len(content) not in (SECRET_BYTES, SECRET_BYTES + 32):
            raise DataError("expected an enrolment code, as printed by `fedneighbors broker enrol`")
        return cls(content[:SECRET_BYTES], content[SECRET_BYTES:])

    def content(self, provider: str, key: bytes) -> bytes:
        """Return the bytes that a provider signs to enrol with its key."""
        return digest("enrolment", self.secret, provider, key)


@dataclass(frozen=True)
class EnrolledProvider:
    """A provider with a key.

    Parameters
    ----------
    name : str
        Name of the provider.
    key : bytes
        Ed25519 public key.
    is_revoked : bool
        The key is no longer accepted.
    enrolled : float
        Unix time of the enrolment.
    """

    name: str
    key: bytes
    is_revoked: bool
    enrolled: float


ADMIN = "admin"
"""Name of the administrator who signs in with a one-time link."""

ADMIN_DAYS = 0.5
"""Days for which a one-time link lets an administrator in."""


@dataclass(frozen=True)
class ApiUser:
    """The user of a token, and what the token allows.

    Parameters
    ----------
    name : str
        Name of the user.
    scopes : tuple of str
        ``"search"``, ``"count"``, ``"metrics"`` or ``"admin"``, or one of the first two and a
        collection: ``"search:titles"``.
    groups : tuple of str
        Groups of the user, for the policies of providers.
    """

    name: str
    scopes: tuple[str, ...] = ("search",)
    groups: tuple[str, ...] = ()

    def may(self, scope: str, collection: str) -> bool:
        """Return whether the token allows a scope in a collection."""
        names = {name for one in ("search", scope) for name in (one, f"{one}:{collection}")}
        return not names.isdisjoint(self.scopes)

    @property
    def is_admin(self) -> bool:
        """Return whether the token allows to operate the broker."""
        return "admin" in self.scopes


@dataclass(frozen=True)
class StoredToken:
    """A token, which itself is not stored.

    Parameters
    ----------
    token_id : str
        Beginning of the hexadecimal digest of the token.
    user : ApiUser
        The user, and what the token allows.
    expires : float
        Unix time at which it expires.
    """

    token_id: str
    user: ApiUser
    expires: float


class BrokerState:
    """Enrolled providers, codes and tokens in an SQLite file.

    Parameters
    ----------
    path : path
        The file; created if it does not exist.

    Raises
    ------
    StateFailed
        By all methods, if the file is locked or damaged, or its disk is full; nothing was changed.
        At the beginning, also if a later version of the program wrote it.
    """

    def __init__(self, path: Path) -> None:
        self._lock, self._path = threading.Lock(), path
        self._connection = open_database(
            path, _TABLES, version=_VERSION, error=StateFailed, upgrade=_add_columns
        )
        self._keys, self._version = Roster({}), (-1, -1)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            with self._lock, self._connection:
                yield
        except sqlite3.Error as error:
            raise StateFailed(f"{self._path} cannot be used: {error}") from error

    def _run(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        with self._transaction():
            return self._connection.execute(statement, values).fetchall()

    def new_code(self, provider: str, fingerprint: bytes) -> EnrolmentCode:
        """Return a new code, which replaces an earlier one of the provider."""
        code = EnrolmentCode(secrets.token_bytes(SECRET_BYTES), fingerprint)
        self._run("DELETE FROM codes WHERE provider = ? OR expires < ?", provider, time.time())
        expires = time.time() + CODE_LIFETIME_S
        self._run("INSERT INTO codes VALUES (?, ?, ?)", _hash(code.secret), provider, expires)
        return code

    def enrol(self, provider: str, secret: bytes, key: bytes, signature: bytes) -> None:
        """Store a provider's key and delete its code.

        An earlier key of the provider is replaced.

        Parameters
        ----------
        provider : str
            Name for which the code was made.
        secret : bytes
            Of the code.
        key : bytes
            Ed25519 public key.
        signature : bytes
            Of :meth:`EnrolmentCode.content` with this key.

        Raises
        ------
        PartyRefused
            If the code or the signature is wrong; nothing was changed.
        """
        content = EnrolmentCode(secret, b"").content(provider, key)
        try:
            is_signed = Roster({provider: key}).has_signed(provider, content, signature)
        except ValueError:
            is_signed = False
        if not is_signed:
            raise PartyRefused(provider, "the signature does not match the key")
        with self._transaction():
            values = _hash(secret), time.time()
            row = self._connection.execute(
                "DELETE FROM codes WHERE digest = ? AND expires > ? RETURNING provider", values
            ).fetchone()
            if row is None:
                raise PartyRefused(provider, _NO_CODE.format(provider))
            if row != (provider,):  # the code remains: an error undoes the transaction
                raise PartyRefused(provider, _OTHER_CODE.format(provider))
            other = self._connection.execute(
                "SELECT 1 FROM providers WHERE key = ? AND name != ?", (key, provider)
            )
            if other.fetchone():
                raise PartyRefused(provider, "another provider has this key")
            self._connection.execute(
                "INSERT OR REPLACE INTO providers VALUES (?, ?, ?, NULL)",
                (provider, key, time.time()),
            )

    def providers(self) -> list[EnrolledProvider]:
        """Return all enrolled providers, in the order of their names."""
        rows: list[Any] = self._run(
            "SELECT name, key, revoked, enrolled FROM providers ORDER BY name"
        )
        return [EnrolledProvider(n, k, r is not None, since) for n, k, r, since in rows]

    def codes(self) -> dict[str, float]:
        """Return the Unix time at which the code of each provider expires."""
        rows: list[Any] = self._run(
            "SELECT provider, expires FROM codes WHERE expires > ?", time.time()
        )
        return dict(rows)

    def revoke(self, provider: str) -> None:
        """Refuse a provider's key from now on.

        Raises
        ------
        DataError
            If the provider is not enrolled.
        """
        if provider not in [one.name for one in self.providers()]:
            raise DataError(f"there is no enrolled provider {provider!r}")
        self._run("UPDATE providers SET revoked = ? WHERE name = ?", time.time(), provider)

    def keys(self) -> Roster:
        """Return the keys that are accepted now."""
        with self._transaction():
            ((changes,),) = self._connection.execute("PRAGMA data_version").fetchall()
            version = changes, self._connection.total_changes
        if version != self._version:  # here or in another process
            keys = {one.name: one.key for one in self.providers() if not one.is_revoked}
            self._keys, self._version = Roster(keys), version
        return self._keys

    def new_token(
        self,
        user: str,
        days: float,
        scopes: tuple[str, ...] = ("search",),
        groups: tuple[str, ...] = (),
    ) -> str:
        """Store the digest of a new token, and return the token.

        Raises
        ------
        DataError
            If the name of the user or those of the groups are too long for requests.
        """
        if not has_short_names(user, groups):
            raise DataError(
                f"expected at most {MAX_USER_LENGTH} characters of the user and "
                f"{MAX_GROUPS_LENGTH} of the groups, got {len(user)} and {sum(map(len, groups))}"
            )
        token = "fn_" + secrets.token_urlsafe(32)
        expires = time.time() + 86400 * days
        values = _hash(token.encode()), user, expires, " ".join(scopes), json.dumps(groups)
        self._run("INSERT INTO tokens VALUES (?, ?, ?, ?, ?)", *values)
        return token

    def user_of(self, token: str) -> ApiUser | None:
        """Return the user of a token that has not expired, or None."""
        statement = "SELECT user, scopes, member FROM tokens WHERE digest = ? AND expires > ?"
        rows = self._run(statement, _hash(token.encode()), time.time())
        if not rows:
            return None
        name, scopes, groups = map(str, rows[0])
        return ApiUser(name, tuple(scopes.split()), tuple(json.loads(groups)))

    @property
    def has_tokens(self) -> bool:
        """Return whether a token was made, valid or not."""
        return bool(self._run("SELECT 1 FROM tokens LIMIT 1"))

    def new_link(self) -> str:
        """Return the secret of a new one-time link, which replaces earlier ones."""
        secret = secrets.token_urlsafe(32)
        with self._transaction():
            self._connection.execute("DELETE FROM links")
            values = _hash(secret.encode()), time.time() + CODE_LIFETIME_S
            self._connection.execute("INSERT INTO links VALUES (?, ?)", values)
        return secret

    def use_link(self, secret: str) -> str | None:
        """Return an administrator's token for a valid link, and delete the link."""
        statement = "DELETE FROM links WHERE digest = ? AND expires > ? RETURNING digest"
        if not self._run(statement, _hash(secret.encode()), time.time()):
            return None
        return self.new_token(ADMIN, ADMIN_DAYS, ("search", "admin"))

    def tokens(self) -> list[StoredToken]:
        """Return all stored tokens, in the order of their users."""
        rows: list[Any] = self._run(
            "SELECT digest, user, scopes, member, expires FROM tokens ORDER BY user, expires"
        )
        return [
            StoredToken(
                digest[:_ID_BYTES].hex(),
                ApiUser(user, tuple(scopes.split()), tuple(json.loads(groups))),
                min(expires, _LAST_TIME),
            )
            for digest, user, scopes, groups, expires in rows
        ]

    def delete_token(self, token_id: str) -> None:
        """Delete a token; do nothing if there is none of this id."""
        statement = "DELETE FROM tokens WHERE lower(hex(substr(digest, 1, ?))) = ?"
        self._run(statement, _ID_BYTES, token_id)

    def delete_tokens(self, user: str) -> int:
        """Delete all tokens of a user; return their number.

        Raises
        ------
        DataError
            If the user has none.
        """
        deleted = self._run("DELETE FROM tokens WHERE user = ? RETURNING user", user)
        if not deleted:
            raise DataError(
                f"user {user!r} has no tokens; `fedneighbors broker status` lists users with tokens"
                + suggest([user], [one.user.name for one in self.tokens()])
            )
        return len(deleted)


def _add_columns(connection: sqlite3.Connection) -> None:
    """Add the columns that a file without a version lacks."""
    found = {name for _, name, *_ in connection.execute("PRAGMA table_info(tokens)")}
    for name, value in _TOKEN_COLUMNS.items():
        if found and name not in found:
            connection.execute(f"ALTER TABLE tokens ADD COLUMN {name} TEXT DEFAULT '{value}'")


def open_state(config: BrokerConfig) -> tuple[BrokerState, bytes]:
    """Open the broker's state, and make its certificate if it has none.

    Returns
    -------
    BrokerState
        The opened state.
    bytes
        SHA-256 digest of the certificate; empty without TLS.

    Raises
    ------
    DataError
        If the configuration names a certificate without its key, or the reverse.
    """
    path = config.path(config.state)
    path.parent.mkdir(parents=True, exist_ok=True)
    certificate, key = server_files(config)
    if certificate is None:
        return BrokerState(path), b""
    if key is not None and config.server.key is None and not certificate.exists():
        make_certificate(certificate, key, (config.server.address[0], *config.server.names))
    return BrokerState(path), read_fingerprint(certificate)


def server_files(config: BrokerConfig) -> tuple[Path | None, Path | None]:
    """Return the files of the certificate and its key, or None.

    Raises
    ------
    DataError
        If one of them is named without the other, or a key is named without TLS.
    """
    server = config.server
    if not server.tls:
        if server.key is not None:
            raise DataError("server.key needs server.tls; without it, a proxy has the key")
        return config.path(server.certificate) if server.certificate else None, None
    if server.certificate is None and server.key is None:
        return config.path("state/server.crt"), config.path("state/server.key")
    if server.certificate is None or server.key is None:
        raise DataError("expected server.certificate and server.key, both or none")
    return config.path(server.certificate), config.path(server.key)


def _hash(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


def ledger_files(config: BrokerConfig) -> dict[str, Path]:
    """Return the file of the ledger of each private collection."""
    return {
        name: config.path(section.privacy.ledger or f"state/ledger-{name}.sqlite")
        for name, section in config.collections.items()
        if section.privacy is not None
    }


def open_ledger(config: BrokerConfig, name: str) -> Ledger | None:
    """Open the ledger of a private collection, or create it.

    Raises
    ------
    DataError
        If another collection has the same ledger: their budgets would be one.
    """
    files = ledger_files(config)
    if name not in files:
        return None
    path = files[name]
    if list(files.values()).count(path) > 1:
        raise DataError(f"two collections have the ledger {path}; each needs its own")
    path.parent.mkdir(parents=True, exist_ok=True)
    return Ledger(path, party="broker")
