"""Measured data: recordings of arms, whether the model fits them, and back-tests on them."""
