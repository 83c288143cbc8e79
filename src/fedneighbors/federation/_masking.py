"""Messages, digests, state stores and integer fields of masked sums.

A masked sum takes four exchanges, or five if there are drop-outs::

    coordinator                                    party
    OpenSum: names, threshold, request digest  ->  Advert: fresh public keys, signed
    DealShares: all adverts                    ->  SealedShares: encrypted shares of its seed
                                                   and private mask key
    MaskInput: shares for it, the request      ->  MaskedInput: its masked numbers
    Confirm: survivors (only after drop-outs)  ->  Confirmation: signature of the survivors
    Unmask: survivors, confirmations           ->  Revealed: seed shares of the survivors,
                                                   key shares of the drop-outs

``names`` are the parties that are asked, ``members`` those that dealt shares, and ``survivors``
those whose masked numbers are in the sum.

Each message checks the lengths of its names, keys, digests and signatures. It is sent as a frame,
see :mod:`~fedneighbors.federation._messages`.
"""

import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedneighbors.errors import ProtocolError
from fedneighbors.federation._loop import build_reply, is_integral
from fedneighbors.federation._message_types import field_types
from fedneighbors.federation._messages import Message, message
from fedneighbors.secure_sum._keys import MAX_NAME_LENGTH, SEAL_OVERHEAD_BYTES, digest
from fedneighbors.secure_sum._masks import check_layout, modulus_bits, n_cells
from fedneighbors.secure_sum._shares import MAX_PARTIES, SECRET_BYTES

KEY_BYTES = 32  # X25519
DIGEST_BYTES = 32  # SHA-256
SIGNATURE_BYTES = 64  # Ed25519
SEALED_BYTES = 2 * SECRET_BYTES + SEAL_OVERHEAD_BYTES  # shares of seed and private mask key
_ROUND_ID = re.compile(r"[0-9a-f]{32}")  # 128 random bits, so no collision; safe in a file name

Advertised = tuple[bytes, bytes, bytes]
"""Mask key, sealing key, signature."""

Sealed = tuple[bytes, bytes, bytes, bytes]
"""Encrypted shares (empty for the dealer itself), commitments to both shares, signature."""


def _check_round(round_id: str) -> None:
    if not _ROUND_ID.fullmatch(round_id):
        raise ValueError("a round id must have 32 lower-case hexadecimal digits")


def _check_names(names: Iterable[str], *, minimum: int = 1) -> None:
    names = list(names)
    if not minimum <= len(names) <= MAX_PARTIES:
        raise ValueError(f"expected {minimum} to {MAX_PARTIES} parties, got {len(names)}")
    if names != sorted(set(names)):
        raise ValueError("the names of the parties must be distinct and ascending")
    if not all(0 < len(name) <= MAX_NAME_LENGTH and name.isprintable() for name in names):
        raise ValueError(f"a party's name must have 1 to {MAX_NAME_LENGTH} printable characters")


def _check_sizes(parts: Iterable[bytes], *sizes: int) -> None:
    for part in parts:
        if len(part) not in sizes:
            expected = " or ".join(map(str, sizes))
            raise ValueError(f"expected {expected} bytes, got {len(part)}")


def _check_sealed(sealed: Mapping[str, Sealed]) -> None:
    _check_names(sorted(sealed))
    _check_sizes((entry[0] for entry in sealed.values()), 0, SEALED_BYTES)
    _check_sizes((part for entry in sealed.values() for part in entry[1:3]), DIGEST_BYTES)
    _check_sizes((entry[3] for entry in sealed.values()), SIGNATURE_BYTES)


@message
class Advert:
    """A party's new public keys for one round, signed with its enrolled key."""

    round_id: str
    mask_key: bytes
    seal_key: bytes
    signature: bytes

    def __post_init__(self) -> None:
        _check_round(self.round_id)
        _check_sizes((self.mask_key, self.seal_key), KEY_BYTES)
        _check_sizes((self.signature,), SIGNATURE_BYTES)


