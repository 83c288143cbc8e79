"""Names of clients and rows are converted to text everywhere; invalid names are refused."""

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_wine

from experiments.knnper.fixtures import EmbeddingBank
from fedneighbors.baselines import FedAvgClassifier, LocalClassifier
from fedneighbors.methods.knnper import KNNPerClassifier, KNNPerRegressor

WINE, CULTIVAR = load_wine(return_X_y=True)
DIABETES, PROGRESS = (part[:120] for part in load_diabetes(return_X_y=True))
QUICK = {"hidden": (8,), "n_rounds": 2}
MISSING = [None, np.nan, ""]


def get_data(method):
    return (DIABETES, PROGRESS) if method is KNNPerRegressor else (WINE, CULTIVAR)


def fit(method=KNNPerClassifier, names=("north", "south"), **parameters):
    x, y = get_data(method)
    parties = np.array(names, object)[np.arange(len(y)) % 2]
    return method(**QUICK, **parameters).fit(x, y, parties=parties)


@pytest.fixture(params=[KNNPerClassifier, KNNPerRegressor], ids=lambda method: method.__name__)
def method(request):
    return request.param


def list_row_ids(model, name):
    return model.clients_[name].memory.ids


# Clients


@pytest.mark.parametrize("number", [int, np.int64])
def test_numeric_client_names_become_text(method, number, tmp_path):
    (x, y), model = get_data(method), fit(method)

    model.add_client(number(5), x[:30], y[:30])
    model.update(number(5), x[:2], y[:2]).forget(number(5), [0, "1"])
    model.save(tmp_path / "all")
    model.save(tmp_path / "five", client=number(5))

    assert sorted(model.clients_) == ["5", "north", "south"]
    assert list_row_ids(model, "5") == [str(place) for place in range(2, 32)]
    predictions = model.predict(x[:9], [number(5)] * 9)
    assert predictions.tolist() == model.predict(x[:9], ["5"] * 9).tolist()
    assert method.load(tmp_path / "all").predict(x[:9], [5] * 9).tolist() == predictions.tolist()
    assert method.load(tmp_path / "five").predict(x[:9]).tolist() == predictions.tolist()


def test_clients_trained_under_numbers_are_found_by_number(method):
    (x, y), model = get_data(method), fit(method, names=(0, 1))

    model.update(0, x[:2], y[:2], ids=["a", "b"]).forget(0, ["a"])

    assert list_row_ids(model, "0")[-1] == "b"
    with pytest.raises(ValueError, match="client '0' already exists"):
        model.add_client(0, x[:9], y[:9])
    assert sorted(model.clients_) == ["0", "1"]


@pytest.mark.parametrize("name", MISSING)
def test_a_client_without_a_name_is_refused_everywhere(method, name, tmp_path):
    (x, y), model = get_data(method), fit(method)
    calls = [
        lambda: model.add_client(name, x[:9], y[:9]),
        lambda: model.update(name, x[:9], y[:9]),
        lambda: model.forget(name, ["0"]),
    ]
    if name is not None:  # None saves all of them
        calls.append(lambda: model.save(tmp_path / "m", client=name))

    for call in calls:
        with pytest.raises(ValueError, match="expected the name of one party, such as 'north'"):
            call()
    with pytest.raises(ValueError, match="found 1 rows without one"):
        model.predict(x[:2], [name, "north"])
    with pytest.raises(ValueError, match="rows without one"):
        fit(method, names=("north", name))

    assert sorted(model.clients_) == ["north", "south"]
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("baseline", [LocalClassifier, FedAvgClassifier])
def test_baselines_convert_client_names_too(baseline):
    model = fit(baseline, names=(0, 1))

    model.add_client(5, WINE[:30], CULTIVAR[:30])
    model.add_clients(WINE[:40], CULTIVAR[:40], [6, "7"] * 20)

    assert sorted(model.clients_) == ["0", "1", "5", "6", "7"]
    with pytest.raises(ValueError, match="client '0' already exists"):
        model.add_client(0, WINE[:30], CULTIVAR[:30])
    for name in MISSING:
        with pytest.raises(ValueError, match="expected the name of one party"):
            model.add_client(name, WINE[:30], CULTIVAR[:30])
        with pytest.raises(ValueError, match="found 15 rows without one"):
            model.add_clients(WINE[:30], CULTIVAR[:30], ["new", name] * 15)
    assert sorted(model.clients_) == ["0", "1", "5", "6", "7"]


