"""Which versions and how many cores a run had."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version

__all__ = ["environment"]

_PACKAGES = (
    "fedneighbors",
    "numpy",
    "scipy",
    "scikit-learn",
    "numba",
    "pandas",
    "pyarrow",
    "flwr",
    "torch",
    "opendp",
)


def environment() -> dict[str, str]:
    """Versions of what is installed and the size of the machine, for the head of a run record.

    Nothing is imported to find a version, and nothing names the machine or a folder on it.

    Returns
    -------
    dict of str to str
        ``"python"``, ``"system"``, ``"cores"`` and one entry per installed package.

    Examples
    --------
    >>> sorted(environment())[:2]
    ['cores', 'fedneighbors']
    """
    machine = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(_usable_cores()),
    }
    return machine | {name: found for name in _PACKAGES if (found := _installed(name))}


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # a container may grant fewer cores than there are
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
