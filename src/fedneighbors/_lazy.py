"""Lazy imports: public names of a package, and modules of optional extras; cached results."""

import importlib
from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from threading import Lock
from typing import Any, ParamSpec, TypeVar

from fedneighbors.errors import MissingExtraError

P = ParamSpec("P")
R = TypeVar("R")


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package.

    Parameters
    ----------
    package : str
        ``__name__`` of the package.
    homes : mapping of str to str
        Defining module of each public name.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    def names() -> list[str]:
        return sorted(["__version__", *homes] if package == "fedneighbors" else homes)

    return get, names


def optional_module(name: str, extra: str) -> Any:
    """Import a module that an extra of fedneighbors installs.

    Raises
    ------
    MissingExtraError
        If the package is not installed.
    """
    package = name.partition(".")[0]
    try:
        importlib.import_module(package)
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise MissingExtraError(package, extra) from None


def compute_once(maxsize: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator like ``lru_cache``, for parties in threads.

    Threads that need a result at the same time do not all compute it: one does, the others wait.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        cached, lock = lru_cache(maxsize, typed=True)(function), Lock()

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with lock:
                return cached(*args, **kwargs)  # type: ignore[arg-type] # it checks that they hash

        return call

    return decorate
