"""Learners that explore apart: first or in blocks of slots kept for it, then by what was found.

Restless-UCB explores the arms in turn, until it has seen enough steps from every state of each
(`explored_arms`, `slots_to_explore`); the optimistic dynamics of what it saw (`raised_steps`) are
then planned by for the rest. DSEE has blocks of exploration and of exploitation, each kind four
times as long as the last of it; it plays the arms with the best mean (`block_arms`, `block_slots`).

All are functions of the evidence at the start of an episode, as learners are.

Reference: S. Wang, L. Huang, J. C. S. Lui, "Restless-UCB, an efficient and low-complexity algorithm
for online restless bandits", NeurIPS 2020; H. Liu, K. Liu, Q. Zhao, "Learning in a changing world:
restless multiarmed bandit with unknown dynamics", IEEE Trans. Inf. Theory 59(3), 2013.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array, lax

from rmab.learning.evidence import Evidence
from rmab.model.arms import ArmKind, Moves
from rmab.rng.variates import Draws

__all__ = [
    "block_arms",
    "block_explores",
    "block_slots",
    "explored_arms",
    "raised_steps",
    "slots_to_explore",
    "steps_wanted",
]

_GROWTH = 4  # of a block, against the last of its kind
_FIRST_EXPLOITED = 2  # slots of the first block of exploitation


# ------------------------------------------------------------------------------- Restless-UCB


def steps_wanted(horizon: int, scale: float = 1.0, exponent: float = 2 / 3) -> int:
    """m(T), the steps that exploration wants to see from every state of every arm."""
    power = scale * math.pow(horizon, exponent)
    return math.floor(power * (1 + 1e-12)) + 1  # of 1000 it is 100, and not a little less


def _sizes(kinds: tuple[ArmKind, ...]) -> npt.NDArray[np.int_]:
    return np.array([kind.states for kind in kinds])


def _missing(evidence: Evidence, wanted: int) -> Array:
    """The steps that are still to be seen of each arm, (N, trials)."""
    seen = evidence.transitions.sum(1)  # (S, N, trials)
    has = (np.arange(seen.shape[0])[:, None] < _sizes(evidence.kinds))[:, :, None]
    return jnp.where(has, jnp.maximum(wanted - seen, 0), 0).sum(0)


def explored_arms(evidence: Evidence, wanted: int) -> Array:
    """The K arms that are explored, (N, trials): the lowest of which too few steps were seen, then
    the lowest of the others; none when all are done with."""
    waits = _missing(evidence, wanted) > 0
    rank = jnp.where(waits, jnp.cumsum(waits, axis=0), waits.sum(0) + jnp.cumsum(~waits, axis=0))
    return (rank <= evidence.plays) & waits.any(0)


def slots_to_explore(evidence: Evidence, wanted: int, horizon: int) -> Array:
    """The least slots in which one of the arms explored now may be done with, (trials,): every
    agent sees at most one step of an arm in a slot. The horizon when all are done with."""
    missing = _missing(evidence, wanted)
    waits = missing > 0
    explored = waits & (jnp.cumsum(waits, axis=0) <= evidence.plays)
    least = jnp.where(explored, missing, jnp.inf).min(0) / jnp.maximum(evidence.agents, 1e-9)
    return jnp.clip(jnp.ceil(least), 1, horizon).astype(jnp.int32)


def raised_steps(evidence: Evidence, draws: Draws, *, radius: float) -> Moves:  # noqa: ARG001 - as every learner
    """The shares of steps seen, with `radius` moved to the state above.

    From every state the mass goes up to the next one (in the highest to itself), and is taken from
    the lowest states first, as much as is there. Of arms that go one level up or down in a slot,
    that is one level less down and one more up; of channels p01 + radius and p11 + radius.
    """
    steps = evidence.transitions
    S, sizes = steps.shape[0], _sizes(evidence.kinds)
    state = np.arange(S)
    has = (state[:, None] < sizes)[None, :, :, None]  # (1, S, N, 1) next states
    total = steps.sum(1, keepdims=True)
    share = jnp.where(total > 0, steps / jnp.maximum(total, 1e-30), has / sizes[:, None])
    up_to = np.minimum(state[:, None] + 1, sizes - 1)  # (S, N) the state that gains
    below = (state[:, None] < up_to[:, None])[..., None]  # (S, S, N, 1)
    heaped = jnp.cumsum(share, axis=1)
    heaped = jnp.where(below, jnp.maximum(heaped - radius, 0), heaped)
    rows = jnp.diff(heaped, axis=1, prepend=jnp.zeros_like(heaped[:, :1]))
    return Moves(rows, rows)


# --------------------------------------------------------------------------------------- DSEE


class _Block(NamedTuple):
    """Where a trial stands at the start of an episode; arrays (trials,)."""

    explores: Array
    group: Array  # of arms, whose turn it is to be explored
    slots: Array  # to the end of the group's turn, or of the block


class _Clock(NamedTuple):
    """Where the replay of the blocks stands; whole numbers (trials,)."""

    begun: Array  # the slot at which the block begins
    turn: Array  # slots of a group in the next block of exploration
    exploited: Array  # slots of the next block of exploitation
    explored: Array  # slots that every arm has been explored for
    found: _Block


def _block(evidence: Evidence, exploration: float, horizon: int) -> _Block:
    """Replayed from the first slot: blocks follow from the number of slots and of agents."""
    assert evidence.slot is not None
    agents = jnp.broadcast_to(jnp.asarray(evidence.agents, jnp.float32), evidence.episode.shape)
    now, groups = evidence.slot, -(-evidence.visits.shape[1] // evidence.plays)
    zero = jnp.zeros(agents.shape, jnp.int32)

    def follow(_: int, state: _Clock) -> _Clock:
        begun, turn, exploited, explored, found = state
        enough = explored * agents > exploration * jnp.log(jnp.maximum(begun, 1))
        lasts = jnp.where(enough, exploited, groups * turn)
        past, ends = now - begun, begun + lasts
        group = past // turn
        left = jnp.where(enough, ends - now, (group + 1) * turn - past)
        here, inside = _Block(~enough, group, left), (past >= 0) & (now < ends)
        over = ends <= now  # what comes after this slot is not followed, and cannot overflow
        return _Clock(
            begun=jnp.where(over, ends, begun),
            turn=jnp.where(over & ~enough, _GROWTH * turn, turn),
            exploited=jnp.where(over & enough, _GROWTH * exploited, exploited),
            explored=jnp.where(over & ~enough, explored + turn, explored),
            found=_Block(*(jnp.where(inside, x, y) for x, y in zip(here, found, strict=True))),
        )

    nothing = _Block(zero > 0, zero, zero + horizon)
    start = _Clock(zero, zero + 1, zero + _FIRST_EXPLOITED, zero, nothing)
    most = 2 * math.ceil(math.log(3 * horizon + 1, _GROWTH)) + 2
    done: _Clock = lax.fori_loop(0, most, follow, start)
    return done.found


def block_arms(
    evidence: Evidence,
    draws: Draws,  # noqa: ARG001 - every learner takes it; this one is deterministic
    *,
    exploration: float,
    horizon: int,
) -> tuple[Array, Array]:
    """1 for the K arms of the block, 0 for the others, (N, trials) twice: the group whose turn it
    is to be explored, or those with the best mean reward."""
    n_arms = evidence.visits.shape[1]
    block = _block(evidence, exploration, horizon)
    arm = np.arange(n_arms)[:, None]
    in_turn = (arm - block.group * evidence.plays) % n_arms < evidence.plays
    pulled = evidence.visits.sum(0)
    mean = (evidence.rewards * evidence.visits).sum(0) / jnp.maximum(pulled, 1e-30)
    rank = jnp.argsort(jnp.argsort(-mean, axis=0, stable=True), axis=0)
    chosen = jnp.where(block.explores, in_turn, rank < evidence.plays).astype(jnp.float32)
    return chosen, chosen


def block_explores(evidence: Evidence, exploration: float, horizon: int) -> Array:
    """Whether the next episode explores, (trials,)."""
    return _block(evidence, exploration, horizon).explores


def block_slots(evidence: Evidence, exploration: float, horizon: int) -> Array:
    """The slots of the next episode: to the end of a group's turn, or of a block."""
    return jnp.minimum(_block(evidence, exploration, horizon).slots, horizon)
