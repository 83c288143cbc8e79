"""Signing keys, the roster of public keys, signed digests, and public-key encryption."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedneighbors.errors import AggregationError, MissingExtraError

try:
    from cryptography.exceptions import (
        InternalError,
        InvalidSignature,
        InvalidTag,
        UnsupportedAlgorithm,
    )
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
except ModuleNotFoundError as error:  # older versions of cryptography lack hpke
    raise MissingExtraError("cryptography", "privacy") from error


MAX_NAME_LENGTH = 100  # characters; must equal that of federation/_flower.py
KEY_BYTES = 32  # Ed25519, private or public
MAX_FILE_BYTES = 1 << 20  # 1 MiB: a roster of 2,000 parties with the longest names


@dataclass(frozen=True)
class Identity:
    """A party's signing key.

    Parameters
    ----------
    private : bytes
        The 32 bytes of an Ed25519 private key. Not shown by ``repr``.

    Raises
    ------
    ValueError
        If it is not 32 bytes.
    """

    private: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.private) != KEY_BYTES:
            raise ValueError(f"expected a key of {KEY_BYTES} bytes, got {len(self.private)}")

    @classmethod
    def new(cls) -> "Identity":
        """Return an identity with a new key, random from the operating system."""
        return cls(Ed25519PrivateKey.generate().private_bytes_raw())

    @classmethod
    def read(cls, path: Path) -> "Identity":
        """Read the identity from a PEM file.

        Raises
        ------
        ValueError
            If the file has no Ed25519 private key, or other users have access to it.
        OSError
            If it cannot be read.
        """
        # other systems have no such mode bits
        if os.name == "posix" and path.stat().st_mode & 0o077:
            raise ValueError(f"others can access the private key {path.name}; run chmod 600 on it")
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm, InternalError):
            raise ValueError(f"{path.name} is not an unencrypted PEM private key") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError(f"{path.name} is not an Ed25519 key; run `fedneighbors keys new`")
        return cls(key.private_bytes_raw())

    def write(self, path: Path) -> None:
        """Write the private key to a new PEM file of mode 600.

        Raises
        ------
        FileExistsError
            If the file exists: overwriting a key would destroy it.
        """
        key = Ed25519PrivateKey.from_private_bytes(self.private)
        pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        content = key.private_bytes(pem, pkcs8, serialization.NoEncryption())
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)

    @property
    def public(self) -> bytes:
        """Return the 32 bytes of the public key."""
        return Ed25519PrivateKey.from_private_bytes(self.private).public_key().public_bytes_raw()

    def sign(self, content: bytes) -> bytes:
        """Return the 64-byte Ed25519 signature of ``content``."""
        return Ed25519PrivateKey.from_private_bytes(self.private).sign(content)


@dataclass(frozen=True)
class Roster:
    """Enrolled parties and their public keys.

    Parameters
    ----------
    keys : mapping of str to bytes
        Ed25519 public key of each party by name.

    Raises
    ------
    ValueError
        If a name or key is malformed, or two names have the same key: one party could then be
        counted twice.
    """

    keys: Mapping[str, bytes]

    def __post_init__(self) -> None:
        for name, key in self.keys.items():
            if not (0 < len(name) <= MAX_NAME_LENGTH and name.isprintable()):
                raise ValueError(
                    f"expected party names of 1 to {MAX_NAME_LENGTH} printable characters"
                )
            if len(key) != KEY_BYTES:
                raise ValueError(f"the key of {name!r} has {len(key)} bytes, expected {KEY_BYTES}")
        if len(set(self.keys.values())) < len(self.keys):
            raise ValueError("two parties have the same key; each needs its own")

    @classmethod
    def read(cls, path: Path) -> "Roster":
        """Read the roster from a JSON file.

        The file maps the names of the parties to their hexadecimal keys.

        Raises
        ------
        ValueError
            If the file is too large or not a roster.
        OSError
            If it cannot be read.
        """
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"{path.name} is too large for a roster")
        try:
            content = json.loads(path.read_text("utf-8"))
            return cls({name: bytes.fromhex(key) for name, key in content.items()})
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path.name} is not a roster of public keys: {error}") from None

    def to_json(self) -> str:
        """Return the roster as JSON for :meth:`read`."""
        keys = {name: self.keys[name].hex() for name in sorted(self.keys)}
        return json.dumps(keys, indent=2, ensure_ascii=False) + "\n"

    def name_of(self, identity: Identity) -> str | None:
        """Return the enrolled name of an identity, or None."""
        public = identity.public
        return next((name for name, key in self.keys.items() if key == public), None)

    def has_signed(self, name: str, content: bytes, signature: bytes) -> bool:
        """Return whether the named party has signed ``content`` with ``signature``."""
        if name not in self.keys:
            return False
        try:
            Ed25519PublicKey.from_public_bytes(self.keys[name]).verify(signature, content)
        except (InvalidSignature, ValueError):
            return False
        return True


Part = bytes | str | int | tuple["Part", ...]
"""Type of a digest part: bytes, text, a signed 64-bit integer, or a tuple of these."""


def digest(purpose: str, *parts: Part) -> bytes:
    """Return the SHA-256 digest of a purpose and typed parts.

    Each part is encoded with its type and, if its length varies, its length.

    Parameters
    ----------
    purpose : str
        Domain separation: the same parts have different digests for different purposes.
    *parts : bytes, str, int or tuple
        Contents of the digest. Different lists of parts have different encodings.

    Examples
    --------
    >>> digest("a", "bc") == digest("a", "b", "c")
    False
    """
    state = hashlib.sha256(b"fedneighbors secure sum 1")
    state.update(_encode((purpose, *parts)))
    return state.digest()


def _encode(part: Part) -> bytes:
    """Encode a part with its type and, if it varies, its length."""
    if isinstance(part, tuple):
        return b"t" + len(part).to_bytes(8, "little") + b"".join(map(_encode, part))
    if isinstance(part, int):
        return b"i" + part.to_bytes(8, "little", signed=True)
    content = part.encode("utf-8") if isinstance(part, str) else part
    tag = b"s" if isinstance(part, str) else b"b"
    return tag + len(content).to_bytes(8, "little") + content


SEAL_OVERHEAD_BYTES = 48  # added by `seal`: an ephemeral public key (32) and a tag (16)
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)  # HPKE, RFC 9180


def seal(content: bytes, public: bytes, *, info: bytes) -> bytes:
    """Encrypt ``content`` with HPKE for an X25519 public key.

    The key has 32 bytes. Only :func:`unseal` with the same ``info`` decrypts the result.

    Raises
    ------
    AggregationError
        If the key is not a valid public key.
    """
    try:
        return _SUITE.encrypt(content, X25519PublicKey.from_public_bytes(public), info)
    except ValueError:
        raise AggregationError("a sealing key is not a valid X25519 key") from None


def unseal(sealed: bytes, private: bytes, *, info: bytes) -> bytes:
    """Return the content that :func:`seal` encrypted.

    Raises
    ------
    AggregationError
        If ``sealed`` was altered, or encrypted for another key or ``info``.
    """
    try:
        return _SUITE.decrypt(sealed, X25519PrivateKey.from_private_bytes(private), info)
    except (InvalidTag, ValueError):
        raise AggregationError("a sealed share cannot be decrypted") from None
