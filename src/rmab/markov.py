"""Finite Markov chains in the long run: recurrent classes, periods, limiting distributions.

P is a transition matrix (S, S). Its states fall into recurrent classes, which are never left, and
transient states. The Cesaro limit of P,

    P* = lim (I + P + ... + P^(t-1)) / t,

has the long-run distribution from each start; rows of one recurrent class are equal. A chain
*forgets* if it has one recurrent class and no period: then P^t itself tends to P*, from any start.
The *limiting distribution* belongs to a uniform start, u P* with u uniform. Of an irreducible chain
it is the stationary distribution.

One chain has the shape (S, S). Many chains, (S, S, *B), have them last, on NumPy and JAX alike.

Reference: W. K. Grassmann, M. I. Taksar, D. P. Heyman, "Regenerative analysis and steady state
distributions for Markov chains", Oper. Res. 33(5), 1985.
"""

from __future__ import annotations

from math import gcd, lcm

import numpy as np
import numpy.typing as npt

from rmab.arrays import Array, Bool, BoolArray, Float, FloatArray, Int, IntArray, Shaped
from rmab.linalg import array_namespace, rounding

__all__ = [
    "forgets",
    "limit",
    "limiting_distribution",
    "limiting_distributions",
    "period",
    "recurrent",
    "stationary",
]

_FEW_STATES = 64  # up to here powers of a matrix are faster than a search of its graph


def recurrent(P: Shaped[npt.NDArray[np.generic], "S S"]) -> Int[IntArray, " S"]:
    """Return the recurrent class of each state as a label 0, 1, ..., -1 for transient states."""
    if len(P) <= _FEW_STATES:
        return _few_recurrent(P)
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    edges = csr_array(P != 0)
    _, labels = connected_components(edges, directed=True, connection="strong")
    source, target = edges.nonzero()
    left = np.unique(labels[source][labels[source] != labels[target]])
    closed = ~np.isin(labels, left)
    classes = np.full(labels.size, -1, np.int64)
    classes[closed] = np.unique(labels[closed], return_inverse=True)[1]
    return classes


def _few_recurrent(P: npt.NDArray[np.generic]) -> IntArray:
    """Do the same for few states, without SciPy, by powers of the graph's matrix."""
    S = len(P)
    reached = ((P != 0) | np.eye(S, dtype=bool)).astype(np.float32)
    for _ in range((S - 1).bit_length()):
        reached = (reached @ reached > 0).astype(np.float32)
    there, back = reached > 0, reached.T > 0
    closed = (back | ~there).all(1)
    first = (there & back).argmax(1)  # the lowest state of a class names it
    classes = np.full(S, -1, np.int64)
    classes[closed] = np.unique(first[closed], return_inverse=True)[1]
    return classes


def limit(P: Float[FloatArray, "S S"]) -> Float[FloatArray, "S S"]:
    """Return the Cesaro limit of P^t, the long-run distribution from each start."""
    classes = recurrent(P)
    occupied = np.zeros((int(classes.max()) + 1, len(P)))  # stationary, of each class
    for label, shares in enumerate(occupied):
        members = np.flatnonzero(classes == label)
        shares[members] = stationary(P[np.ix_(members, members)])
    ends_in = (classes[:, None] == np.arange(len(occupied))).astype(np.float64)
    transient = classes < 0
    if transient.any() and len(occupied) == 1:
        ends_in[transient] = 1
    elif transient.any():
        inside = np.eye(int(transient.sum())) - P[np.ix_(transient, transient)]
        reached = np.linalg.solve(inside, P[transient] @ ends_in)
        ends_in[transient] = reached / reached.sum(1, keepdims=True)  # equal gains stay equal
    return np.asarray(ends_in @ occupied)


def stationary(P: Float[FloatArray, "S S"]) -> Float[FloatArray, " S"]:
    """Return the stationary distribution of one irreducible chain of any size.

    States are eliminated without subtractions (Grassmann, Taksar, Heyman), so that small chances
    stay accurate.
    """
    P = P.copy()
    for k in range(len(P) - 1, 0, -1):
        P[:k, k] /= P[k, :k].sum()
        P[:k, :k] += np.outer(P[:k, k], P[k, :k])
    weight = np.ones(len(P))
    for k in range(1, len(P)):
        weight[k] = weight[:k] @ P[:k, k]
    return np.asarray(weight / weight.sum())


def period(P: Float[FloatArray, "S S"]) -> int:
    """Return the period of a chain: the least common multiple of its classes' periods.

    >>> period(np.array([[0.0, 1.0], [1.0, 0.0]])), period(np.eye(2))
    (2, 1)
    """
    classes, whole = recurrent(P), 1
    for label in range(int(classes.max()) + 1):
        members = np.flatnonzero(classes == label)
        steps: dict[int, int] = {int(members[0]): 0}
        common, ahead = 0, [int(members[0])]
        while ahead:  # any two ways to a state differ in length by multiples of the period
            state = ahead.pop()
            for target in np.flatnonzero(P[state]).tolist():
                if target in steps:
                    common = gcd(common, steps[state] + 1 - steps[target])
                else:
                    steps[target] = steps[state] + 1
                    ahead.append(target)
        whole = lcm(whole, common)
    return whole


def forgets(P: Float[FloatArray, "S S *B"]) -> Bool[BoolArray, "*B"]:
    """Whether the distributions of chains tend to one limit from any start.

    They do if and only if after enough slots, S^2 suffice, some state is reached from all.
    """
    reached = np.moveaxis(P, (0, 1), (-2, -1)) > 0
    for _ in range(2 * len(P).bit_length()):
        reached = reached @ reached
    return np.asarray(reached.all(-2).any(-1))


def limiting_distribution(P: Float[FloatArray, "S S"]) -> Float[FloatArray, " S"]:
    """Return the limiting distribution of one chain, exactly 0 in transient states."""
    return np.asarray(limit(P).mean(0))


def limiting_distributions(P: Float[Array, "S S *B"]) -> Float[Array, " S *B"]:
    """Return the limiting distributions of many small chains.

    A slot restarts at a uniform state with a vanishing chance. That makes the distributions unique,
    and the mean over all starts where a chain has several recurrent classes. States are eliminated
    as in `stationary`, all chains at once.
    """
    xp = array_namespace(P)
    S = P.shape[0]
    restart = 1e-9 if rounding(P) > 1e-9 else 1e-30
    chance = [[P[s, r] + restart for r in range(S)] for s in range(S)]
    for last in reversed(range(1, S)):
        away = sum(chance[last][:last])
        for s in range(last):
            chance[s][last] = chance[s][last] / away
            for r in range(last):
                chance[s][r] = chance[s][r] + chance[s][last] * chance[last][r]
    weight = [xp.ones_like(P[0, 0])]
    for s in range(1, S):
        weight.append(sum(weight[r] * chance[r][s] for r in range(s)))
    share = xp.stack(weight)
    return share / share.sum(0)
