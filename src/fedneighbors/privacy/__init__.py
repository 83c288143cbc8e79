"""Differential privacy: budgets, guarantees, the ledger, noise mechanisms, and audits."""

from fedneighbors._lazy import lazy_names

_HOMES = {
    "ApproxDP": "fedneighbors.privacy._guarantees",
    "audit_release": "fedneighbors.privacy.audit._releases",
    "DiscreteGaussian": "fedneighbors.privacy.noise._mechanisms",
    "DiscreteLaplace": "fedneighbors.privacy.noise._mechanisms",
    "fits": "fedneighbors.privacy._accounting",
    "GaussianShares": "fedneighbors.privacy.noise._distributed",
    "Guarantee": "fedneighbors.privacy._guarantees",
    "LaplaceShares": "fedneighbors.privacy.noise._distributed",
    "largest_zcdp": "fedneighbors.privacy._accounting",
    "Ledger": "fedneighbors.privacy.ledger._ledger",
    "NoisyTopK": "fedneighbors.privacy.noise._mechanisms",
    "Privacy": "fedneighbors.privacy._policy",
    "privacy_from": "fedneighbors.privacy._policy",
    "PureDP": "fedneighbors.privacy._guarantees",
    "Sensitivity": "fedneighbors.privacy._guarantees",
    "spent_after": "fedneighbors.privacy._accounting",
    "TopPicks": "fedneighbors.privacy.noise._top_picks",
    "ZCDP": "fedneighbors.privacy._guarantees",
    "zcdp_to_approx": "fedneighbors.privacy._accounting",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
