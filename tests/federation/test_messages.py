import dataclasses
import re
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings

from fedneighbors.errors import WireError
from fedneighbors.federation._messages import decode, encode, measure, message
from tests.federation.parties import CountRequest, Everything, Integers, Nested, ValidatedMessage
from tests.federation.samples import SAMPLE, everything
from tests.seeds import cases


def are_equal(a: Any, b: Any) -> bool:
    """Return whether two values have the same type and content, arrays bit for bit."""
    if isinstance(a, np.ndarray):
        same_layout = b.dtype == a.dtype.newbyteorder("=") and b.shape == a.shape
        return same_layout and a.tobytes() == b.astype(a.dtype).tobytes()
    return type(a) is type(b) and a == b


@given(everything)
@settings(max_examples=cases(300), deadline=None)
def test_every_field_round_trips(sent):
    frame = encode(sent)

    received = decode(frame, (Everything,))

    assert encode(received) == frame
    assert received == sent
    assert hash(received) == hash(sent)
    for field in dataclasses.fields(Everything):
        assert are_equal(getattr(sent, field.name), getattr(received, field.name))


@given(everything)
@settings(max_examples=cases(300), deadline=None)
def test_a_measured_size_is_that_of_the_frame(sent):
    assert measure(sent) == len(encode(sent))


@pytest.mark.parametrize(
    "item",
    [
        CountRequest(-(2**63)),
        Integers(np.arange(6)),
        Integers(np.arange(6).reshape(2, 3).T),
        Integers(np.arange(6).astype(">i8")),
        Integers(np.empty((0, 3), np.int64)),
        Integers(np.array(3)),
    ],
)
def test_a_measured_message_of_numbers_has_the_size_of_its_frame(item):
    assert measure(item) == len(encode(item))


@pytest.mark.parametrize("item", [CountRequest(2**63), Integers(np.ones(2)), CountRequest(1.0)])
def test_an_invalid_message_is_not_measured(item):
    with pytest.raises((TypeError, ValueError)) as expected:
        encode(item)

    with pytest.raises(type(expected.value), match=re.escape(str(expected.value))):
        measure(item)


def test_received_arrays_are_aligned_and_cannot_be_written():
    buffer = encode(Integers(np.arange(5)))

    items = decode(buffer, (Integers,)).items

    assert items.flags.aligned
    assert items.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        items[0] = 1


def test_nan_and_infinity_in_arrays_round_trip_bitwise():
    special = np.array([0x7FF8000000000001, 0xFFF0000000000000, 1 << 63], np.uint64).view(
        np.float64
    )

    received = decode(encode(dataclasses.replace(SAMPLE, items=special)), (Everything,))

    assert received.items.tobytes() == special.tobytes()


def test_numpy_scalars_are_encoded_as_python_scalars():
    plain = ValidatedMessage(1, (2, 3))

    numpy = ValidatedMessage(np.int8(1), (np.uint64(2), np.int64(3)))

    assert encode(numpy) == encode(plain)


def test_frame_ignores_byte_order_and_memory_layout():
    table = np.arange(6, dtype="<i8").reshape(2, 3)

    frames = {encode(Integers(array)) for array in (table, table.astype(">i8"), table.copy("F"))}

    assert len(frames) == 1


def test_frame_ignores_insertion_order():
    first = dataclasses.replace(SAMPLE, table={"b": (), "a": (1,), "": (), "ä": ()})
    second = dataclasses.replace(SAMPLE, table={"ä": (), "": (), "a": (1,), "b": ()})

    frames = {encode(first), encode(second)}

    assert len(frames) == 1


def test_empty_arrays_keep_their_shape():
    sent = Integers(np.zeros((0, 2**28), np.int64))

    received = decode(encode(sent), (Integers,))

    assert received.items.shape == (0, 2**28)


def test_empty_array_over_the_limit_is_not_sent():
    item = Integers(np.zeros((0, 2**30), np.int64))

    with pytest.raises(ValueError, match="over the limit"):
        encode(item)


def test_lone_surrogate_is_not_sent():
    item = dataclasses.replace(SAMPLE, text="\ud800")

    with pytest.raises(ValueError, match="surrogates"):
        encode(item)


