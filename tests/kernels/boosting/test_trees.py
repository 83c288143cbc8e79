import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedneighbors.baselines.boosting._model import Trees
from fedneighbors.kernels.boosting._trees import add_values
from tests.naive.boosting import trees as naive

NUMBERS = st.sampled_from([0.0, -0.0, 1.0, -1.0, 5e-324, 1e308, np.inf, -np.inf]) | st.floats(-9, 9)
VALUES = st.floats(-1e9, 1e9)


@st.composite
def single_trees(draw):
    """Draw a tree by splitting leaves."""
    n_splits = draw(st.integers(0, 6))
    features, thresholds = [-1], [0.0]
    directions, children = [False], [0]
    for _ in range(n_splits):
        leaf = draw(st.sampled_from([k for k, feature in enumerate(features) if feature < 0]))
        features[leaf], thresholds[leaf] = draw(st.integers(0, 2)), draw(NUMBERS)
        directions[leaf], children[leaf] = draw(st.booleans()), len(features)
        features += [-1, -1]
        thresholds += [0.0, 0.0]
        directions += [False, False]
        children += [0, 0]
    values = draw(arrays(np.float64, len(features), elements=VALUES))
    return Trees(
        np.array(features, np.int32),
        np.array(thresholds),
        np.array(directions),
        np.array(children, np.int32),
        values,
        np.zeros(1, np.int64),
    )


@settings(max_examples=100, deadline=None)
@given(
    st.lists(single_trees(), min_size=1, max_size=5),
    arrays(np.float64, (4, 3), elements=NUMBERS | st.just(np.nan)),
    st.integers(1, 3),
    st.integers(0, 2),
)
def test_values_match_naive_version_bit_for_bit(parts, x, n_scores, first):
    trees = Trees.join(parts)
    scores = np.full((len(x), n_scores), 0.1)
    expected = naive.add_values(x.tolist(), trees, first=first, scores=scores.tolist())

    add_values(x, trees, first=first, scores=scores)

    assert scores.tolist() == expected
