"""Measured data: recordings become traces, which models are held against and policies play on."""
