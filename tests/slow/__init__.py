"""Long tests of promises, run by hand: see the Makefile."""
