"""Tables of keys with extreme and tied values, for tests of compressed memories."""

import numpy as np
from hypothesis import strategies as st

EXTREME = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.1, 1e-160, 1e-45, 3e7, 3e38, -3e38])
TIES = st.integers(-2, 2).map(float)
KINDS = (EXTREME, TIES, st.floats(-1e3, 1e3))


@st.composite
def tables(draw, *, width=None, max_first=12, cells=KINDS):
    """Return at least one key; keys repeat and tie."""
    kind = draw(st.sampled_from(cells))
    n = draw(st.integers(1, 10)) if width is None else width
    row = st.lists(kind, min_size=n, max_size=n)
    first = draw(st.lists(row, min_size=1, max_size=max_first))
    copies = draw(st.lists(st.sampled_from(first), max_size=3))
    return np.array(first + copies)
