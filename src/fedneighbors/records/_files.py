"""Writes a file whole or not at all."""

import os
import secrets
from pathlib import Path


def replace_file(path: Path | str, content: bytes) -> None:
    """Put ``content`` at ``path``; a reader sees the old file or the new one, never a part.

    Parameters
    ----------
    path : path
        Where the file goes; its folder must exist.
    content : bytes
        The whole file.

    Raises
    ------
    OSError
        If the folder is missing or cannot be written; the old file is then as it was.
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
    try:
        with part.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
