import dataclasses
import math
import struct
import tracemalloc
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedneighbors.errors import WireError
from fedneighbors.federation import _messages as wire
from fedneighbors.federation._messages import decode, encode
from tests.federation.parties import Everything, Integers, Nested, ValidatedMessage
from tests.federation.samples import SAMPLE, everything
from tests.seeds import cases


def make_frame(name: str, *fields: bytes) -> bytes:
    head = b"FNM\x01" + struct.pack("<I", len(name)) + name.encode()
    return head + bytes([len(fields)]) + b"".join(fields)


def array_bytes(code: int, shape: tuple[int, ...], raw: bytes = b"") -> bytes:
    return b"a" + bytes([code, len(shape)]) + struct.pack(f"<{len(shape)}Q", *shape) + raw


@given(st.binary(max_size=200))
@settings(max_examples=cases(2000), deadline=None)
def test_random_bytes_raise_only_wire_error(content):
    for frame in (content, b"FNM\x01" + content, make_frame("Everything")[:-1] + content):
        assert_refused_or_canonical(frame)


@given(st.lists(st.binary(max_size=12), max_size=11))
@settings(max_examples=cases(2000), deadline=None)
def test_random_fields_raise_only_wire_error(fields):
    assert_refused_or_canonical(make_frame("Everything", *fields))


@given(everything, st.data())
@settings(max_examples=cases(300), deadline=None)
def test_altered_frame_is_refused_or_canonical(item, data):
    frame = bytearray(encode(item))

    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(frame) - 1))
        frame[position] = data.draw(st.integers(0, 255))

    assert_refused_or_canonical(bytes(frame))


def assert_refused_or_canonical(frame: bytes) -> None:
    """Assert that a frame is refused or re-encodes to itself."""
    for expected in (Everything, Integers, Nested, ValidatedMessage):
        try:
            received = decode(frame, (expected,))
        except WireError:
            continue
        assert encode(received) == frame


def test_every_single_bit_flip_is_refused_or_canonical():
    frame = encode(SAMPLE)

    altered_frames = [
        frame[:i] + bytes([frame[i] ^ (1 << bit)]) + frame[i + 1 :]
        for i in range(len(frame))
        for bit in range(8)
    ]

    for altered in altered_frames:
        assert_refused_or_canonical(altered)


def test_truncated_frame_is_refused():
    frame = encode(SAMPLE)

    for length in range(len(frame)):
        with pytest.raises(WireError):
            decode(frame[:length], (Everything,))


@given(st.binary(min_size=1, max_size=4))
def test_trailing_bytes_are_refused(extra):
    frame = encode(SAMPLE) + extra

    with pytest.raises(WireError, match="unexpected bytes after the last field"):
        decode(frame, (Everything,))


@pytest.mark.parametrize("length", [2**31 - 1, 2**31, 2**32 - 1])
def test_length_fields_cannot_cause_large_allocations(length):
    frame = encode(SAMPLE)
    tracemalloc.start()

    try:
        for position in range(4, len(frame) - 4):
            altered = frame[:position] + struct.pack("<I", length) + frame[position + 4 :]
            assert_refused_or_canonical(altered)
        for position in range(4, len(frame) - 8):
            altered = frame[:position] + struct.pack("<Q", length << 31) + frame[position + 8 :]
            assert_refused_or_canonical(altered)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 1 << 20


@pytest.mark.parametrize(
    "shape",
    [
        (0, 2**63),
        (2**63, 0),
        (0, 2**64 - 1, 2**64 - 1),
        (2**32, 2**32),
        (2**64 - 1,),
        (2**16, 2**16, 2**16, 2**16),
        (0, 2**32, 2),
    ],
)
def test_impossible_shapes_are_refused(shape):
    frame = make_frame("Integers", array_bytes(7, shape))

    with pytest.raises(WireError):
        decode(frame, (Integers,))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ([b"a\x0b\x00"], "unknown dtype 11"),
        ([b"a\xff\x00"], "unknown dtype 255"),
        ([b"a\x07\x05" + bytes(40)], "5 dimensions"),
        ([array_bytes(6, (1,), bytes(4))], "declared type"),
        ([array_bytes(10, (2,), b"\x01\x02")], "neither 0 nor 1"),
        ([b"z"], "unknown tag"),
        ([b"N"], "declared type"),
        ([b"i" + bytes(8)], "declared type"),
        ([b"t" + struct.pack("<I", 0)], "declared type"),
        ([], "wrong number of fields"),
        ([b"N", b"N"], "wrong number of fields"),
    ],
)
def test_malformed_field_is_refused_with_its_reason(fields, reason):
    frame = make_frame("Integers", *fields)

    with pytest.raises(WireError, match=reason):
        decode(frame, (Integers,))


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_non_finite_float_is_refused_both_ways(number):
    frame = encode(SAMPLE)
    position = frame.index(b"f" + struct.pack("<d", 0.5)) + 1

    with pytest.raises(ValueError, match=r"Everything\.real is not finite"):
        encode(dataclasses.replace(SAMPLE, real=number))
    with pytest.raises(WireError, match="not finite"):
        decode(frame[:position] + struct.pack("<d", number) + frame[position + 8 :], (Everything,))


