"""Secure aggregation: the cryptography of sums in which no part can be seen (Bonawitz et al. 2017).

Pure functions on arrays and bytes; who sends what to whom is in ``fedneighbors.federation``.
"""
