"""Strategies, names and checks of a memory."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.errors import DataError
from fedneighbors.methods.knnper._settings import MemorySettings
from fedneighbors.methods.knnper.memory._datastore import Datastore
from fedneighbors.methods.knnper.memory._rows import RowWindow


def fill_memory(strategy, capacity, batches, seed=0):
    """Return a memory after rows 0, 1, 2, ... arrived in batches of these sizes."""
    store, first = Datastore(1, capacity, strategy, seed), 0
    for size in batches:
        rows = np.arange(first, first + size)
        store.add(rows[:, None].astype(float), rows)
        first += size
    return store


BATCHES = st.lists(st.integers(0, 7), max_size=6)


@given(BATCHES, st.integers(1, 10))
def test_fifo_keeps_the_latest(batches, capacity):
    store = fill_memory("fifo", capacity, batches)

    assert store.labels.tolist() == list(range(sum(batches)))[-capacity:]


@given(BATCHES, st.integers(1, 10))
def test_concatenate_keeps_the_first(batches, capacity):
    store = fill_memory("concatenate", capacity, batches)

    assert store.labels.tolist() == list(range(sum(batches)))[:capacity]


@given(BATCHES)
def test_fixed_takes_nothing_after_the_first_rows(batches):
    store = fill_memory("fixed", None, batches)

    first = next((size for size in batches if size), 0)
    assert store.labels.tolist() == list(range(first))


@given(BATCHES, st.integers(1, 10), st.sampled_from(["fifo", "concatenate", "reservoir", "fixed"]))
def test_keys_labels_and_names_stay_together(batches, capacity, strategy):
    store = fill_memory(strategy, capacity, batches)

    assert store.keys[:, 0].tolist() == store.labels.tolist()
    assert store.ids == [str(label) for label in store.labels.tolist()]
    assert len(store) == len(set(store.ids)) <= capacity


def test_a_reservoir_keeps_every_row_equally_often():
    """Each of 20 rows is in 1,000 of 4,000 memories on average, with a deviation of 27."""
    counts = np.zeros(20)

    for seed in range(4000):
        counts[fill_memory("reservoir", 5, [3, 9, 8], seed).labels] += 1

    assert counts.sum() == 4000 * 5
    assert (
        abs(counts - 1000).max() < 5 * 27.4
    )  # five deviations: exceeded by chance in 1 of 90,000 suites


def choose_by_name(store):
    """Return the stored names among 0, 1 and 2: a choice independent of the memory."""
    return [name for name in ("0", "1", "2") if name in store.ids]


def choose_from_memory(store):
    """Return the first three names in the memory."""
    return store.ids[:3]


@pytest.mark.parametrize(("choose", "first"), [(choose_by_name, 3), (choose_from_memory, 10)])
def test_a_reservoir_after_forgetting_stays_fair_to_new_rows(choose, first):
    """Each row from ``first`` on is in 1,000 of 4,000 memories on average."""
    counts = np.zeros(20)

    for seed in range(4000):
        store = fill_memory("reservoir", 5, [10], seed)
        store.forget(choose(store))
        for rows in (np.arange(10, 14), np.arange(14, 20)):
            store.add(rows[:, None].astype(float), rows)
        counts[store.labels] += 1

    if choose is choose_by_name:
        assert counts[:3].tolist() == [0, 0, 0]
    assert (
        abs(counts[first:] - 1000).max() < 5 * 27.4
    )  # five deviations: exceeded by chance in 1 of 100,000 suites


def test_a_restored_reservoir_keeps_its_open_places():
    store = fill_memory("reservoir", 5, [4, 20])
    store.forget(store.ids[1:4])
    copy = Datastore(1, 5, "reservoir").restore(store.keys, store.labels, store.ids, store.state())

    for instance in (store, copy):
        instance.add(np.arange(40.0)[:, None], np.arange(40))

    assert copy.ids == store.ids
    assert copy.labels.tolist() == store.labels.tolist()


def test_a_reservoir_below_capacity_takes_all_that_fit():
    store = fill_memory("reservoir", 5, [3])

    store.forget(["1"]).add([[3.0], [4.0]], [3, 4])

    assert store.labels.tolist() == [0, 2, 3, 4]


def test_forgotten_rows_free_their_names():
    store = fill_memory("concatenate", None, [4])

    store.forget(["1", "3"])

    assert store.labels.tolist() == [0, 2]
    store.add([[9.0]], [9], ids=["3"])
    assert store.ids == ["0", "2", "3"]


def test_an_unknown_name_deletes_nothing():
    store = fill_memory("concatenate", None, [3])

    with pytest.raises(KeyError, match="no rows named"):
        store.forget(["1", "7"])

    assert len(store) == 3


@pytest.mark.parametrize("names", ["12", b"12", 1])
def test_a_string_is_not_a_list_of_names(names):
    store = fill_memory("concatenate", None, [20])

    with pytest.raises(TypeError, match=r"expected a list of row names, .* pass a list: \["):
        store.forget(names)
    with pytest.raises(TypeError, match="expected a list of row names"):
        store.add([[1.0], [2.0]], [0, 1], ids=names)

    assert len(store) == 20


@pytest.mark.parametrize("number", [int, np.int64])
def test_rows_named_by_numbers_are_found_by_numbers_and_by_text(number):
    store = Datastore(1).add([[0.0], [1.0], [2.0]], [0, 1, 2], ids=map(number, [11, 12, 13]))

    assert store.ids == ["11", "12", "13"]
    assert store.forget([number(11)]).forget(["13"]).ids == ["12"]
    with pytest.raises(ValueError, match="expected new names, got '12'"):
        store.add([[0.0]], [0], ids=[number(12)])


def test_default_names_skip_used_names():
    store = fill_memory("concatenate", None, [2]).add([[0.0]], [0], ids=["4"])

    for _ in range(2):
        store.add([[0.0], [0.0]], [0, 0])

    assert store.ids == ["0", "1", "4", "3", "5", "6", "7"]


def test_default_names_stay_unique_after_a_restore():
    store = fill_memory("concatenate", None, [2]).add([[0.0]], [0], ids=["3"]).add([[0.0]], [0])
    store.forget(["3", "4"])
    copy = Datastore(1).restore(store.keys, store.labels, store.ids, store.state())

    for instance in (store, copy):
        instance.add([[0.0]], [0])

    assert store.ids == copy.ids == ["0", "1", "5"]  # 4 is not given again, though it is free


def test_the_state_of_a_memory_has_the_next_name():
    store = fill_memory("concatenate", None, [2])
    before = store.state()["named"]

    store.add([[0.0]], [0], ids=["3"]).add([[0.0]], [0])

    assert (before, store.state()["named"]) == (2, 5)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([0, 5], r"expected classes from 0 to 1, got \[5\]"),
        ([0, -1], r"expected classes from 0 to 1, got \[-1\]"),
        ([0.0, 0.5], "expected classes from 0 to 1, got"),
        ([[0], [1]], r"a label for each, got shapes \(2, 1\) and \(2, 1\)"),
        (1, r"a label for each, got shapes \(2, 1\) and \(\)"),
    ],
)
@pytest.mark.parametrize("strategy", ["concatenate", "drift"])
def test_unknown_labels_are_refused_for_known_classes(labels, words, strategy):
    store = Datastore(1, strategy=strategy, n_classes=2).add([[0.0], [1.0]], [0, 1])

    with pytest.raises(ValueError, match=words):
        store.add([[2.0], [3.0]], labels)

    assert store.labels.tolist() == [0, 1]


@pytest.mark.parametrize("label", [-1, 2])
def test_invalid_labels_are_refused_in_votes(label):
    store = Datastore(1).add([[0.0], [1.0]], [0, label])

    with pytest.raises(ValueError, match=rf"expected classes from 0 to 1, got \[{label}\]"):
        store.votes(np.zeros((1, 1)), 2, n_neighbors=1)


@pytest.mark.parametrize("cell", [np.nan, np.inf])
@pytest.mark.parametrize("kind", ["exact", "8-bit", "product", "centers"])
def test_queries_that_are_not_finite_are_refused(cell, kind):
    rows = np.random.default_rng(0).normal(size=(40, 3))
    store = MemorySettings(memory=kind).new_memory(3, 2).add(rows, np.arange(40) % 2)

    with pytest.raises(ValueError, match="expected finite queries, got 1 of 2"):
        store.votes(np.array([[0.0, 0.0, 0.0], [0.0, cell, 0.0]]), 2, n_neighbors=1)


@pytest.mark.parametrize(
    ("keys", "ids", "error", "words"),
    [
        ([[np.nan]], None, DataError, "not finite"),
        ([[1.0, 2.0]], None, ValueError, "keys of width 1"),
        ([[1.0]], ["0"], ValueError, "new names, got '0'"),
        ([[1.0]], ["a", "b"], ValueError, "a name for each of 1 rows, got 2"),
    ],
)
def test_invalid_rows_do_not_change_the_memory(keys, ids, error, words):
    store = fill_memory("fifo", 2, [2])

    with pytest.raises(error, match=words):
        store.add(keys, [1], ids)

    assert store.labels.tolist() == [0, 1]


def test_the_rows_are_read_only():
    store = fill_memory("fifo", 2, [2])

    with pytest.raises(ValueError, match="read-only"):
        store.keys[0, 0] = 5.0


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"capacity": 0}, "capacity"),
        ({"capacity": 2.5}, "expected capacity as an integer of 1 or more, got 2.5"),
        ({"capacity": "3"}, "expected capacity as an integer"),
        ({"strategy": "lifo"}, "strategy"),
    ],
)
def test_settings_are_checked(changed, words):
    with pytest.raises(ValueError, match=words):
        MemorySettings(**changed)


STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "drop", "keep", "vacate"]), st.integers(0, 9)),
    max_size=25,
)


@given(STEPS)
@settings(max_examples=60)
def test_a_window_equals_a_list_and_clears_deleted_rows(steps):
    window, rows, count = RowWindow(np.empty((0, 1)), np.empty(0, int)), [], 0
    for operation, n in steps:
        if operation == "append":
            new = list(range(count + 1, count + n + 1))
            window.append(np.array(new, float)[:, None], np.array(new, int), list(map(str, new)))
            rows, count = rows + new, count + n
        elif operation == "drop":
            window.drop_first(n)
            rows = rows[n:]
        elif operation == "keep":
            window.keep(range(min(n, len(rows))))
            rows = rows[:n]
        else:
            places = list(range(0, len(rows), n + 1))
            window.delete(places)
            for place in reversed(places):
                rows[place] = rows[-1]
                rows.pop()

        assert window.keys[:, 0].tolist() == rows
        assert window.labels.tolist() == rows
        assert window.ids == list(map(str, rows))
        assert all((str(row) in window) == (row in rows) for row in range(count + 1))
        stored = window._tables[0][window._tables[0] != 0].tolist()
        assert sorted(stored) == sorted(rows)  # deleted rows are overwritten


def test_label_dtypes_widen_to_fit():
    window = RowWindow(np.ones((1, 1)), np.array([3]), ["a"])

    window.append(np.ones((1, 1)), np.array([0.5]), ["b"])

    assert window.labels.tolist() == [3.0, 0.5]


def test_a_stream_through_a_full_window_moves_it_rarely():
    window = RowWindow(np.zeros((100, 1)), np.zeros(100, int), list(map(str, range(100))))
    moves, last = 0, window._tables[0]

    for number in range(100, 1100):
        window.drop_first(1)
        window.append(np.zeros((1, 1)), np.zeros(1, int), [str(number)])
        moves += window._tables[0] is not last
        last = window._tables[0]

    assert moves <= 1000 / 50 + 1  # the buffer has room for half as many rows again
    assert len(window._tables[0]) <= 152
