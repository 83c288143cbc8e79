"""Adding and deleting rows: own parts depend only on the rows that remain."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedneighbors import baselines
from fedneighbors.baselines._dynamic_clients import NamedRows
from fedneighbors.errors import PartyRefused
from tests.baselines.clients import NAMES, NEW_X, NEW_Y, QUICK, X, Y, copy_model
from tests.methods.knnper.federations import OWNER

ALL = [getattr(baselines, name) for name in baselines.TITLES.values()]
WITHOUT_OWN_PARTS = (baselines.FedAvgClassifier, baselines.FedProxClassifier)


@pytest.fixture(scope="module", params=ALL, ids=lambda method: method.__name__)
def trained_model(request):
    return request.param(**QUICK).fit(X, Y, parties=OWNER)


@pytest.fixture
def model(trained_model):
    return copy_model(trained_model)


@pytest.fixture(scope="module")
def ditto():
    return baselines.DittoClassifier(**QUICK).fit(X, Y, parties=OWNER)


def predict_bytes(model, name, rows=NEW_X):
    return model.predict_proba(rows, [name] * len(rows)).tobytes()


def predict_shared(model):
    with pytest.warns(UserWarning, match="are unknown"):
        return predict_bytes(model, "nobody")


def test_rows_in_two_updates_equal_rows_in_one(trained_model):
    at_once = copy_model(trained_model).add_client("new", NEW_X, NEW_Y)

    in_parts = copy_model(trained_model).add_client("new", NEW_X[:25], NEW_Y[:25])
    in_parts.update("new", NEW_X[25:26], NEW_Y[25:26]).update("new", NEW_X[26:], NEW_Y[26:])

    assert predict_bytes(in_parts, "new") == predict_bytes(at_once, "new")
    assert in_parts.rows_["new"].ids == at_once.rows_["new"].ids


def test_deleted_rows_leave_no_trace_in_predictions(trained_model):
    expected = copy_model(trained_model).add_client("new", NEW_X[:25], NEW_Y[:25])

    model = copy_model(trained_model).add_client("new", NEW_X[:25], NEW_Y[:25])
    model.update("new", NEW_X[25:], NEW_Y[25:], ids=range(100, 115))
    model.forget("new", range(100, 115))

    assert predict_bytes(model, "new") == predict_bytes(expected, "new")


def test_new_rows_change_only_the_clients_own_part(model):
    others = NAMES[1:]
    before = {name: predict_bytes(model, name) for name in NAMES}
    weights, shared = model.weights_.tobytes(), predict_shared(model)

    model.update(NAMES[0], NEW_X, NEW_Y)

    assert model.weights_.tobytes() == weights
    assert predict_shared(model) == shared
    assert {name: predict_bytes(model, name) for name in others} == {
        name: before[name] for name in others
    }
    if not isinstance(model, (*WITHOUT_OWN_PARTS, baselines.ClusteredFLClassifier)):
        assert predict_bytes(model, NAMES[0]) != before[NAMES[0]]


def test_a_client_without_rows_gets_the_shared_model(model):
    expected = copy_model(model).add_client("new", NEW_X[:9], NEW_Y[:9])
    model.add_client("new", NEW_X, NEW_Y)

    model.forget("new", list(model.rows_["new"].ids))
    empty = predict_bytes(model, "new")
    model.update("new", NEW_X[:9], NEW_Y[:9])

    assert empty == predict_shared(model)
    assert predict_bytes(model, "new") == predict_bytes(expected, "new")


@pytest.mark.parametrize("title", ["Local", "FedAvg, local class shares", "head fine-tuning"])
def test_rows_added_to_a_training_client_count_as_training_rows(title):
    method = getattr(baselines, baselines.TITLES[title])
    start = {} if title == "Local" else {"start": baselines.FedAvgClassifier(**QUICK)}
    for fedavg in start.values():
        fedavg.fit(X, Y, parties=OWNER)
    estimator = method(**QUICK, **start).set_params(trainer="reuse")
    later = estimator.fit(X, Y, parties=OWNER).update(NAMES[0], NEW_X, NEW_Y)
    updated = predict_bytes(later, NAMES[0])

    at_once = estimator.fit(
        np.concatenate([X, NEW_X]),
        np.concatenate([Y, NEW_Y]),
        parties=[*OWNER, *[NAMES[0]] * len(NEW_Y)],
    )

    assert predict_bytes(at_once, NAMES[0]) == updated


def test_a_training_row_is_named_by_its_index_in_its_client(ditto):
    model = copy_model(ditto)
    client_rows = np.flatnonzero(NAMES[0] == OWNER)

    model.forget(NAMES[0], [0, "2"])

    remaining = np.delete(client_rows, [0, 2])
    np.testing.assert_array_equal(model.rows_[NAMES[0]].x, X[remaining])
    np.testing.assert_array_equal(model.classes_[model.rows_[NAMES[0]].labels], Y[remaining])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda m: m.forget("new", ["0", "99"]), KeyError, "no rows named .'99'.; it has 40"),
        (lambda m: m.forget("new", "12"), TypeError, r"got '12'; pass a list: \['12'\]"),
        (lambda m: m.forget("moon", ["0"]), ValueError, "'moon' is unknown; add it with"),
        (lambda m: m.update("moon", NEW_X, NEW_Y), ValueError, "'moon' is unknown"),
        (lambda m: m.update("new", NEW_X[:2], [1, 77]), ValueError, r"got \['77'\]; list all"),
        (lambda m: m.update("new", NEW_X[:3], [1, 2]), ValueError, "one label for each of 3 rows"),
        (lambda m: m.update("new", NEW_X[:2], [1, 2], ids="ab"), TypeError, "pass a list"),
        (lambda m: m.update("new", NEW_X[:2], [1, 2], ids=["a"]), ValueError, "a name for each"),
        (lambda m: m.update("new", NEW_X[:1], [1], ids=[5]), ValueError, "new names, got '5'"),
        (lambda m: m.update("new", NEW_X[:2], [1, 2], ids=["a", "a"]), ValueError, "name twice"),
        (lambda m: m.update("new", NEW_X[:1, 1:], [1]), ValueError, "features"),
        (lambda m: m.update("new", NEW_X[:1] * np.nan, [1]), ValueError, "NaN"),
    ],
)  # fmt: skip
def test_invalid_changes_are_refused_without_effect(ditto, change, error, message):
    model = copy_model(ditto).add_client("new", NEW_X, NEW_Y)
    before, ids = predict_bytes(model, "new"), model.rows_["new"].ids

    with pytest.raises(error, match=message):
        change(model)

    assert predict_bytes(model, "new") == before
    assert model.rows_["new"].ids == ids


def test_a_client_with_diverged_training_is_unchanged(ditto):
    model = copy_model(ditto).add_client("new", NEW_X, NEW_Y)
    before, ids = predict_bytes(model, "new"), model.rows_["new"].ids

    model.tuning_rate = 2.0**64
    with pytest.raises(PartyRefused, match="training has diverged"):
        model.update("new", NEW_X[:5], NEW_Y[:5])

    assert predict_bytes(model, "new") == before
    assert model.rows_["new"].ids == ids


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 4), st.booleans()),
        st.tuples(st.just("delete"), st.integers(0, 2**8), st.just(False)),
    ),
    max_size=8,
)


@given(STEPS)
def test_rows_equal_a_list_changed_row_by_row(steps):
    rows = NamedRows.new(np.empty((0, 1)), np.empty(0, np.int64))
    naive: list[tuple[str, float, int]] = []
    number, n_added = 0, 0
    for kind, n, named in steps:
        if kind == "add":
            values = list(range(n_added, n_added + n))
            used_names = {name for name, _, _ in naive}
            ids = [f"n{value}" for value in values] if named else None
            rows = rows.with_more(np.array(values, float).reshape(-1, 1), np.array(values), ids)
            for value in values:
                while not named and str(number) in used_names:
                    number += 1
                naive.append((f"n{value}" if named else str(number), float(value), value))
                number += 1
            n_added += n
        else:
            deleted = [name for index, (name, _, _) in enumerate(naive) if n >> index & 1]
            rows = rows.without(deleted)
            naive = [row for row in naive if row[0] not in deleted]

    assert rows.ids == tuple(name for name, _, _ in naive)
    assert rows.x.ravel().tolist() == [value for _, value, _ in naive]
    assert rows.labels.tolist() == [label for _, _, label in naive]
    assert len(rows) == len(naive)
