"""Channels: closed-form indices and values."""
