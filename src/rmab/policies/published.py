"""What makes the published learners of `rmab.policies.registry`, beside the paper's and rmab's own.

A maker takes the policy's name, the horizon and the policy's options. docs/learners.md has a
section for each.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from rmab.learning import learners
from rmab.learning.learners import Prior
from rmab.policies.own_index import OWN_INDICES
from rmab.policies.policy import JointRule, OwnIndexRule, Policy
from rmab.policies.registry import AGES

__all__: list[str] = []  # makers are named in the registry


def _own_index(which: str, name: str, horizon: int, **options: Any) -> Policy:  # noqa: ARG001 - as every maker
    """A learner with a state of its own; options: its fields."""
    return Policy(name, rule=OwnIndexRule(OWN_INDICES[which](**options)))


ucb = partial(_own_index, "ucb")
rca = partial(_own_index, "rca")
wiql = partial(_own_index, "wiql")
qwi = partial(_own_index, "qwi")


def tsde(
    name: str,
    horizon: int,  # noqa: ARG001 - as every maker
    *,
    ages: int = AGES,
    prior: Prior = 1.0,
    aggregation: str | None = None,
) -> Policy:
    """Thompson sampling, and the joint optimum of the draw."""
    return Policy(
        name,
        rule=JointRule(ages),
        learner=partial(learners.thompson, prior=prior),
        reads_visits=False,
        aggregation=aggregation,
        prior=prior,
    )
