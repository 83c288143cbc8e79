"""Membership inference attacks and their evaluation."""
