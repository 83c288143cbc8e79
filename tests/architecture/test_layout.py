import ast
import hashlib
import re
import subprocess
import sys
import tomllib
from functools import cache
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.architecture.tree import ROOT, SOURCE, sources

MAX_LINES = 500
CATCH_ALL_NAMES = {"utils", "util", "helpers", "common", "core", "misc", "tools", "shared"}
KERNELS = {  # by folder and name: "edit/bands"
    path.relative_to(SOURCE / "kernels").with_name(path.stem.lstrip("_")).as_posix(): path
    for path in sorted((SOURCE / "kernels").rglob("*.py"))
    if path.stem != "__init__"
}
METHODS = sorted(
    path.name for path in (SOURCE / "methods").iterdir() if (path / "__init__.py").exists()
)


def find_imports(path):
    """Return the names of all modules that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


def test_imports_keep_their_contracts():
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]

    # in a separate process, because lint-imports disables the loggers of all other tests
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.parametrize("folder", ["src", "benchmarks"])
def test_no_file_is_too_long(folder):
    lines = {
        path.name: len(path.read_text().splitlines()) for path in (ROOT / folder).rglob("*.py")
    }

    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}


def test_one_loop_drives_every_coordinator():
    """Check that only the loop sends values into coordinators.

    Coordinators are generators. The only other generators, the Newton steps of a pool, are named
    ``steps``. Something that is awaited is sent over a connection.
    """
    files = [
        path.relative_to(ROOT).as_posix()
        for path in [*sources(), *sorted((ROOT / "experiments").rglob("*.py"))]
        for parent in ast.walk(ast.parse(path.read_text()))
        for node in ast.iter_child_nodes(parent)
        if isinstance(node, ast.Call)
        and not isinstance(parent, ast.Await)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "send"
        and ast.unparse(node.func.value) != "steps"
    ]

    assert files == ["src/fedneighbors/federation/_loop.py"]


def test_no_file_or_folder_has_a_catch_all_name():
    names = {part for path in sources() for part in path.relative_to(SOURCE).with_suffix("").parts}

    assert names & CATCH_ALL_NAMES == set()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("file", ["algorithm.py", "protocol.py", "estimator.py", "PAPER.md"])
def test_a_method_has_its_files(method, file):
    path = SOURCE / "methods" / method / file

    assert path.read_text().strip()


def test_methods_do_not_import_one_another():
    for method in METHODS:
        others = tuple(f"fedneighbors.methods.{other}" for other in METHODS if other != method)
        for path in (SOURCE / "methods" / method).rglob("*.py"):
            assert not any(name.startswith(others) for name in find_imports(path) if others), path


@pytest.mark.parametrize("method", METHODS)
def test_algorithms_do_not_import_networks(method):
    imported = find_imports(SOURCE / "methods" / method / "algorithm.py")

    assert not {name for name in imported if name.startswith("fedneighbors.federation")}


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernel_digests_follow_the_files_they_use(kernel):
    """Check that ``USES`` lists the digests of all kernel files in use.

    Numba's cache on disk detects edits of a function's own file only. Compiled code that uses
    another kernel file therefore contains the digest of that file in ``USES``: an edit there forces
    an edit here, and both are recompiled.
    """
    tree = ast.parse(KERNELS[kernel].read_text())
    origins = {
        alias.asname or alias.name: kernel_name(node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("fedneighbors.kernels")
        for alias in node.names
    }
    compiled = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        if any(
            "jit" in ast.unparse(decorator) or "intrinsic" in ast.unparse(decorator)
            for decorator in node.decorator_list
        )
    ]
    used_names = {n.id for node in compiled for n in ast.walk(node) if isinstance(n, ast.Name)}

    expected = {
        other: compute_digest(other) for name, other in origins.items() if name in used_names
    }
    assert read_uses(tree) == expected


def kernel_name(module):
    """Return the folder and name of the kernel file with a dotted name."""
    return re.sub(r"(^|/)_", r"\1", module.removeprefix("fedneighbors.kernels.").replace(".", "/"))


def compute_digest(kernel):
    content = KERNELS[kernel].read_bytes()
    return hashlib.sha256(content).hexdigest()[:16]


def read_uses(tree):
    """Return the dictionary USES of a kernel file, or an empty one."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "USES":
            return ast.literal_eval(node.value)
    return {}


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_has_a_slow_twin_and_a_test_against_it(kernel):
    if not public_functions(kernel) or kernel in internal_kernels():
        return

    twin = ROOT / "tests" / "naive" / f"{kernel}.py"
    folder, _, name = kernel.rpartition("/")
    test = ROOT / "tests" / "kernels" / folder / f"test_{name}.py"

    assert "def " in twin.read_text()
    assert "naive" in test.read_text()


def public_functions(kernel):
    tree = ast.parse(KERNELS[kernel].read_text())
    return [n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.name[0] != "_"]


@cache
def internal_kernels():
    """Return the kernel files that only other kernel files use.

    Tests of the other files cover them.
    """
    used_by_kernels = set().union(*map(imported_kernels, KERNELS.values()))
    used_elsewhere = set().union(*map(imported_kernels, set(sources()) - set(KERNELS.values())))
    return used_by_kernels - used_elsewhere


def imported_kernels(path):
    """Return the kernel files from which a file imports functions."""
    return {
        kernel
        for name in find_imports(path)
        if name.startswith("fedneighbors.kernels.")
        for kernel, _, function in [kernel_name(name).rpartition("/")]
        if kernel in KERNELS and function in public_functions(kernel)
    }


@pytest.mark.parametrize(
    "pattern",
    [
        r"^\s*(import|from) (pickle|marshal|shelve|dill|cloudpickle|joblib\.numpy_pickle)\b",
        r"(?<![\w.])(eval|exec)\(",
        r"allow_pickle\s*=\s*True",
        r"joblib\.(load|dump)\(",
        r"yaml\.load\(",
        r"fastmath\s*=\s*True",
    ],
)
def test_the_source_has_no_banned_phrases(pattern):
    matches = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in sources()
        for line in path.read_text().splitlines()
        if re.search(pattern, line)
    ]

    assert matches == []


def test_only_one_module_imports_flower():
    importers = [
        path.relative_to(SOURCE).as_posix()
        for path in sources()
        if any(name.split(".")[0] == "flwr" for name in find_imports(path))
    ]

    assert importers == ["federation/_flower.py"]


def read_pins(name):
    """Return the version of each package that a file pins."""
    pins = re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / name).read_text(), re.MULTILINE)
    return {canonicalize_name(package): version for package, version in pins}


def test_the_lock_file_has_every_dependency_in_its_constrained_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    names = {canonicalize_name(Requirement(line).name) for line in lines}
    locked, constrained = read_pins("requirements.lock"), read_pins("constraints.txt")

    assert names - {"fedneighbors", "torch"} <= locked.keys()
    shared = locked.keys() & constrained.keys()
    assert {name: locked[name] for name in shared} == {name: constrained[name] for name in shared}
