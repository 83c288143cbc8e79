"""Data sets are loaded and listed by name, and downloaded from OpenML on request."""

import gzip
import sys
from types import SimpleNamespace
from urllib.error import HTTPError, URLError

import numpy as np
import pandas as pd
import pytest

from fedneighbors.datasets import Schema, available, fetch_openml, load, load_columns
from fedneighbors.errors import DataError, MissingDataError, MissingExtraError

TABLES = [
    "USPS",
    "adult",
    "cardiotocography-21f-10",
    "cnae-9",
    "cpu-act",
    "fri-c0-1000-25",
    "fri-c3-1000-50",
    "fri-c4-1000-100",
    "hill-valley",
    "kc1",
    "letter",
    "madelon",
    "mfeat-fourier",
    "mfeat-karhunen",
    "mfeat-pixel",
    "optdigits",
    "ozone-level-8hr",
    "pc4",
    "pol",
    "qsar-biodeg",
    "ringnorm",
    "satimage",
    "segment",
    "semeion",
    "shuttle",
    "sick",
    "spambase",
    "steel-plates-fault-7",
    "texture",
    "thyroid-ann",
    "wall-robot-navigation",
    "waveform-5000",
    "breast-cancer-wisconsin-original",
    "creditcard-subset-14240",
    "polish-bankruptcy-1year",
]


@pytest.mark.parametrize(
    ("name", "shape", "n_classes"),
    [
        ("iris", (150, 4), 3),
        ("wine", (178, 13), 3),
        ("breast_cancer", (569, 30), 2),
        ("digits", (1797, 64), 10),
    ],
)
def test_sets_of_scikit_learn_need_no_folder(monkeypatch, name, shape, n_classes):
    monkeypatch.delenv("FEDNEIGHBORS_DATA", raising=False)

    data = load(name)

    assert (data.name, data.x.shape, data.n_classes) == (name, shape, n_classes)
    assert data.x.dtype == np.float64
    assert data.y.dtype == np.int64


def test_without_a_folder_only_scikit_learn_sets_are_listed(monkeypatch):
    monkeypatch.delenv("FEDNEIGHBORS_DATA", raising=False)

    names = [entry.name for entry in available()]

    assert names == ["breast_cancer", "digits", "iris", "wine"]


def test_without_a_folder_the_error_names_the_variable(monkeypatch):
    monkeypatch.delenv("FEDNEIGHBORS_DATA", raising=False)

    for name in ("letter", "mnist"):
        with pytest.raises(MissingDataError, match="FEDNEIGHBORS_DATA is not set; set it to"):
            load(name)


def test_a_folder_that_does_not_exist_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDNEIGHBORS_DATA", str(tmp_path / "gone"))

    with pytest.raises(MissingDataError, match="gone, which does not exist"):
        load("letter")
    with pytest.raises(MissingDataError, match="gone, which does not exist"):
        available()


@pytest.fixture
def small_folder(monkeypatch, tmp_path):
    (tmp_path / "tabular").mkdir()
    (tmp_path / "images").mkdir()
    monkeypatch.setenv("FEDNEIGHBORS_DATA", str(tmp_path))
    text = "a,b,empty,target\n1,u,?,x\n?,v,,y\n5,u,?,x\n"
    (tmp_path / "tabular" / "small.csv.gz").write_bytes(gzip.compress(text.encode()))
    return tmp_path


def test_a_table_of_the_folder_is_listed_and_loaded(small_folder):
    entry = next(entry for entry in available() if entry.name == "small")
    data = load("small")

    assert (entry.n_rows, entry.n_features, entry.n_classes) == (3, 3, 2)
    assert entry.source == data.source == str(small_folder / "tabular" / "small.csv.gz")
    assert data.feature_names == ("a", "b=v")
    assert data.x.tolist() == [[1, 0], [3, 1], [5, 0]]
    assert data.y.tolist() == ["x", "y", "x"]


