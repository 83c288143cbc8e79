"""Federated gradient boosting on histograms.

``_estimator`` creates the parties and runs the coordinator in ``_protocol``, which agrees on bins
(``_bins``) and grows trees (``_growth``) from the sums that parties send (``_party``). ``_model``
has the trees.
"""
