"""Masks: keystreams that hide a vector of integers and cancel in the sum over all parties.

Party ``u`` adds a stream that it alone knows, and for each other party ``v`` a stream that the two
share: the one whose name comes first adds it, the other subtracts it (Bonawitz et al., CCS 2017,
section 4). All arithmetic is modulo 2^32 or 2^64, that of the cells' dtype, and therefore exact.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedneighbors.errors import AggregationError, MissingExtraError
from fedneighbors.secure_sum._key_agreement import digest

try:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ModuleNotFoundError as error:
    raise MissingExtraError("cryptography", "privacy") from error


Cells = npt.NDArray[np.unsignedinteger]
"""Vector of shape (n_cells,) of little-endian uint32 or uint64: numbers modulo 2^32 or 2^64."""

KEY_BYTES = 32
_CHUNK_BYTES = 1 << 18  # a keystream is added while it still is in the cache: no second vector
_NONCE = bytes(16)  # counter and nonce; each key makes one stream
_ZEROS = bytes(_CHUNK_BYTES)


def new_private() -> bytes:
    """Return 32 bytes of the operating system's entropy: an X25519 private key, or a seed."""
    return os.urandom(KEY_BYTES)


def public_of(private: bytes) -> bytes:
    """Return the X25519 public key of a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


@dataclass(frozen=True)
class Secrets:
    """What one party masks with in one round.

    Parameters
    ----------
    name : str
        The party.
    private : bytes
        Its X25519 private key of this round, for the streams that it shares with others.
    seed : bytes
        32 bytes, for the stream that it alone knows.
    """

    name: str
    private: bytes = field(repr=False)
    seed: bytes = field(repr=False)


def mask(cells: Cells, own: Secrets, publics: Mapping[str, bytes], *, context: bytes) -> None:
    """Hide a party's vector, in place.

    Parameters
    ----------
    cells : uint32 or uint64 array of shape (n_cells,)
        The party's numbers; afterwards uniform to all who lack the secrets.
    own : Secrets
        Used for this one vector and never again.
    publics : mapping of str to bytes
        Public key of every party whose vectors are added up; the own one is left aside.
    context : bytes
        Digest of all that the parties agreed on; the same for all.

    Raises
    ------
    AggregationError
        If no secret can be agreed with a key; names its party.
    """
    _add(cells, _seed_key(own.seed, own.name, context))
    for name, public in publics.items():
        if name != own.name:
            key = _pair_key(own.private, public, (own.name, name), context)
            _add(cells, key, negative=name < own.name)


def lift(
    cells: Cells,
    *,
    seeds: Mapping[str, bytes],
    dropped: Mapping[str, bytes],
    publics: Mapping[str, bytes],
    context: bytes,
) -> None:
    """Take the masks off a sum of masked vectors, in place.

    Parameters
    ----------
    cells : uint32 or uint64 array of shape (n_cells,)
        Sum of the vectors of the parties in ``seeds``.
    seeds : mapping of str to bytes
        Seed of each party whose vector is in the sum.
    dropped : mapping of str to bytes
        Private key of each party that the others masked with and whose vector did not come.
    publics : mapping of str to bytes
        Public keys of the parties in ``seeds``, at least.
    context : bytes
        As for :func:`mask`.

    Raises
    ------
    AggregationError
        If no secret can be agreed with a key; names its party.
    """
    for name, seed in seeds.items():
        _add(cells, _seed_key(seed, name, context), negative=True)
    for gone, private in dropped.items():
        for name in seeds:
            key = _pair_key(private, publics[name], (gone, name), context)
            _add(cells, key, negative=name < gone)  # what the dropped party would have added


def _seed_key(seed: bytes, name: str, context: bytes) -> bytes:
    return _derived(seed, digest("own stream", context, name))


def _pair_key(private: bytes, public: bytes, names: tuple[str, str], context: bytes) -> bytes:
    try:
        shared = X25519PrivateKey.from_private_bytes(private).exchange(
            X25519PublicKey.from_public_bytes(public)
        )
    except ValueError:  # a point of small order
        raise AggregationError("its mask key is not a valid X25519 key", names[1]) from None
    return _derived(shared, digest("shared stream", context, min(names), max(names)))


def _derived(secret: bytes, info: bytes) -> bytes:
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)


def _add(cells: Cells, key: bytes, *, negative: bool = False) -> None:
    """Add the ChaCha20 keystream of a key to the cells, or subtract it; unsigned, so it wraps."""
    stream = Cipher(algorithms.ChaCha20(key, _NONCE), mode=None).encryptor()
    room = bytearray(_CHUNK_BYTES)
    numbers = np.frombuffer(room, cells.dtype)
    step = len(numbers)
    combine = np.subtract if negative else np.add
    for start in range(0, len(cells), step):
        part = cells[start : start + step]
        n_bytes = part.nbytes
        stream.update_into(memoryview(_ZEROS)[:n_bytes], memoryview(room)[:n_bytes])
        combine(part, numbers[: len(part)], out=part)
