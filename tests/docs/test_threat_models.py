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


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.split(":")[0])
def test_each_claim_names_a_test(claim):
    assert re.search(r"`tests/[\w/]+\.py::\w+`", claim)


@pytest.mark.parametrize(("path", "name"), NAMES)
def test_named_test_exists(path, name):
    assert f"def {name}(" in (ROOT / path).read_text("utf-8")
