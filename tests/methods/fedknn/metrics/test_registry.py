import subprocess
import sys

import numpy as np
import pytest

from fedneighbors.methods.fedknn.metrics import METRIC_NAMES, metric_of
from fedneighbors.methods.fedknn.metrics._function import FunctionMetric
from fedneighbors.methods.fedknn.metrics._interfaces import Metric
from fedneighbors.methods.fedknn.metrics._sets import JaccardMetric


@pytest.mark.parametrize("name", METRIC_NAMES)
def test_every_name_has_a_metric(name):
    metric = metric_of(name)

    assert isinstance(metric, Metric)
    assert metric.name == name


def test_the_error_for_an_unknown_name_lists_all_names():
    with pytest.raises(
        ValueError, match=r"euclidean, manhattan, cosine, inner_product, haversine, edit.*'dtw'"
    ):
        metric_of("dtw")


def test_a_metric_object_is_returned_unchanged():
    metric = JaccardMetric()

    assert metric_of(metric) is metric


def difference(first, second):
    return abs(first - second)


class Difference:
    """A minimal user-defined metric."""

    name = "difference"

    def distance(self, first, second):
        return difference(first, second)


@pytest.mark.parametrize("value", [difference, Difference()])
def test_an_object_with_a_distance_is_searched_correctly(value):
    metric = metric_of(value)

    batch = metric.index([5, 1, 3], ranks=np.arange(3)).open(2).next(2)

    assert isinstance(metric, FunctionMetric)
    assert metric.name == "difference"
    assert batch.positions.tolist() == [1, 2]


@pytest.mark.parametrize("invalid", [None, 3, [difference], JaccardMetric])
def test_an_invalid_metric_is_refused(invalid):
    with pytest.raises(TypeError, match="expected a"):
        metric_of(invalid)


def test_the_jaccard_metric_loads_no_numba_or_scipy():
    script = (
        "import sys, fedneighbors.methods.fedknn.metrics as metrics\n"
        "metrics.metric_of('jaccard')\n"
        "print({'numba', 'scipy'} & set(sys.modules))"
    )

    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert result.stdout.strip() == "set()"
