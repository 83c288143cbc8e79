"""Synthetic tables from conditional generative networks, and how good they are."""

import importlib
from typing import Any

_HOME = {
    "TabularSynthesizer": "fedneighbors.methods.fedpnn.synthesis.synthesizer",
}

__all__ = ["TabularSynthesizer"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
