"""Every example and tutorial runs from an empty folder and draws its pictures."""

import os
import subprocess
import sys

import pytest

from tests.architecture.tree import ROOT

EXAMPLES = sorted([*ROOT.glob("examples/plot_*.py"), *ROOT.glob("docs/tutorials/plot_*.py")])
DRIVER = """
import runpy, sys
import matplotlib.pyplot as plt
runpy.run_path(sys.argv[1], run_name="__main__")
for number in plt.get_fignums():
    plt.figure(number).savefig(f"{number}.png")
"""


@pytest.mark.e2e
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_draws_its_pictures(example, tmp_path):
    environment = {**os.environ, "MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)}

    process = subprocess.run(
        [sys.executable, "-c", DRIVER, str(example)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip

    assert process.returncode == 0, process.stderr
    images = list(tmp_path.glob("*.png"))
    assert len(images) == example.read_text().count("plt.subplots(")
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in images)
