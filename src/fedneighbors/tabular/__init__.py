"""Tables of a federation: who owns which rows, shared columns and labels, exact moments."""