def test_columns_of_a_table_are_unchanged(small_folder):
    table = load_columns("small").without(["empty"])

    schema = Schema.draft(table.take(slice(0, 1)).without(["target"]), with_ranges=False)

    assert table.columns["b"].tolist() == ["u", "v", "u"]
    assert schema.encode_all(table).tolist() == [[1, 1], [1, 0], [5, 1]]


def test_a_misspelt_name_gets_the_nearest(small_folder):
    with pytest.raises(MissingDataError, match=r"no table 'smal' .* did you mean 'small'"):
        load("smal")


def test_a_prefix_suggests_the_full_name(small_folder):
    (small_folder / "tabular" / "smartphones-2024.csv.gz").write_bytes(gzip.compress(b"a\n1\n"))

    with pytest.raises(MissingDataError, match=r"did you mean 'smartphones-2024'\?"):
        load("Smart")


def test_columns_of_a_set_of_scikit_learn_need_no_folder(monkeypatch):
    monkeypatch.delenv("FEDNEIGHBORS_DATA", raising=False)

    table = load_columns("wine")

    data = load("wine")
    assert table.names == (*data.feature_names, "target")
    assert table.columns["alcohol"].tolist() == data.x[:, 0].tolist()
    assert set(table.columns["target"]) == {"0", "1", "2"}


def test_a_name_cannot_leave_the_folder(small_folder):
    with pytest.raises(MissingDataError, match="no table"):
        load("../tabular/small")


def test_missing_or_damaged_image_sets_are_refused(small_folder):
    with pytest.raises(MissingDataError, match=r"there is no file .*mnist.npz"):
        load("mnist")

    np.savez(small_folder / "images" / "mnist.npz", x_train=np.zeros((2, 784), np.uint8))
    (small_folder / "images" / "omniglot_small.npz").write_bytes(b"PK and no more")

    for name in ("mnist", "omniglot"):
        with pytest.raises(DataError, match="is not a complete set of arrays"):
            load(name)


def test_a_damaged_table_is_named_in_the_list(small_folder):
    (small_folder / "tabular" / "bad.csv.gz").write_bytes(b"no gzip")

    with pytest.raises(DataError, match=r"bad.csv.gz is not a complete gzip file"):
        available()


@pytest.fixture(scope="module")
def listed(data_folder):
    return {entry.name: entry for entry in available()}


def test_every_set_of_the_real_folder_is_available(listed):
    bundled = {"iris", "wine", "breast_cancer", "digits"}

    assert listed.keys() == {*TABLES, *bundled, "mnist", "omniglot"}


@pytest.mark.parametrize("name", TABLES)
def test_real_tables_load_finite_and_of_the_listed_size(listed, name):
    data = load(name)

    assert (data.n_rows, data.n_classes) == (listed[name].n_rows, listed[name].n_classes)
    assert data.x.dtype == np.float64
    assert np.isfinite(data.x).all()
    if name != "sick":  # the one table with nominal columns
        assert data.n_features == listed[name].n_features


def test_labels_of_a_real_table_are_unchanged(data_folder):
    spam, pc4 = load("spambase"), load("pc4")

    assert np.unique_counts(spam.y).counts.tolist() == [2788, 1813]
    assert pc4.classes.tolist() == ["FALSE", "TRUE"]
    assert np.unique_counts(pc4.y).counts.tolist() == [1280, 178]


def test_missing_cells_of_a_real_table_become_the_median(data_folder):
    cells = load_columns("breast-cancer-wisconsin-original").columns["Bare_Nuclei"]
    missing = np.isnan(cells)

    data = load("breast-cancer-wisconsin-original")

    filled = data.x[:, data.feature_names.index("Bare_Nuclei")]
    assert missing.sum() == 16
    assert set(filled[missing].tolist()) == {np.median(cells[~missing])}
    assert np.array_equal(filled[~missing], cells[~missing])


def test_nominal_columns_of_a_real_table_become_features(data_folder):
    sick = load("sick")

    assert sick.n_rows == 3772
    assert "TBG" not in sick.feature_names  # all its cells are missing
    assert {"sex=F", "sex=M", "sex=missing", "pregnant=t"} <= set(sick.feature_names)


