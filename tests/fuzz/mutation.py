"""Mutations of the bytes of files and frames."""

import hashlib
import struct

NUMBERS = (
    0,
    1,
    2,
    7,
    255,
    2**16,
    2**20,
    2**24,
    2**31 - 1,
    2**32 - 1,
    2**40,
    2**63 - 1,
    -1,
    -(2**63),
)
WORDS = (
    b"",
    b"-1",
    b"1e999",
    b"1e999999999",
    b"nan",
    b"inf",
    b"9" * 5000,
    b"\x00",
    b"\xff\xfe",
    b'"',
    b"'",
    b",",
    b"\r",
    b"\n\n",
    b"{" * 3000,
    b"[" * 3000,
    b"0x1",
    b"1_0",
    b"true",
    b"null",
    "\N{COMBINING ACUTE ACCENT}".encode(),
)


def mutate(raw, rng, others):
    """Return bytes with one to four random changes."""
    raw = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 4))):
        rng.choice(_CHANGES)(raw, rng, others)
    return bytes(raw)


def reseal(raw, n_magic):
    """Return a model file with the correct checksum of its frame."""
    start = n_magic + 32
    return raw[:n_magic] + hashlib.sha256(raw[start:]).digest() + raw[start:]


def _flip_bit(raw, rng, _):
    if raw:
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)


def _set_byte(raw, rng, _):
    if raw:
        raw[rng.randrange(len(raw))] = rng.randrange(256)


def _set_number(raw, rng, _):
    """Overwrite a number of a frame, or any eight bytes."""
    tags = [i for i, byte in enumerate(raw[:4000]) if byte in b"iaf"]
    place = rng.choice(tags) + 1 if tags and rng.random() < 0.7 else rng.randrange(len(raw) + 1)
    raw[place : place + 8] = struct.pack("<Q", rng.choice(NUMBERS) % 2**64)


def _set_length(raw, rng, _):
    place = rng.randrange(len(raw) + 1)
    raw[place : place + 4] = struct.pack("<I", rng.choice(NUMBERS) % 2**32)


def _cut(raw, rng, _):
    first = rng.randrange(len(raw) + 1)
    del raw[first : first + rng.choice((1, 8, 100, 10**6))]


def _repeat(raw, rng, _):
    first = rng.randrange(len(raw) + 1)
    part = raw[first : first + rng.choice((1, 8, 100))]
    raw[first:first] = part * rng.choice((1, 2, 50))


def _insert_word(raw, rng, _):
    place = rng.randrange(len(raw) + 1)
    raw[place : place + rng.choice((0, 1, 4))] = rng.choice(WORDS)


def _splice(raw, rng, others):
    other = rng.choice(others)
    first = rng.randrange(len(other) + 1)
    place = rng.randrange(len(raw) + 1)
    raw[place : place + rng.choice((0, 8, 100))] = other[first : first + rng.choice((8, 100))]


_CHANGES = (
    _flip_bit,
    _set_byte,
    _set_number,
    _set_number,
    _set_length,
    _cut,
    _repeat,
    _insert_word,
    _splice,
)
