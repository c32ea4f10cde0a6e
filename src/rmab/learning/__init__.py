"""From counts to dynamics: Thompson draws, upper confidence bounds, elimination."""
