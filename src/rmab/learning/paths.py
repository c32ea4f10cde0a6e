"""What an arm did while nobody looked: P_0 and P_1 learnt apart from looks that lie apart.

An arm was seen in s, played, left alone for c slots and then seen in s'. It went by P_1 and then c
times by P_0, unseen in between, so n_c(s, s') such pairs of looks have the log-likelihood

    L = sum over c, s, s' of n_c(s, s') log A_c(s, s'),      A_c = P_1 P_0^c.

Given both matrices, the steps s -> z that the hidden paths are expected to have taken are

    P_1(s, z) dL/dP_1(s, z)   by P_1,   and   P_0(s, z) dL/dP_0(s, z)   by P_0,

and with G_c = n_c / A_c, B_C-1 = G_C-1 and B_c = G_c + B_c+1 P_0^T, the derivatives are B_0 and the
sum of A_c-1^T B_c. Counting the expected steps and estimating the rows anew, by turns, is
expectation maximisation (Dempster, Laird and Rubin 1977). It is slow where most steps are hidden,
so every two turns are followed by a leap along the way they took (Varadhan and Roland 2008).

Draws. A Dirichlet draw with weights a is a set of Gamma(a) variates, one for each count, divided
by their sum: the best estimate for counts that were themselves weighted at random. The same is done
here: every count n of pairs becomes Gamma(n), every weight of the prior Gamma(weight), and the best
estimate for these is found (the weighted likelihood bootstrap, Newton and Raftery 1994). Without
hidden steps that is the posterior itself; without data it is the prior; with many looks it has the
posterior's mean and spread to first order.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array, lax

from rmab.random import Draws, Mask

__all__ = ["fill_in"]

Weights = Array | npt.NDArray[np.float32]

LEAPS = 40  # each of three turns of filling in and estimating
FARTHEST = 1000.0  # of a leap, in turns
LEAST = 1e-30  # keeps shares of impossible paths away from 0 / 0


def fill_in(
    counts: Array, prior: Weights, draws: Draws | None, valid: Mask | None = None
) -> tuple[Array, Array]:
    """(P_0, P_1), each (S, S, N, trials), from counts (C, S, S, N, trials) of looks after waits.

    prior: weights of next states that broadcast; valid: a mask of next states; draws: None for the
    best estimate.
    """
    waits = counts.shape[0]
    before = jnp.broadcast_to(prior, counts.shape[1:])
    played, left, hidden = before + counts[0], before, counts[1:]
    if draws is not None:
        played, left = draws.gamma(played), draws.gamma(left)
        hidden = jnp.where(hidden > 0, draws.gamma(jnp.where(hidden > 0, hidden, 1)), 0)

    def rows(weights: Array, axis: int) -> Array:
        weights = weights if valid is None else jnp.where(valid, weights, 0)
        return weights / jnp.maximum(weights.sum(axis, keepdims=True), LEAST)

    def turn(moves: Array) -> Array:
        passive, active = moves
        shown = [active]  # A_0, A_1, ...
        for _ in range(waits - 1):
            shown.append(_product(shown[-1], passive))
        back = jnp.zeros_like(active)
        of_passive = jnp.zeros_like(passive)
        for wait in range(waits - 1, 0, -1):
            back = hidden[wait - 1] / jnp.maximum(shown[wait], LEAST) + back
            of_passive = of_passive + _product(jnp.swapaxes(shown[wait - 1], 0, 1), back)
            back = _product(back, jnp.swapaxes(passive, 0, 1))
        return rows(jnp.stack([left + passive * of_passive, played + active * back]), 2)

    def leap(_: Array, moves: Array) -> Array:
        """Two turns, a step as far as they suggest, and a turn from there (SQUAREM)."""
        once = turn(moves)
        twice = turn(once)
        step, bend = once - moves, twice - 2 * once + moves
        sizes = [(x**2).sum((0, 1, 2), keepdims=True) for x in (step, bend)]
        far = jnp.clip(jnp.sqrt(sizes[0] / jnp.maximum(sizes[1], LEAST)), 1, FARTHEST)
        ahead = jnp.maximum(moves + 2 * far * step + far**2 * bend, twice / 2)
        return turn(rows(ahead, 2))

    start = rows(played, 1)
    return tuple(lax.fori_loop(0, LEAPS, leap, jnp.stack([rows(left + start, 1), start])))


def _product(one: Array, other: Array) -> Array:
    """Products of matrices (S, S, ...) on the first two axes, fused over the others."""
    whole = one[:, 0, None] * other[0]
    for k in range(1, one.shape[1]):
        whole = whole + one[:, k, None] * other[k]
    return whole
