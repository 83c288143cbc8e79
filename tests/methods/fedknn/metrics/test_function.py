import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.methods.fedknn.metrics._function import FunctionMetric
from tests.methods.fedknn.metrics.brute_force import searches
from tests.seeds import cases


def difference(first, second):
    return abs(first - second)


@settings(max_examples=cases(500), deadline=None)
@given(searches(objects=st.integers(-3, 3)))
def test_any_distance_function_equals_brute_force(search):
    search.assert_equals_brute_force(FunctionMetric(difference))


@settings(max_examples=200, deadline=None)
@given(searches(objects=st.integers(-3, 3)))
def test_a_function_without_triangle_inequality_works(search):
    search.assert_equals_brute_force(
        FunctionMetric(lambda first, second: float(first * second % 3))
    )


@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_an_invalid_distance_is_refused(value):
    session = FunctionMetric(lambda *_: value, "odd").index([1], ranks=np.arange(1)).open(2)

    with pytest.raises(ValueError, match="0 or more from 'odd'"):
        session.next(1)
