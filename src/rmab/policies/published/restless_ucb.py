"""Restless-UCB: arms are explored in turn, then played by Whittle indices of optimistic dynamics.

Exploration lasts until m = floor(scale T^exponent) + 1 steps were seen from every state of every
arm. Then mass `radius` sqrt(ln T / (2 m)) of every row moves one state up, and those dynamics are
planned by for the rest.

Reference: S. Wang, L. Huang, J. C. S. Lui, "Restless-UCB, an efficient and low-complexity algorithm
for online restless bandits", NeurIPS 2020.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rmab.linalg import Array, array_namespace
from rmab.model.arms import ArmKind, Moves
from rmab.policies.capabilities import Capabilities, seen_in_play
from rmab.policies.entry import BROKEN, Entry
from rmab.policies.options import number, shared
from rmab.policies.policy import Lengths, Policy

if TYPE_CHECKING:
    from rmab.learning.evidence import Evidence
    from rmab.policies.rules.dynamics import ExploringDynamics
    from rmab.rng.variates import Draws

__all__ = ["ENTRIES", "explored_arms", "raised_steps", "slots_to_explore", "steps_wanted"]


def steps_wanted(horizon: int, scale: float = 1.0, exponent: float = 2 / 3) -> int:
    """Return m(T), the steps to be seen from every state of every arm."""
    power = scale * math.pow(horizon, exponent)
    return math.floor(power * (1 + 1e-12)) + 1  # of 1000 it is 100, and not a little less


def _sizes(kinds: tuple[ArmKind, ...]) -> npt.NDArray[np.int_]:
    return np.array([kind.states for kind in kinds])


def _missing(evidence: Evidence, wanted: int) -> Array:
    """Return the steps still to be seen of each arm, (N, trials)."""
    seen = evidence.transitions.sum(1)  # (S, N, trials)
    xp = array_namespace(seen)
    has = (np.arange(seen.shape[0])[:, None] < _sizes(evidence.kinds))[:, :, None]
    return xp.where(has, xp.maximum(wanted - seen, 0), 0).sum(0)


def explored_arms(evidence: Evidence, wanted: int) -> Array:
    """Return the K arms to be explored, (N, trials): the lowest with steps missing, then the lowest
    of the others; none when no steps are missing."""
    waits = _missing(evidence, wanted) > 0
    xp = array_namespace(waits)
    rank = xp.where(waits, xp.cumsum(waits, axis=0), waits.sum(0) + xp.cumsum(~waits, axis=0))
    return (rank <= evidence.plays) & waits.any(0)


def slots_to_explore(evidence: Evidence, _rows: Any, *, wanted: int, horizon: int) -> Array:
    """Return the fewest slots in which an explored arm may have all its steps, (trials,).

    Every agent sees at most one step of an arm in a slot. When no steps are missing it is the
    horizon.
    """
    missing = _missing(evidence, wanted)
    xp = array_namespace(missing)
    waits = missing > 0
    explored = waits & (xp.cumsum(waits, axis=0) <= evidence.plays)
    least = xp.where(explored, missing, xp.inf).min(0) / xp.maximum(evidence.agents, 1e-9)
    return xp.clip(xp.ceil(least), 1, horizon).astype(xp.int32)


def raised_steps(evidence: Evidence, _draws: Draws, *, radius: float) -> Moves:
    """Return the shares of steps seen, with `radius` moved to the state above.

    From every state the mass goes up to the next one (in the highest to itself), and is taken from
    the lowest states first, as much as is there. Of arms that go one level up or down in a slot,
    that is one level less down and one more up; of channels p01 + radius and p11 + radius.
    """
    steps = evidence.transitions
    xp = array_namespace(steps)
    S, sizes = steps.shape[0], _sizes(evidence.kinds)
    state = np.arange(S)
    has = (state[:, None] < sizes)[None, :, :, None]  # (1, S, N, 1) next states
    total = steps.sum(1, keepdims=True)
    share = xp.where(total > 0, steps / xp.maximum(total, 1e-30), has / sizes[:, None])
    up_to = np.minimum(state[:, None] + 1, sizes - 1)  # (S, N) the state that gains
    below = (state[:, None] < up_to[:, None])[..., None]  # (S, S, N, 1)
    heaped = xp.cumsum(share, axis=1)
    heaped = xp.where(below, xp.maximum(heaped - radius, 0), heaped)
    rows = xp.diff(heaped, axis=1, prepend=xp.zeros_like(heaped[:, :1]))
    return Moves(rows, rows)


def explored_dynamics(
    evidence: Evidence, draws: Draws, *, wanted: int, radius: float
) -> ExploringDynamics:
    """Return the optimistic dynamics, and the arms to be explored before all others."""
    from rmab.policies.rules.dynamics import ExploringDynamics

    moves = raised_steps(evidence, draws, radius=radius)
    return ExploringDynamics(moves, explored_arms(evidence, wanted))


def restless_ucb(
    name: str, horizon: int, *, radius: float = 1.0, scale: float = 1.0, exponent: float = 2 / 3
) -> Policy:
    """Return Restless-UCB."""
    from rmab.policies.planners import WHITTLE
    from rmab.policies.rules.exploring import ExploringRule

    wanted = steps_wanted(horizon, scale, exponent)
    raised = radius * math.sqrt(math.log(horizon) / (2 * wanted))
    return Policy(
        name,
        rule=ExploringRule(WHITTLE),
        learner=partial(explored_dynamics, wanted=wanted, radius=raised),
        randomised=False,
        reads_visits=False,
        lengths=Lengths(partial(slots_to_explore, wanted=wanted, horizon=horizon)),
    )


_OWN_OPTIONS = {
    "exponent": number("2/3", 1, "the power of the horizon with which exploration grows"),
    "radius": number("1", 1e6, "how much of the confidence radius is added; 0: none"),
}
ENTRIES = {
    "restless-ucb": Entry(
        "published", f"{__name__}:restless_ucb",
        {**shared("aggregation", "scale"), **_OWN_OPTIONS},
        "Restless-UCB: arms are explored in turn, then Whittle indices of upper bounds",
        "Restless-UCB", "#997700", BROKEN, "<",
        capabilities=Capabilities(arms=(seen_in_play,), served=False),
    ),
}  # fmt: skip
