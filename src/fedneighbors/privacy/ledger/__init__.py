"""The privacy ledger of one party: budgets, charges and released answers in one file."""

from fedneighbors._lazy import lazy_names

_HOMES = {
    "BudgetState": "fedneighbors.privacy.ledger._tables",
    "LedgerEntry": "fedneighbors.privacy.ledger._tables",
    "Ledger": "fedneighbors.privacy.ledger._ledger",
    "MAX_ANSWER_BYTES": "fedneighbors.privacy.ledger._ledger",
    "ChargeTerms": "fedneighbors.privacy.ledger._tables",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
