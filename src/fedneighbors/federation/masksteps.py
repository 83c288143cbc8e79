"""The steps of masked sums as one party remembers them, and the words with which it refuses."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from fedneighbors.errors import AggregationError
from fedneighbors.federation.maskstore import MaskStore
from fedneighbors.federation.messages import decode, encode, message
from fedneighbors.federation.roles import MASKED_SUM, Refuse

__all__ = ["Dealt", "Held", "Opened", "Steps", "refuse", "refusing"]

T = TypeVar("T")
DIGEST_BYTES = 32


@message
class Opened:
    """What is kept of :class:`OpenSum`."""

    request: bytes
    mask_private: bytes
    seal_private: bytes
    seed: bytes
    reply: bytes

    def __repr__(self) -> str:
        return "Opened(secrets)"


@message
class Dealt:
    """What is kept of :class:`DealShares`."""

    context: bytes
    mask_keys: dict[str, bytes]
    seed_share: bytes
    key_share: bytes
    reply: bytes

    def __repr__(self) -> str:
        return "Dealt(secrets)"


@message
class Held:
    """What is kept of :class:`MaskInput`: the shares of others, and the own ones."""

    context: bytes
    members: tuple[str, ...]
    seed_shares: dict[str, bytes]
    key_shares: dict[str, bytes]

    def __repr__(self) -> str:
        return "Held(secrets)"


class Steps:
    """A party's steps in all rounds, each taken once.

    Parameters
    ----------
    store : MaskStore
        Where they are kept.
    """

    def __init__(self, store: MaskStore) -> None:
        self._store = store

    def once(self, request: Any, step: str, make: Callable[[], bytes]) -> bytes:
        """Return what a step keeps, taking it if it was not taken.

        Raises
        ------
        Refuse
            If the step was taken with another request, or is over.
        """
        asked = hashlib.sha256(encode(request)).digest()
        kept = self._store.get(request.round_id, step)
        if kept is None:
            kept = self._store.keep(request.round_id, step, asked + make())
        if not kept:
            raise refuse("the round is over")
        if kept[:DIGEST_BYTES] != asked:
            raise refuse("this step of the round was taken with another request")
        return kept[DIGEST_BYTES:]

    def taken(self, round_id: str, step: str, kind: type[T]) -> T:
        """Return what a step keeps that was taken before.

        Raises
        ------
        Refuse
            If it was not, or is over.
        """
        kept = self._store.get(round_id, step)
        if not kept:
            raise refuse("an unknown round" if kept is None else "the round is over")
        content: T = decode(kept[DIGEST_BYTES:], (kind,))
        return content

    def settle(self, round_id: str, listed: bytes) -> None:
        """Settle on the digest of a list, once.

        Raises
        ------
        Refuse
            If another one was settled before.
        """
        if self._store.keep(round_id, "settle", listed) != listed:
            raise refuse("another list of those who are left was settled before")

    def end(self, round_id: str) -> None:
        """Forget the secrets of a round, not that it was."""
        self._store.erase(round_id, ("open", "deal", "hold", "mask"))


def refuse(reason: str, detail: str = "") -> Refuse:
    """Return the refusal of a step."""
    return Refuse(MASKED_SUM + reason, detail)


@contextmanager
def refusing(party: str = "") -> Iterator[None]:
    """Turn an error of the cryptography into a refusal that names a party, if there is one."""
    try:
        yield
    except AggregationError as error:
        who = error.party or party
        reason = f"party {who!r}: {error.reason}" if who else error.reason
        raise refuse("not possible", reason) from None
