"""Hostile tables of keys, for all compressed memories."""

import numpy as np
from hypothesis import strategies as st

EXTREME = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.1, 1e-160, 1e-45, 3e7, 3e38, -3e38])
TIES = st.integers(-2, 2).map(float)
KINDS = (EXTREME, TIES, st.floats(-1e3, 1e3))


@st.composite
def tables(draw, *, width=None, most=12, cells=KINDS):
    """Return keys with duplicates and ties, one at least."""
    kind = draw(st.sampled_from(cells))
    n = draw(st.integers(1, 10)) if width is None else width
    row = st.lists(kind, min_size=n, max_size=n)
    first = draw(st.lists(row, min_size=1, max_size=most))
    copies = draw(st.lists(st.sampled_from(first), max_size=3))
    return np.array(first + copies)
