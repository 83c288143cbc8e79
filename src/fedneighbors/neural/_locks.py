"""Locks of shared models."""

from contextlib import AbstractContextManager
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

_LOCKS: WeakKeyDictionary[object, AbstractContextManager[Any]] = WeakKeyDictionary()
_LOCKS_GUARD = RLock()


def model_lock(model: object) -> AbstractContextManager[Any]:
    """Return a reentrant lock for a model.

    The lock is not an attribute of the model, because locks can be neither copied nor pickled.
    """
    with _LOCKS_GUARD:
        return _LOCKS.setdefault(model, RLock())
