"""Sources of a provider whose objects stay in a database.

A class of one's own derives from :class:`CandidateSource`; ``fedneighbors.testing.check_source``
tests it. A package makes it known with an entry point of the group ``fedneighbors.sources``.
"""

from fedneighbors._lazy import lazy_names

_HOMES = {
    "CandidateBatch": "fedneighbors.sources._candidates",
    "CandidateCount": "fedneighbors.sources._candidates",
    "Candidates": "fedneighbors.sources._candidates",
    "CandidateSource": "fedneighbors.sources._candidates",
    "PushedSource": "fedneighbors.sources._pushed",
    "SourceSettings": "fedneighbors.sources._candidates",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
