import inspect
import re
import subprocess
import sys

import pytest

import fedneighbors
from tests.architecture.tree import ROOT, SOURCE, modules

HEAVY = ("numba", "sklearn", "torch", "flwr", "scipy", "pandas", "matplotlib")


def loaded_by(statement):
    """Top-level packages that a fresh interpreter has loaded after a statement."""
    script = (
        f"{statement}\nimport sys\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import fedneighbors",
        "import fedneighbors, fedneighbors.errors; dir(fedneighbors); fedneighbors.__version__",
        "import fedneighbors.federation.messages, fedneighbors.federation.roles",
        "import fedneighbors.cli.main",
    ],
)
def test_an_import_loads_nothing_heavy(statement):
    loaded = loaded_by(statement)

    assert "fedneighbors" in loaded
    assert loaded & set(HEAVY) == set()


def test_every_public_name_of_the_package_resolves():
    for name in fedneighbors.__all__:
        assert getattr(fedneighbors, name) is not None
        assert name in dir(fedneighbors)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'fedneighbors' has no attribute 'Foo'"):
        fedneighbors.Foo  # noqa: B018 - the look-up is the test


def public_objects():
    """Every name in an ``__all__`` of the package, as (module, name)."""
    return [(m, name) for m in modules() for name in getattr(m, "__all__", ())]


def test_every_public_name_exists_once_and_is_documented():
    wrong = []
    for module in modules():
        names = getattr(module, "__all__", [])
        wrong += [f"{module.__name__}.{n} twice" for n in set(names) if list(names).count(n) > 1]
        for name in names:
            thing = getattr(module, name, None)
            if thing is None:
                wrong.append(f"{module.__name__}.{name} is missing")
            elif (inspect.isclass(thing) or inspect.isfunction(thing)) and not inspect.getdoc(
                thing
            ):
                wrong.append(f"{module.__name__}.{name} has no docstring")

    assert wrong == []


def documented_parameters(docstring):
    """Names in the section Parameters of a numpydoc docstring; None without such a section."""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\S[^\n]*\n-{3,}$|\Z)", docstring, re.M | re.S)
    if section is None:
        return None
    heads = [line for line in section[1].splitlines() if line and not line[0].isspace()]
    names = [name for line in heads for name in line.split(" : ")[0].split(", ")]
    return [name.lstrip("*") for name in names]


def real_parameters(thing):
    return [name for name in inspect.signature(thing).parameters if name != "self"]


def described():
    """Public functions, classes and their public methods, with a docstring of their own."""
    for module, name in public_objects():
        thing = getattr(module, name)
        if not (inspect.isclass(thing) or inspect.isfunction(thing)):
            continue
        if thing.__module__ != module.__name__:
            continue
        yield f"{module.__name__}.{name}", thing
        if inspect.isclass(thing):
            for method, function in vars(thing).items():
                function = getattr(function, "__func__", function)
                if inspect.isfunction(function) and method[0] != "_" and function.__doc__:
                    yield f"{module.__name__}.{name}.{method}", function


def test_a_section_of_parameters_is_read_as_numpydoc_reads_it():
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


def test_documented_parameters_are_the_real_ones():
    wrong = {}
    for where, thing in described():
        names = documented_parameters(inspect.getdoc(thing) or "")
        if names is None:
            continue
        real = real_parameters(thing)
        left_out = set(real) - set(names) - {"cls"}
        forwards = "options" in names  # the rest is documented where the options go
        if not set(names) <= set(real) or (left_out and not forwards):
            wrong[where] = (names, real)

    assert wrong == {}


def test_every_parameter_of_an_estimator_is_documented():
    folder = SOURCE / "methods"
    for module in modules(folder):
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            if inspect.isclass(thing) and hasattr(thing, "get_params"):
                assert documented_parameters(inspect.getdoc(thing)) == real_parameters(thing)
