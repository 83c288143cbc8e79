import re

import pytest

from tests.architecture.tree import ROOT

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def test_the_readme_shows_code():
    assert BLOCKS


@pytest.fixture(scope="module")
def session():
    """Return the README session's namespace and the blocks run so far."""
    return {"__name__": "readme"}, []


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_code_of_the_readme_runs(number, session, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names, ran = session

    for block in BLOCKS[len(ran) : number + 1]:  # a block may build on those above it
        exec(compile(block, "README.md", "exec"), names)
        ran.append(block)

    assert capsys.readouterr().out.strip()


def test_files_that_the_readme_points_to_exist():
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", README)

    assert [link for link in links if not (ROOT / link).exists()] == []
