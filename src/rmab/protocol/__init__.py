"""Algorithm 1 without input or output: schedules, aggregation, messages, rounds, agents, plans."""
