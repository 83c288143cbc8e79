"""Tests that the page on threat models names as proof of its claims."""

import re

import pytest

from tests.architecture.tree import ROOT

PAGE = (ROOT / "docs" / "explanation" / "threat-models.md").read_text("utf-8")
NAMES = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)


CLAIMS = re.split(r"^- ", PAGE.split("### Tests of these claims")[1].split("\n## ")[0], flags=re.M)[
    1:
]


def test_the_page_names_tests():
    assert len(CLAIMS) >= 8
    assert len(NAMES) >= 10


def test_each_row_of_the_table_names_its_attacks():
    tables = PAGE.split("## What holds")[1].split("Without a budget, sums")[0]
    claims, attacks = (
        {line.split(" | ")[0]: line for line in table.splitlines() if line.startswith("| ")}
        for table in tables.split("Each row has a test")
    )
    names = {row: re.findall(r"`tests/[\w/]+\.py::\w+`", line) for row, line in attacks.items()}

    assert len(claims) == 7 + 1  # with the header
    assert [row for row in names if names[row]] == list(claims)[1:]


@pytest.mark.parametrize(
    "path", ["README.md", "docs/how-to/secure-aggregation.md", "docs/how-to/train-privately.md"]
)
def test_pages_refer_to_the_table(path):
    assert "explanation/threat-models.md#what-holds" in (ROOT / path).read_text("utf-8")


@pytest.mark.parametrize("method", ["fedknn", "fedpnn", "flynn", "knnper"])
def test_papers_refer_to_the_table(method):
    paper = ROOT / "src" / "fedneighbors" / "methods" / method / "PAPER.md"
    assert "docs/explanation/threat-models.md" in paper.read_text("utf-8")


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.split(":")[0])
def test_each_claim_names_a_test(claim):
    assert re.search(r"`tests/[\w/]+\.py::\w+`", claim)


@pytest.mark.parametrize(("path", "name"), NAMES)
def test_named_test_exists(path, name):
    assert f"def {name}(" in (ROOT / path).read_text("utf-8")
