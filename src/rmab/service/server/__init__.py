"""The server of a federation."""
