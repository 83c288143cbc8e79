"""The page on what reproduces has a line with a record for each measured table and figure."""

import re
from collections import Counter

import pytest

from tests.architecture.tree import ROOT

PAGE = ROOT / "docs" / "results" / "what-reproduces.md"
TEXT = PAGE.read_text(encoding="utf-8")
MEASURED = {
    "FlyNN": [f"Table {n}" for n in (1, 2, 3, 7, 9)] + [f"Figure {n}" for n in range(1, 10)],
    "kNN-Per": ["Table 2", "Table 3"] + [f"Figure {n}" for n in range(1, 15)],
    "FedKNN": ["Table 1", "Table 4"] + [f"Figure {n}" for n in range(4, 14)],
    "FedPNN": [f"Table {n}" for n in (5, 6, 7)] + [f"Figure {n}" for n in range(7, 15)],
}
FINDINGS = ("confirmed", "partly", "not", "not run")
SECTIONS = dict(part.split("\n", 1) for part in TEXT.split("\n## ")[1:])


def read_lines(paper):
    """Return the cells of each line of a paper's table."""
    rows = re.findall(r"^\| ((?:Table|Figure) \d+ \|.*) \|$", SECTIONS[paper], re.MULTILINE)
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)] for row in rows]


def test_the_papers_of_the_page_are_the_four():
    assert list(SECTIONS) == list(MEASURED)
    assert sum(map(len, MEASURED.values())) == 53


@pytest.mark.parametrize("paper", MEASURED)
def test_each_measured_table_and_figure_has_a_line(paper):
    assert [cells[0] for cells in read_lines(paper)] == MEASURED[paper]


@pytest.mark.parametrize("paper", MEASURED)
def test_each_line_has_a_finding_a_reason_and_a_record(paper):
    for name, claim, finding, reason, record in read_lines(paper):
        assert finding in FINDINGS, name
        assert claim, name
        assert reason, name
        assert re.search(r"\]\([\w./-]+\.jsonl\)", record), name


@pytest.mark.parametrize("paper", MEASURED)
def test_counts_of_findings_are_those_of_the_lines(paper):
    counts = Counter(cells[2] for cells in read_lines(paper))

    assert f"| {paper} | {' | '.join(str(counts[one]) for one in FINDINGS)} |" in TEXT


def test_sums_of_findings_are_those_of_the_papers():
    counts = Counter(cells[2] for paper in MEASURED for cells in read_lines(paper))

    assert f"| all | {' | '.join(str(counts[one]) for one in FINDINGS)} |" in TEXT


def test_every_link_of_the_page_leads_to_a_file():
    links = re.findall(r"\]\(([^)]+)\)", TEXT)

    assert len(links) > 60
    assert [link for link in links if not (PAGE.parent / link).is_file()] == []
