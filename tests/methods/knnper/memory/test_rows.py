"""The window of rows does what lists do."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.methods.knnper.memory._rows import RowWindow

STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "drop", "keep", "vacate"]), st.integers(0, 9)),
    max_size=25,
)


@given(STEPS)
@settings(max_examples=60)
def test_a_window_holds_what_a_list_would_and_nothing_of_what_left(steps):
    window, rows, count = RowWindow(np.empty((0, 1)), np.empty(0, int)), [], 0
    for what, n in steps:
        if what == "append":
            new = list(range(count + 1, count + n + 1))
            window.append(np.array(new, float)[:, None], np.array(new, int), list(map(str, new)))
            rows, count = rows + new, count + n
        elif what == "drop":
            window.drop_first(n)
            rows = rows[n:]
        elif what == "keep":
            window.keep(range(min(n, len(rows))))
            rows = rows[:n]
        else:
            places = list(range(0, len(rows), n + 1))
            window.vacate(places)
            for place in reversed(places):
                rows[place] = rows[-1]
                rows.pop()

        assert window.keys[:, 0].tolist() == rows
        assert window.labels.tolist() == rows
        assert window.ids == list(map(str, rows))
        assert all((str(row) in window) == (row in rows) for row in range(count + 1))
        held = window._keys[window._keys != 0].tolist()
        assert sorted(held) == sorted(rows)  # what left is overwritten


def test_labels_become_of_a_type_that_holds_them_all():
    window = RowWindow(np.ones((1, 1)), np.array([3]), ["a"])

    window.append(np.ones((1, 1)), np.array([0.5]), ["b"])

    assert window.labels.tolist() == [3.0, 0.5]


def test_a_stream_through_a_full_window_moves_it_rarely():
    window = RowWindow(np.zeros((100, 1)), np.zeros(100, int), list(map(str, range(100))))
    moves, last = 0, window._keys

    for number in range(100, 1100):
        window.drop_first(1)
        window.append(np.zeros((1, 1)), np.zeros(1, int), [str(number)])
        moves += window._keys is not last
        last = window._keys

    assert moves <= 1000 / 50 + 1  # half as much room again as there are rows
    assert len(window._keys) <= 152
