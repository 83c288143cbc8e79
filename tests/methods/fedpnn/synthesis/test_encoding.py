import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedneighbors.datasets import Table
from fedneighbors.errors import DataError
from fedneighbors.methods.fedpnn.synthesis._encoding import Layout, fit_transform


def make_text_column(*cells):
    column = np.empty(len(cells), np.object_)
    column[:] = cells
    return column


def encode_and_decode(table, **options):
    transform = fit_transform(table, **options)
    codes, positions = transform.codes(table, np.random.default_rng(0))
    return transform.table(transform.matrix(codes, positions))


def test_text_and_missing_cells_survive_a_round_trip():
    table = Table(
        {"city": make_text_column("b", None, "a", "b"), "n": np.array([1.0, np.nan, 2.5, 2.5])}, "t"
    )

    decoded = encode_and_decode(table, repeated_share=0.25)

    assert decoded.columns["city"].tolist() == ["b", None, "a", "b"]
    assert decoded.columns["n"].tolist()[2:] == [2.5, 2.5]
    assert np.isnan(decoded.columns["n"]).tolist() == [False, True, False, False]


def test_numbers_survive_a_round_trip_up_to_rounding():
    column = np.random.default_rng(1).normal(50.0, 3.0, 800)

    decoded = encode_and_decode(Table({"x": column}, "t")).columns["x"]

    np.testing.assert_allclose(decoded, column, atol=1e-4)


def test_repeated_values_become_categories():
    column = np.concatenate([np.zeros(40), np.random.default_rng(2).normal(5.0, 1.0, 60)])
    table = Table({"x": column}, "t")

    with_repeated = fit_transform(table, repeated_share=0.3).codings[0]
    without_repeated = fit_transform(table, repeated_share=None).codings[0]

    assert with_repeated.repeated.tolist() == [0.0]
    assert without_repeated.repeated.tolist() == []
    assert (encode_and_decode(table, repeated_share=0.3).columns["x"][:40] == 0).all()


@pytest.mark.parametrize("share", [0.05, None])
def test_constant_column_is_one_category(share):
    table = Table({"x": np.full(7, 3.25)}, "t")

    transform = fit_transform(table, repeated_share=share)

    assert transform.layout == Layout(widths=(1,), scalars=())
    assert encode_and_decode(table, repeated_share=share).columns["x"].tolist() == [3.25] * 7


def test_empty_column_stays_empty():
    table = Table({"x": np.full(3, np.nan), "y": make_text_column(None, None, None)}, "t")

    decoded = encode_and_decode(table)

    assert np.isnan(decoded.columns["x"]).all()
    assert decoded.columns["y"].tolist() == [None, None, None]


def test_integers_are_decoded_to_integers():
    column = np.random.default_rng(3).integers(0, 1_000, 300).astype(np.float64)
    transform = fit_transform(Table({"x": column}, "t"))
    random = np.random.default_rng(4).normal(size=(50, transform.layout.width))

    decoded = transform.table(random.astype(np.float32)).columns["x"]

    assert (decoded == np.round(decoded)).all()


def test_one_hot_parts_of_equal_width_are_adjacent():
    layout = Layout(widths=(3, 2, 3, 1), scalars=(0, 2))

    assert layout.starts == (5, 3, 8, 2)
    assert layout.blocks == ((2, 1, 1), (3, 1, 2), (5, 2, 3))
    assert layout.width == 11


@pytest.mark.parametrize(
    ("later", "message"),
    [
        (
            {"x": np.array([1.0, np.nan]), "w": make_text_column("a", "b")},
            "missing cells; it had none",
        ),
        ({"x": np.array([1.0, 2.0]), "w": make_text_column("a", "z")}, r"categories \[\"'z'\"\]"),
        (
            {"x": np.array([1.0, 2.0]), "w": make_text_column("a", None)},
            "missing cells, which it did not",
        ),
        (
            {"x": make_text_column("a", "b"), "w": make_text_column("a", "b")},
            "contains text; it was numeric",
        ),
        ({"x": np.array([1.0, 2.0]), "w": np.array([1.0, 2.0])}, "is numeric; it contained text"),
        ({"w": make_text_column("a", "b"), "x": np.array([1.0, 2.0])}, "expected the columns"),
    ],
    ids=["missing", "unseen text", "missing text", "text", "numbers", "other order"],
)
def test_rows_unlike_the_fit_are_rejected(later, message):
    table = Table({"x": np.arange(30.0), "w": make_text_column(*"ab" * 15)}, "t")
    transform = fit_transform(table)

    with pytest.raises(DataError, match=message):
        transform.codes(Table(later, "later"), np.random.default_rng(0))


def test_new_value_in_a_constant_column_is_rejected():
    transform = fit_transform(Table({"x": np.full(4, 2.0)}, "t"))

    with pytest.raises(DataError, match=r"contains 3.0; in the fit it contained only \[2.0\]"):
        transform.codes(Table({"x": np.array([2.0, 3.0])}, "t"), np.random.default_rng(0))


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e200])
def test_infinite_and_huge_numbers_are_rejected(value):
    with pytest.raises(DataError, match="'x' contains infinite values or values beyond"):
        fit_transform(Table({"x": np.array([1.0, value])}, "t"))


cells = st.one_of(st.none(), st.sampled_from(["a", "b", "long word", ""]))
numbers = st.one_of(st.just(float("nan")), st.floats(-1e6, 1e6), st.sampled_from([0.0, 1.0]))


@settings(max_examples=60)
@given(st.lists(st.tuples(cells, numbers), min_size=1, max_size=25))
def test_any_table_keeps_text_and_missing_cells(rows):
    table = Table(
        {"w": make_text_column(*[w for w, _ in rows]), "x": np.array([x for _, x in rows])}, "t"
    )

    decoded = encode_and_decode(table)

    assert decoded.columns["w"].tolist() == table.columns["w"].tolist()
    assert (np.isnan(decoded.columns["x"]) == np.isnan(table.columns["x"])).all()
    present = ~np.isnan(table.columns["x"])
    assert np.isfinite(decoded.columns["x"][present]).all()
