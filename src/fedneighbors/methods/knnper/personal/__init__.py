"""Personalization of the shared model: mixtures, pools and heads; needs no torch."""
