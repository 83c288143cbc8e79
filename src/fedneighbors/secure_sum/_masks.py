"""Masks: keystreams that hide an integer vector and cancel in the sum over all parties.

Party ``u`` adds a stream of its own, and for each other party ``v`` a stream shared by the two: the
party whose name comes first adds it, the other subtracts it (Bonawitz et al., CCS 2017, section 4).
All arithmetic is modulo 2^32 or 2^64, depending on the dtype of the cells, and therefore exact.

Arrays of integers become one vector of residues, and a sum becomes arrays. Condition against
overflow: with ``n`` parties each number ``x`` must satisfy ``|x| * n < modulus / 2``. The sum then
lies within half the modulus and is decoded exactly, including negative sums.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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

KEY_BYTES = 32  # X25519 and ChaCha20
_CHUNK_BYTES = 1 << 18  # add a keystream while it is still in the cache, without a second vector
_NONCE = bytes(16)  # counter and nonce; each key is used for one stream
_ZEROS = bytes(_CHUNK_BYTES)


def new_private() -> bytes:
    """Return 32 bytes of the operating system's entropy.

    For an X25519 private key or a seed.
    """
    return os.urandom(KEY_BYTES)


def public_of(private: bytes) -> bytes:
    """Return the X25519 public key of a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


@dataclass(frozen=True)
class Secrets:
    """Secrets of one party for the masks of one round.

    Parameters
    ----------
    name : str
        Name of the party.
    private : bytes
        X25519 private key of this round, for the shared streams.
    seed : bytes
        Seed of the party's own stream, 32 bytes.
    """

    name: str
    private: bytes = field(repr=False)
    seed: bytes = field(repr=False)


