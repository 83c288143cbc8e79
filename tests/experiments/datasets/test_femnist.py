"""FEMNIST is read from JSON files in the format of LEAF."""

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


def make_content(rows_by_writer):
    """Return the content of a LEAF file with the rows of each writer."""
    return {
        "users": list(rows_by_writer),
        "num_samples": [len(rows) for rows in rows_by_writer.values()],
        "user_data": {
            writer: {
                "x": (1 - INK[rows] / 255).tolist(),
                "y": [LABELS[row] for row in rows],
            }
            for writer, rows in rows_by_writer.items()
        },
    }


def write(folder, part, name, content):
    subfolder = folder / FEMNIST_FOLDER / part
    subfolder.mkdir(parents=True, exist_ok=True)
    (subfolder / name).write_text(content if isinstance(content, str) else json.dumps(content))


def test_training_files_come_first_and_writers_own_their_rows(folder):
    write(folder, "test", "c.json", make_content({"w1": [6], "w3": [7, 8]}))
    write(folder, "train", "b.json", make_content({"w3": [3, 4, 5]}))
    write(folder, "train", "a.json", make_content({"w1": [0, 1], "w2": [2]}))

    data = load("femnist")

    assert np.array_equal(data.x, INK)
    assert (data.x.dtype, data.y.tolist(), data.n_train) == (np.uint8, LABELS, 6)
    assert data.parties.tolist() == ["w1", "w1", "w2", *["w3"] * 3, "w1", "w3", "w3"]


def test_files_without_a_split_are_all_loaded(folder):
    write(folder, "all_data", "all_data_0.json", make_content({"w1": [0, 1]}))
    write(folder, "all_data", "all_data_1.json", make_content({"w2": [2]}))

    data = load("femnist")

    assert (data.n_rows, data.n_train) == (3, None)


def test_the_size_is_read_from_the_headers(folder):
    content = json.dumps(make_content({"w1": [0, 1], "w2": [2]}))
    write(folder, "all_data", "0.json", content[: content.index('"user_data"') + 40])
    rows_first = dict(reversed(make_content({"w3": [3]}).items()))
    write(folder, "all_data", "1.json", rows_first)

    [entry] = [entry for entry in available() if entry.name == "femnist"]

    assert (entry.n_rows, entry.n_features, entry.n_classes) == (4, 784, 62)


def test_missing_files_are_named_with_their_folder(folder):
    write(folder, "train", "only.json", make_content({"w1": [0]}))

    with pytest.raises(MissingDataError, match="put the output of LEAF's scripts there"):
        load("femnist")


VALID = make_content({"w1": [0, 1]})


def change_writer(**parts):
    return {**VALID, "user_data": {"w1": {**VALID["user_data"]["w1"], **parts}}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (json.dumps(VALID)[:-900], "is not a complete JSON file"),
        ("\ufeffno json", "is not a complete JSON file"),
        ([1, 2], "as LEAF writes them"),
        ({"images": []}, "as LEAF writes them"),
        ({**VALID, "users": []}, "as LEAF writes them"),
        ({**VALID, "users": ["w1", "w9"]}, 'writer \'w9\': expected "x" and "y"'),
        (change_writer(x=[[0.5] * 783] * 2), "rows of 784 numbers"),
        (change_writer(x=[["ink"] * 784] * 2), "rows of 784 numbers"),
        (change_writer(y=[1]), "one label for each of 2 images, got 1"),
        (change_writer(y=[1, 62]), "labels from 0 to 61"),
        (change_writer(y=[1, 1.5]), "labels from 0 to 61"),
        (change_writer(x=[[255] * 784] * 2), "pixels from 0"),
        (change_writer(x=[[float("nan")] * 784] * 2), "pixels from 0"),
    ],
)
def test_a_truncated_or_other_file_is_refused_by_name(folder, content, message):
    write(folder, "all_data", "odd.json", content)

    with pytest.raises(DataError, match=message) as caught:
        load("femnist")
    assert "odd.json" in str(caught.value)
