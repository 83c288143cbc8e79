"""Attacks on what was released, as far as they know no method: evidence, scores and limits."""
