"""Advice on noise: the number of agents from which it costs less than sharing gains.

The noise of a released count does not depend on the number of agents M, and the counts grow with
it. So M / z(epsilon, delta), over the root of the number of groups, measures the signal. Loss per
slot against known dynamics, measured on the paper's arms (docs/privacy.md):

    M / z                  .88    3.5    5.8     14     23    alone
    draws = "own"        .0093  .0072  .0067  .0036  .0026    .0101
    draws = "shared"      .062   .025          .011            .021

With local draws no agent lost by sharing, and below 2 they gain less than a fifth. With one draw
for all, below 5 each agent would do better by itself.
"""

from __future__ import annotations

import math

from rmab.privacy.accounting import Budget, noise_multiplier

__all__ = ["cost_warning", "enough_agents"]

_ENOUGH = {"own": 2.0, "shared": 5.0, "per-agent": 5.0, "survey": 7.0}  # M / z, by draws


def enough_agents(budget: Budget, draws: str, groups: int = 1) -> int:
    """Return the fewest agents for whom noise costs less than they gain from one another.

    draws: "own", "shared", "per-agent" or "survey"; groups: with separate sums.
    """
    z = noise_multiplier(budget.epsilon, budget.delta)
    return max(2, math.ceil(_ENOUGH[draws] * z * math.sqrt(groups)))


def cost_warning(budget: Budget | None, agents: int, draws: str, groups: int = 1) -> str | None:
    """Return a line of warning where noise costs this many agents much, else None."""
    if budget is None or agents >= enough_agents(budget, draws, groups):
        return None
    enough = enough_agents(budget, draws, groups)
    who = "few agents" if not agents else f"{agents} agent{'' if agents == 1 else 's'}"
    noise = f"noise of epsilon = {budget.epsilon:g}"
    if draws == "survey":
        return (
            f"{noise} and a survey cost {who} about as much as they gain from one another; "
            f"{enough} or more gain by it"
        )
    if draws == "own":
        return f"{noise} leaves {who} little to gain from one another; {enough} or more gain by it"
    own = enough_agents(budget, "own", groups)
    return (
        f"{noise} costs {who} more than they gain from one another; {enough} or more gain, or "
        f'{own} with draws = "own", by which nobody does worse than alone'
    )
