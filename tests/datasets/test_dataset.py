"""A data set checks its parts and can be split."""

import numpy as np
import pytest

from fedneighbors.datasets import Dataset
from fedneighbors.errors import DataError


def example(**changes):
    fields = {
        "name": "example",
        "x": np.arange(8.0).reshape(4, 2),
        "y": np.array([0, 1, 1, 0]),
        "feature_names": ("a", "b"),
        "source": "made up",
    }
    return Dataset(**{**fields, **changes})


def test_sizes_and_classes_come_from_the_arrays():
    data = example(y=np.array(["b", "a", "b", "b"]))

    assert (data.n_rows, data.n_features, data.n_classes) == (4, 2, 2)
    assert data.classes.tolist() == ["a", "b"]


def test_taking_rows_keeps_their_labels_and_parties():
    data = example(parties=np.array(["p", "q", "p", "q"]), n_train=2)

    taken = data.take(np.array([3, 0]))

    assert taken.x.tolist() == [[6.0, 7.0], [0.0, 1.0]]
    assert taken.y.tolist() == [0, 0]
    assert taken.parties.tolist() == ["q", "p"]
    assert taken.n_train is None


def test_a_mask_takes_the_rows_that_it_marks():
    taken = example().take(np.array([False, True, False, True]))

    assert taken.x[:, 0].tolist() == [2.0, 6.0]


def test_the_source_split_cuts_after_the_training_rows():
    train, test = example(n_train=3).train_test()

    assert train.x.tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    assert test.y.tolist() == [0]


def test_a_set_without_a_split_raises_an_error():
    with pytest.raises(ValueError, match="'example' has no split; use sklearn"):
        example().train_test()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": np.empty((0, 2)), "y": np.empty(0)}, "at least one row and one feature"),
        ({"x": np.empty((4, 0)), "feature_names": ()}, "at least one row and one feature"),
        ({"x": np.arange(4.0)}, "at least one row and one feature"),
        ({"y": np.array([0, 1])}, "has 4 rows but labels of shape"),
        ({"feature_names": ("a",)}, "has 2 features but 1 feature names"),
        ({"parties": np.array(["p"])}, "has 4 rows but parties of shape"),
        ({"n_train": 4}, "must be between 1 and"),
        ({"n_train": 0}, "must be between 1 and"),
    ],
)
def test_parts_of_different_sizes_are_refused(changes, message):
    with pytest.raises(DataError, match=message):
        example(**changes)
