"""Exact values: the joint chain, its optimum, policies, bounds."""
