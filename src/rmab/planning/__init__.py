"""From dynamics to decisions: index tables, the optimum, bounds."""