def mask(cells: Cells, own: Secrets, publics: Mapping[str, bytes], *, context: bytes) -> None:
    """Mask a party's vector in place.

    Parameters
    ----------
    cells : uint32 or uint64 array of shape (n_cells,)
        The party's numbers; afterwards uniform to anyone without the secrets.
    own : Secrets
        Secrets for this vector only.
    publics : mapping of str to bytes
        Public key of every party in the sum; the party's own is ignored.
    context : bytes
        Digest of the agreed facts; the same for all parties.

    Raises
    ------
    AggregationError
        If a key is invalid; the error names its party.
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
    """Remove the masks from a sum of masked vectors, in place.

    Parameters
    ----------
    cells : uint32 or uint64 array of shape (n_cells,)
        Sum of the vectors of the parties in ``seeds``.
    seeds : mapping of str to bytes
        Seed of each party whose vector is in the sum.
    dropped : mapping of str to bytes
        Private key of each party without a vector whose masks are in the sum.
    publics : mapping of str to bytes
        Public keys of at least the parties in ``seeds``.
    context : bytes
        As for :func:`mask`.

    Raises
    ------
    AggregationError
        If a key is invalid; the error names its party.
    """
    for name, seed in seeds.items():
        _add(cells, _seed_key(seed, name, context), negative=True)
    for gone, private in dropped.items():
        for name in seeds:
            key = _pair_key(private, publics[name], (gone, name), context)
            _add(
                cells, key, negative=name < gone
            )  # the masks that the dropped party would have added


def _seed_key(seed: bytes, name: str, context: bytes) -> bytes:
    return _derive(seed, digest("own stream", context, name))


def _pair_key(private: bytes, public: bytes, names: tuple[str, str], context: bytes) -> bytes:
    try:
        shared = X25519PrivateKey.from_private_bytes(private).exchange(
            X25519PublicKey.from_public_bytes(public)
        )
    except ValueError:  # a point of small order
        raise AggregationError("its mask key is not a valid X25519 key", names[1]) from None
    return _derive(shared, digest("shared stream", context, min(names), max(names)))


def _derive(secret: bytes, info: bytes) -> bytes:
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)


def _add(cells: Cells, key: bytes, *, negative: bool = False) -> None:
    """Add or subtract a key's ChaCha20 stream in unsigned cells.

    The arithmetic wraps.
    """
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


Layout = tuple[tuple[str, tuple[int, ...]], ...]
"""Dtype and shape of each array, such as ``(("<u2", (10, 4)), ("<i8", ()))``."""

_CODES = ("|u1", "<u2", "<u4", "<u8", "|i1", "<i2", "<i4", "<i8")
MAX_ARRAYS = 64  # far more than the fields of any summed message
MAX_DIMS = 4  # as in a frame
MAX_CELLS = (1 << 32) // 8 - 1024  # so that a vector fits a frame


def layout_of(arrays: Sequence[npt.NDArray[np.integer[Any]]]) -> Layout:
    """Return dtype and shape of each array."""
    return tuple((array.dtype.newbyteorder("<").str, array.shape) for array in arrays)


def check_layout(layout: Layout) -> None:
    """Raise for a received layout of invalid arrays.

    Raises
    ------
    ValueError
        If a dtype is unknown or the arrays are too many or too large.
    """
    if len(layout) > MAX_ARRAYS:
        raise ValueError(f"a masked sum has at most {MAX_ARRAYS} arrays, got {len(layout)}")
    for code, shape in layout:
        if code not in _CODES or len(shape) > MAX_DIMS or min(shape, default=0) < 0:
            raise ValueError("an array of a masked sum is not of integers or has a wrong shape")
    if n_cells(layout) > MAX_CELLS:
        raise ValueError(f"a masked sum has at most {MAX_CELLS} numbers")


def n_cells(layout: Layout) -> int:
    """Return the number of cells of the arrays."""
    return sum(math.prod(shape) for _, shape in layout)


def width(layout: Layout) -> int:
    """Return the modulus bits: 32 if all dtypes fit, else 64."""
    return 32 if all(np.dtype(code).itemsize <= 4 for code, _ in layout) else 64


def to_cells(arrays: Sequence[npt.NDArray[np.integer[Any]]], *, n_parties: int) -> Cells:
    """Return integer arrays as one vector of residues.

    Parameters
    ----------
    arrays : sequence of integer arrays
        One party's numbers, any shapes.
    n_parties : int
        Maximum number of summed vectors.

    Returns
    -------
    uint32 or uint64 array of shape (n_cells,)
        A new array, little-endian.

    Raises
    ------
    AggregationError
        If a number is so large that the sum could wrap.
    """
    layout = layout_of(arrays)
    check_layout(layout)
    bits = width(layout)
    cells = np.empty(n_cells(layout), f"<u{bits // 8}")
    at = 0
    for array in arrays:
        extremes = int(np.min(array, initial=0)), int(np.max(array, initial=0))
        if max(map(abs, extremes)) * n_parties >= 1 << (bits - 1):
            raise AggregationError(
                f"a number is too large for a masked sum of {n_parties} parties modulo 2^{bits}; "
                "use a wider dtype or smaller numbers"
            )
        cells[at : at + array.size] = array.ravel().astype(cells.dtype)  # negative ones wrap
        at += array.size
    return cells


def from_cells(cells: Cells, layout: Layout) -> list[npt.NDArray[np.integer[Any]]]:
    """Return the arrays of a summed vector.

    Parameters
    ----------
    cells : uint32 or uint64 array of shape (n_cells,)
        The sum, without masks.
    layout : tuple
        Dtype and shape of each array.

    Raises
    ------
    AggregationError
        If a sum does not fit the dtype of its array.
    """
    numbers = cells.view(f"<i{cells.itemsize}")  # the upper half of the residues is negative
    arrays: list[npt.NDArray[np.integer[Any]]] = []
    at = 0
    for code, shape in layout:
        dtype = np.dtype(code)
        part = numbers[at : at + math.prod(shape)]
        low, high = int(np.min(part, initial=0)), int(np.max(part, initial=0))
        limits = np.iinfo(dtype)
        if low < limits.min or high > limits.max:
            raise AggregationError(
                f"a sum does not fit {dtype.name}; a party sent invalid numbers, or the "
                "parties need a wider dtype"
            )
        arrays.append(part.astype(dtype).reshape(shape))
        at += len(part)
    return arrays
