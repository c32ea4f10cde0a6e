"""The helper of a federation whose server learns sums alone."""
