import re

import pytest

from tests.architecture.tree import ROOT

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def test_the_readme_shows_code():
    assert BLOCKS


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_code_of_the_readme_runs(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    earlier = "\n".join(BLOCKS[: number + 1])  # a block may build on those above it

    exec(compile(earlier, "README.md", "exec"), {"__name__": "readme"})


def test_files_that_the_readme_points_to_exist():
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", README)

    assert [link for link in links if not (ROOT / link).exists()] == []
