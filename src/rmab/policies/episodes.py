"""Schedules: how long episodes last, and the stop rule of Algorithm 1.

An episode lasts at most `limit` slots, where limit comes from the previous episode's length, and
under the paper's rule it ends early when, for some agent, arm and state observed,

    N_t(s, a = 1) > 2^M max(1, N_{t_l}(s, a = 1)),                                   eq. (22)

with N_{t_l} the visits at the start of the episode. `linear` and `doubling` drop the second rule:
they are public schedules that reveal nothing about observations. All start from T_0 = 1.

Written for NumPy and JAX arrays alike; engine, agents and server call the same functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from rmab.linalg import Array, array_namespace

__all__ = [
    "DRAWS",
    "FIRST_LENGTH",
    "LONGEST",
    "SCHEDULES",
    "first_limit",
    "most_episodes",
    "next_limit",
    "round_length",
    "visit_limit",
    "visits_can_end",
]

FIRST_LENGTH = 1  # T_0
LONGEST = 2**40  # slots: a horizon for agents that have none
SCHEDULES = ("paper", "linear", "doubling")
# One draw of the dynamics for all agents, one for each, or one for each by what it has observed
# itself and what it believes of the others (`rmab.learning.channel.local_posterior`).
DRAWS = ("shared", "per-agent", "own")


def next_limit(schedule: str, previous_length: Array, longest: int | None = None) -> Array:
    """The most slots the next episode may last; longest: those that any may."""
    limit = 2 * previous_length if schedule == "doubling" else previous_length + 1
    return limit if longest is None else array_namespace(limit).minimum(limit, longest)


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
    schedule: str,
    n_agents: int,
    n_arms: int,
    horizon: int,
    n_states: int = 2,
    longest: int | None = None,
    *,
    own_visits: bool = False,
) -> int:
    """Return a number of episodes that no run can exceed (Lemma 1 without its averaging).

    Each (agent, arm, state) can end at most floor(log T / log 2^M) + 1 episodes; where agents' own
    visits end them, each (agent, arm, state, action) floor(log T / log 2) + 1. Between two such
    ends lengths grow by one, so n of them take at least n(n + 1)/2 slots. Those that `longest` ends
    are as long as that, and all others are shorter and grow as without it.
    """
    capped = 0 if longest is None else horizon // longest + 1
    if schedule == "doubling":
        return min(horizon, math.ceil(math.log2(horizon + 1)) + 1 + capped)
    ends = 0
    doublings = 1 if own_visits else n_agents  # in the factor
    if visits_can_end(schedule, doublings, horizon):
        ends = n_states * n_arms * n_agents * (math.floor(math.log2(horizon) / doublings) + 1)
        ends = 2 * ends if own_visits else ends
    return min(horizon, math.ceil(math.sqrt(2 * horizon * (ends + 1))) + 1 + capped)


def first_limit(schedule: str, longest: int | None = None) -> int:
    """The most slots of the first round's episodes."""
    return int(next_limit(schedule, FIRST_LENGTH, longest))


def round_length(schedule: str, limit: int, reported: Iterable[int]) -> int:
    """The length that the limit of the next round follows from: under `paper` the longest episode
    that was reported, under the public schedules the limit itself, whoever came late."""
    lengths = list(reported)
    return min(limit, max(lengths)) if schedule == "paper" and lengths else limit
