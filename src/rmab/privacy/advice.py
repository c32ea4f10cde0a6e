"""What noise costs a federation of so many agents: when to warn of it.

The noise of a released count does not depend on the number of agents M, and what is counted grows
with it. So M / z(epsilon, delta), over the root of the number of groups, tells how much is left to
be learnt. Loss per slot against known dynamics, measured on the paper's arms (docs/privacy.md):

    M / z                  .88    3.5    5.8     14     23    alone
    draws = "own"        .0093  .0072  .0067  .0036  .0026    .0101
    draws = "shared"      .062   .025          .011            .021

With draws of their own none lost by it, and below 2 they gain less than a fifth. Where one draw is
for all, below 5 each would do better alone.
"""

from __future__ import annotations

import math

from rmab.privacy.noise import Budget, noise_multiplier

__all__ = ["cost_warning", "enough_agents"]

_ENOUGH = {"own": 2.0, "shared": 5.0, "per-agent": 5.0, "survey": 7.0}  # M / z, by draws


def enough_agents(budget: Budget, draws: str, groups: int = 1) -> int:
    """The fewest agents for whom noise costs less than they gain from one another."""
    z = noise_multiplier(budget.epsilon, budget.delta)
    return max(2, math.ceil(_ENOUGH[draws] * z * math.sqrt(groups)))


def cost_warning(budget: Budget | None, agents: int, draws: str, groups: int = 1) -> str | None:
    """A line where noise costs so many agents much; None where it does not, or there is none."""
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
