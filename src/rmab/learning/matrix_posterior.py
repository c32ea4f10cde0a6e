"""Draws of transition matrices from looks at arms of S states, any number of slots apart.

An arm that moves by P, played or not, was seen in s and next seen g slots later in s'. With n_g
such pairs, n_1 one slot apart and m(s') so far apart that only the stationary law pi is left, and
rows that are Dirichlet(a) before, the posterior is

    p(P) ~ prod P(s, s')^(a(s') - 1 + n_1(s, s')) prod_g (P^g)(s, s')^n_g(s, s') prod pi(s')^m(s').

The first factor alone is a Dirichlet for each row. The others tie the rows together, and long gaps
tell little but pi. Looks at multiples of k slots alone tell P^k, of which there may be many roots.

1. Climb to the summit: the largest density of log odds, with its information (`matrix_summit`).
2. Begin near it. Where looks one slot apart tell most, from a Dirichlet for each row, else at

       z = L^-T sqrt(alpha) log(y / alpha),     L L^T = information + the row numbers' own,

   in `law` coordinates (`matrix_charts`), y independent gammas with weights alpha(s, s') = P(s, s')
   sum_t (a(t) + n_1(s, t)). A beginning that is far too low is taken nearer to the summit.
3. Walk from there by Metropolis steps of many kinds (`matrix_walk`), first among the roots of P^k
   (`matrix_roots`) where nine of ten looks are multiples of some k > 1 slots apart. With prior
   weights under 1 roots lie at the edges, and walkers go from the prior to the posterior instead
   (`matrix_flock`), before the walk. Likelihoods are taken relative to the summit, so that single
   precision does with millions of looks.

Where looks one slot apart are all there is, step 2 is the posterior and there is no walk. Else the
number of steps depends on the prior, on S, on how much of what is known comes from such looks, and
on k.

How good the draws are. 4,096 matrices from the prior for each case, 31 draws for each, ranks of the
entries, of pi and of four functions of P by chi-square tests, S = 3 and 4, 0 to 10^6 looks; and how
often the truth lies outside all draws, against what is due.

    pairs of looks                                    a               outside       least p-value
    played often, gaps 1 to 12, most of 10 and more,  1, 5 and 20     .94 to 1.03   3e-4 of 1,560
    10 and more alone, settled alone
    often, gaps 1 to 12, most of 10 and more,         .1 and .2       .91 to 1.10   2e-3 of 1,040
    settled alone
    even gaps alone, and with 1 % or .1 % odd ones,   1 and 5         .97 to 1.06   9e-4 of 760
    or half of all settled
    multiples of 3 alone, of 4 alone                  1               .97 to 1.05   2e-3 of 304
    even gaps alone, 200 to 10^6 looks                .2              .91 to 1.09   7e-3 of 104

The last row is of 128 to 256 matrices and 15 draws each, with an error of .09 at most: a draw takes
long there. With 16 walkers instead of 64, or with fewer levels, draws of four states after 10^5
such looks were too wide: the truth lay outside .8 times as often as is due. Entries under 1e-30 are
not told apart, which matters for a under .1. S > 4 has been tried less.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from rmab.learning.matrix_charts import LEAST, law_and_trees, log_bend, product, scaled_to
from rmab.learning.matrix_flock import flock
from rmab.learning.matrix_summit import (
    Looks,
    Weights,
    applied,
    arrange,
    as_powers,
    cholesky,
    climb,
    concentration,
    inverse_of,
)
from rmab.learning.matrix_walk import Ground, Place, place_at, walk
from rmab.random import Draws

__all__ = ["draw_matrices", "mean_matrices"]

STEPS = 100  # of a walk, for each state, with prior weights of 1 or more
SHORTEST = 0.25  # share of them for an arm that is known from looks one slot apart
ROOTS = 4, 12  # such walks among roots of P^k, for k < 4 and from there on
NEARER = 5  # beginnings tried, each half as far from the summit as the one before
SETTLE = 30  # rounds to the stationary law of a beginning
REACH = 60.0  # largest |z|


def draw_matrices(counts: Array, prior: Weights, draws: Draws) -> Array:
    """Draws of P, (S, S, n, trials), from its posterior.

    counts: (C, S, S, n, trials), pairs of looks 1, 2, ..., C - 1 slots apart, and settled ones;
    prior: (1, S, 1, 1), Dirichlet weights of next states.
    """
    n_states, lead = counts.shape[1], counts.shape[3:]
    looks = arrange(counts, prior)
    top = climb(looks, arrange(as_powers(counts, looks.order), prior))
    stationary = law_and_trees(top.moves)[0]
    direct = looks.direct.sum(1)
    told = jnp.maximum(concentration(top.information, top.moves), direct)
    ground = Ground(
        gain=_Heights(looks, top.moves, stationary).gain,
        summit=top.moves,
        law=stationary,
        spread=_spread(top.tilted, direct, top.moves),
        direct=direct,
        told=told,
        prior=jnp.asarray(prior).reshape(1, n_states, 1),
        order=looks.order,
        power_spread=lax.cond(
            (looks.order > 1).any(),
            lambda: _spread(
                top.power_information, concentration(top.power_information, top.power), top.power
            ),
            lambda: jnp.zeros_like(top.power_information),
        ),
    )
    others = looks.apart.sum((0, 1, 2)) + looks.settled.sum(0)
    told_elsewhere = 1 - (direct / ground.told).min(0)
    start = _beginning(ground, looks, jnp.where(others > 0, told_elsewhere, 0), draws, lead)
    longest = STEPS * n_states * jnp.clip(ground.prior.min(), 0.05, 1) ** -0.75
    lengths = jnp.round(longest * jnp.clip(2 * told_elsewhere, SHORTEST, 1)).astype(jnp.int32)
    lengths = jnp.where(others > 0, lengths, 0)
    among = jnp.where(looks.order < 4, *ROOTS) * (looks.order > 1)
    roots = jnp.round(among * longest).astype(jnp.int32)
    place = place_at(ground, start)
    if _may_be_under_one(prior):
        edges = (looks.order > 1) & (ground.prior.min() < 1)
        known = others + direct.sum(0)
        found = lax.cond(
            edges.any(), lambda: flock(ground, known, edges, draws, lead), lambda: place
        )
        place = Place(*(jnp.where(edges, *both) for both in zip(found, place, strict=True)))
        roots = jnp.where(edges, 0, roots)
    moves = walk(ground, place, roots, lengths, draws, lead)
    return moves.reshape(n_states, n_states, *lead)


def mean_matrices(counts: Array, prior: Weights) -> Array:
    """A best estimate of P, (S, S, n, trials): the largest posterior density of log odds.

    counts, prior: as for draw_matrices. With looks in neighbouring slots only it is the posterior
    mean, (prior + counts) / their sum.
    """
    looks = arrange(counts, prior)
    powers = arrange(as_powers(counts, looks.order), prior)
    return climb(looks, powers).moves.reshape(counts.shape[1:])


def _may_be_under_one(prior: Weights) -> bool:
    """Whether weights may be under 1, as far as is known when a program is made."""
    return isinstance(prior, jax.core.Tracer) or bool((np.asarray(prior) < 1).any())


def _spread(information: Array, own: Array, moves: Array) -> Array:
    """L^-T, (S S, S S, items), L L^T = information + the row numbers' own."""
    return jnp.swapaxes(inverse_of(cholesky(information, own, moves)), 0, 1)


