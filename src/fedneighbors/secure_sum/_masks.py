"""Masks: keystreams that hide a party's integers and are removed from the sum.

Each party adds the stream of its mask seed. Each pair of parties has a shared stream, which cancels
in the sum: the party whose name comes first adds it, the other subtracts it (Bonawitz et al., CCS
2017, section 4). :func:`unmask` removes all streams that remain in a sum. All arithmetic is modulo
2^32 or 2^64, depending on the dtype of the cells, and therefore exact.

:func:`to_cells` converts arrays of integers to one vector of residues, and :func:`from_cells`
converts a sum of such vectors back. Each number ``x`` of ``n`` parties must satisfy
``|x| * n < modulus / 2``: the sum is then decoded exactly, also if it is negative.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedneighbors.errors import AggregationError, MissingExtraError
from fedneighbors.secure_sum._keys import digest

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
_CHUNK_BYTES = 1 << 18  # keystream added at a time; below 64 KiB is slower, above is not faster
_NONCE = bytes(16)  # counter and nonce, all zero: each key is used for only one stream
_ZEROS = bytes(_CHUNK_BYTES)


def generate_secret() -> bytes:
    """Return 32 random bytes for a private X25519 key or a seed."""
    return os.urandom(KEY_BYTES)


def derive_public_key(private: bytes) -> bytes:
    """Return the public key of a private X25519 key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


@dataclass(frozen=True)
class Secrets:
    """Secrets of one party for one masked sum.

    Parameters
    ----------
    name : str
        Name of the party.
    private : bytes
        Private mask key (X25519), for the streams shared with other parties.
    seed : bytes
        Mask seed of 32 bytes, for the stream that no other party has.
    """

    name: str
    private: bytes = field(repr=False)
    seed: bytes = field(repr=False)


def mask(cells: Cells, party: Secrets, public_keys: Mapping[str, bytes], *, context: bytes) -> None:
    """Mask a party's vector in place.

    Parameters
    ----------
    cells : uint32 or uint64 array of shape (n_cells,)
        The party's residues; afterwards uniformly distributed for anyone without the secrets.
    party : Secrets
        The party's secrets, for this vector only.
    public_keys : mapping of str to bytes
        Public mask key of each member of the sum; that of the party itself is ignored.
    context : bytes
        Digest of the round, its keys and its members; the same for all parties.

    Raises
    ------
    AggregationError
        If a key is invalid; the error names its party.
    """
    _add(cells, _seed_key(party.seed, party.name, context))
    for name, public in public_keys.items():
        if name != party.name:
            key = _pair_key(party.private, public, (party.name, name), context)
            _add(cells, key, negative=name < party.name)


def unmask(
    cells: Cells,
    *,
    seeds: Mapping[str, bytes],
    dropped: Mapping[str, bytes],
    public_keys: Mapping[str, bytes],
    context: bytes,
) -> None:
    """Remove the masks from a sum of masked vectors, in place.

    Parameters
    ----------
    cells : uint32 or uint64 array of shape (n_cells,)
        Sum of the vectors of the parties in ``seeds``.
    seeds : mapping of str to bytes
        Mask seed of each party whose vector is in the sum.
    dropped : mapping of str to bytes
        Private mask key of each member whose vector is not in the sum. The streams that it shares
        with the parties in ``seeds`` remain in their vectors.
    public_keys : mapping of str to bytes
        Public mask keys of at least the parties in ``seeds``.
    context : bytes
        As for :func:`mask`.

    Raises
    ------
    AggregationError
        If a key is invalid; the error names its party.
    """
    for name, seed in seeds.items():
        _add(cells, _seed_key(seed, name, context), negative=True)
    for absent, private in dropped.items():
        for name in seeds:
            key = _pair_key(private, public_keys[name], (absent, name), context)
            _add(cells, key, negative=name < absent)  # as the vector of the absent party would


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
    """Add or subtract the ChaCha20 stream of a key; sums wrap around."""
    stream = Cipher(algorithms.ChaCha20(key, _NONCE), mode=None).encryptor()
    buffer = bytearray(_CHUNK_BYTES)
    residues = np.frombuffer(buffer, cells.dtype)
    operation = np.subtract if negative else np.add
    for start in range(0, len(cells), len(residues)):
        chunk = cells[start : start + len(residues)]
        n_bytes = chunk.nbytes
        stream.update_into(memoryview(_ZEROS)[:n_bytes], memoryview(buffer)[:n_bytes])
        operation(chunk, residues[: len(chunk)], out=chunk)


