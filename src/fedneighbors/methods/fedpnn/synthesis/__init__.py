"""Synthetic tables from conditional generative networks, and measures of their quality."""

from fedneighbors._lazy import lazy_names

_HOMES = {
    "TabularSynthesizer": "fedneighbors.methods.fedpnn.synthesis._synthesizer",
    "category_coverage": "fedneighbors.methods.fedpnn.synthesis._quality",
    "correlation_similarity": "fedneighbors.methods.fedpnn.synthesis._quality",
    "ks_complement": "fedneighbors.methods.fedpnn.synthesis._quality",
    "nearest_records": "fedneighbors.methods.fedpnn.synthesis._quality",
    "rare_values": "fedneighbors.methods.fedpnn.synthesis._quality",
    "quality_record": "fedneighbors.methods.fedpnn.synthesis._report",
    "utility": "fedneighbors.methods.fedpnn.synthesis._quality",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