def _beginning(
    ground: Ground, looks: Looks, told_elsewhere: Array, draws: Draws, lead: tuple[int, ...]
) -> Array:
    """Where a walk begins, (S, S, items); told_elsewhere: (items,), 0 for neighbours alone."""
    summit = ground.summit
    by_rows = told_elsewhere < 0.5
    alpha = jnp.where(by_rows, ground.told, ground.direct)[:, None] * summit
    alpha = jnp.maximum(jnp.where(told_elsewhere > 0, alpha, looks.direct), ground.prior)
    latent = _log_gammas(alpha, draws, lead)
    z = applied(ground.spread, (jnp.sqrt(alpha) * latent).reshape(-1, latent.shape[-1]))
    z = jnp.clip(z, -REACH, REACH).reshape(summit.shape)
    tilt = (ground.law[:, None] * z).sum(0)
    lowest = -2.0 * (summit.shape[0] - 1) * summit.shape[0]
    bend = log_bend(summit, ground.law)

    def nearer(k: Array, begun: Array) -> Array:
        law = ground.law * jnp.exp(0.5**k * (tilt - tilt.max(0)))
        moves = scaled_to(summit, 0.5**k * z, law / law.sum(0), SETTLE)
        place = place_at(ground, begun)
        high = place.gain - log_bend(begun, place.law) + bend > lowest
        return jnp.where(by_rows | ((k > 0) & high), begun, moves)

    rows = alpha * jnp.exp(latent - latent.max(1, keepdims=True))
    begun = lax.fori_loop(0, NEARER, nearer, rows / rows.sum(1, keepdims=True))
    begun = jnp.where(jnp.isfinite(begun).all((0, 1)), begun, summit)
    return jnp.maximum(begun, 10 * LEAST)


def _log_gammas(shape: Array, draws: Draws, lead: tuple[int, ...]) -> Array:
    """log(y / shape), y ~ Gamma(shape), for shapes (S, S, items); lead: n and trials."""
    every = shape.reshape(-1, *lead)
    tiny = jnp.log(draws.uniform(*every.shape[:-1])) / every
    logs = jnp.log(draws.gamma(every + 1, 1.0) / every) + tiny
    return logs.reshape(shape.shape)


class _Heights:
    """The log density of log odds relative to the summit, without loss near it.

    With r = A'/A and N the sum of n over the row, sum n log r = sum n log r - N A (r - 1), whose
    terms are small where r is near 1.
    """

    def __init__(self, looks: Looks, summit: Array, stationary: Array) -> None:
        def power(last: Array, count: Array) -> tuple[Array, tuple[Array, Array, Array]]:
            new = product(last, summit)
            return new, (count, 1 / jnp.maximum(new, LEAST), count.sum(1, keepdims=True) * new)

        self._apart = lax.scan(power, summit, looks.apart)[1]
        self._direct = looks.direct, 1 / summit, looks.direct.sum(1, keepdims=True) * summit
        self._settled = looks.settled, 1 / stationary, looks.settled.sum(0) * stationary

    def gain(self, moves: Array, law: Array) -> Array:
        """(items,): at `moves` (S, S, items), with its stationary law (S, items)."""

        def gained(now: Array, looks: tuple[Array, ...]) -> Array:
            count, inverse, expected = looks
            ratio = jnp.maximum(now * inverse, LEAST)
            return count * jnp.log(ratio) - expected * (ratio - 1)

        def add(
            state: tuple[Array, Array], looks: tuple[Array, ...]
        ) -> tuple[tuple[Array, Array], None]:
            power, gain = state
            power = product(power, moves)
            return (power, gain + gained(power, looks).sum((0, 1))), None

        gain = gained(moves, self._direct).sum((0, 1)) + gained(law, self._settled).sum(0)
        whole: Array = lax.scan(add, (moves, gain), self._apart)[0][1]
        return whole
