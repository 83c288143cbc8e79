"""Exact integer noise and calibrated mechanisms."""
