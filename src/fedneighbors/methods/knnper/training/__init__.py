"""Local training of networks, one client after another or all at once; needs extra ``torch``."""
