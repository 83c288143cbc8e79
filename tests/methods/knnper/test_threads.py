"""Concurrent predictions and updates of a model by several threads."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fedneighbors.baselines import DittoClassifier
from fedneighbors.methods.knnper import KNNPerClassifier
from tests.baselines.clients import NEW_X, NEW_Y, QUICK, X, Y
from tests.methods.knnper.federations import OWNER


@pytest.fixture(params=[KNNPerClassifier, DittoClassifier], ids=lambda method: method.__name__)
def model(request):
    return request.param(**QUICK).fit(X, Y, parties=OWNER)


def test_concurrent_predictions_equal_sequential_ones(model):
    parts = [np.arange(first, len(Y), 8) for first in range(8)] * 8
    sequential = [model.predict_proba(X[part], OWNER[part]) for part in parts]

    with ThreadPoolExecutor(4) as threads:
        concurrent = list(
            threads.map(lambda part: model.predict_proba(X[part], OWNER[part]), parts)
        )

    for predictions, expected in zip(concurrent, sequential, strict=True):
        assert predictions.tobytes() == expected.tobytes()


def test_concurrent_updates_lose_no_row(model):
    model.add_client("new", NEW_X[:10], NEW_Y[:10])
    rows = NEW_X[10:26], NEW_Y[10:26]

    def add_row(place):
        model.update("new", rows[0][place : place + 1], rows[1][place : place + 1], [f"t{place}"])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(add_row, range(16)))

    ids = model.rows_["new"].ids if hasattr(model, "rows_") else model.clients_["new"].memory.ids
    assert sorted(ids) == sorted([*map(str, range(10)), *(f"t{place}" for place in range(16))])
