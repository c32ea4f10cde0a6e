"""Models of a series' next state, and how many bits each of them needs.

A *series* is one arm as one agent measured it. It falls into *stretches*: measured slots that follow
one another inside a segment. A *pair* is two neighbouring slots of a stretch, and every model says how
likely the second is, given the stretch up to the first. So the first slot of a stretch is never
predicted, and all models are asked about the same n slots.

The code length of a model with k parameters, fitted by maximum likelihood, is

    - log2 (likelihood of the n next states) + (k / 2) log2 n      bits.

    iid      one share of each state; k = S - 1, 1 with two states
    order1   the chain; k = S (S - 1), 2
    order2   next given the last two; in the second slot of a stretch the chain of order1; k = 4
    ages     next given the state and how long the stretch has been in it, in slots: 1, 2-3, 4-7, ...,
             1024 and more; a stretch begins at 1; k = the cells seen, times S - 1
    regimes  chains on pieces: the pairs in order of time are 48 blocks of equal size, and a dynamic
             programme cuts between blocks where that is shortest; k = 3 a piece, two for the
             chain and one for where it ends
    flicker  a hidden chain that is seen wrongly, rmab.traces.flicker; k = 4, of two states alone
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import xlogy

__all__ = ["MODELS", "Pairs", "Piece", "chain_bits", "code_lengths", "counts_of", "pairs_of", "regimes_of"]

MODELS = ("iid", "order1", "order2", "ages", "regimes", "flicker")
_N_BLOCKS = 48
_MAX_AGE_CLASS = 10  # 2^10 slots and more

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Pairs(NamedTuple):
    """The pairs of a series in order of time; all (n,)."""

    at: Ints  # the slot of the second
    last: Ints  # the state of the first
    next: Ints  # the state of the second
    before: Ints  # the state of the slot before the first, -1 where the stretch begins there
    age: Ints  # slots that the stretch has been in `last`, from 1


class Piece(NamedTuple):
    """A piece of `regimes`: its first slot, the slot after its last, and its counts."""

    start: int
    end: int
    counts: Floats  # (S, S): pairs by last and next state


def pairs_of(state: npt.NDArray[np.int8], segment: Ints) -> Pairs:
    """All pairs of one series: state and segment are (slots,)."""
    joined = np.zeros(len(state), bool)
    joined[1:] = (state[1:] >= 0) & (state[:-1] >= 0) & (segment[1:] == segment[:-1])
    changed = ~joined
    changed[1:] |= state[1:] != state[:-1]
    slot = np.arange(len(state))
    since = slot - np.maximum.accumulate(np.where(changed, slot, 0)) + 1
    at = np.flatnonzero(joined)
    before = np.where(joined[at - 1], state[at - 2], -1)  # joined[0] is False: at - 2 >= 0
    return Pairs(at, *(x.astype(np.int64) for x in (state[at - 1], state[at], before, since[at - 1])))


def counts_of(pairs: Pairs, states: int) -> Floats:
    """(S, S): pairs by last and next state."""
    return _table(pairs.next, states, pairs.last)


def code_lengths(pairs: Pairs, states: int) -> dict[str, float]:
    """Bits of all n next states under each model but `flicker`."""
    log_n = np.log2(len(pairs.next))
    free = states - 1
    counts = counts_of(pairs, states)
    begins = pairs.before < 0
    later = Pairs(*(x[~begins] for x in pairs))
    by_two = _table(later.next, states, later.before * states + later.last)
    chance = counts / np.maximum(counts.sum(-1, keepdims=True), 1)
    first = -np.log2(chance[pairs.last[begins], pairs.next[begins]]).sum()
    age_class = np.minimum(np.log2(pairs.age).astype(np.int64), _MAX_AGE_CLASS)
    by_age = _table(pairs.next, states, pairs.last * (_MAX_AGE_CLASS + 1) + age_class)
    cells = (by_age.sum(-1) > 0).sum()
    return {
        "iid": float(_bits(counts.sum(0)) + 0.5 * free * log_n),
        "order1": chain_bits(counts),
        "order2": float(_bits(by_two).sum() + first + 0.5 * states**2 * free * log_n),
        "ages": float(_bits(by_age).sum() + 0.5 * cells * free * log_n),
        "regimes": regimes_of(pairs, states)[0],
    }


def chain_bits(counts: Floats) -> float:
    """Code length of `order1` for one series or several with one law, from counts (S, S)."""
    states = len(counts)
    return float(_bits(counts).sum() + 0.5 * states * (states - 1) * np.log2(counts.sum()))


def regimes_of(pairs: Pairs, states: int) -> tuple[float, list[Piece]]:
    """Code length of the best pieces, and the pieces."""
    n = len(pairs.next)
    n_blocks = min(_N_BLOCKS, n)
    block = np.arange(n) * n_blocks // n
    each = _table(pairs.next, states, block * states + pairs.last)
    each = each.reshape(n_blocks, states, states)
    so_far = np.concatenate([np.zeros((1, states, states)), each.cumsum(0)])
    counts = so_far[None] - so_far[:, None]  # [i, j]: blocks i to j - 1
    price = 0.5 * (states * (states - 1) + 1) * np.log2(n)
    cost = _bits(np.maximum(counts, 0)).sum(-1) + price
    best, cut = np.zeros(n_blocks + 1), np.zeros(n_blocks + 1, int)
    for end in range(1, n_blocks + 1):
        total = best[:end] + cost[:end, end]
        cut[end] = total.argmin()
        best[end] = total[cut[end]]
    pieces, end = [], n_blocks
    while end > 0:
        inside = np.flatnonzero((block >= cut[end]) & (block < end))
        first, last = pairs.at[inside[[0, -1]]]
        pieces.append(Piece(int(first) - 1, int(last) + 1, counts[cut[end], end]))
        end = cut[end]
    return float(best[-1]), pieces[::-1]


def _table(next_state: Ints, states: int, context: Ints) -> Floats:
    """(contexts, S): how often each state came next, in each context up to the last one seen."""
    n_contexts = max(int(context.max(initial=-1)) + 1, 1)
    n_contexts = -(-n_contexts // states) * states  # whole rows of a chain
    found = np.bincount(context * states + next_state, minlength=n_contexts * states)
    return found.reshape(n_contexts, states).astype(float)


def _bits(counts: Floats) -> Floats:
    """Bits of counts (..., S) under their own shares: (...)."""
    total = counts.sum(-1)
    return np.asarray((xlogy(total, total) - xlogy(counts, counts).sum(-1)) / np.log(2))
