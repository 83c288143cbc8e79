"""Environment of a run record."""

import os
import platform
import socket
import subprocess
import sys
from importlib.metadata import version

from fedneighbors.records import environment


def test_environment_contains_installed_versions():
    values = environment()

    assert values["python"] == platform.python_version()
    assert values["numpy"] == version("numpy")
    assert values["numba"] == version("numba")
    assert int(values["cores"]) >= 1


def test_environment_contains_no_host_name_or_path():
    text = " ".join(environment().values())

    assert socket.gethostname() not in text
    assert os.sep not in text


def test_environment_imports_no_packages():
    code = (
        "import sys; from fedneighbors.records import environment; environment();"
        "print([m for m in ('numpy', 'numba', 'sklearn', 'torch', 'flwr') if m in sys.modules])"
    )

    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert result.stdout.strip() == "[]"
