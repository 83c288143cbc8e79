"""Users of an organisation's login service, by OpenID Connect bearer tokens."""

import asyncio
import logging
import math
import time
from collections.abc import Mapping
from typing import Any

import httpx
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from fedneighbors.errors import FederationError
from fedneighbors.service._config import OidcSection
from fedneighbors.service._state import ApiUser

log = logging.getLogger(__name__)

_ALGORITHMS = [
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "Ed25519",
    "EdDSA",
]
"""Signatures by a private key; with a shared secret, a broker could forge tokens."""

_LEEWAY_S = 60  # between the clocks of issuer and broker
_MIN_REFRESH_S = 30.0  # strangers cannot make the broker read the keys more often
_REFRESH_S, _MAX_AGE_S = 600.0, 86_400.0
"""Seconds after which keys are read again, and after which known ones are no longer used."""

_TIMEOUT_S = 5.0
MAX_TOKEN_LENGTH = 16_384
"""Maximum number of characters of a token."""


class IssuerFailed(FederationError):  # noqa: N818 - the name states the error
    """The keys of the issuer cannot be read."""


def _import_keys(content: Any) -> KeySet:
    """Return the keys of kinds that are known.

    Raises
    ------
    ValueError
        If there is none.
    """
    keys: list[Any] = []
    for one in content["keys"]:
        try:
            keys += KeySet.import_key_set({"keys": [one]}).keys
        except (JoseError, ValueError, TypeError, KeyError):
            continue
    if not keys:
        raise ValueError("no key can be used")
    return KeySet(keys)


class OidcUsers:
    """Verifies tokens of one issuer.

    Its keys are read at the first token, and again when they are old or do not fit a token.

    Parameters
    ----------
    section : OidcSection
        Issuer, audience and claims.
    """

    def __init__(self, section: OidcSection) -> None:
        self._section = section
        self._keys: KeySet | None = None
        self._read_at = self._loaded_at = -math.inf
        self._reading = asyncio.Lock()

    async def user_of(self, token: str) -> ApiUser | None:
        """Return the user of a valid token, or None.

        Raises
        ------
        IssuerFailed
            If the issuer's keys cannot be read.
        """
        if len(token) > MAX_TOKEN_LENGTH or token.count(".") != 2:
            return None
        keys, age_s = self._keys, time.monotonic() - self._loaded_at
        if keys is not None and age_s > _REFRESH_S and await self._refresh(keys):
            keys = self._keys
        elif keys is not None and age_s > _MAX_AGE_S:
            raise IssuerFailed(f"the keys of {self._section.issuer} are too old")
        claims = None if keys is None else self._verify(token, keys)
        if claims is None and await self._refresh(keys):
            assert self._keys is not None
            claims = self._verify(token, self._keys)
        return None if claims is None else self._read(claims)

    def _verify(self, token: str, keys: KeySet) -> Mapping[str, Any] | None:
        """Return the claims of a valid token, or None."""
        section = self._section
        expected: dict[str, Any] = {
            section.user_claim: {"essential": True},
            "iss": {"essential": True, "value": section.issuer},
            "aud": {"essential": True, "value": section.audience},
            "exp": {"essential": True},
        }
        registry = jwt.JWTClaimsRegistry(leeway=_LEEWAY_S, **expected)
        try:
            claims = jwt.decode(token, keys, algorithms=_ALGORITHMS).claims
            registry.validate(claims)
        except (JoseError, ValueError, TypeError, RecursionError):
            return None
        return claims

    def _read(self, claims: Mapping[str, Any]) -> ApiUser | None:
        """Return the user of valid claims, with the groups and their scopes."""
        section, name = self._section, claims[self._section.user_claim]
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= 200:
            return None
        claimed = claims.get(section.groups_claim, ())
        claimed = [claimed] if isinstance(claimed, str) else claimed
        groups = tuple(
            group
            for group in (claimed if isinstance(claimed, list) else ())
            if isinstance(group, str) and group.isprintable()
        )
        if not section.groups:
            return ApiUser(name, groups=groups)
        scopes = tuple(scope for group in groups for scope in section.groups.get(group, ()))
        return ApiUser(name, scopes, groups) if scopes else None

    async def _refresh(self, known: KeySet | None) -> bool:
        """Read the issuer's keys; return whether they are newer."""
        async with self._reading:
            if self._keys is not known:  # read meanwhile
                return True
            wait_s = _MIN_REFRESH_S / 10 if known is None else _MIN_REFRESH_S
            if time.monotonic() - self._read_at < wait_s:
                if known is None:
                    raise IssuerFailed(f"the keys of {self._section.issuer} could not be read")
                return False
            self._read_at = time.monotonic()
            try:
                self._keys = _import_keys(await self._download())
                self._loaded_at = time.monotonic()
            except (httpx.HTTPError, JoseError, ValueError, TypeError, KeyError) as error:
                text = f"the keys of {self._section.issuer} could not be read"
                log.error("%s: %r", text, error)
                if known is not None:
                    return False
                raise IssuerFailed(text) from None
            return True

    async def _download(self) -> Any:
        issuer = self._section.issuer.rstrip("/")
        async with httpx.AsyncClient(timeout=_TIMEOUT_S) as client:
            found = await client.get(f"{issuer}/.well-known/openid-configuration")
            described = found.raise_for_status().json()
            if described["issuer"] != self._section.issuer:
                raise ValueError(f"it calls itself {described['issuer']!r:.200}")
            keys = await client.get(described["jwks_uri"])
            return keys.raise_for_status().json()
