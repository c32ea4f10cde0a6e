"""Comparison of learners on shipped problems: contestants, runs, scores, records."""
