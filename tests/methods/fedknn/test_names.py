"""Names of objects in one field of bytes."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedneighbors.errors import WireError
from fedneighbors.federation._messages import decode, encode
from fedneighbors.methods.fedknn._names import Names

text = st.text(st.characters(codec="utf-8"), max_size=6)
names = st.lists(text, max_size=8)


def unpack_naively(content, ends):
    """Return the names in bytes; None if the positions or the bytes are invalid."""
    starts = [0, *ends]
    if starts[-1] != len(content) or starts != sorted(starts):
        return None
    try:
        return [content[a:b].decode() for a, b in zip(starts, ends, strict=False)]
    except UnicodeDecodeError:
        return None


@given(names)
def test_names_survive_a_frame(items):
    frame = encode(Names.pack(items))
    received = decode(frame, (Names,))
    assert [*received] == items
    assert encode(received) == frame


@given(names, names)
def test_joined_names_have_the_encoding_of_all(first, second):
    assert encode(Names.pack(first) + Names.pack(second)) == encode(Names.pack(first + second))


@given(names, st.integers(0, 9))
def test_the_first_names_are_those_of_the_list(items, n):
    assert Names.pack(items).first(n) == items[:n]


@given(names)
def test_equal_names_are_found(items):
    assert Names.pack(items).are_unique() == (len(set(items)) == len(items))


pieces = st.binary(max_size=6) | text.map(str.encode)


@given(pieces, st.lists(st.integers(0, 8), max_size=5))
@example("é".encode(), [1, 2])
@example(b"ab", [2, 1, 2])
@example(b"ab", [1])
@example(b"", [0, 0])
@example(b"a", [2**32 - 1])
@settings(max_examples=1000)
def test_hostile_positions_are_refused_and_others_are_not(content, ends):
    valid = object.__new__(Names)
    object.__setattr__(valid, "content", content)
    object.__setattr__(valid, "ends", np.array(ends, np.uint32))
    frame, expected = encode(valid), unpack_naively(content, ends)
    if expected is None:
        with pytest.raises(WireError):
            decode(frame, (Names,))
    else:
        assert [*decode(frame, (Names,))] == expected


@pytest.mark.parametrize("ends", [np.array([[1]], np.uint32), np.array(1, np.uint32)])
def test_positions_are_a_vector(ends):
    with pytest.raises(ValueError, match="ascending positions up to 1"):
        Names(b"a", ends)
