"""Counter-based random numbers: the generator, its streams, and variates."""
