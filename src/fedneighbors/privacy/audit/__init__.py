"""Audits: certified lower bounds on what a mechanism costs, from samples or from its exact law.

An audit can prove a claim wrong, never right. ``certificates`` bounds from samples, ``events``
chooses what to look at, ``enumeration`` computes laws of tiny inputs, ``campaign`` puts a mechanism
and its claim on trial.
"""
