import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.kernels.edit._edittally import LIMIT, WITHIN, admit, begin
from tests.naive import edittally as naive

VALUES = st.lists(st.integers(0, 12), max_size=40)


@settings(max_examples=300, deadline=None)
@given(VALUES, VALUES, st.integers(-1, 12), st.integers(1, 20))
def test_the_limit_is_the_kth_smallest_value_at_every_moment(before, after, limit, wanted):
    tally = np.bincount(np.array(before, np.int64), minlength=13)

    state = begin(tally, limit=limit, wanted=wanted)

    assert state[LIMIT] == naive.limit(before, limit, wanted)
    seen = list(before)
    for value in after:
        admit(tally, state, value)
        seen.append(value)
        assert state[LIMIT] == naive.limit(seen, limit, wanted)
        assert state[WITHIN] == sum(value <= state[LIMIT] for value in seen)
    assert tally.tolist() == np.bincount(seen, minlength=13).tolist()
