"""Planners: dynamics in, the index of every information state out.

A planner is a function

    planner(dynamics, states) -> index

whose arguments broadcast: arms on the first axis, then information states or agents, then trials.
The K arms of largest index are played, ties to the lower arm. A *table* is a planner evaluated on
all information states; since the built-in planners work state by state, the engine may also
evaluate them just where the agents are.

    whittle      closed-form Whittle index, eqs. (34) and (35)
    myopic       expected reward now, reward x belief, eq. (13)
    fixed        b0: the paper's fixed policy
    fixed-best   reward x b0: the best fixed policy
    round-robin  the age, so that the arms in play (p11 > 0) take turns
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rmab.linalg import Array, array_namespace
from rmab.model.arms import Arms, Dynamics
from rmab.model.beliefs import (
    NEVER,
    InformationStates,
    deviation,
    information_states,
    stationary_belief,
)
from rmab.planning.channel.index import whittle_at

__all__ = [
    "Planner",
    "fixed",
    "fixed_best",
    "index_table",
    "myopic",
    "round_robin",
    "take_turns",
    "whittle_at",
]

Planner = Callable[[Dynamics, InformationStates], Any]


def myopic(dynamics: Dynamics, states: InformationStates) -> Array:
    """Expected reward of a play now: reward x belief, eq. (13)."""
    return dynamics.reward * (stationary_belief(dynamics) + deviation(dynamics, states))


def fixed(dynamics: Dynamics, states: InformationStates) -> Array:
    """The stationary belief, whatever was seen: always the same arms."""
    return stationary_belief(dynamics) + 0 * states.age


def fixed_best(dynamics: Dynamics, states: InformationStates) -> Array:
    """reward x stationary belief, whatever was seen: the best arms to stay with."""
    return dynamics.reward * stationary_belief(dynamics) + 0 * states.age


def round_robin(dynamics: Dynamics, states: InformationStates) -> Array:
    """Arms in play (p11 > 0) by turns: the longest unplayed first, new ones before all."""
    xp = array_namespace(dynamics.p01, states.age)
    age = xp.asarray(states.age)
    turn = xp.where(age == NEVER, xp.inf, age)
    return xp.where(dynamics.p11 > 0, turn, -1.0)


def take_turns(dynamics: Dynamics, states: InformationStates) -> Array:
    """Round robin, fair also where K does not divide the number of arms in play.

    Arms played in one slot have one age. Where they were the last and the first of a round, the
    last go first again; the lower arm, as in other ties, would get ahead of the rest for ever.
    """
    xp = array_namespace(dynamics.p01, states.age)
    playing, age = xp.broadcast_arrays(dynamics.p11 > 0, xp.asarray(states.age))
    first = xp.take_along_axis(age, xp.argmax(playing, axis=0)[None], axis=0)
    with_first = playing & (age == first)
    ends_a_round = with_first & (xp.cumsum(playing & ~with_first, axis=0) > 0)
    return round_robin(dynamics, states) + 0.5 * ends_a_round


def index_table(planner: Planner, arms: Arms, max_age: int) -> np.ndarray[Any, Any]:
    """The planner's index in every information state: (N, 1 + S max_age), rows as in
    `information_states`."""
    dynamics = Dynamics(*(x[:, None] for x in arms.dynamics))
    table = planner(dynamics, information_states(max_age))
    shape = (len(arms), 1 + 2 * max_age)
    return np.broadcast_to(np.asarray(table, dtype=np.float64), shape).copy()
