from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.secure_sum._keys import digest
from tests.seeds import cases

parts = st.recursive(
    st.binary(max_size=4) | st.text(max_size=4) | st.integers(-3, 300),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)


@given(st.lists(parts, max_size=4), st.lists(parts, max_size=4))
@settings(max_examples=cases(500), deadline=None)
def test_digests_are_equal_only_for_equal_parts(a, b):
    are_equal = [type(x) for x in a] == [type(x) for x in b] and a == b

    assert (digest("x", *a) == digest("x", *b)) == are_equal


def test_moving_content_between_parts_changes_the_digest():
    variants = [("ab", "c"), ("a", "bc"), ("abc",), (("ab", "c"),), ("ab", b"c"), (("ab",), "c")]

    assert len({digest("x", *variant) for variant in variants}) == len(variants)
    assert digest("x", "a") != digest("xa")
