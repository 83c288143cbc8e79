"""Figures of every kind are drawn, for any table."""

import dataclasses
import math
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure as MplFigure

from fedneighbors.errors import RecordError
from fedneighbors.records import FIGURE_KINDS, Figure, ResultTable, RunRecord
from fedneighbors.reports import save_figures
from fedneighbors.reports._charts import draw_bars, draw_lines
from fedneighbors.reports._figures import draw_panels, render
from fedneighbors.reports._grids import draw_heatmap
from fedneighbors.reports._series import build_chart
from fedneighbors.reports._style import list_colors
from tests.reports.example import NUMBERS, RECORD, figure

TABLES = {table.name: table for table in RECORD.tables}
CHARTS = [kind for kind in FIGURE_KINDS if kind != "images"]
PNG = b"\x89PNG\r\n\x1a\n"


def is_svg(content):
    return ElementTree.fromstring(content).tag == "{http://www.w3.org/2000/svg}svg"


@pytest.mark.parametrize("kind", FIGURE_KINDS)
def test_every_kind_is_drawn_as_svg(kind):
    description = figure(kind)

    content = render(description, TABLES[description.table], "svg")

    assert is_svg(content)


@pytest.mark.parametrize("kind", FIGURE_KINDS)
def test_the_same_data_gives_the_same_bytes(kind):
    description = figure(kind, facet="")

    first, second = (render(description, TABLES[description.table], "svg") for _ in range(2))

    assert first == second


def test_every_figure_is_saved_as_png_and_svg(tmp_path):
    record = dataclasses.replace(RECORD, figures=(figure("line"), figure("images")))

    files = save_figures(record, tmp_path / "figures")

    assert [file.name for file in files] == ["line.png", "line.svg", "images.png", "images.svg"]
    assert all(file.read_bytes().startswith(PNG) for file in files[::2])
    assert all(is_svg(file.read_bytes()) for file in files[1::2])


@pytest.mark.parametrize("kind", FIGURE_KINDS)
def test_a_figure_of_an_empty_table_says_no_data(kind):
    table = dataclasses.replace(TABLES[figure(kind).table], rows=())

    content = render(figure(kind), table, "svg")

    assert b"<!-- no data -->" in content


UNUSUAL_VALUES = (
    None,
    math.nan,
    math.inf,
    -math.inf,
    1e308,
    -1e308,
    10**400,
    "text",
    True,
    0.0,
    -1.0,
)


@pytest.mark.parametrize("kind", CHARTS)
@pytest.mark.parametrize("log", [False, True])
def test_figures_with_unusual_values_are_drawn(kind, log):
    rows = [list(row) for row in NUMBERS.rows]
    for row, cell in zip(rows, UNUSUAL_VALUES, strict=False):
        row[1] = row[4] = cell
    table = dataclasses.replace(NUMBERS, rows=tuple(tuple(row) for row in rows))

    content = render(figure(kind, facet="", log_y=log), table, "svg")

    assert is_svg(content)


@pytest.mark.parametrize("kind", CHARTS)
def test_a_table_without_numbers_is_drawn(kind):
    rows = tuple((None, math.nan, None, "", math.nan, None) for _ in range(3))

    content = render(
        figure(kind, log_x=True, log_y=True, diagonal=True),
        dataclasses.replace(NUMBERS, rows=rows),
        "svg",
    )

    assert is_svg(content)


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats()
    | st.text(st.characters(codec="utf-8"), max_size=8)
)


