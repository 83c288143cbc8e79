"""DANN*: search whose providers learn little of one another, under a ledger."""
