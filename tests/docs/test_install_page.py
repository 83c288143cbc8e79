"""The installation page has a valid line for each extra, and the tested version of PyTorch."""

import re
import shlex
import subprocess
import sys
import tomllib

from packaging.requirements import Requirement

from tests.architecture.tree import ROOT

PAGE = (ROOT / "docs" / "how-to" / "install.md").read_text(encoding="utf-8")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
].keys() - {"test", "docs"}
VALUE_OPTIONS = {"-c", "--index-url", "--find-links", "--dest"}


def parse_pip_lines():
    """Return the requirements of each ``pip install`` or ``pip download`` on the page."""
    for line in re.findall(r"pip (?:install|download) [^`\n]+", PAGE):
        words = iter(shlex.split(line)[2:])
        found = []
        for word in words:
            if word in VALUE_OPTIONS:
                next(words)
            elif not word.startswith("-"):
                found.append(word)
        yield found


def test_every_extra_has_a_line_of_its_own():
    alone = [
        Requirement(names[0]).extras
        for names in parse_pip_lines()
        if len(names) == 1 and names[0].startswith("fedneighbors[")
    ]

    assert {extra for extras in alone if len(extras) == 1 for extra in extras} == EXTRAS


def test_all_requirements_are_valid():
    requirements = [
        Requirement(name)
        for names in parse_pip_lines()
        for name in names
        if not name.startswith(".")
    ]

    assert {each.name for each in requirements} == {"fedneighbors", "torch"}
    assert {extra for each in requirements for extra in each.extras} <= EXTRAS


def test_the_version_of_torch_is_that_of_the_tests():
    constraint = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)

    assert set(re.findall(r"torch==(\d[\d.]*)", PAGE)) == {constraint[1]}


BLOCK_EXTRAS = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages}:
            raise ModuleNotFoundError(f"{{name}} is of an extra", name=name)

sys.meta_path.insert(0, Blocked())
"""
IMPORTED_AS = {
    "dcap-qvl": "dcap_qvl",
    "langchain-core": "langchain_core",
    "opentelemetry-api": "opentelemetry",
    "prometheus-client": "prometheus_client",
    "pycryptodome": "Crypto",
}


def test_the_first_examples_of_the_readme_run_without_extras(tmp_path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    names = {
        Requirement(line).name
        for extra in EXTRAS
        for line in project["optional-dependencies"][extra]
    } - {"fedneighbors", *(Requirement(line).name for line in project["dependencies"])}
    packages = sorted(IMPORTED_AS.get(name, name) for name in names)
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)
    program = BLOCK_EXTRAS.format(packages=packages) + "\n".join(examples[:4])

    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )

    assert result.returncode == 0, result.stderr
    assert "Crypto" in packages
    assert len(examples) >= 4
