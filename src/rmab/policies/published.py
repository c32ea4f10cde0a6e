"""What makes the published learners of `rmab.policies.registry`, beside the paper's and rmab's own.

A maker takes the policy's name, the horizon and the policy's options. docs/learners.md has a
section for each.
"""

from __future__ import annotations

from rmab.policies.own_index import MeanRewards
from rmab.policies.policy import OwnIndexRule, Policy

__all__: list[str] = []  # makers are named in the registry


def ucb1(name: str, horizon: int, *, c: float = 2.0) -> Policy:  # noqa: ARG001 - as every maker
    """UCB1 on the arms' mean rewards, as if they were no Markov chains."""
    return Policy(name, rule=OwnIndexRule(MeanRewards(c)))
