"""RB-TSDE: Thompson sampling of rows and Whittle indices, each agent by itself.

An episode ends when the agent's own visits of a state of an arm have more than doubled.

Reference: N. Akbarzadeh, A. Mahajan, "On learning Whittle index policy for restless bandits with
scalable regret", arXiv 2202.03463, 2022.
"""

from __future__ import annotations

from functools import partial

from rmab.policies.capabilities import Capabilities
from rmab.policies.entry import BROKEN, Entry
from rmab.policies.options import shared
from rmab.policies.policy import Policy

__all__ = ["ENTRIES"]


def rb_tsde(name: str, _horizon: int, *, prior: float | tuple[float, float] = 1.0) -> Policy:
    """Return RB-TSDE."""
    from rmab.learning.thompson import thompson
    from rmab.policies.planners import WHITTLE

    return Policy(
        name,
        rule=WHITTLE,
        learner=partial(thompson, prior=prior),
        own_visits=True,
        reads_visits=False,
        prior=prior,
    )


ENTRIES = {
    "rb-tsde": Entry(
        "published", f"{__name__}:rb_tsde", shared("aggregation", "prior"),
        "RB-TSDE: Thompson sampling and Whittle indices, each agent alone",
        "RB-TSDE", "#994455", BROKEN, "H", {"aggregation": "none"}, Capabilities(served=False),
    ),
}  # fmt: skip