@message
class OpenSum:
    """Start of a masked sum: parties, threshold, and name and digest of the request."""

    reply: ClassVar[type] = Advert
    round_id: str
    names: tuple[str, ...]
    threshold: int
    request_name: str
    request_digest: bytes

    def __post_init__(self) -> None:
        _check_round(self.round_id)
        _check_names(self.names, minimum=2)
        _check_sizes((self.request_digest,), DIGEST_BYTES)
        if not 0 < len(self.request_name) <= MAX_NAME_LENGTH:
            raise ValueError(f"the name of a request must have 1 to {MAX_NAME_LENGTH} characters")


@message
class SealedShares:
    """Shares of a party's seed and private mask key, encrypted and signed for each party."""

    round_id: str
    seed_commitment: bytes
    sealed: Mapping[str, tuple[bytes, bytes, bytes, bytes]]

    def __post_init__(self) -> None:
        _check_round(self.round_id)
        _check_sizes((self.seed_commitment,), DIGEST_BYTES)
        _check_sealed(self.sealed)


@message
class DealShares:
    """All advertised keys; asks a party for shares of its seed and private mask key."""

    reply: ClassVar[type] = SealedShares
    round_id: str
    adverts: Mapping[str, tuple[bytes, bytes, bytes]]

    def __post_init__(self) -> None:
        _check_round(self.round_id)
        _check_names(sorted(self.adverts), minimum=2)
        keys = [key for entry in self.adverts.values() for key in entry[:2]]
        _check_sizes(keys, KEY_BYTES)
        _check_sizes((entry[2] for entry in self.adverts.values()), SIGNATURE_BYTES)
        if len(set(keys)) < len(keys):
            raise ValueError("a key is advertised twice")


@message
class MaskedInput:
    """A party's masked numbers, with the dtypes and shapes of its reply's fields."""

    round_id: str
    layout: tuple[tuple[str, tuple[int, ...]], ...]
    cells: npt.NDArray[np.unsignedinteger[Any]]

    def __post_init__(self) -> None:
        _check_round(self.round_id)
        check_layout(self.layout)
        expected = np.dtype(f"<u{modulus_bits(self.layout) // 8}")
        if self.cells.dtype != expected or self.cells.shape != (n_cells(self.layout),):
            raise ValueError("the masked numbers do not match the layout")


@message
class MaskInput:
    """Shares encrypted for a party, and the request; asks for its masked numbers."""

    reply: ClassVar[type] = MaskedInput
    round_id: str
    members: tuple[str, ...]
    sealed: Mapping[str, tuple[bytes, bytes, bytes, bytes]]
    request: bytes

    def __post_init__(self) -> None:
        _check_round(self.round_id)
        _check_names(self.members, minimum=2)
        _check_sealed(self.sealed)


@message
class Confirmation:
    """A party's signature of the list of survivors."""

    round_id: str
    signature: bytes

    def __post_init__(self) -> None:
        _check_round(self.round_id)
        _check_sizes((self.signature,), SIGNATURE_BYTES)


@message
class Confirm:
    """List of survivors after drop-outs; asks a party to sign it."""

    reply: ClassVar[type] = Confirmation
    round_id: str
    survivors: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_round(self.round_id)
        _check_names(self.survivors)


@message
class Revealed:
    """Shares of the survivors' seeds and of the drop-outs' private mask keys."""

    round_id: str
    seed_shares: Mapping[str, bytes]
    key_shares: Mapping[str, bytes]

    def __post_init__(self) -> None:
        _check_round(self.round_id)
        _check_names(sorted(self.seed_shares))
        _check_names(sorted(self.key_shares), minimum=0)
        _check_sizes((*self.seed_shares.values(), *self.key_shares.values()), SECRET_BYTES)


@message
class Unmask:
    """Survivors of a sum; asks a party for the shares that unmask the sum.

    After drop-outs, it also has the survivors' confirmations.
    """

    reply: ClassVar[type] = Revealed
    round_id: str
    survivors: tuple[str, ...]
    confirmations: Mapping[str, bytes]

    def __post_init__(self) -> None:
        _check_round(self.round_id)
        _check_names(self.survivors)
        _check_names(sorted(self.confirmations), minimum=0)
        _check_sizes(self.confirmations.values(), SIGNATURE_BYTES)


