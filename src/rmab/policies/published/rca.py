"""RCA, for K arms RCA-M: upper bounds on mean rewards from whole cycles of a Markov chain.

An arm is played in blocks. The first state that it ever shows is its mark. A block waits until the
arm shows its mark (SB1), counts from that slot on (SB2), and ends with the slot in which the mark
is shown again, which does not count (SB3). So whole cycles are counted, whose mean is that of the
chain played for ever, whatever happened while the arm was not played. When a block ends, the arm of
the largest mean + sqrt(L ln t / n) outside a block begins one: n are its slots that counted, t the
counted slots of all arms. First every arm has a block.

Reference: C. Tekin, M. Liu, "Online learning of rested and restless bandits", IEEE Trans. Inf.
Theory 58(8), 2012.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rmab.linalg import Array, array_namespace
from rmab.policies.capabilities import Capabilities
from rmab.policies.entry import BROKEN, Entry
from rmab.policies.options import number
from rmab.policies.own_index import Observations
from rmab.policies.policy import OwnIndexRule, Policy

__all__ = ["ENTRIES", "RegenerativeCycles"]

_OUTSIDE, _WAITING, _COUNTING = 0, 1, 2  # positions of an arm in its block


class _Cycles(NamedTuple):
    mark: Array  # (N, ...) the state at which cycles begin and end, -1 before the first play
    phase: Array  # (N, ...) outside a block, waiting for the mark (SB1), or counting (SB2)
    plays: Array  # (N, ...) slots that count
    total: Array  # (N, ...) their pay


@dataclass(frozen=True)
class RegenerativeCycles:
    """Index of RCA; L: factor of ln t / n."""

    L: float = 1.0

    def init(self, _n_states: int, shape: tuple[int, ...]) -> _Cycles:
        """Return the state before any play."""
        return _Cycles(
            np.full(shape, -1, np.int16),
            np.zeros(shape, np.int8),
            np.zeros(shape, np.float32),
            np.zeros(shape, np.float32),
        )

    def update(self, state: _Cycles, seen: Observations) -> _Cycles:
        """Let played arms go on in their blocks, or begin one."""
        xp = array_namespace(state.plays, seen.played)
        shown = seen.state.astype(np.int16)
        mark = xp.where(seen.played & (state.mark < 0), shown, state.mark)
        at_mark = shown == mark
        within = state.phase == _COUNTING
        counts = seen.played & (within ^ at_mark)
        phase = xp.where(at_mark, xp.where(within, _OUTSIDE, _COUNTING), state.phase)
        phase = xp.where(at_mark | within, phase, _WAITING).astype(np.int8)
        paid = xp.where(counts, seen.reward, 0).astype(np.float32)
        return _Cycles(
            mark,
            xp.where(seen.played, phase, state.phase),
            state.plays + counts,
            state.total + paid,
        )

    def index(self, state: _Cycles, _slot: Array) -> Array:
        """Return upper bounds, (N, ...); arms in a block come first, then arms that had none."""
        xp = array_namespace(state.plays)
        plays = xp.maximum(state.plays, 1)
        counted = xp.maximum(state.plays.sum(0), 1)
        bound = state.total / plays + xp.sqrt(np.float32(self.L) * xp.log(counted) / plays)
        new = np.finfo(np.float32).max
        bound = xp.where(state.plays > 0, bound, new)
        return xp.where(state.phase == _OUTSIDE, bound, np.float32(np.inf))


def rca(name: str, _horizon: int, *, L: float = 1.0) -> Policy:
    """Return RCA; L: factor of ln t / n."""
    return Policy(name, rule=OwnIndexRule(RegenerativeCycles(L)))


ENTRIES = {
    "rca": Entry(
        "published", f"{__name__}:rca",
        {"L": number("1", 1e6, "how much an arm gains by having been counted seldom")},
        "RCA: UCB on mean rewards of whole cycles between visits of a state, block by block",
        "RCA", "#bbaa44", BROKEN, "x", capabilities=Capabilities("own"),
    ),
}  # fmt: skip
