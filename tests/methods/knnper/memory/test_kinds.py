"""Every kind of memory supports a classifier, and refuses unsupported operations."""

import numpy as np
import pytest
from sklearn.datasets import load_wine

from experiments.catalog import find_study
from fedneighbors.errors import RebuildNeeded
from fedneighbors.methods.knnper import KNNPerClassifier
from fedneighbors.methods.knnper._settings import MEMORY_KINDS

X, Y = load_wine(return_X_y=True)
PARTIES = np.where(np.arange(len(Y)) % 3 == 0, "south", "north")
TRAIN, TEST = np.arange(0, len(Y), 2), np.arange(1, len(Y), 2)


@pytest.fixture(scope="module", params=MEMORY_KINDS)
def fitted(request):
    model = KNNPerClassifier(n_rounds=10, memory=request.param)
    return model.fit(X[TRAIN], Y[TRAIN], parties=PARTIES[TRAIN])


def test_every_kind_of_memory_classifies(fitted):
    probabilities = fitted.predict_proba(X[TEST], PARTIES[TEST])

    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-9)
    assert fitted.score(X[TEST], Y[TEST], parties=PARTIES[TEST]) > 0.85


def test_a_new_client_gets_a_memory_of_the_same_kind(fitted):
    name = next(iter(fitted.clients_))

    fitted.add_client(f"new to {name}", X[:30], Y[:30])

    kinds = {type(client.memory) for client in fitted.clients_.values()}
    assert len(kinds) == 1
    assert len(fitted.clients_[f"new to {name}"].memory) == 30


def test_a_row_is_forgotten_or_an_error_raised(fitted):
    name = next(iter(fitted.clients_))
    memory = fitted.clients_[name].memory
    n = len(memory)

    if fitted.memory in ("exact", "8-bit"):
        fitted.forget(name, ["0"])
        assert len(memory) == n - 1
    else:
        with pytest.raises(RebuildNeeded, match="again"):
            fitted.forget(name, ["0"])
        assert len(memory) == n


def test_a_pool_uses_keys_and_labels_of_a_coded_memory():
    model = KNNPerClassifier(hidden=(16, 8), n_rounds=3, memory="8-bit", combine="pool")

    model.fit(X[TRAIN], Y[TRAIN], parties=PARTIES[TRAIN])

    assert {"memory", "local prior", "ridge head"} <= set(model.pool_.experts)
    assert np.isfinite(model.predict_proba(X[:5], PARTIES[:5])).all()


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"memory": "zip"}, "expected memory among"),
        ({"memory": "protonn"}, r"expected memory among .* got 'protonn'"),
        ({"memory": "centers", "capacity": 5}, "does not store rows"),
        ({"memory": "centers", "strategy": "fifo"}, "does not store rows"),
    ],
)
def test_contradictory_parameters_are_refused(parameters, words):
    with pytest.raises(ValueError, match=words):
        KNNPerClassifier(**parameters).fit(X, Y)


def test_the_experiment_has_size_and_accuracy_of_each_kind():
    record = find_study("knnper.compression").run(quick=True)

    assert [table.name for table in record.tables] == ["6-clients-seen", "6-clients-unseen"]
    for table in record.tables:
        sizes = {(row[0], row[1]): row[2] for row in table.rows}
        accuracy = {(row[0], row[1]): row[4] for row in table.rows}
        assert {kind for kind, _ in sizes} == {
            "exact", "8-bit", "product, own book", "product, given book", "centers", "protonn",
        }  # fmt: skip
        assert sizes["exact", "all rows"] == 1
        assert 0.25 < sizes["8-bit", "a byte a cell"] < 0.3
        assert sizes["centers", "1/9 of the rows"] < 0.1
        assert abs(accuracy["8-bit", "a byte a cell"] - accuracy["exact", "all rows"]) < 0.03
