"""Traces with known answers. Segments are short, so that what plays on them takes few steps."""

import numpy as np

from rmab.traces.trace import Trace

SEGMENTS, LENGTH = 16, 250
SLOTS = SEGMENTS * LENGTH


def trace_of(state, segment=None, **changes) -> Trace:
    """Of states (agents, slots, arms), in segments of LENGTH slots unless told otherwise."""
    segment = np.arange(state.shape[1]) // LENGTH if segment is None else segment
    return Trace(state.astype(np.int8), segment, **changes)


def chain(p01=0.1, p11=0.9, agents=2, arms=2, slots=SLOTS, seed=0):
    """States of independent chains; p01 and p11 broadcast to (slots, agents, arms)."""
    rng = np.random.default_rng(seed)
    p01, p11 = (np.broadcast_to(p, (slots, agents, arms)) for p in (p01, p11))
    chance = rng.random((slots, agents, arms))
    state = np.empty((slots, agents, arms), np.int8)
    state[0] = chance[0] < p01[0] / (p01[0] + 1 - p11[0])
    for t in range(1, slots):
        state[t] = chance[t] < np.where(state[t - 1] == 1, p11[t], p01[t])
    return state.swapaxes(0, 1)


def second_order(agents=2, arms=2, slots=SLOTS, seed=0):
    """The state of two slots ago again, nine times of ten: the last one says nothing."""
    rng = np.random.default_rng(seed)
    again = rng.random((slots, agents, arms)) < 0.9
    state = rng.integers(0, 2, (slots, agents, arms))
    for t in range(2, slots):
        state[t] = np.where(again[t], state[t - 2], 1 - state[t - 2])
    return state.swapaxes(0, 1)


def two_regimes(agents=2, arms=2, slots=SLOTS, seed=0):
    """Sticky at first, alternating from the middle on."""
    late = (np.arange(slots) >= slots // 2)[:, None, None]
    return chain(np.where(late, 0.9, 0.1), np.where(late, 0.1, 0.9), agents, arms, slots, seed)


def misclassified(good_when_bad=0.15, bad_when_good=0.1, agents=2, arms=2, slots=SLOTS, seed=0):
    """A chain of long runs, seen wrongly."""
    hidden = chain(0.03, 0.97, agents, arms, slots, seed)
    rng = np.random.default_rng(seed + 1)
    wrong = rng.random(hidden.shape) < np.where(hidden == 1, bad_when_good, good_when_bad)
    return np.where(wrong, 1 - hidden, hidden)
