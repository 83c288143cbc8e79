"""FEMNIST from JSON files as the scripts of LEAF write them."""

import json

import numpy as np
import pytest

from experiments.datasets.catalog import available, load
from experiments.datasets.femnist import FEMNIST_FOLDER
from fedneighbors.errors import DataError, MissingDataError

INK = np.random.default_rng(0).integers(256, size=(9, 784))
LABELS = [0, 9, 10, 35, 36, 61, 5, 5, 7]


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDNEIGHBORS_DATA", str(tmp_path))
    return tmp_path


def leaf(rows_of):
    """Write the files of LEAF for writers with these rows."""
    return {
        "users": list(rows_of),
        "num_samples": [len(rows) for rows in rows_of.values()],
        "user_data": {
            writer: {
                "x": (1 - INK[rows] / 255).tolist(),
                "y": [LABELS[row] for row in rows],
            }
            for writer, rows in rows_of.items()
        },
    }


def write(folder, part, name, held):
    inside = folder / FEMNIST_FOLDER / part
    inside.mkdir(parents=True, exist_ok=True)
    (inside / name).write_text(held if isinstance(held, str) else json.dumps(held))


def test_training_files_come_first_and_writers_own_their_rows(folder):
    write(folder, "test", "c.json", leaf({"w1": [6], "w3": [7, 8]}))
    write(folder, "train", "b.json", leaf({"w3": [3, 4, 5]}))
    write(folder, "train", "a.json", leaf({"w1": [0, 1], "w2": [2]}))

    data = load("femnist")

    assert np.array_equal(data.x, INK)
    assert (data.x.dtype, data.y.tolist(), data.n_train) == (np.uint8, LABELS, 6)
    assert data.parties.tolist() == ["w1", "w1", "w2", *["w3"] * 3, "w1", "w3", "w3"]


def test_files_that_are_not_split_come_whole(folder):
    write(folder, "all_data", "all_data_0.json", leaf({"w1": [0, 1]}))
    write(folder, "all_data", "all_data_1.json", leaf({"w2": [2]}))

    data = load("femnist")

    assert (data.n_rows, data.n_train) == (3, None)


def test_its_size_is_read_from_the_file_headers(folder):
    held = json.dumps(leaf({"w1": [0, 1], "w2": [2]}))
    write(folder, "all_data", "0.json", held[: held.index('"user_data"') + 40])
    turned = dict(reversed(leaf({"w3": [3]}).items()))
    write(folder, "all_data", "1.json", turned)

    [found] = [entry for entry in available() if entry.name == "femnist"]

    assert (found.n_rows, found.n_features, found.n_classes) == (4, 784, 62)


def test_missing_files_are_named_with_their_place(folder):
    write(folder, "train", "only.json", leaf({"w1": [0]}))

    with pytest.raises(MissingDataError, match="put the output of LEAF's scripts there"):
        load("femnist")


GOOD = leaf({"w1": [0, 1]})


def changed(**parts):
    return {**GOOD, "user_data": {"w1": {**GOOD["user_data"]["w1"], **parts}}}


@pytest.mark.parametrize(
    ("held", "words"),
    [
        (json.dumps(GOOD)[:-900], "is not a complete JSON file"),
        ("\ufeffno json", "is not a complete JSON file"),
        ([1, 2], "as LEAF writes them"),
        ({"images": []}, "as LEAF writes them"),
        ({**GOOD, "users": []}, "as LEAF writes them"),
        ({**GOOD, "users": ["w1", "w9"]}, 'writer \'w9\': expected "x" and "y"'),
        (changed(x=[[0.5] * 783] * 2), "rows of 784 numbers"),
        (changed(x=[["ink"] * 784] * 2), "rows of 784 numbers"),
        (changed(y=[1]), "one label for each of 2 images, got 1"),
        (changed(y=[1, 62]), "labels from 0 to 61"),
        (changed(y=[1, 1.5]), "labels from 0 to 61"),
        (changed(x=[[255] * 784] * 2), "pixels from 0"),
        (changed(x=[[float("nan")] * 784] * 2), "pixels from 0"),
    ],
)
def test_a_file_that_is_cut_off_or_foreign_is_refused_by_name(folder, held, words):
    write(folder, "all_data", "odd.json", held)

    with pytest.raises(DataError, match=words) as refused:
        load("femnist")
    assert "odd.json" in str(refused.value)
