"""Whittle and Gittins indices of any arm."""
