"""Code lengths (MDL) of models of a series' next state.

A pair is two neighbouring slots of an interval, and every model gives the chance of the second,
given the interval up to the first. The first slot of an interval is not predicted, so all models
predict the same n slots. The code length of a model with k parameters, fitted by maximum
likelihood, is

    - log2 (likelihood of the n next states) + (k / 2) log2 n      bits.

    iid      one share of each state; k = 1, with S states S - 1
    order1   the chain; k = 2, S (S - 1)
    order2   next given the last two; in the second slot of an interval the chain of order1; k = 4,
             S^2 (S - 1)
    ages     next given the state and its run length in the interval, in slots: 1, 2-3, 4-7, ...,
             1024 and more, from 1 where an interval begins; k = the cells seen, times S - 1
    regimes  chains on pieces: the pairs in order of time are 48 blocks of one size, and a dynamic
             programme cuts between blocks wherever that is shorter; k = 3 a piece, its chain and
             where it ends, S (S - 1) + 1
    flicker  the misclassified HMM of rmab.traces.misclassified_hmm; k = 4; for two states only
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import xlogy

from rmab.traces.pairs import Floats, Ints, SlotPairs

__all__ = [
    "HMM_PARAMETERS",
    "MODELS",
    "Piece",
    "chain_bits",
    "code_lengths",
    "counts_of",
    "regimes_of",
    "share_bits",
]

MODELS = ("iid", "order1", "order2", "ages", "regimes", "flicker")
HMM_PARAMETERS = 4
_N_BLOCKS = 48
_LAST_AGE_CLASS = 10  # 2^10 slots and more


class Piece(NamedTuple):
    """Piece of `regimes`: its first slot, the slot after its last, and its pairs."""

    start: int
    end: int
    counts: Floats  # (S, S): pairs by last and next state


def counts_of(pairs: SlotPairs, states: int) -> Floats:
    """Return the pairs by last and next state, (S, S)."""
    return _table(pairs.last, pairs.next, states, states)


def code_lengths(pairs: SlotPairs, states: int) -> dict[str, float]:
    """Return the bits of all n next states under iid, order1, order2 and ages."""
    log_n = np.log2(len(pairs.next))
    free = states - 1
    counts = counts_of(pairs, states)
    begins = pairs.before < 0
    two, after_two = (pairs.before * states + pairs.last)[~begins], pairs.next[~begins]
    by_two = _table(two, after_two, states**2, states)
    chance = counts / np.maximum(counts.sum(-1, keepdims=True), 1)
    second = -np.log2(chance[pairs.last[begins], pairs.next[begins]]).sum()
    classes = _LAST_AGE_CLASS + 1
    age_class = np.minimum(np.log2(pairs.age).astype(np.int64), _LAST_AGE_CLASS)
    by_age = _table(pairs.last * classes + age_class, pairs.next, states * classes, states)
    n_cells = np.count_nonzero(by_age.sum(-1))
    return {
        "iid": share_bits(counts.sum(0)),
        "order1": chain_bits(counts),
        "order2": float(_bits(by_two).sum() + second + 0.5 * states**2 * free * log_n),
        "ages": float(_bits(by_age).sum() + 0.5 * n_cells * free * log_n),
    }


def share_bits(counts: Floats) -> float:
    """Return the code length of `iid` from the counts (S,) of next states."""
    return float(_bits(counts) + 0.5 * (len(counts) - 1) * np.log2(counts.sum()))


def chain_bits(counts: Floats) -> float:
    """Return the code length of `order1` from counts (S, S) of one chain."""
    states = len(counts)
    return float(_bits(counts).sum() + 0.5 * states * (states - 1) * np.log2(counts.sum()))


def regimes_of(pairs: SlotPairs, states: int) -> tuple[float, list[Piece]]:
    """Return the code length of the best pieces, and the pieces."""
    n = len(pairs.next)
    n_blocks = min(_N_BLOCKS, n)
    block = np.arange(n) * n_blocks // n
    each = _table(block * states + pairs.last, pairs.next, n_blocks * states, states)
    each = each.reshape(n_blocks, states, states)
    so_far = np.concatenate([np.zeros((1, states, states)), each.cumsum(0)])
    counts = np.maximum(so_far[None] - so_far[:, None], 0)  # [i, j]: blocks i to j - 1
    price = 0.5 * (states * (states - 1) + 1) * np.log2(n)
    cost = _bits(counts).sum(-1) + price
    best, cut = np.zeros(n_blocks + 1), np.zeros(n_blocks + 1, np.int64)
    for end in range(1, n_blocks + 1):
        total = best[:end] + cost[:end, end]
        cut[end] = total.argmin()
        best[end] = total[cut[end]]
    pieces, end = [], n_blocks
    while end > 0:
        start = int(cut[end])
        first, last = pairs.at[(block >= start) & (block < end)][[0, -1]]
        pieces.append(Piece(int(first) - 1, int(last) + 1, counts[start, end]))
        end = start
    return float(best[-1]), pieces[::-1]


def _table(context: Ints, next_state: Ints, n_contexts: int, states: int) -> Floats:
    """Return the counts of the next state in each context, (contexts, S)."""
    found = np.bincount(context * states + next_state, minlength=n_contexts * states)
    return found.reshape(n_contexts, states).astype(np.float64)


def _bits(counts: Floats) -> Floats:
    """Return the bits (...) of counts (..., S) under their own shares."""
    total = counts.sum(-1)
    return np.asarray((xlogy(total, total) - xlogy(counts, counts).sum(-1)) / np.log(2))
