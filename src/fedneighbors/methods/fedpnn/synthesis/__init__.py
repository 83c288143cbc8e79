"""Synthetic tables from conditional generative networks, and how good they are."""

import importlib
from typing import Any

_HOME = {
    "TabularSynthesizer": "fedneighbors.methods.fedpnn.synthesis.synthesizer",
    "category_coverage": "fedneighbors.methods.fedpnn.synthesis.quality",
    "correlation_similarity": "fedneighbors.methods.fedpnn.synthesis.quality",
    "ks_complement": "fedneighbors.methods.fedpnn.synthesis.quality",
    "nearest_records": "fedneighbors.methods.fedpnn.synthesis.quality",
    "quality_record": "fedneighbors.methods.fedpnn.synthesis.report",
    "utility": "fedneighbors.methods.fedpnn.synthesis.worth",
}

__all__ = [
    "TabularSynthesizer",
    "category_coverage",
    "correlation_similarity",
    "ks_complement",
    "nearest_records",
    "quality_record",
    "utility",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
