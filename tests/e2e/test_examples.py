"""Every example of the gallery runs from an empty folder."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("plot_*.py"))


@pytest.mark.e2e
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_and_leaves_its_pictures(example, tmp_path):
    command = [sys.executable, str(example)]

    done = subprocess.run(
        command, cwd=tmp_path, env={"MPLBACKEND": "Agg", "HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    pictures = list(tmp_path.glob("*.png"))
    assert len(pictures) == example.read_text().count(".png")
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