Layout = tuple[tuple[str, tuple[int, ...]], ...]
"""Dtype and shape of each array, such as ``(("<u2", (10, 4)), ("<i8", ()))``."""

_DTYPES = ("|u1", "<u2", "<u4", "<u8", "|i1", "<i2", "<i4", "<i8")  # the integers of a frame
MAX_ARRAYS = 64  # one for each field; summed messages have at most four
MAX_DIMS = 4  # the limit of a frame
MAX_CELLS = (1 << 32) // 8 - 1024  # 64-bit numbers in a frame of 4 GiB, less 8 KiB for the layout


def layout_of(arrays: Sequence[npt.NDArray[np.integer[Any]]]) -> Layout:
    """Return dtype and shape of each array."""
    return tuple((array.dtype.newbyteorder("<").str, array.shape) for array in arrays)


def check_layout(layout: Layout) -> None:
    """Raise unless a received layout describes valid integer arrays.

    Raises
    ------
    ValueError
        If a dtype or shape is invalid, or the arrays are too many or too large.
    """
    if len(layout) > MAX_ARRAYS:
        raise ValueError(f"a masked sum has at most {MAX_ARRAYS} arrays, got {len(layout)}")
    for code, shape in layout:
        if code not in _DTYPES or len(shape) > MAX_DIMS or min(shape, default=0) < 0:
            raise ValueError("an array of a masked sum is not of integers or has a wrong shape")
    if n_cells(layout) > MAX_CELLS:
        raise ValueError(f"a masked sum has at most {MAX_CELLS} numbers")


def n_cells(layout: Layout) -> int:
    """Return the total number of array items."""
    return sum(math.prod(shape) for _, shape in layout)


def modulus_bits(layout: Layout) -> int:
    """Return 32 if no dtype has more bits, otherwise 64."""
    return 32 if all(np.dtype(code).itemsize <= 4 for code, _ in layout) else 64


def to_cells(arrays: Sequence[npt.NDArray[np.integer[Any]]], *, n_parties: int) -> Cells:
    """Convert integer arrays to one vector of residues.

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
        If a number is so large that the sum could wrap around.
    ValueError
        If an array has no integer dtype, or the arrays are too many or too large.
    """
    layout = layout_of(arrays)
    check_layout(layout)
    bits = modulus_bits(layout)
    cells = np.empty(n_cells(layout), f"<u{bits // 8}")
    start = 0
    for array in arrays:
        extremes = int(np.min(array, initial=0)), int(np.max(array, initial=0))
        if max(map(abs, extremes)) * n_parties >= 1 << (bits - 1):
            raise AggregationError(
                f"a number is too large for a masked sum of {n_parties} parties modulo 2^{bits}; "
                "use a wider dtype or smaller numbers"
            )
        # negative numbers wrap around
        cells[start : start + array.size] = array.ravel().astype(cells.dtype)
        start += array.size
    return cells


def from_cells(cells: Cells, layout: Layout) -> list[npt.NDArray[np.integer[Any]]]:
    """Convert a sum of vectors to arrays.

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
    start = 0
    for code, shape in layout:
        dtype = np.dtype(code)
        part = numbers[start : start + math.prod(shape)]
        low, high = int(np.min(part, initial=0)), int(np.max(part, initial=0))
        limits = np.iinfo(dtype)
        if low < limits.min or high > limits.max:
            raise AggregationError(
                f"a sum does not fit {dtype.name}; a party sent invalid numbers, or the "
                "parties need a wider dtype"
            )
        arrays.append(part.astype(dtype).reshape(shape))
        start += len(part)
    return arrays
