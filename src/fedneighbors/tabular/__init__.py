"""Tables of a federation: ownership of rows, schemas, exact moments."""
