"""The Python and console blocks of the documentation run, page by page, in their order."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT

BLOCK = re.compile(r"^ *```(python|bash)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "_build" not in page.parts and BLOCK.search(page.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_of_a_page_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    names = {"__name__": "page"}

    for language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "python":  # a block may build on those above it
            exec(compile(block, str(page), "exec"), names)
        else:
            done = subprocess.run(
                ["bash", "-euc", block], capture_output=True, text=True, timeout=600,
                env={**os.environ, "PATH": path},
            )  # fmt: skip
            assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
