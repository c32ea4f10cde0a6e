"""Algorithm 1 without input or output: rounds, merging, policies by name."""
