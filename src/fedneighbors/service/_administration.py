"""Changes of administrators: codes, revoked keys, tokens and links, each in the broker's log."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from fedneighbors.service._access_log import AccessEntry, AccessLog
from fedneighbors.service._config import BrokerConfig, check_scope
from fedneighbors.service._state import BrokerState, EnrolmentCode, StoredToken

if TYPE_CHECKING:
    from fedneighbors.service._broker import Broker

COMMAND_LINE = "command line"
"""Name of the administrator of changes by commands at the broker."""

MAX_DAYS = 36_500.0
_MAX_NAME = 100


@dataclass(frozen=True)
class Administrator:
    """An administrator, whose changes are logged before they are made.

    Changes raise :class:`LogFailed` if the log cannot be written, and :class:`StateFailed` if the
    state cannot; then nothing was changed.

    Parameters
    ----------
    user : str
        Name of the administrator.
    config : BrokerConfig
        Configuration of the broker.
    state, log : BrokerState and AccessLog
        State and log of the broker.
    fingerprint : bytes
        SHA-256 digest of the broker's certificate; empty without TLS.
    """

    user: str
    config: BrokerConfig
    state: BrokerState
    log: AccessLog
    fingerprint: bytes

    @classmethod
    def of(cls, user: str, broker: "Broker") -> Self:
        """Return an administrator of a running broker."""
        return cls(user, broker.config, broker.state, broker.log, broker.fingerprint)

    @property
    def providers(self) -> list[str]:
        """Return the providers of all collections."""
        return sorted({name for one in self.config.collections.values() for name in one.providers})

    def new_code(self, provider: str) -> EnrolmentCode:
        """Return a new enrolment code for a provider.

        Raises
        ------
        ValueError
            If no collection has the provider.
        """
        if provider not in self.providers:
            known = ", ".join(self.providers)
            raise ValueError(
                f"no collection of the configuration has the provider {provider!r}, only: {known}"
            )
        with self._logged("new-code", f"provider {provider}"):
            return self.state.new_code(provider, self.fingerprint)

    def revoke(self, provider: str) -> None:
        """Refuse a provider's key from now on.

        Raises
        ------
        DataError
            If the provider is not enrolled.
        """
        with self._logged("revoke", f"provider {provider}"):
            self.state.revoke(provider)

    def new_token(
        self, user: str, days: float, scopes: tuple[str, ...], groups: tuple[str, ...] = ()
    ) -> str:
        """Return a new token of a user.

        Raises
        ------
        ValueError
            If a name, the number of days or a scope is invalid.
        """
        for name in (user, *groups):
            if not name.strip() or not name.isprintable() or len(name) > _MAX_NAME:
                raise ValueError(f"expected a name of 1 to {_MAX_NAME} characters, got {name!r}")
        if not 0 < days <= MAX_DAYS:
            raise ValueError(f"expected more than 0 and at most {MAX_DAYS:g} days, got {days:g}")
        if not scopes:
            raise ValueError("expected at least one scope")
        for scope in scopes:
            check_scope(scope, self.config.collections)
        rights = " ".join(scopes) + (f"; groups {', '.join(groups)}" if groups else "")
        with self._logged("new-token", f"user {user}, {days:g} days: {rights}"):
            return self.state.new_token(user, days, scopes, groups)

    def delete_tokens(self, user: str) -> int:
        """Delete all tokens of a user; return their number.

        Raises
        ------
        DataError
            If the user has none.
        """
        with self._logged("delete-tokens", f"user {user}"):
            return self.state.delete_tokens(user)

    def delete_token(self, token: StoredToken) -> None:
        """Delete a token."""
        with self._logged("delete-token", f"user {token.user.name}, token {token.token_id}"):
            self.state.delete_token(token.token_id)

    def new_link(self) -> str:
        """Return the secret of a new one-time link."""
        with self._logged("new-link", f"user {self.user}"):
            return self.state.new_link()

    def use_link(self, link: str) -> str:
        """Return an administrator's token for a valid link, otherwise an empty text.

        A link is used up, and its token unknown, if the log cannot be written then.
        """
        token = self.state.use_link(link) or ""
        if token:
            self.log.append(describe_change(self.user, "use-link", f"user {self.user}"))
        return token

    @contextmanager
    def _logged(self, kind: str, subject: str) -> Iterator[None]:
        """Log a change before the block, and its failure after it."""
        entry = describe_change(self.user, kind, subject)
        self.log.append(entry)
        try:
            yield
        except Exception:
            self.log.append(replace(entry, outcome="failed"))
            raise


def describe_change(user: str, kind: str, subject: str) -> AccessEntry:
    """Return the entry of a change, with a random id."""
    return AccessEntry(secrets.token_hex(8), user, "", kind, None, subject=subject)
