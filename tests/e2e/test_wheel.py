"""The built wheel, installed without constraints into an empty environment, works."""

import os
import subprocess
import sys

import pytest

from tests.architecture.tree import ROOT
from tests.docs.test_pages import BLOCK

pytestmark = pytest.mark.e2e


def run(*command, cwd):
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PIP_CONSTRAINT")
    }
    process = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with an environment of only the wheel and its dependencies."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "--quiet")
    run(*pip, "wheel", "--no-deps", "-w", folder, ROOT, cwd=folder)
    run(sys.executable, "-m", "venv", folder / "env", cwd=folder)
    wheel = next(folder.glob("*.whl"))
    pip = (folder / "env" / "bin" / "python", "-m", "pip", "--quiet")
    run(*pip, "install", "--no-compile", wheel, cwd=folder)
    return folder


def test_the_command_line_shows_its_help(folder):
    output = run(folder / "env" / "bin" / "fedneighbors", "--help", cwd=folder)

    assert "demo" in output


def test_the_demo_writes_a_record(folder):
    run(folder / "env" / "bin" / "fedneighbors", "demo", "--out", "demo", cwd=folder)

    assert list((folder / "demo").glob("*.jsonl"))


def test_the_first_example_of_the_readme_runs(folder):
    code = BLOCK.search((ROOT / "README.md").read_text(encoding="utf-8"))[2]

    output = run(folder / "env" / "bin" / "python", "-c", code, cwd=folder)

    assert output.endswith("bytes sent\n")


def test_the_wheel_has_only_the_package(folder):
    script = "import importlib.util as u; print(u.find_spec('experiments'), u.find_spec('tests'))"

    assert run(folder / "env" / "bin" / "python", "-c", script, cwd=folder).split() == [
        "None",
        "None",
    ]
