"""Readers of recordings: CSV, NumPy and MATLAB files."""
