"""Tests that the page on threat models names as proof of its claims."""

import re

import pytest

from tests.architecture.tree import ROOT

PAGE = (ROOT / "docs" / "explanation" / "threat-models.md").read_text("utf-8")
NAMES = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)


def test_the_page_names_tests():
    assert len(NAMES) >= 10


@pytest.mark.parametrize(("path", "name"), NAMES)
def test_named_test_exists(path, name):
    assert f"def {name}(" in (ROOT / path).read_text("utf-8")
