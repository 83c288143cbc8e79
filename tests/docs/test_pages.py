"""The Python and Bash blocks of each documentation page run, in order."""

import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from pygments.lexers import get_lexer_by_name
from pygments.token import Error
from sklearn.datasets import load_breast_cancer

from tests import processes
from tests.architecture.tree import ROOT

BLOCK = re.compile(r"^ *```(python|bash)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "_build" not in page.parts
    and page.name != "deploy-flower.md"  # tests/e2e/test_deploy_page.py starts its servers
    and BLOCK.search(page.read_text(encoding="utf-8"))
]


def write_users_files(folder):
    """Write the files that the commands of the README read."""
    table = load_breast_cancer(as_frame=True).frame.rename(columns={"target": "diagnosis"})
    table["hospital"] = [["north", "east", "west"][row % 3] for row in range(len(table))]
    table.to_csv(folder / "patients.csv", index=False)
    table.drop(columns=["diagnosis", "hospital"]).to_csv(folder / "new-patients.csv", index=False)
    titles = [f"graph search {n}" for n in range(40)]
    (folder / "titles.txt").write_text("\n".join(titles))


def split_commands(block):
    """Return the words of each command; None if the block needs a shell."""
    if set("$|&<>;`") & set(block):
        return None
    lines = block.replace("\\\n", " ").splitlines()
    commands = [words for line in lines if (words := shlex.split(line, comments=True))]
    return commands if all(words[0] == "fedneighbors" for words in commands) else None


def run_commands(block, folder):
    """Run the commands of a Bash block; return the exit status of the last one."""
    commands = split_commands(block)
    if commands is None:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        with (folder / "log").open("ab") as log:
            return subprocess.run(
                ["bash", "-euc", block], cwd=folder, env={**os.environ, "PATH": path},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=processes.LIMIT_S,
            ).returncode  # fmt: skip
    for words in commands:
        if status := processes.finish(processes.start(processes.run_command, words, folder=folder)):
            return status
    return 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_of_a_page_run(page, tmp_path):
    write_users_files(tmp_path)
    process, run_block = processes.start_blocks(str(page), folder=tmp_path)

    for language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            assert run_block(block), block + (tmp_path / "log").read_text()
        else:
            assert run_commands(block, tmp_path) == 0, block + (tmp_path / "log").read_text()

    run_block(None)
    assert processes.finish(process) == 0, (tmp_path / "log").read_text()


def test_blocks_of_pages_can_be_highlighted():
    invalid = [
        (str(page.relative_to(ROOT)), text)
        for page in (ROOT / "docs").rglob("*.md")
        if "_build" not in page.parts
        for language, block in re.findall(
            r"^```(\w+)\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
        )
        for kind, text in get_lexer_by_name(language).get_tokens(block)
        if kind is Error
    ]

    assert invalid == []


def test_files_that_pages_link_to_exist():
    missing = []
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        if not {"_build", "auto_examples", "auto_tutorials"} & set(page.parts):
            links = re.findall(r"\]\((?!https?:|#|mailto:|/)([^)#]+)", page.read_text("utf-8"))
            missing += [
                (str(page.relative_to(ROOT)), link)
                for link in links
                if not (page.parent / link).exists() and "auto_" not in link
            ]

    assert missing == []


def test_every_public_name_is_in_the_api_reference():
    listed = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8").split()
    packages = re.findall(r"currentmodule:: (\S+)", " ".join(listed))

    missing = [
        f"{package}.{name}"
        for package in packages
        for name in importlib.import_module(package).__all__
        if name not in listed and name != "__version__"
    ]

    assert len(set(packages)) == 12
    assert missing == []
