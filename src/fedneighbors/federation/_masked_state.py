"""What a party remembers of the masked sums that it takes part in, and its refusals.

Each step of a round is taken once. The first content that is kept for a step stands, also against
another process that takes the same step at the same time, so that a repeated request is answered
with the same bytes and an altered one can be refused. What is erased stays known as taken.
"""

import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fedneighbors.errors import AggregationError
from fedneighbors.federation._messages import decode, encode, message
from fedneighbors.federation._roles import MASKED_SUM, Refuse


class MaskStore(Protocol):
    """Memory of a party for masked sums. An empty content means that it was erased."""

    def get(self, round_id: str, step: str) -> bytes | None:
        """Return what is kept of a step, None if it was not taken."""
        ...

    def keep(self, round_id: str, step: str, content: bytes) -> bytes:
        """Keep the content of a step unless one is kept; return what then is kept."""
        ...

    def erase(self, round_id: str, steps: tuple[str, ...]) -> None:
        """Forget the contents of steps, not that they were taken."""
        ...


class MemoryStore:
    """Memory of a party whose process lives until the end of the run."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, bytes]] = {}

    def get(self, round_id: str, step: str) -> bytes | None:
        """Return what is kept of a step, None if it was not taken."""
        return self._kept.get(round_id, {}).get(step)

    def keep(self, round_id: str, step: str, content: bytes) -> bytes:
        """Keep the content of a step unless one is kept; return what then is kept."""
        if round_id not in self._kept:
            for old in list(self._kept)[: -MOST_OPEN + 1]:
                self.erase(old, tuple(self._kept[old]))
        return self._kept.setdefault(round_id, {}).setdefault(step, content)

    def erase(self, round_id: str, steps: tuple[str, ...]) -> None:
        """Forget the contents of steps, not that they were taken."""
        taken = self._kept.get(round_id, {})
        taken.update({step: b"" for step in steps if step in taken})


class FolderStore:
    """Memory of a party that is built anew for each message: one file per round and step.

    Files are readable by their owner alone and appear whole or not at all.

    Parameters
    ----------
    folder : path
        Made if it is not there. One party's alone.

    Raises
    ------
    OSError
        If the folder cannot be made or written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def get(self, round_id: str, step: str) -> bytes | None:
        """Return what is kept of a step, None if it was not taken."""
        try:
            return self._path(round_id, step).read_bytes()
        except FileNotFoundError:
            return None

    def keep(self, round_id: str, step: str, content: bytes) -> bytes:
        """Keep the content of a step unless one is kept; return what then is kept."""
        target = self._path(round_id, step)
        part = self._written(target, content)
        try:
            os.link(part, target)  # unlike a rename, this never replaces what is there
        except FileExistsError:
            return target.read_bytes()
        finally:
            part.unlink()
        self._settle()
        self._erase_oldest(round_id)
        return content

    def erase(self, round_id: str, steps: tuple[str, ...]) -> None:
        """Forget the contents of steps, not that they were taken."""
        for step in steps:
            target = self._path(round_id, step)
            if target.exists() and target.stat().st_size:
                os.replace(self._written(target, b""), target)
        self._settle()

    def _path(self, round_id: str, step: str) -> Path:
        return self._folder / f"{round_id}.{step}"

    def _written(self, target: Path, content: bytes) -> Path:
        part = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return part

    def _settle(self) -> None:
        """Make names durable, so that no crash brings back a step that was not taken."""
        if os.name != "posix":
            return
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _erase_oldest(self, current: str) -> None:
        open_rounds: dict[str, float] = {}
        for path in self._folder.glob("[0-9a-f]*.*"):
            found = path.stat()
            round_id = path.name.split(".")[0]
            if found.st_size:
                open_rounds[round_id] = max(found.st_mtime, open_rounds.get(round_id, 0.0))
        oldest = sorted(set(open_rounds) - {current}, key=lambda old: open_rounds[old])
        for old in oldest[: len(oldest) - MOST_OPEN + 1] if len(oldest) >= MOST_OPEN else ():
            steps = [path.name.split(".")[1] for path in self._folder.glob(f"{old}.*")]
            self.erase(old, tuple(steps))


MOST_OPEN = 16
"""Rounds whose secrets are kept; beginning one more erases those of the oldest."""


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
