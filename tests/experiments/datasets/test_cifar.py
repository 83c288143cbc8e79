"""CIFAR-10 and CIFAR-100 are read from files in the official binary format."""

import numpy as np
import pytest

from experiments.datasets.catalog import IMAGE_SHAPES, available, load
from experiments.datasets.cifar import CIFAR_FOLDERS, SAMPLE_FILE, coarse_labels
from fedneighbors.errors import DataError, MissingDataError

FILES = {
    "cifar10": [*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"],
    "cifar100": ["train.bin", "test.bin"],
}
LIMITS = {"cifar10": (10,), "cifar100": (20, 100)}


def write_files(folder, name, *, rows=4):
    """Write files of a few records; return their images and labels, in the order of the files."""
    random, images, labels = np.random.default_rng(0), [], []
    subfolder = folder / CIFAR_FOLDERS[name]
    subfolder.mkdir(parents=True)
    for file in FILES[name]:
        label_columns = [random.integers(limit, size=rows) for limit in LIMITS[name]]
        file_images = random.integers(256, size=(rows, 3, 32, 32)).astype(np.uint8)
        with (subfolder / file).open("wb") as out:
            for row in range(rows):
                out.write(bytes(int(column[row]) for column in label_columns))
                out.write(file_images[row].tobytes())
        images.append(file_images)
        labels.append(np.column_stack(label_columns))
    return np.concatenate(images), np.concatenate(labels)


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDNEIGHBORS_DATA", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", FILES)
def test_records_become_images_and_labels_training_first(folder, name):
    images, labels = write_files(folder, name)

    data = load(name)

    assert np.array_equal(data.x.reshape(-1, *IMAGE_SHAPES[name]), images)
    assert data.y.tolist() == labels[:, -1].tolist()
    assert (data.x.dtype, data.y.dtype) == (np.uint8, np.int64)
    assert data.n_train == len(images) - 4
    assert (data.feature_names[0], data.feature_names[-1]) == ("red-0-0", "blue-31-31")


def test_coarse_labels_are_in_the_order_of_the_rows(folder):
    _, labels = write_files(folder, "cifar100")

    assert coarse_labels(folder).tolist() == labels[:, 0].tolist()


def test_existing_sets_are_listed_with_their_size(folder):
    _, labels = write_files(folder, "cifar10")

    entries = {entry.name: entry for entry in available()}

    entry = entries["cifar10"]
    assert (entry.n_rows, entry.n_features) == (24, 3072)
    assert entry.n_classes == len(np.unique(labels))
    assert "cifar100" not in entries


def test_a_missing_file_is_named(folder):
    write_files(folder, "cifar10")
    (folder / CIFAR_FOLDERS["cifar10"] / "data_batch_3.bin").unlink()

    with pytest.raises(MissingDataError, match=r"no file .*data_batch_3\.bin; unpack"):
        load("cifar10")
    with pytest.raises(MissingDataError, match=r"no file .*train\.bin"):
        load("cifar100")


@pytest.mark.parametrize("size", [0, 1, 3073, 2 * 3074 - 1])
def test_a_truncated_file_or_one_of_the_other_set_is_refused(folder, size):
    write_files(folder, "cifar100")
    (folder / CIFAR_FOLDERS["cifar100"] / "train.bin").write_bytes(bytes(size))

    with pytest.raises(DataError, match=rf"records of 3074 bytes, got {size} bytes"):
        load("cifar100")


def test_an_invalid_label_is_named_with_its_record(folder):
    write_files(folder, "cifar10")
    path = folder / CIFAR_FOLDERS["cifar10"] / "test_batch.bin"
    raw = bytearray(path.read_bytes())
    raw[2 * 3073] = 10
    path.write_bytes(bytes(raw))

    with pytest.raises(DataError, match=r"test_batch\.bin, record 3: expected a label below 10"):
        load("cifar10")


def write_sample(folder, x, y):
    (folder / SAMPLE_FILE).parent.mkdir()
    np.savez(folder / SAMPLE_FILE, x=x, y=y)


def test_the_sample_has_rows_like_those_of_cifar10(folder):
    x = np.random.default_rng(0).integers(256, size=(5, 32, 32, 3)).astype(np.uint8)
    write_sample(folder, x, np.arange(5, dtype=np.uint8))

    data = load("cifar10_12k")

    images = data.x.reshape(-1, *IMAGE_SHAPES["cifar10_12k"])
    assert np.array_equal(images.transpose(0, 2, 3, 1), x)
    assert (data.y.tolist(), data.y.dtype) == ([0, 1, 2, 3, 4], np.int64)
    [entry] = [entry for entry in available() if entry.name == "cifar10_12k"]
    assert (entry.n_rows, entry.n_features, entry.n_classes) == (5, 3072, 5)


def test_a_sample_that_is_missing_or_has_another_format_is_refused(folder):
    with pytest.raises(MissingDataError, match=r"no file .*cifar10_12k\.npz"):
        load("cifar10_12k")
    write_sample(folder, np.zeros((2, 32, 32), np.uint8), np.zeros(2, np.uint8))
    with pytest.raises(DataError, match=r"shape \(2, 32, 32, 3\), got uint8 of \(2, 32, 32\)"):
        load("cifar10_12k")
    (folder / SAMPLE_FILE).write_bytes(b"PK no archive")
    with pytest.raises(DataError, match="expected the arrays x and y"):
        load("cifar10_12k")
