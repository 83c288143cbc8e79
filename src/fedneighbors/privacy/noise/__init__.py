"""Exact integer noise mechanisms with entropy from the operating system."""

from fedneighbors._lazy import lazy_names

_HOMES = {
    "DiscreteGaussian": "fedneighbors.privacy.noise._mechanisms",
    "DiscreteLaplace": "fedneighbors.privacy.noise._mechanisms",
    "GaussianShares": "fedneighbors.privacy.noise._distributed",
    "LaplaceShares": "fedneighbors.privacy.noise._distributed",
    "NoisyTopK": "fedneighbors.privacy.noise._mechanisms",
    "TopPicks": "fedneighbors.privacy.noise._top_picks",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
