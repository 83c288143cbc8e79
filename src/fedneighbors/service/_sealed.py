"""Sealed queries: the broker reads neither queries nor names or payloads of objects.

A client encrypts each query with a new key. It seals this key for every provider (HPKE, RFC 9180),
with another key under which the provider encrypts names and payloads. The broker merges the answers
by their distances, and passes encrypted names to the client. Objects at equal distances have
numbers that are valid for one query.
"""

import base64
import binascii
import json
import secrets
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESSIV, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedneighbors.errors import AggregationError, FederationError
from fedneighbors.federation._messages import decode, encode, message
from fedneighbors.methods.fedknn._payloads import PayloadReply
from fedneighbors.secure_sum._keys import digest, seal, unseal

_KEY_BYTES = 32
_QUERY_BLOCK, _NAME_BLOCK = 256, 32  # lengths are hidden up to multiples of these
_NONCE = bytes(12)  # each key encrypts one query
_NAME, _PAYLOAD = b"name", b"payload"


@message
class SealedQuery:
    """An encrypted query, and its keys sealed for each provider."""

    content: bytes
    keys: dict[str, bytes]

    def unseal(
        self, provider: str, collection: str, secret: bytes
    ) -> tuple[bytes, "NameCipher", str]:
        """Return the query's JSON, the cipher of answers, and the token.

        Parameters
        ----------
        provider, collection : str
            Name of the provider, and of its collection.
        secret : bytes
            The provider's signing key.

        Raises
        ------
        ValueError
            If the query is not sealed for this key, or is of another collection.
        """
        context = _context(collection, provider, self.content)
        try:
            keys = unseal(self.keys.get(provider, b""), _derive_key(secret), info=context)
            content = ChaCha20Poly1305(keys[:_KEY_BYTES]).decrypt(_NONCE, self.content, None)
            cipher, token = NameCipher(keys[_KEY_BYTES : 2 * _KEY_BYTES]), keys[2 * _KEY_BYTES :]
            return content, cipher, token.decode("ascii")
        except (AggregationError, InvalidTag):
            raise ValueError(f"the query is not sealed for the key of {provider!r}") from None


class NameCipher:
    """Encryption of the names and payloads that one provider returns for one query.

    Equal names are equal when encrypted, so that the broker finds repeated objects; each query has
    a new key.

    Parameters
    ----------
    key : bytes
        32 random bytes.
    """

    def __init__(self, key: bytes) -> None:
        self._cipher = AESSIV(key)

    def hide(self, name: str) -> str:
        """Return an encrypted name as text."""
        return self._encrypt(name.encode(), [_NAME])

    def read(self, hidden: str) -> str:
        """Return the name of an encrypted one.

        Raises
        ------
        ValueError
            If it was not encrypted with this key.
        """
        return self._decrypt(hidden, [_NAME]).decode()

    def hide_payload(self, row: str, name: str) -> str:
        """Return the JSON of an encrypted payload of an object."""
        return json.dumps({"sealed": self._encrypt(row.encode(), [_PAYLOAD, name.encode()])})

    def read_payload(self, hidden: Mapping[str, Any], name: str) -> Any:
        """Return the payload of an encrypted one.

        Raises
        ------
        ValueError
            If it was not encrypted with this key, is of another object, or is no JSON object.
        """
        row = self._decrypt(str(hidden.get("sealed")), [_PAYLOAD, name.encode()]).decode()
        PayloadReply((row,))  # the broker, which cannot read it, has not checked it
        return json.loads(row)

    def _encrypt(self, content: bytes, context: list[bytes]) -> str:
        framed = len(content).to_bytes(4, "little") + content
        padded = framed + bytes(-len(framed) % _NAME_BLOCK)
        return base64.urlsafe_b64encode(self._cipher.encrypt(padded, list(context))).decode()

    def _decrypt(self, text: str, context: list[bytes]) -> bytes:
        try:
            padded = self._cipher.decrypt(
                base64.b64decode(text, altchars=b"-_", validate=True), list(context)
            )
        except (InvalidTag, binascii.Error, ValueError):
            raise ValueError("not encrypted with the key of this query") from None
        return padded[4 : 4 + int.from_bytes(padded[:4], "little")]