@pytest.mark.parametrize("keys", [("a", "a"), ("b", "a"), ("a", "a", "b")])
def test_mapping_with_repeated_or_unsorted_keys_is_refused(keys):
    entries = b"".join(struct.pack("<I", 1) + key.encode() + b"d" + bytes(4) for key in keys)
    frame = make_frame("Nested", b"d" + struct.pack("<I", len(keys)) + entries)

    with pytest.raises(WireError, match="ascending"):
        decode(frame, (Nested,))


def test_string_that_is_not_utf8_is_refused():
    surrogate, overlong = b"\xed\xa0\x80", b"\xc0\x80"

    for raw in (surrogate, overlong, b"\xff"):
        frame = make_frame("Nested", b"d" + struct.pack("<II", 1, len(raw)) + raw + b"N")
        with pytest.raises(WireError, match="UTF-8"):
            decode(frame, (Nested,))


@pytest.mark.parametrize("tag", [b"t", b"d"])
@pytest.mark.parametrize("depth", [7, 8, 100, 100_000])
def test_deep_nesting_is_refused_without_stack_overflow(tag, depth):
    layer = tag + struct.pack("<I", 1) + (b"" if tag == b"t" else struct.pack("<I", 0))
    frame = make_frame("Nested", layer * depth + b"N")

    with pytest.raises(WireError, match="nested deeper"):
        decode(frame, (Nested,))


def test_frame_with_too_many_values_is_refused_both_ways(monkeypatch):
    monkeypatch.setattr(wire, "MAX_VALUES", 100)
    nested = b"t" + struct.pack("<I", 40) + b"i\x01\0\0\0\0\0\0\0" * 40
    frame = make_frame("Nested", b"t" + struct.pack("<I", 3) + nested * 3)

    with pytest.raises(WireError, match="more than 100 values"):
        decode(frame, (Nested,))
    with pytest.raises(ValueError, match="100 values at most"):
        encode(Nested(((1,) * 40,) * 3))


def test_a_receiver_may_accept_fewer_values():
    frame = encode(Nested(((1,) * 40,) * 3))

    assert decode(frame, (Nested,), max_values=124) == Nested(((1,) * 40,) * 3)
    with pytest.raises(WireError, match="more than 123 values"):
        decode(frame, (Nested,), max_values=123)


def test_a_collection_in_place_of_an_array_is_refused_before_it_takes_memory():
    frame = make_frame("Integers", b"t" + struct.pack("<I", 1_000_000) + b"f" + bytes(8_999_999))

    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="not of the declared type"):
            decode(frame, (Integers,))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_frame_over_the_limit_is_refused_both_ways(monkeypatch):
    frame = encode(Integers(np.arange(100)))
    monkeypatch.setattr(wire, "MAX_FRAME_BYTES", 500)

    with pytest.raises(WireError, match="over the limit"):
        decode(frame, (Integers,))
    with pytest.raises(ValueError, match="over the limit"):
        encode(Integers(np.arange(60)))
    with pytest.raises(ValueError, match="does not fit"):
        encode(dataclasses.replace(SAMPLE, raw=bytes(501)))


def test_memory_error_is_a_wire_error(monkeypatch):
    frame = encode(Integers(np.arange(10)))

    def raise_memory_error(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(wire.np, "frombuffer", raise_memory_error)
    with pytest.raises(WireError, match="no memory for a frame"):
        decode(frame, (Integers,))


@given(st.integers(-3, 3), st.lists(st.integers(0, 9), max_size=3).map(tuple))
@example(0, ())
@example(3, ())
def test_values_rejected_by_the_message_are_a_wire_error(n, parts):
    fields = [b"i" + struct.pack("<q", n), b"t" + struct.pack("<I", len(parts))]
    fields[1] += b"".join(b"i" + struct.pack("<q", part) for part in parts)

    valid = n != 0 and -len(parts) <= n < len(parts)

    with nullcontext() if valid else pytest.raises(WireError, match="ValidatedMessage"):
        assert decode(
            make_frame("ValidatedMessage", *fields), (ValidatedMessage,)
        ) == ValidatedMessage(n, parts)


def test_unexpected_message_is_refused():
    frame = encode(SAMPLE)

    with pytest.raises(WireError, match=r"unexpected message 'Everything'.*'Integers', 'Nested'"):
        decode(frame, (Nested, Integers))


def test_frame_of_another_version_is_refused():
    frame = encode(SAMPLE).replace(b"FNM\x01", b"FNM\x02")

    with pytest.raises(WireError, match="not a frame of version 1"):
        decode(frame, (Everything,))
