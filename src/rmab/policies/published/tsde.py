"""TSDE: Thompson sampling, and the joint optimum of the draw, for few arms.

`rmab.planning.joint.joint_plan` has the optimum.

Reference: Y. Ouyang, M. Gagrani, A. Nayyar, R. Jain, "Learning unknown Markov decision processes: a
Thompson sampling approach", NeurIPS 2017.
"""

from __future__ import annotations

from functools import partial

from rmab.policies.capabilities import Capabilities, few_arms
from rmab.policies.entry import BROKEN, Entry
from rmab.policies.options import AGES, shared
from rmab.policies.policy import Policy

__all__ = ["ENTRIES"]


def tsde(
    name: str, _horizon: int, *, ages: int = AGES, prior: float | tuple[float, float] = 1.0
) -> Policy:
    """Return TSDE; ages: slots since an observation that the plan distinguishes."""
    from rmab.learning.thompson import thompson
    from rmab.policies.rules.joint import JointRule

    return Policy(
        name,
        rule=JointRule(ages),
        learner=partial(thompson, prior=prior),
        reads_visits=False,
        prior=prior,
    )


ENTRIES = {
    "tsde": Entry(
        "published", f"{__name__}:tsde", shared("ages", "aggregation", "prior"),
        "Thompson sampling and the joint optimum of the draw, for few arms",
        "TSDE", "#bb5566", BROKEN, "4",
        capabilities=Capabilities(arms=(few_arms,), served=False),
    ),
}  # fmt: skip
