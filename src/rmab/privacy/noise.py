"""Noise in released sums: its factorisation and its draws.

A group of agents counts pairs of observations; x_1, x_2, ... are the sums of their counts when they
are released, each with all that was counted before. A release gives x_t + round((B z)_t):

    A  ones on and below the diagonal: x = A g, with g_t the counts since the last release
    C  a Toeplitz matrix, c_j = C(2j, j) / 4^j rounded to 8 bits, nearly a square root of A
    B  A C^-1, exact in fractions, so that x + B z = B (C g + z)
    z  discrete Gaussian on the grid 2^-8, of scale sigma = Delta ||c|| z(epsilon, delta)

C g lies on the grid too, so C g + z is the discrete Gaussian mechanism, exactly, and a release is a
function of it. `rmab.privacy.accounting` has Delta, z(epsilon, delta) and the releases.

Visits are not released: with them the counts of two neighbouring logs would differ by more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rmab.errors import FederationError, how_to_install

if TYPE_CHECKING:
    from rmab.privacy.accounting import Budget

__all__ = [
    "GRID",
    "MOST_RELEASES",
    "discrete_gaussian",
    "factor",
    "mixing",
    "squared_norm",
]

MOST_RELEASES = 40
GRID = 2**8  # z, and C, are whole multiples of 1 / GRID


@lru_cache(maxsize=1)
def factor() -> tuple[int, ...]:
    """Return c_0, c_1, ..., the first column of C, in steps of 1 / GRID."""
    return tuple(_nearest(Fraction(GRID * math.comb(2 * j, j), 4**j)) for j in range(MOST_RELEASES))


@lru_cache(maxsize=1)
def mixing() -> tuple[Fraction, ...]:
    """Return b_0, b_1, ..., the first column of B = A C^-1, which is Toeplitz as A and C are."""
    c = [Fraction(step, GRID) for step in factor()]
    b: list[Fraction] = []
    for j in range(MOST_RELEASES):
        b.append(1 - sum((c[i] * b[j - i] for i in range(1, j + 1)), Fraction(0)))
    return tuple(b)


def squared_norm() -> Fraction:
    """Return ||c||^2."""
    return Fraction(sum(step * step for step in factor()), GRID**2)


def _nearest(number: Fraction) -> int:
    """Return the nearest whole number, the upper one of two: so n + this is that of n + number."""
    return math.floor(number + Fraction(1, 2))


def discrete_gaussian(budget: Budget, plays: int, size: int) -> Sequence[int]:
    """Draw z of one release, (size,) in steps of 1 / GRID, with OpenDP.

    OpenDP's account of its draw is compared with the budget. plays: K.
    """
    try:
        import opendp.prelude as dp
    except ImportError:
        raise FederationError(
            f"privacy.epsilon needs OpenDP, which draws the noise; {how_to_install('privacy')}"
        ) from None
    dp.enable_features("contrib")
    # Upwards by more than the rounding before.
    scale = GRID * budget.scale(plays) * (1 + 2**-40)
    draw: Any = dp.m.make_gaussian(
        dp.vector_domain(dp.atom_domain(T=dp.i64)), dp.l2_distance(T=dp.f64), scale=scale
    )
    if draw.map(GRID * budget.sensitivity(plays)) > budget.rho:
        raise FederationError("OpenDP would not draw as much noise as privacy.epsilon asks for")
    drawn: Sequence[int] = draw([0] * size)
    return drawn
