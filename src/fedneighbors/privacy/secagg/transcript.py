"""Digests that bind a signature, a seal or a mask to everything that was agreed before it."""

import hashlib

__all__ = ["Part", "digest"]

Part = bytes | str | int | tuple["Part", ...]
"""What can be bound: bytes, text, integers of 64 bits, and tuples of these."""


def digest(purpose: str, *parts: Part) -> bytes:
    """Return 32 bytes that stand for a purpose and its parts, each with its kind and length.

    Parameters
    ----------
    purpose : str
        What the digest is for; digests of two purposes never agree.
    *parts : bytes, str, int or tuple
        What it binds. No two different lists of parts have the same encoding.

    Examples
    --------
    >>> digest("a", "bc") == digest("a", "b", "c")
    False
    """
    state = hashlib.sha256(b"fedneighbors secure sum 1")
    state.update(_encoded((purpose, *parts)))
    return state.digest()


def _encoded(part: Part) -> bytes:
    if isinstance(part, tuple):
        return b"t" + len(part).to_bytes(8, "little") + b"".join(map(_encoded, part))
    if isinstance(part, int):
        return b"i" + part.to_bytes(8, "little", signed=True)
    raw = part.encode("utf-8") if isinstance(part, str) else part
    kind = b"s" if isinstance(part, str) else b"b"
    return kind + len(raw).to_bytes(8, "little") + raw
