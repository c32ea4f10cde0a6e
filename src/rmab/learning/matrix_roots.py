"""Roots of transition matrices: all P that have one and the same power P^k.

Pairs of looks at multiples of k slots tell Q = P^k alone. With m_i the eigenvalues of Q but 1, all
apart, and pi its stationary law, its roots are

    P = pi + (Q - pi) W,     W = the polynomial of Q - pi that takes m_i to l_i / m_i,

l_i a k-th root of m_i: either of two for a real m_i > 0 if k is even, the one if k is odd, and any
of k for one above the real axis, with its conjugate for the one below. Those roots that have no
entry under 0 are all as likely by such looks: the posterior of P has a summit at each of them, and
lies along curves where two eigenvalues add up to nearly 0, while that of Q has one summit.

The derivative dQ / dP of matrices whose rows add up to 1 has the eigenvalues (l_i^k - l_j^k) /
(l_i - l_j), k l_i^(k - 1) where i = j, with l_j among the eigenvalues but 1 and l_i among all.
For k = 2 these are l_i + l_j; so between two roots of P^2 that differ in the sign of some l_i,
|dP' / dP| is the product of |(l_i + l_j) / (l_i - l_j)| over those i and all other j: twice, once
for the eigenvalue 1.

Eigenvalues are the roots of the characteristic polynomial, all at once (Aberth). Where two lie so
close to each other that single precision does not tell W, the root is not to be trusted.

References: O. Aberth, "Iteration methods for finding all zeros of a polynomial simultaneously",
Mathematics of Computation 27, 1973; N. Higham, "Functions of matrices", SIAM, 2008, for W.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from rmab.learning.matrix_charts import LEAST, product

__all__ = ["log_slope_per_root", "power_of", "root_of", "turned_over"]

ROUNDS = 14  # of Aberth's iteration
BITS = 8  # of the largest order
ROUNDING = 3e-7  # error of a characteristic polynomial of a matrix of size 1
DOUBT = 3e-3  # largest error of an eigenvalue beside the distance to the next
REAL = 1e-3  # largest imaginary part of a real eigenvalue, for a matrix of size 1


def power_of(moves: Array, order: Array) -> Array:
    """P^order, (S, S, items), for whole numbers order (items,)."""

    def square(k: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        whole, base = state
        return jnp.where((order >> k) & 1, product(whole, base), whole), product(base, base)

    eye = np.eye(moves.shape[0], dtype=np.float32)[:, :, None]
    start = (jnp.broadcast_to(eye, moves.shape), moves)
    whole: Array = lax.fori_loop(0, BITS, square, start)[0]
    return whole


def root_of(power: Array, law: Array, order: Array, signs: Array, turns: Array) -> Array:
    """A root of `power` (S, S, items), as far as it has one; it may have entries under 0.

    law: (S, items), of `power`; order: (items,), whole numbers; signs: (S - 1, items), 1 or -1, for
    real eigenvalues; turns: (S - 1, items), whole numbers, for those above the real axis.
    """
    matrix, size, values = _spectrum(power, law)
    real = abs(values.imag) < REAL
    logs = jnp.log(size) + jnp.maximum(_log_size(values), math.log(ROUNDING))
    partner = _square(values[:, None].conj() - values).argmin(1)
    above = jnp.where(values.imag > 0, turns, jnp.take_along_axis(turns, partner, 0))
    turn = 2 * np.pi * above / order * jnp.sign(values.imag)
    angle = jnp.where(real, 0, jnp.angle(values) * (1 / order - 1) + turn)
    weights = jnp.where(real, jnp.where(order % 2 == 0, signs, 1), _on_circle(angle))
    weights = jnp.exp((1 / order - 1) * logs) * weights
    whole = matrix.astype(values.dtype)
    return law + size * product(whole, _polynomial(whole, values, weights)).real


def turned_over(moves: Array, law: Array, choice: Array) -> tuple[Array, Array]:
    """Another root P' of P^2, (S, S, items), and log |dP' / dP|, (items,).

    One eigenvalue, or two that are conjugate, changes its sign. The others stay as they are and
    need not be told apart. law: (S, items); choice: (items,), uniforms, which of them.
    """
    matrix, size, values = _spectrum(moves, law)
    numbers = jnp.arange(values.shape[0])[:, None]
    chosen = numbers == jnp.floor(choice * values.shape[0])
    one = jnp.where(chosen, values, 0).sum(0)
    conjugate = (_square(values - one.conj()).argmin(0) == numbers) & (abs(one.imag) > REAL)
    over = chosen | conjugate
    order = jnp.argsort(over, 0)  # those that stay first: between them the polynomial is flat
    values, over = (jnp.take_along_axis(each, order, 0) for each in (values, over))
    whole = matrix.astype(values.dtype)
    weights = jnp.where(over, -1, 1).astype(values.dtype)
    found = law + size * product(whole, _polynomial(whole, values, weights)).real
    turn = _log_size(values[:, None] + values) - _log_size(values[:, None] - values)
    log_turn = 2 * jnp.where(over[:, None] & ~over, turn, 0).sum((0, 1))
    by_one = _log_size(1 + size * values) - _log_size(1 - size * values)
    return found, log_turn + jnp.where(over, by_one, 0).sum(0)


def log_slope_per_root(moves: Array, law: Array, order: Array) -> tuple[Array, Array]:
    """log |dP^order / dP| over the number of roots of P^order, and if it is sure: both (items,)."""
    _, size, scaled = _spectrum(moves, law)
    values = size * scaled
    powers = jnp.exp(order * _log_size(values)) * _on_circle(order * jnp.angle(values))
    apart, powers_apart = _distances(values), _distances(powers)
    slope = (jnp.log(powers_apart) - jnp.log(apart)).sum((0, 1))
    slope = slope + (_log_size(1 - powers) - _log_size(1 - values)).sum(0)
    slope = slope + (jnp.log(1.0 * order) + (order - 1) * _log_size(values)).sum(0)
    real = abs(scaled.imag) < REAL
    each = jnp.where(real, jnp.where(order % 2 == 0, jnp.log(2.0), 0), jnp.log(1.0 * order) / 2)
    eye = np.eye(values.shape[0], dtype=np.float32)[:, :, None]
    beside = powers_apart / jnp.sqrt(_square(powers).mean(0) + LEAST) * (1 - eye) + eye
    doubt = (ROUNDING / beside.prod(1) / beside.min(1)).max(0)
    return slope - each.sum(0), doubt < DOUBT


def _square(number: Array) -> Array:
    """|number|^2 of a complex number."""
    return number.real**2 + number.imag**2


def _log_size(number: Array) -> Array:
    return jnp.log(jnp.maximum(_square(number), LEAST)) / 2


def _on_circle(angle: Array) -> Array:
    return lax.complex(jnp.cos(angle), jnp.sin(angle))


def _distances(values: Array) -> Array:
    """(S - 1, S - 1, items): between eigenvalues; 1 on the diagonal."""
    eye = np.eye(values.shape[0], dtype=np.float32)[:, :, None]
    return jnp.sqrt(jnp.maximum(_square(values[:, None] - values), LEAST)) * (1 - eye) + eye


def _spectrum(moves: Array, law: Array) -> tuple[Array, Array, Array]:
    """P - pi over its size, (S, S, items), the size (items,) and eigenvalues (S - 1, items)."""
    apart = moves - law
    size = jnp.sqrt((apart**2).sum((0, 1)) / (moves.shape[0] - 1)) + LEAST
    return apart / size, size, _eigenvalues(apart / size)


def _eigenvalues(matrix: Array) -> Array:
    """Eigenvalues of (S, S, items) but one that is 0: (S - 1, items), complex."""
    n_states = matrix.shape[0]
    eye = np.eye(n_states, dtype=np.float32)[:, :, None]
    coefficients, part = [], jnp.broadcast_to(eye, matrix.shape)
    for k in range(1, n_states):  # Faddeev and LeVerrier
        part = product(matrix, part)
        coefficients.append(-sum(part[i, i] for i in range(n_states)) / k)
        part = part + coefficients[-1] * eye
    circle = 1.5 * np.exp(2j * np.pi * (np.arange(n_states - 1) + 0.3) / (n_states - 1))
    start = jnp.broadcast_to(circle[:, None], (n_states - 1, *matrix.shape[2:]))

    def better(_: Array, roots: Array) -> Array:
        value, slope = jnp.ones_like(roots), jnp.zeros_like(roots)
        for coefficient in coefficients:
            slope = slope * roots + value
            value = value * roots + coefficient
        between = roots[:, None] - roots
        pull = (between.conj() / jnp.maximum(_square(between), LEAST)).sum(1)
        step = slope - value * pull
        return roots - value * step.conj() / jnp.maximum(_square(step), LEAST)

    found: Array = lax.fori_loop(0, ROUNDS, better, start.astype(jnp.complex64))
    return found


def _polynomial(matrix: Array, values: Array, weights: Array) -> Array:
    """The polynomial of `matrix` (S, S, items) that takes values to weights, (S - 1, items)."""
    eye = np.eye(matrix.shape[0], dtype=np.float32)[:, :, None]
    slopes = weights
    newton = [weights[0]]
    for k in range(1, values.shape[0]):
        between = values[k:] - values[:-k]
        slopes = (slopes[1:] - slopes[:-1]) * between.conj() / jnp.maximum(_square(between), LEAST)
        newton.append(slopes[0])
    whole = newton[-1] * eye
    for k in range(values.shape[0] - 2, -1, -1):
        whole = newton[k] * eye + product(matrix - values[k] * eye, whole)
    return whole
