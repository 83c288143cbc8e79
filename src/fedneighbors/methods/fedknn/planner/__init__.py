"""Chooses the algorithm of a query: samples, measured costs, recorded courses, plans."""
