"""Audits: certified lower bounds on a mechanism's cost, from samples or its exact distribution.

An audit can disprove a claim, but not prove it.
"""

from fedneighbors._lazy import lazy_names

_HOMES = {
    "audit_release": "fedneighbors.privacy.audit._releases",
    "Certificate": "fedneighbors.privacy.audit._certificates",
    "certified_epsilon": "fedneighbors.privacy.audit._certificates",
    "certified_loss": "fedneighbors.privacy.audit._certificates",
    "certified_rho": "fedneighbors.privacy.audit._certificates",
    "enumerate_outputs": "fedneighbors.privacy.audit._enumeration",
    "exact_delta": "fedneighbors.privacy.audit._enumeration",
    "exact_epsilon": "fedneighbors.privacy.audit._enumeration",
    "ExactDistribution": "fedneighbors.privacy.audit._enumeration",
    "neighboring_pairs": "fedneighbors.privacy.audit._releases",
    "Verdict": "fedneighbors.privacy.audit._releases",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
