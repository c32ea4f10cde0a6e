"""Average reward of finite Markov chains and decision processes, with bounds.

States are 0..R-1. For each of A choices there is a sparse transition matrix P_a, (R, R), and a
vector of expected rewards r_a, (R,). The gain g, the average reward per slot, and the relative
value h solve

    g(x) + h(x) = max_a r_a(x) + sum_x' P_a(x, x') h(x').

Value iteration: for any v the increments w = max_a (r_a + P_a v) - v bracket the gain of a closed
class, min w <= g <= max w, both over the class (Odoni), so a run ends when they agree to
PRECISION times the largest reward. v moves by DAMPING x w only: periodic chains need that.

A chain may have several closed classes with gains of their own; the gain from state 0 is their
mean by the chance of ending up in each, and a run then also waits until the increment in state 0
is that mean, for only then do the choices on the way lead to the right classes.

References: M. L. Puterman, "Markov Decision Processes", 1994, Sections 8.5 and 9.4;
A. R. Odoni, "On finding the maximal gain for Markov decision processes", Oper. Res. 17(5), 1969.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rmab.errors import ConvergenceError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["PRECISION", "chain_gain", "optimal_gain"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

PRECISION = 1e-9
DAMPING = 0.8
MAX_SWEEPS = 50_000
MAX_WORK = 4e9  # transitions looked at in all sweeps: some fifteen seconds


def optimal_gain(
    moves: Sequence[csr_array[Any, Any]],
    rewards: Sequence[FloatArray],
    classes: IntArray,
    weights: FloatArray,
) -> tuple[float, FloatArray]:
    """The largest gain from state 0 and, up to a constant in each class, h (R,).

    classes: (R,) a label 0..C-1, -1 for states on the way to a class;
    weights: (C,) the chances of ending up in each.
    """
    order = np.argsort(classes, kind="stable")[np.count_nonzero(classes < 0) :]
    starts = np.flatnonzero(np.diff(classes[order], prepend=-1))  # (C,)
    inside = slice(None) if classes.size == order.size and weights.size == 1 else order
    precision = PRECISION * max(float(np.abs(reward).max()) for reward in rewards)
    value = np.zeros(classes.size)
    sweeps = max(1, min(MAX_SWEEPS, int(MAX_WORK / sum(move.nnz for move in moves))))
    for _ in range(sweeps):
        ahead = rewards[0] + moves[0] @ value
        for move, reward in zip(moves[1:], rewards[1:], strict=True):
            np.maximum(ahead, reward + move @ value, out=ahead)
        gain = ahead - value
        low = np.minimum.reduceat(gain[inside], starts)
        high = np.maximum.reduceat(gain[inside], starts)
        mean = float((low + high) @ weights / 2)
        gap = max(float(np.max(high - low)), abs(mean - float(gain[0])))
        if gap <= precision:
            return mean, value
        value += DAMPING * gain
    raise ConvergenceError(
        f"value iteration over {classes.size:,} states: the gain is known to {gap:.1e} after "
        f"{sweeps:,} sweeps, {precision:.1e} is asked"
    )


def chain_gain(move: csr_array[Any, Any], reward: FloatArray) -> float:
    """The gain from state 0 of a chain without choices."""
    from scipy.sparse.csgraph import connected_components

    move.eliminate_zeros()
    n_parts, part = connected_components(move, connection="strong")
    source = np.repeat(part, np.diff(move.indptr))
    closed = np.ones(n_parts, bool)
    closed[source[source != part[move.indices]]] = False
    classes = np.where(closed, np.cumsum(closed) - 1, -1)[part]  # (R,)
    weights = np.ones(1) if closed.sum() == 1 else _absorbed(move, classes)
    return optimal_gain([move], [reward], classes, weights)[0]


def _absorbed(move: csr_array[Any, Any], classes: IntArray) -> FloatArray:
    """The chances (C,) of ending up in each class from state 0."""
    mass = np.zeros(classes.size)
    mass[0] = 1
    slots = max(1, min(MAX_SWEEPS, int(MAX_WORK / move.nnz)))
    for _ in range(slots):
        # What is still on the way comes first.
        by_class = np.bincount(classes + 1, mass).astype(np.float64)
        if by_class[0] < PRECISION:
            return by_class[1:] / float(by_class[1:].sum())
        mass = mass @ move
    raise ConvergenceError(
        f"a chain of {classes.size:,} states is on its way to a class after {slots:,} slots"
    )
