"""Posterior of a channel's (p01, p11) given observations at any gap: draws and means."""
