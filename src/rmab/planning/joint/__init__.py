"""Exact values with known dynamics: the joint chain, its optimum, policies, the upper bound."""
