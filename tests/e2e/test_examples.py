"""Every example and tutorial runs from an empty folder and draws its pictures."""

import pytest

from tests import processes
from tests.architecture.tree import ROOT

EXAMPLES = sorted([*ROOT.glob("examples/plot_*.py"), *ROOT.glob("docs/tutorials/plot_*.py")])


@pytest.mark.e2e
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_draws_its_pictures(example, tmp_path):
    process = processes.start(processes.draw_example, str(example), folder=tmp_path)

    assert processes.finish(process) == 0, (tmp_path / "log").read_text()
    images = list(tmp_path.glob("*.png"))
    assert len(images) == example.read_text().count("plt.subplots(")
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in images)
