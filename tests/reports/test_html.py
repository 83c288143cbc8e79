"""The report is one file that needs nothing else and takes every string of a record as text."""

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
        self.words = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def page_of(record, folder):
    write_report([record], folder / "report.html")
    return Page((folder / "report.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return page_of(RECORD, tmp_path_factory.mktemp("report"))


def test_report_shows_facts_findings_tables_rounds_and_settings(page):
    for part in (
        "flynn.example",
        "20 November 2026, 11:12 UTC",
        "run time 75 s",
        "sent by parties 2 kB",
        "privacy spent (ε) 1",
        "A finding.",
        "All that was measured.",
        "CountRequest only their sum 2 2 kB 2 B 250 ms",
        "q (timed out)",
        "seed 20240101",
        "classes a, b",
        "numpy 2.4.6",
    ):
        assert part in page.text


def test_every_figure_is_embedded_with_alternative_text(page):
    images = page.all("img")

    assert len(images) == len(RECORD.figures)
    assert images[0]["alt"] == "A line figure. What a line figure shows."
    for image in images:
        kind, content = image["src"].split(",", 1)
        assert kind == "data:image/svg+xml;base64"
        assert b"<svg" in base64.b64decode(content, validate=True)


def test_report_refers_to_nothing_outside_itself(page, tmp_path):
    record = dataclasses.replace(RECORD, figures=RECORD.figures[:1])
    write_report([record, record], tmp_path / "report.html")
    html = (tmp_path / "report.html").read_text(encoding="utf-8")

    links = [attributes["href"] for attributes in page.all("a")]
    policy = next(entry["content"] for entry in page.all("meta") if "http-equiv" in entry)
    assert all(link.startswith("#") for link in links)
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert page.all("link") == page.all("script") == page.all("iframe") == []
    assert not re.search(r"url\(|@import|https?://", html)


def test_pixels_are_shown_as_images_and_never_as_text(page):
    assert "2x2:" not in page.text


EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&{{ 7*7 }}"


def test_no_string_of_a_record_becomes_markup(tmp_path):
    table = ResultTable("t", EVIL, (EVIL, "b"), ((EVIL, 1.0), (EVIL, 2.0)), EVIL)
    record = RunRecord(
        name=EVIL,
        parameters={EVIL: EVIL, "list": [EVIL]},
        rounds=(Round(0, EVIL, EVIL, {EVIL: 1}, {EVIL: 1}, 1.0, {EVIL: EVIL}),),
        tables=(table,),
        figures=(Figure("f", "bar", EVIL, "t", EVIL, "b", caption=EVIL),),
        notes=(EVIL,),
        started=EVIL,
        environment={EVIL: EVIL},
        privacy={EVIL: EVIL, "epsilon": EVIL},
    )

    page = page_of(record, tmp_path)

    assert page.all("script") == []
    assert [set(image) for image in page.all("img")] == [{"src", "alt"}]
    assert page.text.count("<script>alert(1)</script>") > 15
    assert "49" not in page.text


def test_the_same_records_give_the_same_file(tmp_path):
    record = dataclasses.replace(RECORD, figures=RECORD.figures[:2])
    for name in ("first", "second"):
        write_report([record], tmp_path / name)

    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


def test_records_become_chapters_with_a_list_of_contents(tmp_path):
    records = [RunRecord("first run", {}, seconds=1.0), RunRecord("second run", {})]
    write_report(records, tmp_path / "report.html")

    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))

    assert [link["href"] for link in page.all("a")] == ["#run-1", "#run-2"]
    assert [article["id"] for article in page.all("article")] == ["run-1", "run-2"]


def test_a_long_table_is_truncated_with_a_count(tmp_path):
    table = ResultTable("t", "Long", ("a",), tuple((value,) for value in range(250)))

    page = page_of(RunRecord("run", {}, tables=(table,)), tmp_path)

    assert "50 more rows are in the record." in page.text


@pytest.mark.parametrize(("n_rows", "n_folded"), [(40, 0), (41, 1)])
def test_a_long_table_without_a_picture_is_folded(n_rows, n_folded, tmp_path):
    table = ResultTable("t", "Long", ("a",), tuple((value,) for value in range(n_rows)))

    page = page_of(RunRecord("run", {}, tables=(table,)), tmp_path)

    assert page.text.count(f"The numbers: {n_rows} rows") == n_folded


def test_an_empty_record_has_a_report(tmp_path):
    assert "run" in page_of(RunRecord("run", {}), tmp_path).text


def test_a_report_of_no_record_is_a_value_error(tmp_path):
    with pytest.raises(ValueError, match="at least one record"):
        write_report([], tmp_path / "report.html")


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_a_missing_package_is_named_with_its_extra(package, tmp_path, monkeypatch):
    there = importlib.util.find_spec
    monkeypatch.setattr(
        "fedneighbors.reports._html.find_spec",
        lambda name: None if name == package else there(name),
    )

    for write in (
        lambda: write_report([RECORD], tmp_path / "r"),
        lambda: save_figures(RECORD, tmp_path),
    ):
        with pytest.raises(MissingExtraError, match=r"fedneighbors\[report\]") as missing:
            write()
        assert (missing.value.package, missing.value.extra) == (package, "report")
    assert list(tmp_path.iterdir()) == []


def test_importing_reports_imports_neither_matplotlib_nor_jinja2():
    code = "import sys, fedneighbors.reports; print({'matplotlib', 'jinja2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "set()"


def test_a_figure_that_cannot_be_drawn_leaves_no_report(tmp_path):
    table = ResultTable("images", "", ("text", "pixels", "verdict"), (("a", "no image", "b"),))
    record = RunRecord("run", {}, tables=(table,), figures=(figure("images"),))

    with pytest.raises(Exception, match="expected an image"):
        write_report([record], tmp_path / "report.html")

    assert list(tmp_path.iterdir()) == []
