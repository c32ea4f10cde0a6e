"""Independence Metropolis chains, and the t distributions that their proposals come from.

A chain goes from one proposal to the next with probability min(1, w(new) / w(now)), where w is the
posterior over the density of the proposals. Proposals do not depend on the chain, so all are
evaluated at once. For NumPy and JAX arrays.

Reference: L. Tierney, "Markov chains for exploring posterior distributions", Ann. Stat. 22, 1994.
"""

from __future__ import annotations

import math

from rmab.linalg import Array, array_namespace, inverse_root

__all__ = ["chain_end", "t2_density", "t2_radius", "t_density"]


def chain_end(states: tuple[Array, ...], log_weights: Array, log_uniforms: Array) -> list[Array]:
    """Return the last state of a chain that begins at the first proposal.

    states, log_weights, log_uniforms: (proposals, n, trials) each.
    """
    xp = array_namespace(log_weights)
    weight, *now = log_weights[0], *(x[0] for x in states)
    for step in range(1, len(log_uniforms)):
        new = log_weights[step]
        takes = log_uniforms[step] < new - weight
        weight = xp.where(takes, new, weight)
        now = [xp.where(takes, x[step], old) for x, old in zip(states, now, strict=True)]
    return now


def t2_radius(uniform: Array, freedom: int) -> Array:
    """Return the distances of draws of a bivariate t distribution from its middle."""
    xp = array_namespace(uniform)
    if freedom == 4:
        return 2 * xp.sqrt(inverse_root(uniform) - 1)
    return xp.sqrt(freedom * (uniform ** (-2 / freedom) - 1))


def t2_density(z: Array, h: Array, freedom: int) -> Array:
    """Return the density of a bivariate t distribution."""
    inside = 1 / (1 + (z * z + h * h) / freedom)
    return _power(inside, freedom + 2) / (2 * math.pi)


def t_density(distance: Array, spread: Array, freedom: int) -> Array:
    """Return the density of a t distribution."""
    inside = 1 / (1 + (distance / spread) ** 2 / freedom)
    height = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(math.pi * freedom)
    return height / spread * _power(inside, freedom + 1)


def _power(value: Array, twice: int) -> Array:
    """Return value^(twice / 2)."""
    xp = array_namespace(value)
    product = xp.sqrt(value) if twice % 2 else xp.ones_like(value)
    for _ in range(twice // 2):
        product = product * value
    return product
