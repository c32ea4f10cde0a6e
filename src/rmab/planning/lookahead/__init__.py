"""Choosing K arms together, a few slots ahead."""
