"""DANN*: private search under a ledger."""
