"""A study in, results out; the paper's figures are studies."""
