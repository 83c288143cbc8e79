"""The privacy ledger of a party."""
