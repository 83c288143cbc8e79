"""Limits on the work that a request or a model file may ask for.

A message checks them when it is decoded, and a party where they depend on its table, before
anything is allocated. An array that a request sizes has at most ``MAX_CELLS`` cells, 2 GiB of
64-bit numbers; everything else is a multiple of the request's bytes or of the table's.
"""

MAX_CELLS = 1 << 28

MAX_COLUMNS = 1 << 24
"""Maximum number of columns; the widest public tables have some millions."""

MAX_CLASSES = 1 << 16
"""Maximum number of classes; more than in any table of labels, and half a MiB for each count."""

MAX_STEPS = 1 << 46
"""Maximum number of additions in a loop over all rows: some hours of one core at 5e9 a second."""
