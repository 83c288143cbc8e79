"""Numbers are formatted with few digits and readable units."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedneighbors.reports._formatting import (
    format_bytes,
    format_cells,
    format_number,
    format_seconds,
)

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (999, "999 B"),
        (999.6, "1 kB"),
        (1_000, "1 kB"),
        (1_638_400, "1.64 MB"),
        (999_600, "1 MB"),
        (2.5e9, "2.5 GB"),
        (-1500, "\N{MINUS SIGN}1.5 kB"),
        (math.nan, "n/a"),
    ],
)
def test_bytes_have_a_suitable_unit(n_bytes, text):
    assert format_bytes(n_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (1e-6, "1 µs"),
        (0.9996e-3, "1 ms"),
        (0.25, "250 ms"),
        (0.9999, "1 s"),
        (59.96, "60 s"),
        (120, "120 s"),
        (3599.7, "1 h 0 min"),
        (90_000, "25 h 0 min"),
        (math.inf, "∞ s"),
    ],
)
def test_seconds_have_a_suitable_unit(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0, "0"),
        (-0.0, "0"),
        (1797, "1797"),
        (12_345, "12,345"),
        (0.98765, "0.9877"),
        (-2.5, "\N{MINUS SIGN}2.5"),
        (1e-9, "1×10⁻⁹"),  # noqa: RUF001 - multiplication sign
        (-math.inf, "\N{MINUS SIGN}∞"),
    ],
)
def test_numbers_have_few_digits(value, text):
    assert format_number(value) == text


def test_fractions_of_a_column_have_equal_decimals():
    assert format_cells("accuracy", [0.9, 0.87654, 0.5]) == ["0.9000", "0.8765", "0.5000"]


def test_trailing_zeros_of_a_whole_column_are_dropped():
    assert format_cells("error", [0.021, 0.008]) == ["0.021", "0.008"]
    assert format_cells("mean", [2.0, 3.0]) == ["2", "3"]


def test_values_of_very_different_sizes_keep_their_digits():
    assert format_cells("loss", [1000.0, 0.0012345]) == ["1,000", "0.001234"]


def test_the_column_name_determines_the_unit():
    assert format_cells("upload_bytes", [1500]) == ["1.5 kB"]
    assert format_cells("fit_s", [0.5]) == ["500 ms"]
    assert format_cells("classes", [1500]) == ["1500"]


@given(values=st.lists(scalars, max_size=5), column=st.sampled_from(["a", "bytes", "wall_s"]))
def test_every_scalar_is_formatted_as_text(values, column):
    texts = format_cells(column, values)

    assert len(texts) == len(values)
    assert all(isinstance(text, str) for text in texts)


def test_an_integer_too_large_for_a_float_is_formatted():
    assert format_cells("bytes", [10**400]) == [str(10**400)]
