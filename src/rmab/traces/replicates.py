"""Parametric-bootstrap replicates of a trace.

A replicate is simulated from the first-order chains that were fitted to the trace, with the same
segments and holes: a trace as it would be if the model were true. Where trace and replicates
differ, in a picture or in the rewards of policies, the model misses something that matters there.
The arms of a replicate are independent, begin every segment at their stationary distribution, and
move in holes too. The page `fit.html` calls replicates twins.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rmab.markov import limiting_distributions
from rmab.traces.fitted_chains import fitted_chains, pair_counts
from rmab.traces.pairs import Floats, States, lanes_of
from rmab.traces.trace import MISSING, Trace

__all__ = ["N_REPLICATES", "replicates_of"]

N_REPLICATES = 20
_MAX_CELLS = 1 << 26  # of the replicates that are made together


def replicates_of(trace: Trace, n: int = N_REPLICATES, seed: int = 0) -> Iterator[States]:
    """Yield n replicates in groups (replicates, agents, slots, arms) that fit into memory."""
    chains = fitted_chains(pair_counts(trace))
    together = int(np.clip(_MAX_CELLS // trace.state.size, 1, n))
    rng = np.random.default_rng(seed)
    for first in range(0, n, together):
        yield _made(trace, chains, min(together, n - first), rng)


def _made(trace: Trace, chains: Floats, n: int, rng: np.random.Generator) -> States:
    """Return n replicates; a step of the loop is one slot of every lane of segments."""
    agents, _, arms = trace.state.shape
    lanes = lanes_of(trace.segment)
    reach = chains.cumsum(1)[:, :-1].swapaxes(0, 1)  # [j, i]: below it, from i to j or lower
    start = limiting_distributions(chains).cumsum(0)[:-1, :, None]
    place = np.arange(agents)[:, None, None], np.arange(arms)
    made = np.empty((n, *trace.state.shape), np.int8)
    now = np.zeros((n, agents, lanes.slots.shape[1], arms), np.int8)
    for slots, begins in zip(*lanes, strict=True):
        chance = rng.random(now.shape)
        bounds = (each[now, *place] for each in reach)
        if begins.any():
            bounds = (
                np.where(begins[:, None], first, later)
                for first, later in zip(start, bounds, strict=True)
            )
        now = np.sum([chance >= bound for bound in bounds], axis=0, dtype=np.int8)
        there = slots >= 0
        made[:, :, slots[there]] = now[:, :, there]
    return np.where(trace.measured, made, np.int8(MISSING))
