"""Measures of a result: accuracy and its relatives."""