@pytest.mark.parametrize("name", MISSING)
def test_a_bank_has_no_client_without_a_name(name):
    with pytest.raises(ValueError, match="expected the name of one party"):
        EmbeddingBank.collect(np.zeros((2, 1)), np.zeros(2, int), ["north", name])


# Rows


def test_a_string_is_not_a_list_of_row_names(method):
    (x, y), model = get_data(method), fit(method)
    before = list_row_ids(model, "north")

    with pytest.raises(TypeError, match=r"got '12'; pass a list: \['12'\]"):
        model.forget("north", "12")
    with pytest.raises(TypeError, match="pass a list"):
        model.update("north", x[:2], y[:2], ids="ab")
    with pytest.raises(TypeError, match="pass a list"):
        model.add_client("new", x[:2], y[:2], ids="ab")

    assert list_row_ids(model, "north") == before
    assert "new" not in model.clients_


@pytest.mark.parametrize("number", [int, np.int64])
def test_numeric_row_names_can_be_forgotten(method, number):
    (x, y), model = get_data(method), fit(method)
    numbers = [number(number_) for number_ in (1011, 1012, 1013)]

    model.update("north", x[:3], y[:3], ids=numbers).forget("north", numbers[:1])

    assert list_row_ids(model, "north")[-2:] == ["1012", "1013"]


def test_default_names_skip_used_numbers(method, tmp_path):
    (x, y), model = get_data(method), fit(method)
    n = len(list_row_ids(model, "north"))
    model.update("north", x[:1], y[:1], ids=[str(n + 1)]).update("north", x[:1], y[:1])
    model.save(tmp_path / "m")

    for instance in (model, method.load(tmp_path / "m")):
        instance.forget("north", [n + 1, n + 2]).update("north", x[:2], y[:2])
        assert list_row_ids(instance, "north")[-2:] == [str(n + 3), str(n + 4)]


# Labels and targets


@pytest.mark.parametrize(
    ("y", "shape"), [([[0]] * 5, r"\(5, 1\)"), (1, r"\(\)"), (None, r"\(\)")], ids=str
)
def test_labels_that_are_not_flat_are_refused_with_shape(y, shape):
    model, baseline = fit(), fit(LocalClassifier)

    for call in (
        lambda: model.add_client("new", WINE[:5], y),
        lambda: model.update("north", WINE[:5], y),
        lambda: baseline.add_client("new", WINE[:5], y),
        lambda: baseline.add_clients(WINE[:5], y, ["new"] * 5),
    ):
        with pytest.raises(ValueError, match=rf"of shape \(n_rows,\), got shape {shape}"):
            call()

    assert sorted(model.clients_) == sorted(baseline.clients_) == ["north", "south"]


@pytest.mark.parametrize(
    ("y", "shape"), [(1.0, r"\(\)"), ([[[1.0]]] * 5, r"\(5, 1, 1\)")], ids=["one", "cube"]
)
def test_invalid_targets_are_refused_with_their_shape(y, shape):
    model = fit(KNNPerRegressor)

    for call in (
        lambda: model.add_client("new", DIABETES[:5], y),
        lambda: model.update("north", DIABETES[:5], y),
    ):
        with pytest.raises(ValueError, match=rf"for each row, got an array of shape {shape}"):
            call()

    assert sorted(model.clients_) == ["north", "south"]
