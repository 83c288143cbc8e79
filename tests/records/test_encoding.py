"""Small images in table cells."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from fedneighbors.errors import RecordError
from fedneighbors.records import decode_pixels, encode_pixels


@given(
    image=arrays(
        st.sampled_from([np.uint8, np.int64]),
        array_shapes(min_dims=2, max_dims=2, max_side=9),
        elements=st.integers(0, 255),
    )
)
def test_every_image_round_trips(image):
    cell = encode_pixels(image)

    assert [list(row) for row in decode_pixels(cell)] == image.tolist()


@pytest.mark.parametrize("image", [[], [[]], [[1, 2], [3]], [[256]], [[-1]]])
def test_invalid_grayscale_image_is_a_value_error(image):
    with pytest.raises(ValueError, match=r"expected image rows|range\(0, 256\)"):
        encode_pixels(image)


@pytest.mark.parametrize("cell", [None, 3, "", "2x2", "2x2:AA==", "0x1:", "2x2:!", "1x1:A", "a:b"])
def test_a_cell_without_an_image_is_a_record_error(cell):
    with pytest.raises(RecordError, match="expected"):
        decode_pixels(cell)