def test_deep_nesting_is_not_sent():
    content: Any = ()
    for _ in range(8):
        content = (content,)

    with pytest.raises(ValueError, match="nested deeper"):
        encode(Nested(content))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("nothing", 0),
        ("yes", 1),
        ("number", True),
        ("number", 1.0),
        ("text", b"raw"),
        ("raw", "text"),
        ("raw", bytearray(b"raw")),
        ("items", (1, 2)),
        ("items", [1, 2]),
        ("items", np.array(["a"])),
        ("items", np.array([None])),
        ("items", np.array([1j])),
        ("items", np.array([1.0], np.float16)),
        ("items", np.zeros((1, 1, 1, 1, 1))),
        ("items", np.ma.masked_array([1, 2], [True, False])),
        ("items", np.array([1], "m8[s]")),
        ("pair", (1, 2)),
        ("pair", (1,)),
        ("pair", (1, "a", 2)),
        ("many", (1.0, "a")),
        ("many", [1.0]),
        ("table", {1: (1,)}),
        ("table", {"a": 1}),
        ("word", "subtract"),
        ("number", np.timedelta64(1, "s")),
        ("real", 1),
        ("real", np.longdouble(1)),
        ("real", 1j),
        ("text", object()),
        ("text", {"a"}),
    ],
)
def test_value_of_undeclared_type_is_not_sent(field, value):
    item = dataclasses.replace(SAMPLE, **{field: value})

    with pytest.raises(TypeError, match=f"Everything.{field}"):
        encode(item)


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**30])
def test_integer_beyond_64_bits_is_not_sent(number):
    item = dataclasses.replace(SAMPLE, number=number)

    with pytest.raises(ValueError, match=r"Everything\.number does not fit into 64 bits") as caught:
        encode(item)

    assert str(number) not in str(caught.value)


@pytest.mark.parametrize(
    "hint",
    [
        *(Any, list[int], np.ndarray, object, set[int], complex, Mapping[int, str]),
        *(bytes | Integers, tuple[Integers | bytes | None, ...], Mapping[str, bytes | Integers]),
        tuple[tuple[bytes, ...], Integers],
    ],
)
def test_unsupported_field_type_is_refused_at_first_use(hint):
    cls = message(
        type("Unsupported", (), {"__annotations__": {"field": hint}, "__module__": __name__})
    )

    with pytest.raises(TypeError, match=r"Unsupported\.field is declared as"):
        encode(cls(1))


def test_expected_classes_must_have_distinct_names():
    namesake = message(type("Integers", (), {"__annotations__": {"n": int}}))

    with pytest.raises(ValueError, match="distinct names"):
        decode(encode(SAMPLE), (Integers, namesake))


def test_messages_of_different_type_or_value_are_unequal():
    other_class: Any = message(
        type("OtherClass", (), {"__annotations__": {"items": npt.NDArray[np.int64]}, "reply": None})
    )

    assert Integers(np.arange(2)) != other_class(np.arange(2))
    assert Integers(np.arange(2)) != Integers(np.arange(3))
    assert Integers(np.arange(2)) == Integers(np.arange(2))


@dataclasses.dataclass(frozen=True)
class Size:
    width: float

    def __post_init__(self):
        if self.width < 0:
            raise ValueError("a width is below 0")


@message
class Boxes:
    first: Size | Integers
    others: tuple[Size | None, ...]
    named: Mapping[str, Size]


BOXES = Boxes(Size(2.5), (Size(1.0), None), {"a": Size(0.0)})


def test_dataclasses_in_a_message_round_trip():
    frame = encode(BOXES)

    received = decode(frame, (Boxes,))

    assert (received.first, received.others) == (BOXES.first, BOXES.others)
    assert received.named == BOXES.named
    assert encode(received) == frame


@pytest.mark.parametrize(
    "change",
    [
        {"first": SAMPLE},
        {"first": encode(Size(1.0))},
        {"others": (Integers(np.arange(2)),)},
        {"named": {"a": None}},
    ],
)
def test_undeclared_dataclass_is_not_sent(change):
    with pytest.raises(TypeError, match="is declared as"):
        encode(dataclasses.replace(BOXES, **change))


def test_dataclass_in_a_frame_is_validated():
    frame = encode(BOXES)
    number = encode(Size(2.5)).removeprefix(encode(Size(0.0))[:-8])

    with pytest.raises(WireError, match="a width is below 0"):
        decode(frame.replace(number, struct.pack("<d", -2.5)), (Boxes,))
    with pytest.raises(WireError, match="unexpected message 'Sise'"):
        decode(frame.replace(b"Size", b"Sise", 1), (Boxes,))


def test_integer_in_a_float_field_of_a_model_is_a_float():
    assert encode(Size(1)) == encode(Size(1.0))