class QuerySeal:
    """A query that a client sealed, and the keys to its answer.

    Parameters
    ----------
    content : mapping
        JSON fields ``query`` and ``where``.
    keys : mapping of str to bytes
        Sealing key of each provider.
    collection : str
        Name of the collection; the query is valid in no other.
    tokens : mapping of str to str
        Token of the user for each provider that needs one; others cannot read it.
    """

    def __init__(
        self,
        content: Mapping[str, Any],
        keys: Mapping[str, bytes],
        collection: str,
        tokens: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        raw = json.dumps(content, allow_nan=False).encode()
        raw += b" " * (-len(raw) % _QUERY_BLOCK)
        key = secrets.token_bytes(_KEY_BYTES)
        encrypted = ChaCha20Poly1305(key).encrypt(_NONCE, raw, None)
        own = {name: secrets.token_bytes(_KEY_BYTES) for name in keys}
        sealed = {
            name: seal(
                key + own[name] + tokens.get(name, "").encode("ascii"),
                public,
                info=_context(collection, name, encrypted),
            )
            for name, public in keys.items()
        }
        self.text = base64.b64encode(encode(SealedQuery(encrypted, sealed))).decode()
        self._ciphers = {name: NameCipher(one) for name, one in own.items()}

    def open_answer(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return an answer with readable names and payloads.

        Raises
        ------
        FederationError
            If a name or payload is not encrypted for this query.
        """
        if "neighbors" not in answer:
            return answer
        if not isinstance(answer["neighbors"], list):
            raise FederationError("the answer has no list of neighbors; the broker changed it")
        return {**answer, "neighbors": [self._open(found) for found in answer["neighbors"]]}

    def _open(self, found: Any) -> dict[str, Any]:
        provider: Any = found.get("provider") if isinstance(found, dict) else None
        try:
            cipher = self._ciphers[provider]
            opened = {**found, "id": cipher.read(found["id"])}
            if "payload" in found:
                opened["payload"] = cipher.read_payload(found["payload"], opened["id"])
        except (AttributeError, KeyError, TypeError, ValueError):
            raise FederationError(
                f"an object of provider {provider!r:.80} is not encrypted for this query: the "
                "broker or the provider changed it"
            ) from None
        return opened


def read_sealed(text: str, providers: Sequence[str]) -> bytes:
    """Return the frame of a client's sealed query.

    Raises
    ------
    ValueError
        If it is none, or is not sealed for exactly these providers.
    """
    try:
        frame = base64.b64decode(text, validate=True)
        found = set(decode(frame, (SealedQuery,)).keys)
    except (ValueError, FederationError):
        raise ValueError("expected a sealed query, as RemoteNeighbors with keys makes it") from None
    if found != set(providers):
        raise ValueError(
            f"expected a query sealed for {', '.join(providers)}, got one for "
            f"{', '.join(sorted(found)) or 'nobody'}: ask each provider for its key"
        )
    return frame


def make_sealing_key(secret: bytes) -> bytes:
    """Return the public key for which queries to a provider are sealed.

    Parameters
    ----------
    secret : bytes
        The provider's signing key.
    """
    private = X25519PrivateKey.from_private_bytes(_derive_key(secret))
    return private.public_key().public_bytes_raw()


def _derive_key(secret: bytes) -> bytes:
    return HKDF(SHA256(), _KEY_BYTES, salt=None, info=b"fedneighbors sealing key").derive(secret)


def _context(collection: str, provider: str, encrypted: bytes) -> bytes:
    return digest("sealed query", collection, provider, encrypted)
