"""Reports are self-contained HTML files in which strings of records are never markup."""

import base64
import dataclasses
import importlib.util
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from fedneighbors.errors import MissingExtraError
from fedneighbors.records import Figure, ResultTable, Round, RunRecord
from fedneighbors.reports import save_figures, write_report
from tests.reports.example import RECORD, figure


class Page(HTMLParser):
    """Elements, attributes and text of a page."""

    def __init__(self, html):
        super().__init__()
        self.elements = []
        self.texts = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    def find_all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def write_page(record, folder):
    write_report([record], folder / "report.html")
    return Page((folder / "report.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_page(RECORD, tmp_path_factory.mktemp("report"))


def test_report_shows_facts_notes_tables_rounds_and_settings(page):
    for text in (
        "flynn.example",
        "20 November 2026, 11:12 UTC",
        "run time 75 s",
        "sent by parties 2 kB",
        "privacy spent (ε) 1",
        "A finding.",
        "All measured values.",
        "CountRequest only their sum 2 2 kB 2 B 250 ms",
        "q (timed out)",
        "seed 20240101",
        "classes a, b",
        "numpy 2.4.6",
    ):
        assert text in page.text


def test_every_figure_is_embedded_with_alternative_text(page):
    images = page.find_all("img")

    assert len(images) == len(RECORD.figures)
    assert images[0]["alt"] == "A line figure. Caption of a line figure."
    for image in images:
        kind, content = image["src"].split(",", 1)
        assert kind == "data:image/svg+xml;base64"
        assert b"<svg" in base64.b64decode(content, validate=True)


def test_report_links_to_no_other_file(page, tmp_path):
    record = dataclasses.replace(RECORD, figures=RECORD.figures[:1])
    write_report([record, record], tmp_path / "report.html")
    html = (tmp_path / "report.html").read_text(encoding="utf-8")

    links = [attributes["href"] for attributes in page.find_all("a")]
    policy = next(entry["content"] for entry in page.find_all("meta") if "http-equiv" in entry)
    assert all(link.startswith("#") for link in links)
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert page.find_all("link") == page.find_all("script") == page.find_all("iframe") == []
    assert not re.search(r"url\(|@import|https?://", html)


def test_pixels_are_shown_as_images_and_not_as_text(page):
    assert "2x2:" not in page.text


MARKUP = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&{{ 7*7 }}"


def test_no_string_of_a_record_becomes_markup(tmp_path):
    table = ResultTable("t", MARKUP, (MARKUP, "b"), ((MARKUP, 1.0), (MARKUP, 2.0)), MARKUP)
    record = RunRecord(
        name=MARKUP,
        parameters={MARKUP: MARKUP, "list": [MARKUP]},
        rounds=(Round(0, MARKUP, MARKUP, {MARKUP: 1}, {MARKUP: 1}, 1.0, {MARKUP: MARKUP}),),
        tables=(table,),
        figures=(Figure("f", "bar", MARKUP, "t", MARKUP, "b", caption=MARKUP),),
        notes=(MARKUP,),
        started=MARKUP,
        environment={MARKUP: MARKUP},
        privacy={MARKUP: MARKUP, "epsilon": MARKUP},
    )

    page = write_page(record, tmp_path)

    assert page.find_all("script") == []
    assert [set(image) for image in page.find_all("img")] == [{"src", "alt"}]
    assert page.text.count("<script>alert(1)</script>") > 15
    assert "49" not in page.text


def test_the_same_records_give_the_same_file(tmp_path):
    record = dataclasses.replace(RECORD, figures=RECORD.figures[:2])
    for name in ("first", "second"):
        write_report([record], tmp_path / name)

    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


def test_each_record_is_a_chapter_in_the_table_of_contents(tmp_path):
    records = [RunRecord("first run", {}, seconds=1.0), RunRecord("second run", {})]
    write_report(records, tmp_path / "report.html")

    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))

    assert [link["href"] for link in page.find_all("a")] == ["#run-1", "#run-2"]
    assert [article["id"] for article in page.find_all("article")] == ["run-1", "run-2"]


def test_a_long_table_is_truncated_with_a_count(tmp_path):
    table = ResultTable("t", "Long", ("a",), tuple((value,) for value in range(250)))

    page = write_page(RunRecord("run", {}, tables=(table,)), tmp_path)

    assert "50 more rows are in the record." in page.text


@pytest.mark.parametrize(("n_rows", "n_collapsed"), [(40, 0), (41, 1)])
def test_a_long_table_without_a_figure_is_collapsed(n_rows, n_collapsed, tmp_path):
    table = ResultTable("t", "Long", ("a",), tuple((value,) for value in range(n_rows)))

    page = write_page(RunRecord("run", {}, tables=(table,)), tmp_path)

    assert page.text.count(f"Table of {n_rows} rows") == n_collapsed


def test_an_empty_record_has_a_report(tmp_path):
    assert "run" in write_page(RunRecord("run", {}), tmp_path).text


def test_a_report_without_records_raises_value_error(tmp_path):
    with pytest.raises(ValueError, match="at least one record"):
        write_report([], tmp_path / "report.html")


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_the_error_names_a_missing_package_and_its_extra(package, tmp_path, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "fedneighbors.reports._html.find_spec",
        lambda name: None if name == package else find_spec(name),
    )

    for write in (
        lambda: write_report([RECORD], tmp_path / "r"),
        lambda: save_figures(RECORD, tmp_path),
    ):
        with pytest.raises(MissingExtraError, match=r"fedneighbors\[report\]") as error:
            write()
        assert (error.value.package, error.value.extra) == (package, "report")
    assert list(tmp_path.iterdir()) == []


def test_importing_reports_imports_neither_matplotlib_nor_jinja2():
    code = "import sys, fedneighbors.reports; print({'matplotlib', 'jinja2'} & set(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert result.stdout.strip() == "set()"


def test_no_report_is_written_if_a_figure_cannot_be_drawn(tmp_path):
    table = ResultTable("images", "", ("text", "pixels", "verdict"), (("a", "no image", "b"),))
    record = RunRecord("run", {}, tables=(table,), figures=(figure("images"),))

    with pytest.raises(Exception, match="expected an image"):
        write_report([record], tmp_path / "report.html")

    assert list(tmp_path.iterdir()) == []