@settings(max_examples=20, deadline=None)
@given(
    kind=st.sampled_from(CHARTS),
    rows=st.lists(st.tuples(scalars, scalars, scalars), min_size=1, max_size=5),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
@pytest.mark.filterwarnings("ignore:Glyph")  # the font does not have all letters
@pytest.mark.filterwarnings("ignore:Matplotlib currently does not support")
def test_any_table_can_be_drawn(kind, rows, flags):
    table = ResultTable("t", "", ("a", "b", "c"), tuple(rows))
    log_x, log_y, diagonal = flags
    description = Figure(
        "f", kind, "", "t", "a", "b", hue="c", log_x=log_x, log_y=log_y, diagonal=diagonal
    )

    content = render(description, table, "svg", titled=True)

    assert is_svg(content)


@pytest.mark.parametrize(
    "text", ["$\\frac{", "$x$ and $y", "a_b^c", "{}", "--> <script>", "\x00\x1b["]
)
def test_text_is_drawn_unchanged_and_not_as_a_formula(text):
    rows = tuple((text, value, text) for value in (1.0, 2.0))
    table = ResultTable("t", text, ("a", "b", "c"), rows)
    description = Figure("f", "bar", text, "t", "a", "b", hue="c", caption=text)

    content = render(description, table, "svg", titled=True)

    assert is_svg(content)


def test_a_cell_that_is_not_an_image_raises_record_error():
    table = ResultTable("images", "", ("text", "pixels", "verdict"), (("a", "no image", "b"),))

    with pytest.raises(RecordError, match="expected an image"):
        render(figure("images"), table, "svg")


def test_series_have_the_order_and_numbers_of_the_table():
    chart = build_chart(figure("line"), NUMBERS)

    first, second = chart.panels
    assert (first.title, second.title) == ("here", "there")
    assert chart.hues == ("FlyNN", "1NN")
    assert [series.name for series in first.series] == ["FlyNN", "1NN"]
    assert first.series[0].x.tolist() == [1, 2, 3]
    assert first.series[0].y.tolist() == [0.6, 0.7, 0.8]
    assert first.series[0].error.tolist() == [0.02, 0.02, 0.02]


def test_names_on_the_x_axis_become_positions_in_order():
    table = ResultTable("t", "", ("a", "b"), (("z", 1.0), ("a", 2.0), ("z", 3.0)))

    chart = build_chart(Figure("f", "line", "", "t", "a", "b"), table)

    assert chart.categories == ("z", "a")
    assert chart.panels[0].series[0].x.tolist() == [0, 1, 0]


def test_whole_numbers_on_the_x_axis_have_whole_ticks():
    table = ResultTable("t", "", ("rank", "b"), ((1, 0.1), (2, 0.2), (3, 0.4)))
    description = Figure("f", "line", "", "t", "rank", "b")
    axes = MplFigure().subplots()

    draw_lines(axes, build_chart(description, table), build_chart(description, table).panels[0])

    assert all(tick == round(tick) for tick in axes.get_xticks())


def test_a_note_gives_the_number_of_drawn_panels():
    rows = tuple((1.0, 2.0, f"panel {number}") for number in range(30))
    table = ResultTable("t", "", ("a", "b", "c"), rows)

    chart = build_chart(Figure("f", "line", "", "t", "a", "b", facet="c"), table)

    assert len(chart.panels) == 24
    assert chart.omitted == ("the first 24 of 30 panels",)


@pytest.mark.parametrize("n_colors", [1, 2, 7, 8, 10, 12, 13, 14])
def test_colours_differ(n_colors):
    assert len({to_rgb(color) for color in list_colors(n_colors)}) == n_colors


def test_the_sign_of_a_half_width_is_ignored():
    table = ResultTable("t", "", ("a", "b", "c"), ((1.0, 2.0, -0.5),))

    chart = build_chart(Figure("f", "line", "", "t", "a", "b", error="c"), table)

    assert chart.panels[0].series[0].error.tolist() == [0.5]


def test_the_value_of_a_negative_bar_is_written_beyond_zero():
    table = ResultTable("t", "", ("method", "score"), (("a", -0.5), ("b", 0.5)))
    description = Figure("f", "bar", "", "t", x="method", y="score")
    chart, axes = build_chart(description, table), MplFigure().subplots()

    draw_bars(axes, chart, chart.panels[0])

    assert [text.get_text() for text in axes.texts] == ["\N{MINUS SIGN}0.5", "0.5"]
    assert [text.xy[1] for text in axes.texts] == [0.0, 0.5]


def test_a_record_without_figures_saves_none(tmp_path):
    assert save_figures(RunRecord("run", {}), tmp_path) == []


def test_long_names_right_of_a_square_panel_widen_the_figure():
    description = figure("line", facet="", diagonal=True)
    rows = NUMBERS.rows
    renamed = tuple(
        (row[0], row[1], f"{row[2]}, trained on all the data", *row[3:]) for row in rows
    )

    narrow = draw_panels(description, NUMBERS)
    wide = draw_panels(description, dataclasses.replace(NUMBERS, rows=renamed))

    extra_width = wide.get_figwidth() - narrow.get_figwidth()
    assert extra_width > 1.5  # inches, for 25 more letters
    assert wide.get_figheight() == narrow.get_figheight()


def draw_one_row(values):
    """Return the axes of a heat map with one row and long column names."""
    names = [f"a column with a long name {index}" for index in range(len(values))]
    rows = tuple(("row", name, value) for name, value in zip(names, values, strict=True))
    description = Figure("map", "heatmap", "A map", "t", x="column", y="line", hue="value")
    fig = MplFigure()
    draw_heatmap(fig, description, ResultTable("t", "T", ("line", "column", "value"), rows))
    return fig.axes[0]


@pytest.mark.parametrize(("values", "zero_color"), [((-0.2, 0.4), 0.5), ((0.0, 0.4), 0.0)])
def test_zero_has_the_middle_colour_between_both_signs(values, zero_color):
    (image,) = draw_one_row(values).images

    assert image.norm(0.0) == zero_color


def test_long_names_below_a_heat_map_are_rotated():
    labels = draw_one_row([0.1] * 8).get_xticklabels()

    assert {label.get_rotation() for label in labels} == {40.0}
