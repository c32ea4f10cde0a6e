"""Hypothesis draws the same examples in every run, so a failure repeats."""

from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None)
settings.load_profile("ci")
