"""Storage of a party's state between exchanges: in memory, or in a folder."""

import os
from pathlib import Path
from typing import Protocol

from fedneighbors.privacy.ledger._file import sync
from fedneighbors.records._storage import sweep_parts, write_part

MAX_OPEN_ROUNDS = 16
"""Maximum number of rounds with stored contents; another one erases the oldest.

A sum thus fails only if 16 others are opened during it, and aborted sums leave few secrets.
"""


POLICY = "policy"
"""Key, in place of a round id, of contents that are never erased."""


class MaskStore(Protocol):
    """Storage of one content per step of a round.

    With it, a party answers a repeated request with the same bytes. Empty content means erased.
    """

    def get(self, round_id: str, step: str) -> bytes | None:
        """Return the content of a step, or None if not taken."""
        ...

    def keep(self, round_id: str, step: str, content: bytes) -> bytes:
        """Store a step's content unless it has one; return the stored content."""
        ...

    def erase(self, round_id: str, steps: tuple[str, ...]) -> None:
        """Erase the contents of steps, which still count as taken."""
        ...


class MemoryStore:
    """Store in memory, for a party whose process lives until the end of the run."""

    def __init__(self) -> None:
        self._contents: dict[str, dict[str, bytes]] = {}

    def get(self, round_id: str, step: str) -> bytes | None:
        """Return the content of a step, or None if not taken."""
        return self._contents.get(round_id, {}).get(step)

    def keep(self, round_id: str, step: str, content: bytes) -> bytes:
        """Store a step's content unless it has one; return the stored content."""
        if round_id not in self._contents:
            rounds = [key for key in self._contents if key != POLICY]
            for old_round in rounds[-MAX_OPEN_ROUNDS : -MAX_OPEN_ROUNDS + 1]:  # earlier: erased
                self.erase(old_round, tuple(self._contents[old_round]))
        return self._contents.setdefault(round_id, {}).setdefault(step, content)

    def erase(self, round_id: str, steps: tuple[str, ...]) -> None:
        """Erase the contents of steps, which still count as taken."""
        contents = self._contents.get(round_id, {})
        contents.update({step: b"" for step in steps if step in contents})


class FolderStore:
    """Store in a folder, for a party that is rebuilt for each message.

    Each step of a round is a file, written atomically and readable only by its owner.

    Parameters
    ----------
    folder : path
        Created if missing. Not shared with other parties.

    Raises
    ------
    OSError
        If the folder cannot be created or written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sweep_parts(folder)

    def get(self, round_id: str, step: str) -> bytes | None:
        """Return the content of a step, or None if not taken."""
        try:
            return self._path(round_id, step).read_bytes()
        except FileNotFoundError:
            return None

    def keep(self, round_id: str, step: str, content: bytes) -> bytes:
        """Store a step's content unless it has one; return the stored content."""
        target = self._path(round_id, step)
        with write_part(target, content, mode=0o600) as part:
            try:
                os.link(part, target)  # unlike a rename, never replaces an existing file
            except FileExistsError:
                return target.read_bytes()
        self._sync_folder()
        self._erase_oldest(round_id)
        return content

    def erase(self, round_id: str, steps: tuple[str, ...]) -> None:
        """Erase the contents of steps, which still count as taken."""
        for step in steps:
            target = self._path(round_id, step)
            if target.exists() and target.stat().st_size:
                with write_part(target, b"", mode=0o600) as part:
                    os.replace(part, target)
        self._sync_folder()

    def _path(self, round_id: str, step: str) -> Path:
        return self._folder / f"{round_id}.{step}"

    def _sync_folder(self) -> None:
        """Sync the folder, so that a crash cannot undo a step."""
        if os.name == "posix":  # other systems cannot sync a folder
            sync(self._folder)

    def _erase_oldest(self, current: str) -> None:
        open_rounds: dict[str, float] = {}
        # round ids, neither POLICY nor temporary files, whose names begin with a dot
        for path in self._folder.glob("[0-9a-f]*.*"):
            status = path.stat()
            round_id = path.name.split(".")[0]
            if status.st_size:
                open_rounds[round_id] = max(status.st_mtime, open_rounds.get(round_id, 0.0))
        others = sorted(set(open_rounds) - {current}, key=lambda other: open_rounds[other])
        n_excess = max(0, len(others) + 1 - MAX_OPEN_ROUNDS)
        for old_round in others[:n_excess]:
            steps = [path.name.split(".")[1] for path in self._folder.glob(f"{old_round}.*")]
            self.erase(old_round, tuple(steps))