def test_mnist_keeps_its_split(data_folder):
    train, test = load("mnist").train_test()

    assert (train.x.shape, test.x.shape) == ((60_000, 784), (10_000, 784))
    assert (train.x.dtype, train.n_classes) == (np.uint8, 10)
    assert test.y[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]


def test_usps_keeps_its_split(data_folder):
    train, test = load("USPS").train_test()

    assert (train.n_rows, test.n_rows) == (7291, 2007)


def test_omniglot_has_the_writer_of_each_character(data_folder):
    data = load("omniglot")

    assert (data.x.shape, data.x.dtype, data.n_classes) == ((4840, 784), np.uint8, 242)
    drawers, rows = np.unique(data.parties, return_counts=True)
    assert rows.tolist() == [242] * 20
    assert {"drawer-1", "drawer-20"} <= set(drawers.tolist())


@pytest.fixture
def openml(monkeypatch):
    """Mock of the download: `calls` records the requests, `answer` is the result."""
    download_mock = SimpleNamespace(calls=[], answer=None)

    def download(**request):
        download_mock.calls.append(request)
        if isinstance(download_mock.answer, Exception):
            raise download_mock.answer
        return download_mock.answer

    monkeypatch.setattr("sklearn.datasets.fetch_openml", download)
    return download_mock


def make_content(target):
    frame = pd.DataFrame(
        {
            "age": [1.0, None, 5.0],
            "count": pd.array([1, 2, None], dtype="Int64"),
            "site": pd.Categorical(["b", None, "a"]),
        }
    )
    return SimpleNamespace(data=frame, target=target, details={"id": "31", "name": "credit-g"})


def test_missing_numbers_of_a_set_are_kept_on_request(openml):
    openml.answer = make_content(pd.Series([1, 2, 1]))

    data = fetch_openml("credit-g", keep_missing=True)

    assert np.isnan(data.x[:, :2]).tolist() == [[False, False], [True, False], [False, True]]
    assert [column.missing for column in data.schema.columns[:2]] == ["keep", "keep"]


@pytest.mark.parametrize(
    "target",
    [pd.Series(pd.Categorical(["1", "2", "1"])), pd.Series([1, 2, 1]), pd.Series(["1", "2", "1"])],
)
def test_a_set_is_converted_to_numbers_and_labels(openml, target):
    openml.answer = make_content(target)

    data = fetch_openml("credit-g")

    assert data.name == "credit-g"
    assert data.feature_names == ("age", "count", "site=a", "site=b", "site=missing")
    assert data.x.tolist() == [[1, 1, 0, 1, 0], [3, 2, 0, 0, 1], [5, 1.5, 1, 0, 0]]
    assert data.y.tolist() == [1, 2, 1]
    assert "31" in data.source


def test_strings_are_names_and_integers_are_ids(openml):
    openml.answer = make_content(pd.Series(["x", "y", "x"]))

    fetch_openml("credit-g")
    fetch_openml(31)

    assert openml.calls == [
        {"name": "credit-g", "as_frame": True, "parser": "auto"},
        {"data_id": 31, "as_frame": True, "parser": "auto"},
    ]


@pytest.mark.parametrize(
    "failure",
    [
        URLError("no route to host"),
        HTTPError("https://example.invalid", 412, "Precondition Failed", None, None),
        TimeoutError("timed out"),
        ValueError("No active dataset nothing found."),
    ],
)
def test_an_unreachable_set_suggests_a_remedy(openml, failure):
    openml.answer = failure

    with pytest.raises(MissingDataError, match="check the name and the network, or download"):
        fetch_openml("nothing")


@pytest.mark.parametrize("target", [None, pd.DataFrame({"a": [1, 2, 3], "b": [1, 2, 3]})])
def test_a_set_without_one_target_is_refused(openml, target):
    openml.answer = make_content(target)

    with pytest.raises(DataError, match="no single default target"):
        fetch_openml(31)


def test_without_pandas_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)

    with pytest.raises(MissingExtraError, match=r"pip install 'fedneighbors\[data\]'"):
        fetch_openml(31)
