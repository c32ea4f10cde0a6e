"""Policies by name, and what agents play by."""
