"""Audits: certified lower bounds on what a mechanism costs, from samples or from its exact law.

An audit can prove a claim wrong, never right.
"""
