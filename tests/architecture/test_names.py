import inspect
import re
import subprocess
import sys

import pytest
from sklearn.base import BaseEstimator

import fedneighbors
from tests.architecture.tree import ROOT, modules, sources

HEAVY = ("numba", "sklearn", "torch", "flwr", "scipy", "pandas", "matplotlib")


def find_loaded_packages(statement):
    """Return the top-level packages that a statement loads."""
    script = (
        f"{statement}\nimport sys\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    )
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(process.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import fedneighbors",
        "import fedneighbors, fedneighbors.errors; dir(fedneighbors); fedneighbors.__version__",
        "import fedneighbors.federation._messages, fedneighbors.federation._roles",
        "from fedneighbors.federation import message, run",
        "from fedneighbors.privacy import Ledger, Privacy; import fedneighbors.secure_sum",
        "import fedneighbors.cli._main",
    ],
)
def test_imports_load_no_heavy_packages(statement):
    loaded = find_loaded_packages(statement)

    assert "fedneighbors" in loaded
    assert loaded & set(HEAVY) == set()


@pytest.mark.parametrize("method", ["flynn", "fedpnn", "knnper"])
def test_nodes_load_no_scikit_learn(method):
    """Flower starts a process for each message; scikit-learn would be half of its start."""
    loaded = find_loaded_packages(
        f"from fedneighbors.methods.{method}.flower_app import client, server"
    )

    assert "flwr" in loaded
    assert loaded & {"sklearn", "pandas", "torch"} == set()


def test_every_public_name_of_the_package_resolves():
    for name in fedneighbors.__all__:
        assert getattr(fedneighbors, name) is not None
        assert name in dir(fedneighbors)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'fedneighbors' has no attribute 'Foo'"):
        fedneighbors.Foo  # noqa: B018 - the look-up is the test


def public_objects():
    """Return public functions and classes as (module, name).

    Only the defining module is listed.
    """
    return [
        (module, name)
        for module in modules()
        for name, value in vars(module).items()
        if name[0] != "_" and getattr(value, "__module__", None) == module.__name__
        if inspect.isclass(value) or inspect.isfunction(value)
    ]


def test_every_public_name_is_documented():
    undocumented = [
        f"{module.__name__}.{name}"
        for module, name in public_objects()
        if not getattr(module, name).__doc__
    ]

    assert undocumented == []


def test_only_packages_list_their_names():
    names = [
        path.name for path in sources() if path.stem != "__init__" and "__all__" in path.read_text()
    ]

    assert names == []


def test_every_listed_name_of_a_package_resolves():
    for module in modules():
        for name in getattr(module, "__all__", ()):
            assert getattr(module, name) is not None


def documented_parameters(docstring):
    """Return the parameters that a numpydoc docstring lists.

    The result is None if there is no section Parameters.
    """
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\S[^\n]*\n-{3,}$|\Z)", docstring, re.M | re.S)
    if section is None:
        return None
    headers = [line for line in section[1].splitlines() if line and not line[0].isspace()]
    names = [name for line in headers for name in line.split(" : ")[0].split(", ")]
    return [name.lstrip("*") for name in names]


def signature_parameters(function):
    return [name for name in inspect.signature(function).parameters if name != "self"]


def documented_objects():
    """Yield public functions, classes and public methods that have docstrings."""
    for module, name in public_objects():
        value = getattr(module, name)
        yield f"{module.__name__}.{name}", value
        if inspect.isclass(value):
            for method, function in vars(value).items():
                function = getattr(function, "__func__", function)
                if inspect.isfunction(function) and method[0] != "_" and function.__doc__:
                    yield f"{module.__name__}.{name}.{method}", function


def test_parameters_sections_are_read_like_numpydoc():
    docstring = """Return nothing.

    Parameters
    ----------
    x : array of shape (n,)
        Not : a parameter.
    low, high : float
        Bounds.
    **options
        More.

    Returns
    -------
    nothing : None
    """

    names = documented_parameters(inspect.cleandoc(docstring))

    assert names == ["x", "low", "high", "options"]


def test_documented_parameters_equal_the_signature():
    differences = {}
    for location, value in documented_objects():
        names = documented_parameters(inspect.getdoc(value) or "")
        if names is None:
            continue
        actual = signature_parameters(value)
        missing = set(actual) - set(names) - {"cls"}
        has_options = "options" in names  # other functions document the parameters behind **options
        if not set(names) <= set(actual) or (missing and not has_options):
            differences[location] = (names, actual)

    assert differences == {}


def test_every_parameter_of_an_estimator_is_documented():
    for module, name in public_objects():
        value = getattr(module, name)
        if inspect.isclass(value) and issubclass(value, BaseEstimator):
            assert documented_parameters(inspect.getdoc(value)) == signature_parameters(value)
