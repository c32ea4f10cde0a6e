"""DSEE: deterministic sequencing of exploration and exploitation.

Blocks of exploration and of exploitation, each kind four times as long as the last of it. When a
block ends at slot t and every arm was explored for at most D ln t slots, exploration follows, else
exploitation: the arms with the best mean reward are played.

Reference: H. Liu, K. Liu, Q. Zhao, "Learning in a changing world: restless multiarmed bandit with
unknown dynamics", IEEE Trans. Inf. Theory 59(3), 2013.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rmab.linalg import Array, array_namespace, repeat
from rmab.policies.capabilities import Capabilities
from rmab.policies.entry import BROKEN, Entry
from rmab.policies.options import positive, shared
from rmab.policies.policy import Lengths, Policy
from rmab.policies.rules.turns import TurnsRule

if TYPE_CHECKING:
    from rmab.learning.evidence import Evidence
    from rmab.rng.variates import Draws

__all__ = ["ENTRIES", "block_arms", "block_explores", "block_slots"]

_GROWTH = 4  # of a block, against the last of its kind
_FIRST_EXPLOITED = 2  # slots of the first block of exploitation


class _Block(NamedTuple):
    """Position of a trial in its block at the start of an episode; arrays (trials,)."""

    explores: Array
    group: Array  # of arms, whose turn it is to be explored
    slots: Array  # to the end of the group's turn, or of the block


class _Clock(NamedTuple):
    """State of the replay of the blocks; whole numbers (trials,)."""

    begun: Array  # the slot at which the block begins
    turn: Array  # slots of a group in the next block of exploration
    exploited: Array  # slots of the next block of exploitation
    explored: Array  # slots that every arm has been explored for
    block: _Block  # with the slot asked for, once it is reached


def _block(evidence: Evidence, exploration: float, horizon: int) -> _Block:
    """Replay the blocks from the first slot: they follow from the number of slots and of agents."""
    assert evidence.slot is not None
    xp = array_namespace(evidence.episode)
    agents = xp.broadcast_to(xp.asarray(evidence.agents, xp.float32), evidence.episode.shape)
    now, groups = evidence.slot, -(-evidence.visits.shape[1] // evidence.plays)
    zero = xp.zeros(agents.shape, xp.int32)

    def follow(_: int, state: _Clock) -> _Clock:
        begun, turn, exploited, explored, block = state
        enough = explored * agents > exploration * xp.log(xp.maximum(begun, 1))
        lasts = xp.where(enough, exploited, groups * turn)
        past, ends = now - begun, begun + lasts
        group = past // turn
        left = xp.where(enough, ends - now, (group + 1) * turn - past)
        here, inside = _Block(~enough, group, left), (past >= 0) & (now < ends)
        over = ends <= now  # what comes after this slot is not followed, and cannot overflow
        return _Clock(
            begun=xp.where(over, ends, begun),
            turn=xp.where(over & ~enough, _GROWTH * turn, turn),
            exploited=xp.where(over & enough, _GROWTH * exploited, exploited),
            explored=xp.where(over & ~enough, explored + turn, explored),
            block=_Block(*(xp.where(inside, x, y) for x, y in zip(here, block, strict=True))),
        )

    nothing = _Block(zero > 0, zero, zero + horizon)
    start = _Clock(zero, zero + 1, zero + _FIRST_EXPLOITED, zero, nothing)
    most = 2 * math.ceil(math.log(3 * horizon + 1, _GROWTH)) + 2
    done: _Clock = repeat(most, follow, start)
    return done.block


def block_arms(
    evidence: Evidence, _draws: Draws, *, exploration: float, horizon: int
) -> tuple[Array, Array]:
    """Return 1 for the K arms of the block, 0 for the others, (N, trials) twice: the group whose
    turn it is to be explored, or the arms with the best mean reward."""
    xp = array_namespace(evidence.visits)
    n_arms = evidence.visits.shape[1]
    block = _block(evidence, exploration, horizon)
    arm = np.arange(n_arms)[:, None]
    in_turn = (arm - block.group * evidence.plays) % n_arms < evidence.plays
    pulled = evidence.visits.sum(0)
    mean = (evidence.rewards * evidence.visits).sum(0) / xp.maximum(pulled, 1e-30)
    rank = xp.argsort(xp.argsort(-mean, axis=0, stable=True), axis=0)
    chosen = xp.where(block.explores, in_turn, rank < evidence.plays).astype(xp.float32)
    return chosen, chosen


def block_explores(evidence: Evidence, _arms: Any, *, exploration: float, horizon: int) -> Array:
    """Whether the next episode explores, (trials,)."""
    return _block(evidence, exploration, horizon).explores


def block_slots(evidence: Evidence, _arms: Any, *, exploration: float, horizon: int) -> Array:
    """Return the slots of the next episode: to the end of a group's turn, or of a block."""
    xp = array_namespace(evidence.episode)
    return xp.minimum(_block(evidence, exploration, horizon).slots, horizon)


def dsee(name: str, horizon: int, *, exploration: float = 10.0) -> Policy:
    """Return DSEE; exploration: D, of D ln t slots."""
    settings: dict[str, Any] = {"exploration": exploration, "horizon": horizon}
    return Policy(
        name,
        rule=TurnsRule(),
        learner=partial(block_arms, **settings),
        explores=partial(block_explores, **settings),
        randomised=False,
        lengths=Lengths(partial(block_slots, **settings)),
    )


_EXPLORATION = positive("10", "D: each arm is explored for at least D ln t of t slots")
ENTRIES = {
    "dsee": Entry(
        "published", f"{__name__}:dsee",
        {**shared("aggregation"), "exploration": _EXPLORATION},
        "DSEE: blocks of exploration, and of the arms with the best mean reward",
        "DSEE", "#aaaa00", BROKEN, "P", capabilities=Capabilities(served=False),
    ),
}  # fmt: skip
