"""Durable state of a server."""
