import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedneighbors.errors import DataError
from fedneighbors.methods.knnper.memory.datastore import Datastore


def filled(strategy, capacity, batches, seed=0):
    """Return a memory to which rows 0, 1, 2, ... came in batches of these sizes."""
    store, first = Datastore(1, capacity, strategy, seed), 0
    for size in batches:
        rows = np.arange(first, first + size)
        store.add(rows[:, None].astype(float), rows)
        first += size
    return store


BATCHES = st.lists(st.integers(0, 7), max_size=6)


@given(BATCHES, st.integers(1, 10))
def test_fifo_holds_the_latest(batches, capacity):
    store = filled("fifo", capacity, batches)

    assert store.labels.tolist() == list(range(sum(batches)))[-capacity:]


@given(BATCHES, st.integers(1, 10))
def test_concatenate_holds_the_first(batches, capacity):
    store = filled("concatenate", capacity, batches)

    assert store.labels.tolist() == list(range(sum(batches)))[:capacity]


@given(BATCHES)
def test_fixed_takes_nothing_after_the_first_rows(batches):
    store = filled("fixed", None, batches)

    first = next((size for size in batches if size), 0)
    assert store.labels.tolist() == list(range(first))


@given(BATCHES, st.integers(1, 10), st.sampled_from(["fifo", "concatenate", "reservoir", "fixed"]))
def test_keys_labels_and_names_stay_together(batches, capacity, strategy):
    store = filled(strategy, capacity, batches)

    assert store.keys[:, 0].tolist() == store.labels.tolist()
    assert store.ids == [str(label) for label in store.labels.tolist()]
    assert len(store) == len(set(store.ids)) <= capacity


def test_a_reservoir_holds_every_row_equally_often():
    """4,000 memories of 5 of 20 rows: each row in 1,000 on average, deviation 27; five of them."""
    times = np.zeros(20)

    for seed in range(4000):
        times[filled("reservoir", 5, [3, 9, 8], seed).labels] += 1

    assert times.sum() == 4000 * 5
    assert abs(times - 1000).max() < 5 * 27.4  # by chance in 1 of 90,000 suites


def test_forgotten_rows_are_gone_and_their_names_free():
    store = filled("concatenate", None, [4])

    store.forget(["1", "3"])

    assert store.labels.tolist() == [0, 2]
    store.add([[9.0]], [9], ids=["3"])
    assert store.ids == ["0", "2", "3"]


def test_a_name_that_is_not_there_deletes_nothing():
    store = filled("concatenate", None, [3])

    with pytest.raises(KeyError, match="no rows named"):
        store.forget(["1", "7"])

    assert len(store) == 3


@pytest.mark.parametrize(
    ("keys", "ids", "error", "words"),
    [
        ([[np.nan]], None, DataError, "not finite"),
        ([[1.0, 2.0]], None, ValueError, "keys of width 1"),
        ([[1.0]], ["0"], ValueError, "new names, got '0'"),
        ([[1.0]], ["a", "b"], ValueError, "a name for each of 1 rows, got 2"),
    ],
)
def test_rows_that_cannot_be_taken_leave_the_memory_as_it_was(keys, ids, error, words):
    store = filled("fifo", 2, [2])

    with pytest.raises(error, match=words):
        store.add(keys, [1], ids)

    assert store.labels.tolist() == [0, 1]


def test_its_rows_cannot_be_changed_from_outside():
    store = filled("fifo", 2, [2])

    with pytest.raises(ValueError, match="read-only"):
        store.keys[0, 0] = 5.0


@pytest.mark.parametrize(
    ("changed", "words"), [({"capacity": 0}, "capacity"), ({"strategy": "lifo"}, "strategy")]
)
def test_settings_are_checked(changed, words):
    with pytest.raises(ValueError, match=words):
        Datastore(1, **changed)
