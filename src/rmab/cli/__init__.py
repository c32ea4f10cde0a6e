"""The command line."""

from rmab.cli.main import main

__all__ = ["main"]
