"""A message with a field of every type, and a Hypothesis strategy for such messages."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.federation.parties import Everything

int64 = st.integers(-(2**63), 2**63 - 1)
finite = st.floats(allow_nan=False, allow_infinity=False)
text = st.text(st.characters(codec="utf-8"))
dtypes = st.sampled_from(
    ["|u1", "<u2", "<u4", "<u8", "|i1", "<i2", "<i4", "<i8", "<f4", "<f8", "|b1", ">i4", ">f8"]
)
arrays = dtypes.flatmap(
    lambda code: hnp.arrays(code, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)
everything = st.builds(
    Everything,
    nothing=st.none(),
    yes=st.booleans(),
    number=int64,
    real=finite,
    text=text,
    raw=st.binary(),
    items=arrays,
    pair=st.tuples(int64, text),
    many=st.lists(st.none() | finite).map(tuple),
    table=st.dictionaries(text, st.lists(int64).map(tuple)),
    word=st.sampled_from(["add", "replace"]),
)
SAMPLE = Everything(
    nothing=None,
    yes=True,
    number=-5,
    real=0.5,
    text="Zürich",
    raw=b"\x00\xff",
    items=np.arange(6, dtype=np.int32).reshape(2, 3),
    pair=(7, "seven"),
    many=(1.0, None),
    table={"a": (1,), "b": ()},
    word="add",
)
