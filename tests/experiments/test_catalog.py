"""Every experiment is found by its name; the documentation names existing ones only."""

import re
from pathlib import Path

import pytest

from experiments.catalog import EXPERIMENTS, find_study

ROOT = Path(__file__).parents[2]
COMMAND = re.compile(r"python -m experiments ([a-z]\w*\.\w+)")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_is_found_under_its_own_name(name):
    study = find_study(name)

    assert (study.name, bool(study.title), bool(study.description)) == (name, True, True)


def named_experiments():
    """Yield each page and each experiment that a command in it names."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.md")]
    for page in pages:
        for name in COMMAND.findall(page.read_text(encoding="utf-8")):
            yield str(page.relative_to(ROOT)), name


def test_the_documentation_names_experiments_that_exist():
    named = set(named_experiments())

    assert {page for page, _ in named} >= {
        f"docs/results/{method}/README.md" for method in ("flynn", "fedknn", "fedpnn", "knnper")
    }
    assert {(page, name) for page, name in named if name not in EXPERIMENTS} == set()
