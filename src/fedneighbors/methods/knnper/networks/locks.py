"""One thread at a time in a module: its layers are put into modes, and watched, while in use."""

from contextlib import AbstractContextManager
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

__all__ = ["alone_in"]

_LOCKS: WeakKeyDictionary[nn.Module, AbstractContextManager[Any]] = WeakKeyDictionary()
_OF_LOCKS = RLock()


def alone_in(module: nn.Module) -> AbstractContextManager[Any]:
    """Return what keeps all other threads out of a module; the same thread may enter again.

    A module itself holds no lock, which could be neither copied nor sent to another process.
    """
    with _OF_LOCKS:
        return _LOCKS.setdefault(module, RLock())
