"""Transition matrices from observations with unobserved steps in between.

An arm was in s when it was played, and in s' when it was next observed, k + 1 slots later. It took
one step by P_1 and k steps by P_0, so n_k(s, s') such pairs have the log-likelihood

    L = sum over k, s, s' of n_k(s, s') log A_k(s, s'),      A_0 = P_1,  A_k = A_(k-1) P_0.

For an uncontrolled arm the two matrices are one, P, and A_k = P^(k+1). There the last class of
counts has the pairs that are further apart than all others. They show hardly more than the
stationary distribution, and are taken as twice as far apart as the pairs of the class before:
A_(K-1)^2.

The posterior, with Dirichlet priors of the rows, has no closed form. A draw of it is made from the
counts, with no state between draws. A Dirichlet draw is a set of Gamma
variates, one for each count, divided by their sum: the best estimate for counts that are weighted
at random. So every count n becomes Gamma(n), every weight of the prior Gamma(weight), and the best
estimate for these is found (the weighted likelihood bootstrap, Newton and Raftery 1994), by
expectation maximisation: the expected number of steps s -> z by a matrix P is P(s, z) dL/dP(s, z)
(Dempster, Laird and Rubin 1977). Every two turns are followed by a leap in their direction
(SQUAREM, Varadhan and Roland 2008).

Where all pairs are of class 0 that is a Dirichlet draw of each row, which is the posterior. Else it
has the posterior's mean and spread to first order where pairs are many; where they are few, its
intervals are a little wide: of 50 % up to 54 (docs/observations-at-any-gap.md). If all gaps are
multiples of some k > 1, observations determine only P^k, which may have several roots: draws may
then miss some.

Arrays are (S, S, n, R): from, to, arm, trial; matrices are stacked in front, P or P_0, P_1.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array, lax

from rmab.arrays import Float, Real
from rmab.rng.variates import Draws

__all__ = ["both_matrices", "one_matrix"]

_Weights = Array | npt.NDArray[np.float32]

_MAX_LEAPS = 100  # leaps of expectation maximisation, each of two turns
_MAX_STRIDE = 1000.0  # length of a leap, in turns
_SHORT_LEAP = 0.04  # leap that ends the search for a draw, in standard deviations
_SHORT_LEAP_OF_ESTIMATE = 0.001  # leap that ends the search for a best estimate
_LEAPS_BY_PAIRS = 30.0  # divided by the number of pairs it limits the last leap with many pairs
_SMALLEST_SUM = 1e-20  # lower bound on the sum of a row's weights
_TINY = 1e-30  # keeps shares of impossible paths away from 0 / 0


def one_matrix(
    counts: Real[Array, "C S S n R"], prior: _Weights, draws: Draws | None
) -> Float[Array, "S S n R"]:
    """Learn P of arms whose steps do not depend on the action.

    Parameters
    ----------
    counts : pairs 1, 2, ..., G slots apart, and those further apart.
    prior : weights of next states that broadcast, as (1, S, 1, 1).
    draws : None for the best estimate, the mode of the posterior of log odds.
    """
    return _learnt(counts[:-1], counts[-1], prior, draws, 1)[0]


def both_matrices(
    counts: Real[Array, "C S S n R"], prior: _Weights, draws: Draws | None
) -> tuple[Float[Array, "S S n R"], Float[Array, "S S n R"]]:
    """Learn (P_0, P_1) of action-dependent arms.

    counts are pairs with a play and then 0, 1, ... slots of no play between them; prior and draws
    as for `one_matrix`.
    """
    passive, active = _learnt(counts, jnp.zeros_like(counts[0]), prior, draws, 2)
    return passive, active


def _learnt(near: Array, far: Array, prior: _Weights, draws: Draws | None, number: int) -> Array:
    """Learn the matrices, (number, S, S, n, R)."""
    before = jnp.broadcast_to(prior, (number, *far.shape))
    if draws is None:
        return _best_estimate(near, far, before, _SHORT_LEAP_OF_ESTIMATE)
    # The prior's weights are shares of their sum, so that a row of tiny weights keeps its shape.
    sums = jnp.maximum(draws.gamma(before.sum(2, keepdims=True)), _SMALLEST_SUM)
    weights = sums * draws.dirichlet(before, axis=2)
    return _best_estimate(_gammas(near, draws), _gammas(far, draws), weights, _SHORT_LEAP)


def _gammas(counts: Array, draws: Draws) -> Array:
    return jnp.where(counts > 0, draws.gamma(jnp.where(counts > 0, counts, 1)), 0)


def _rows(weights: Array) -> Array:
    return weights / jnp.maximum(weights.sum(2, keepdims=True), _TINY)


def _ratio(pairs: Array, chances: Array) -> Array:
    return jnp.minimum(pairs / jnp.maximum(chances, _TINY), 1 / _TINY)


def _transposed(matrix: Array) -> Array:
    return jnp.swapaxes(matrix, 0, 1)


def _product(one: Array, other: Array) -> Array:
    """Multiply matrices (S, S, ...) on the first two axes, fused over the others."""
    whole = one[:, 0, None] * other[0]
    for k in range(1, one.shape[1]):
        whole = whole + one[:, k, None] * other[k]
    return whole


def _transitions(matrices: Array, classes: int) -> Array:
    """Return A_0, A_1, ...: (classes, S, S, n, R)."""

    def longer(matrix: Array, _: None) -> tuple[Array, Array]:
        matrix = _product(matrix, matrices[0])
        return matrix, matrix

    others = lax.scan(longer, matrices[-1], None, length=classes - 1)[1]
    return jnp.concatenate([matrices[-1:], others])


def _best_estimate(near: Array, far: Array, before: Array, short_leap: float) -> Array:
    """Return the mode of the posterior of log odds, by expectation maximisation.

    The search ends with a leap that is short relative to a standard deviation. That may be far from
    the mode where most steps are hidden; with many pairs the leap has to be shorter.
    """

    def turn(matrices: Array) -> Array:
        """Return rows by the prior and the expected steps.

        With B_k the sum over j >= k of (n_j / A_j) (P_0^T)^(j-k), the derivatives of L are B_0 by
        P_1 and the sum of A_(k-1)^T B_k by P_0.
        """
        A = _transitions(matrices, near.shape[0])
        ratio = _ratio(far, _product(A[-1], A[-1]))
        back = _product(ratio, _transposed(A[-1])) + _product(_transposed(A[-1]), ratio)

        def shorter(
            state: tuple[Array, Array], at: tuple[Array, Array, Array]
        ) -> tuple[tuple[Array, Array], None]:
            back, slope = state
            pairs, chances, shorter_chances = at
            back = back + _ratio(pairs, chances)
            slope = slope + _product(_transposed(shorter_chances), back)
            return (_product(back, _transposed(matrices[0])), slope), None

        classes = near[1:], A[1:], A[:-1]
        (back, slope), _ = lax.scan(shorter, (back, jnp.zeros_like(back)), classes, reverse=True)
        back = back + _ratio(near[0], A[0])
        return _rows(before + matrices * _by_matrix(slope, back, len(matrices)))

    def leap(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        """Return the state after two turns and a leap; arms that have converged stay."""
        leaps, matrices, moving = state
        once = turn(matrices)
        twice = turn(once)
        step, bend = once - matrices, twice - 2 * once + matrices
        sizes = [(x**2).sum((0, 1, 2)) for x in (step, bend)]
        stride = jnp.clip(jnp.sqrt(sizes[0] / jnp.maximum(sizes[1], _TINY)), 1, _MAX_STRIDE)
        ahead = matrices + 2 * stride * step + stride**2 * bend
        leapt = jnp.where(moving, _rows(jnp.maximum(ahead, twice / 2)), matrices)
        far_off = jnp.abs(leapt - matrices).max((0, 1, 2)) > short
        return leaps + 1, leapt, moving & far_off

    known = near.sum((0, 1, 2)) + far.sum((0, 1)) + before.sum((0, 1, 2))
    short = jnp.minimum(short_leap, _LEAPS_BY_PAIRS / known) * lax.rsqrt(known)
    start = _rows(before.at[-1].add(near[0]) + near.sum(0) / near.shape[0])
    state = jnp.int32(0), start, jnp.ones(known.shape, bool)
    state = lax.while_loop(lambda s: s[2].any() & (s[0] < _MAX_LEAPS), leap, state)
    return turn(state[1])


def _by_matrix(later: Array, first: Array, number: int) -> Array:
    """Stack the parts of P_0 and P_1, or add them for the one P."""
    return jnp.stack([later, first]) if number == 2 else (later + first)[None]
