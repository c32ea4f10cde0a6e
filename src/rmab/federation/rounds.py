"""Algorithm 1 without input or output: merging counts, lengths of episodes, the stop rule.

An episode lasts at most `limit` slots, where limit comes from the previous episode's length, and
under the paper's rule it ends early when, for some agent, arm and state seen,

    N_t(s, a = 1) > 2^M max(1, N_{t_l}(s, a = 1)),                                   eq. (22)

with N_{t_l} the visits at the start of the episode. `linear` and `doubling` drop the second rule:
they are public schedules that reveal nothing about what was seen. All start from T_0 = 1.

Written for NumPy and JAX arrays alike; the engine and the service call the same functions.
"""

from __future__ import annotations

import math
from typing import Any

from rmab.model.arms import array_namespace

__all__ = [
    "DRAWS",
    "FIRST_LENGTH",
    "LONGEST",
    "SCHEDULES",
    "merge",
    "most_episodes",
    "next_limit",
    "visit_limit",
    "visits_can_end",
]

Array = Any
FIRST_LENGTH = 1  # T_0
LONGEST = 2**40  # slots: a horizon for agents that have none
SCHEDULES = ("paper", "linear", "doubling")
DRAWS = ("shared", "per-agent")  # one draw of the dynamics for all agents, or one for each


def merge(counts: Array, weights: Array) -> Array:
    """Counts of all agents, (..., N, M, trials), summed with weights w_m, eq. (38)."""
    return (counts * weights[:, None]).sum(-2)


def next_limit(schedule: str, previous_length: Array) -> Array:
    """The most slots the next episode may last."""
    return 2 * previous_length if schedule == "doubling" else previous_length + 1


def visits_can_end(schedule: str, n_agents: int, horizon: int) -> bool:
    """Whether the second stop rule can ever act: a count must pass 2^M within the horizon."""
    return schedule == "paper" and 2**n_agents < horizon


def visit_limit(visits: Array, factor: int, horizon: int) -> Array:
    """The visit counts that end an episode when exceeded, from those at its start.

    factor: 2^M. No count exceeds the horizon, so larger limits are cut to it before they overflow.
    """
    xp = array_namespace(visits)
    factor = min(factor, horizon)
    enough = horizon // factor + 1
    return xp.minimum(factor * xp.clip(visits, 1, enough), horizon)


def most_episodes(
    schedule: str, n_agents: int, n_arms: int, horizon: int, n_states: int = 2
) -> int:
    """A count of episodes that no run can exceed (Lemma 1's argument without its averaging).

    Each (agent, arm, state) can end at most floor(log T / log 2^M) + 1 episodes. Between two such
    ends lengths grow by one, so n of them take at least n(n + 1)/2 slots.
    """
    if schedule == "doubling":
        return math.ceil(math.log2(horizon + 1)) + 1
    ends = 0
    if visits_can_end(schedule, n_agents, horizon):
        ends = n_states * n_arms * n_agents * (math.floor(math.log2(horizon) / n_agents) + 1)
    return min(horizon, math.ceil(math.sqrt(2 * horizon * (ends + 1))) + 1)
