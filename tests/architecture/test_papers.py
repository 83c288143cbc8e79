"""Tests that the modules and symbols named in PAPER.md files exist."""

import pkgutil
import re
from importlib.util import find_spec

import pytest

from tests.architecture.tree import SOURCE

PAPERS = sorted(SOURCE.glob("methods/*/PAPER.md"))
DOTTED = re.compile(r"`([A-Za-z_]\w*(?:\.\w+)+)`")
FILE_ENDINGS = ("py", "md", "json", "jsonl", "csv", "html")


def find_packages(name, package):
    """Return the packages that contain the first part of a name."""
    first = name.partition(".")[0]
    return [f"{parent}." for parent in (package, "fedneighbors") if find_spec(f"{parent}.{first}")]


def can_resolve(name):
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def test_every_method_has_a_paper():
    assert len(PAPERS) == 4


@pytest.mark.parametrize("paper", PAPERS, ids=lambda path: path.parent.name)
def test_symbols_of_a_paper_exist(paper):
    package = f"fedneighbors.methods.{paper.parent.name}"
    names = {n for n in DOTTED.findall(paper.read_text()) if n.split(".")[-1] not in FILE_ENDINGS}

    known = {name: find_packages(name, package) for name in names}
    private = {n for n in names if re.search(r"(^|\.)_", n)} - {n for n in known if known[n]}

    assert private == set(), "no such module"
    missing = [
        n
        for n, packages in known.items()
        if packages and not any(can_resolve(parent + n) for parent in packages)
    ]
    assert sorted(missing) == []
    assert any(known.values())
