from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedneighbors.errors import ProtocolError
from fedneighbors.federation._loop import sum_replies
from fedneighbors.federation._messages import message
from tests.federation.parties import CountReply, Integers, NameReply, ValidatedMessage
from tests.seeds import cases


@message
class NumberAndItems:
    n: int
    items: np.ndarray[Any, np.dtype[np.integer[Any]]]


@message
class Number:
    n: int


dtypes = st.sampled_from(["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8"])
lists_of_replies = st.tuples(dtypes, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0)).flatmap(
    lambda layout: st.lists(
        st.builds(NumberAndItems, st.integers(-(2**61), 2**61), hnp.arrays(*layout)),
        min_size=1,
        max_size=4,
    )
)


@given(lists_of_replies)
@settings(max_examples=cases(400), deadline=None)
def test_sum_is_exact_or_refused(parts):
    replies = {f"party {i}": part for i, part in enumerate(parts)}
    exact = np.sum([part.items.astype(object) for part in parts], axis=0, dtype=object)
    limits = np.iinfo(parts[0].items.dtype)
    high = sum(max(part.items.max(initial=0).item(), 0) for part in parts)
    low = sum(min(part.items.min(initial=0).item(), 0) for part in parts)

    if low < limits.min or high > limits.max:
        with pytest.raises(ProtocolError, match=r"the sum of NumberAndItems\.items could overflow"):
            sum_replies(replies)
        return
    result = sum_replies(replies)

    assert result.n == sum(part.n for part in parts)
    assert result.items.dtype == parts[0].items.dtype
    assert result.items.astype(object).tolist() == np.asarray(exact).tolist()


def test_sum_does_not_modify_its_parts():
    first, second = Integers(np.array([1, 2])), Integers(np.array([3, 4]))

    result = sum_replies({"a": first, "b": second})

    assert result == Integers(np.array([4, 6]))
    assert (first, second) == (Integers(np.array([1, 2])), Integers(np.array([3, 4])))


def test_sum_of_no_reply_is_refused():
    with pytest.raises(ProtocolError, match="no reply to add up"):
        sum_replies({})


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (np.zeros(2, np.int64), np.zeros(3, np.int64), r"'b' is int64\(3,\), others sent int64\(2"),
        (np.zeros(2, np.int64), np.zeros((2, 1), np.int64), r"'b' is int64\(2, 1\)"),
        (np.zeros(2, np.int64), np.zeros(2, np.int32), r"'b' is int32\(2,\)"),
        (np.zeros(2, np.int64), 3, "'b' is int, others"),
        (3, np.zeros(2, np.int64), r"'b' is int64\(2,\), others sent int"),
        (np.zeros(2), np.zeros(2), "'a' is not an integer"),
        (np.zeros(2, bool), np.zeros(2, bool), "'a' is not an integer"),
        (True, True, "'a' is not an integer"),
        (1.0, 2.0, "'a' is not an integer"),
        (None, None, "'a' is not an integer"),
        ((1,), (2,), "'a' is not an integer"),
        ("x", "y", "'a' is not an integer"),
    ],
)
def test_incompatible_replies_name_party_and_field(first, second, reason):
    replies = {"a": NumberAndItems(0, first), "b": NumberAndItems(0, second)}

    with pytest.raises(ProtocolError, match=r"NumberAndItems\.items of party " + reason):
        sum_replies(replies)


@pytest.mark.parametrize(("a", "b"), [(2**63 - 1, 1), (-(2**63), -1)])
def test_sum_of_integers_beyond_64_bits_is_refused(a, b):
    replies = {"a": Number(a), "b": Number(b)}

    with pytest.raises(ProtocolError, match=r"the sum of Number\.n could overflow int64"):
        sum_replies(replies)


def test_replies_of_different_types_are_refused():
    replies = {"a": Number(1), "b": NameReply("b")}

    with pytest.raises(ProtocolError, match="different types"):
        sum_replies(replies)


def test_sum_rejected_by_its_class_is_a_protocol_error():
    @message
    class AtMostThree:
        n: int

        def __post_init__(self) -> None:
            if self.n > 3:
                raise ValueError("too many")

    with pytest.raises(ProtocolError, match="not a valid AtMostThree: too many"):
        sum_replies({"a": AtMostThree(2), "b": AtMostThree(2)})


def test_sum_of_one_reply_is_the_reply():
    reply = CountReply(3, np.array([1, 2]))

    assert sum_replies({"only": reply}) == reply


def test_tuples_of_integers_are_not_summed():
    with pytest.raises(ProtocolError, match=r"ValidatedMessage\.parts of party 'a'"):
        sum_replies({"a": ValidatedMessage(1, (1, 2))})
