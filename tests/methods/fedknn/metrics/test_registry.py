import subprocess
import sys

import numpy as np
import pytest

from fedneighbors.methods.fedknn.metrics import METRIC_NAMES, metric_of
from fedneighbors.methods.fedknn.metrics._function import FunctionMetric
from fedneighbors.methods.fedknn.metrics._sessions import Metric
from fedneighbors.methods.fedknn.metrics._sets import JaccardMetric


@pytest.mark.parametrize("name", METRIC_NAMES)
def test_every_name_has_a_metric(name):
    metric = metric_of(name)

    assert isinstance(metric, Metric)
    assert metric.name == name


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"euclidean, manhattan, cosine, haversine, edit.*'dtw'"):
        metric_of("dtw")


def test_a_metric_object_is_returned_unchanged():
    metric = JaccardMetric()

    assert metric_of(metric) is metric


def gap(first, second):
    return abs(first - second)


class Gap:
    """A minimal user-defined metric."""

    name = "gap"

    def distance(self, first, second):
        return gap(first, second)


@pytest.mark.parametrize("given", [gap, Gap()])
def test_an_object_with_a_distance_is_searched_correctly(given):
    metric = metric_of(given)

    found = metric.index([5, 1, 3], ranks=np.arange(3)).open(2).next(2)

    assert isinstance(metric, FunctionMetric)
    assert metric.name == "gap"
    assert found.positions.tolist() == [1, 2]


@pytest.mark.parametrize("bad", [None, 3, [gap], JaccardMetric])
def test_an_invalid_metric_is_refused(bad):
    with pytest.raises(TypeError, match="expected a"):
        metric_of(bad)


def test_a_metric_loads_no_modules_of_others():
    script = (
        "import sys, fedneighbors.methods.fedknn.metrics as metrics\n"
        "metrics.metric_of('jaccard')\n"
        "print({'numba', 'scipy'} & set(sys.modules))"
    )

    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert result.stdout.strip() == "set()"
