"""Fed1-UCB: arms are eliminated in phases until K remain.

In a phase every agent pulls every arm in play int(10 ln T) times. When K arms are left, all agents
play them. `rmab.learning.ucb.survivors` has the elimination.

Reference: C. Shi and C. Shen, "Federated multi-armed bandits", AAAI 2021.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from rmab.linalg import Array, array_namespace
from rmab.policies.capabilities import Capabilities, Case
from rmab.policies.entry import Entry
from rmab.policies.options import Option, shared
from rmab.policies.policy import Lengths, Policy
from rmab.policies.rules.turns import TurnsRule
from rmab.text import is_number, shown

if TYPE_CHECKING:
    from rmab.learning.evidence import Evidence

__all__ = ["ENTRIES", "phase_slots"]


def _noise_of_means(case: Case) -> str | None:
    """Refuse epsilon where its noise would not be that of M agents that count alike, or of one."""
    if "epsilon" not in case.settings:
        return None
    if case.at.served:
        return (
            f"epsilon of {case.name} is for studies: served agents upload counts without noise; "
            "privacy.epsilon has sums with noise"
        )
    why = None
    if case.at.weighted:
        why = "goes without weights: the noise of each agent's means is for agents that count alike"
    elif case.aggregation not in ("sum", "none"):
        why = f"goes with aggregation 'sum' or 'none', got {shown(case.aggregation)}"
    return why and f"epsilon of {case.name} {why}"


def phase_slots(
    evidence: Evidence, in_play: tuple[Array, Array], *, pulls: int, horizon: int
) -> Array:
    """Return the slots of a phase, (trials,): all that are left once K arms are in play, and 1 for
    an agent that has none."""
    xp = array_namespace(in_play[1])
    left = in_play[1].sum(0).astype(xp.int32)
    slots = -(-pulls * left // evidence.plays)
    return xp.where(left > evidence.plays, slots, xp.where(left > 0, horizon, 1))


def fed1_ucb(
    name: str, horizon: int, *, sigma: float = 0.5, epsilon: float | None = None
) -> Policy:
    """Return Fed1-UCB; epsilon: of the Laplace noise of agents' means, None for none."""
    from rmab.learning.ucb import survivors

    pulls = max(1, int(10 * math.log(horizon)))
    return Policy(
        name,
        rule=TurnsRule(),
        learner=partial(survivors, pulls=pulls, horizon=horizon, sigma=sigma, epsilon=epsilon),
        randomised=False,
        # An agent that has not pulled all cannot compare.
        lengths=Lengths(partial(phase_slots, pulls=pulls, horizon=horizon), complete=True),
    )


_EPSILON = Option(
    "none",
    lambda v: is_number(v) and 0 < v <= 100,
    "a number above 0 and at most 100",
    "of the Laplace noise that agents add to each phase's means, in studies alone",
)
ENTRIES = {
    "fed1-ucb": Entry(
        "paper", f"{__name__}:fed1_ucb", {**shared("aggregation", "sigma"), "epsilon": _EPSILON},
        "Fed1-UCB: arms are eliminated until K remain", "Fed1-UCB", "#cc79a7", "-", "v",
        capabilities=Capabilities(options=(_noise_of_means,)),
    ),
}  # fmt: skip