def advert_digest(opening: OpenSum, name: str, mask_key: bytes, seal_key: bytes) -> bytes:
    """Return the digest that a party signs with its advert.

    It covers the party's keys and all fields of the opening message.
    """
    return digest("advert", *astuple(opening), name, mask_key, seal_key)


def keys_context(opening: OpenSum, adverts: Mapping[str, Advertised]) -> bytes:
    """Return the digest of a round's opening and all advertised keys."""
    keys = tuple((name, *adverts[name][:2]) for name in sorted(adverts))
    return digest("keys", *astuple(opening), keys)


def sum_context(keys_digest: bytes, members: tuple[str, ...]) -> bytes:
    """Return the digest that binds masks to the sum.

    It covers the opening, all keys and the members.
    """
    return digest("members", keys_digest, members)


def commit_share(keys_digest: bytes, dealer: str, holder: str, kind: str, share: bytes) -> bytes:
    """Return the commitment to the share that a party holds.

    It needs no blinding, because the share itself is random.
    """
    return digest("share", keys_digest, dealer, holder, kind, share)


def sealed_digest(keys_digest: bytes, dealer: str, holder: str, *parts: bytes) -> bytes:
    """Return the digest that a dealer signs for a holder of shares.

    Without ``parts`` it is the ``info`` argument of :func:`~fedneighbors.secure_sum._keys.seal`,
    which binds the encrypted shares to dealer and holder.
    """
    return digest("sealed", keys_digest, dealer, holder, *parts)


def survivors_digest(context: bytes, survivors: tuple[str, ...]) -> bytes:
    """Return the digest that a party signs to confirm the survivors."""
    return digest("survivors", context, survivors)


def is_summable(cls: type[Any]) -> bool:
    """Return whether every field of a class may hold integers.

    Examples
    --------
    >>> from fedneighbors.federation import message
    >>> @message
    ... class Counts:
    ...     n_rows: int
    >>> @message
    ... class NamedCounts:
    ...     n_rows: int
    ...     name: str
    >>> is_summable(Counts), is_summable(NamedCounts)
    (True, False)
    """
    hints = field_types(cls).values()
    return bool(hints) and all(map(_may_hold_integers, hints))


def _may_hold_integers(hint: Any) -> bool:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(map(_may_hold_integers, typing.get_args(hint)))
    if typing.get_origin(hint) is not np.ndarray:
        return hint is int
    scalar = typing.get_args(typing.get_args(hint)[1])[0]
    scalar = typing.get_origin(scalar) or scalar
    return scalar is Any or issubclass(scalar, np.integer) or issubclass(np.integer, scalar)


def integer_fields(reply: Message) -> list[npt.NDArray[np.integer[Any]]]:
    """Return the fields of a reply as integer arrays.

    An integer becomes a 0-dimensional int64 array.

    Raises
    ------
    ProtocolError
        If a field is neither an integer nor an array of integers.
    """
    arrays = []
    for name in type(reply).__dataclass_fields__:
        part = getattr(reply, name)
        if not is_integral(part):
            raise ProtocolError(
                f"{type(reply).__name__}.{name} is not of integers, cannot be summed"
            )
        arrays.append(part if isinstance(part, np.ndarray) else np.array(part, np.int64))
    return arrays


def build_summed_reply(cls: type[Any], arrays: Sequence[npt.NDArray[np.integer[Any]]]) -> Message:
    """Build a reply from summed arrays, in the order of its fields.

    Raises
    ------
    ProtocolError
        If the number of arrays is not the number of fields, or the class rejects the arrays.
    """
    hints = field_types(cls)
    if len(hints) != len(arrays):
        raise ProtocolError(f"{cls.__name__} has {len(hints)} fields, not {len(arrays)}")
    fields = {
        name: int(array) if hint is int and array.ndim == 0 else array
        for (name, hint), array in zip(hints.items(), arrays, strict=True)
    }
    return build_reply(cls, fields)
