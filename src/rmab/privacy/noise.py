"""Noise in released sums, for the privacy of one slot of an agent's log, its plays given.

A group of agents counts pairs of observations; x_1, x_2, ... are the sums of their counts when they
are released, each with all that was counted before. What is told is x_t + round((B z)_t):

    A  ones on and below the diagonal: x = A g, with g_t what was counted since the last release
    C  a Toeplitz matrix, c_j = C(2j, j) / 4^j rounded to 8 bits, nearly a square root of A
    B  A C^-1, exact in fractions, so that x + B z = B (C g + z)
    z  discrete Gaussian on the grid 2^-8, of scale sigma = Delta ||c|| z(epsilon, delta)

C g lies on the grid too, so C g + z is the discrete Gaussian mechanism, exactly, and what is told
is made from it only. Delta^2 = 6 K bounds by how much the counts of two logs differ that have the
same plays and agree except in what one slot of one agent showed. Where an agent would have played
otherwise after another reading, counts differ by more, and (epsilon, delta) is not promised.
docs/privacy.md has the proofs, and an audit of what feedback does.

A sum is released when the slots of its group have doubled since the last release, first at 8 slots
a member, and at most 40 times. A `Ledger` keeps what was drawn: a release that is asked for again
has the same noise, after a restart too.

Visits are not released: with them the counts of two such logs would differ by more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from rmab.errors import FederationError, ModelError, how_to_install
from rmab.linalg import Array, array_namespace
from rmab.text import is_number, is_whole, shown

__all__ = [
    "DELTA",
    "FIRST_SLOTS",
    "GRID",
    "LEAST_OF_LAWS",
    "MOST_RELEASES",
    "Budget",
    "Ledger",
    "Release",
    "cell_noise",
    "discrete_gaussian",
    "factor",
    "is_due",
    "mended",
    "mixing",
    "noise_multiplier",
    "sensitivity_squared",
]

MOST_RELEASES = 40
FIRST_SLOTS = 8  # of each member, before the first release
DELTA = 1e-6
# `least` of `mended` for laws that agents draw by beside their own observations. There are many
# rows of long gaps; where little was counted, those that noise lifts over a lower bar mislead
# agents more than the others tell them.
LEAST_OF_LAWS = 2.5
GRID = 2**8  # z, and C, are whole multiples of 1 / GRID

Draw = Callable[["Budget", int, int], Sequence[int]]  # budget, K, how many -> multiples of 1 / GRID
Ints = npt.NDArray[np.int64]

_MOST_EPSILON, _MOST_DELTA = 100.0, 1e-3
_LARGEST_SCALE = 2.0**50  # of z in steps of the grid: more than any count, and exact in a float
_HALVINGS = 200  # of an interval that a number is looked for in
_NODES = 256  # of a quadrature
_ROUNDED = 1e-9  # relative, upwards: more than the quadrature and its sum may be off by
# Standard deviation, in steps of the grid, by which z is wider than a continuous Gaussian that is
# as private as asked for. The grid then tells a factor of 1 + 1e-33 in a probability, see `scale`.
_SMOOTHING = 2.0


@dataclass(frozen=True)
class Budget:
    """Bound of what all releases together tell: (epsilon, delta)-differential privacy of a slot,
    among logs with the same plays."""

    epsilon: float
    delta: float = DELTA

    def __post_init__(self) -> None:
        for key, most in (("epsilon", _MOST_EPSILON), ("delta", _MOST_DELTA)):
            value = getattr(self, key)
            if not is_number(value) or not 0 < value <= most:
                raise ModelError(
                    f"privacy.{key} must be a number above 0 and at most {most:g}, "
                    f"got {shown(value)}"
                )
        if not GRID * self.scale(1) < _LARGEST_SCALE:
            raise ModelError(
                f"privacy.epsilon = {self.epsilon:g} asks for noise that is larger than any count"
            )

    def __str__(self) -> str:
        return f"epsilon = {float(self.epsilon)!r} and delta = {float(self.delta)!r}"

    def scale(self, plays: int) -> float:
        """sigma of an entry of z, in counts; plays: K.

        A continuous Gaussian of scale z(epsilon, delta) Delta ||c|| is exactly as private as asked
        for. Draw it, then a discrete Gaussian of scale 2 steps around it: that is the discrete
        Gaussian of both variances together, up to a factor of 1 + 1e-33 in each probability.
        """
        continuous = noise_multiplier(self.epsilon, self.delta) * math.sqrt(
            sensitivity_squared(plays) * float(_squared_norm())
        )
        return math.hypot(continuous, _SMOOTHING / GRID)


def sensitivity_squared(plays: int) -> int:
    """Delta^2: the most by which one slot changes the counts of all releases, in the squared L2
    norm, whether its pairs are in one release or in two."""
    return 6 * plays


@lru_cache(maxsize=256)
def noise_multiplier(epsilon: float, delta: float) -> float:
    """z(epsilon, delta): sigma over sensitivity of the Gaussian mechanism that just is
    (epsilon, delta)-differentially private, rounded up.

    Reference: B. Balle and Y.-X. Wang, "Improving the Gaussian mechanism for differential
    privacy", ICML 2018, Theorem 8.
    """
    # mu = 1 / z lies between: delta of the lower one is less than any number above 0.
    low, high = epsilon / 100, 2 * math.sqrt(2 * epsilon) + 10
    for _ in range(_HALVINGS):
        mu = math.sqrt(low * high)
        if _gaussian_delta(epsilon, mu) <= delta:
            low = mu
        else:
            high = mu
    return (1 + _ROUNDED) / low


def _gaussian_delta(epsilon: float, mu: float) -> float:
    """delta of the Gaussian mechanism with sensitivity / sigma = mu,

        Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu),

    as the integral over t from 0 to mu of its slope, phi(epsilon/t - t/2): a sum of numbers above
    0, while the difference of the two loses its digits where mu is small.
    """
    nodes, weights = _quadrature()
    heights = np.exp(-((epsilon / (mu * nodes) - mu * nodes / 2) ** 2) / 2)
    return float(mu * (weights @ heights) / math.sqrt(2 * math.pi))


@lru_cache(maxsize=1)
def _quadrature() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Gauss-Legendre nodes and weights on (0, 1)."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return (nodes + 1) / 2, weights / 2


# ----------------------------------------------------------------------------- the factorisation


@lru_cache(maxsize=1)
def factor() -> tuple[int, ...]:
    """c_0, c_1, ..., in steps of 1 / GRID: the first column of C."""
    return tuple(_nearest(Fraction(GRID * math.comb(2 * j, j), 4**j)) for j in range(MOST_RELEASES))


@lru_cache(maxsize=1)
def mixing() -> tuple[Fraction, ...]:
    """b_0, b_1, ...: the first column of B = A C^-1, which is Toeplitz as A and C are."""
    c = [Fraction(step, GRID) for step in factor()]
    b: list[Fraction] = []
    for j in range(MOST_RELEASES):
        b.append(1 - sum((c[i] * b[j - i] for i in range(1, j + 1)), Fraction(0)))
    return tuple(b)


def _squared_norm() -> Fraction:
    """||c||^2."""
    return Fraction(sum(step * step for step in factor()), GRID**2)


def cell_noise(budget: Budget, plays: int, releases: int) -> float:
    """s, the standard deviation of the noise in one count after so many releases, at least 1."""
    return budget.scale(plays) * math.sqrt(sum(float(b) ** 2 for b in mixing()[:releases]))


def _nearest(number: Fraction) -> int:
    """The nearest whole number, the upper one of two: so n + this is that of n + number."""
    return math.floor(number + Fraction(1, 2))


# ----------------------------------------------------------------------------------- what is kept


def is_due(slots: int, members: int, before: int | None) -> bool:
    """Whether a sum of so many slots and members is released; before: the slots of the last
    release, None before the first."""
    return slots >= (FIRST_SLOTS * max(1, members) if before is None else 2 * before)


@dataclass(frozen=True)
class Release:
    """One release: its name, by which it is asked for again, the slots that are in it, and z."""

    name: str
    slots: int
    z: tuple[int, ...]  # (size,), in steps of 1 / GRID


@dataclass(frozen=True)
class Ledger:
    """All that was released of one group; a value, so that whoever releases keeps the new one,
    durably, before anything is told.

    plays: K; size: how many counts a sum has.
    """

    budget: Budget
    plays: int
    size: int
    releases: tuple[Release, ...] = ()

    @property
    def left(self) -> int:
        """How many releases are left."""
        return MOST_RELEASES - len(self.releases)

    @property
    def slots(self) -> int | None:
        """Those of the last release; None before the first."""
        return self.releases[-1].slots if self.releases else None

    def is_due(self, slots: int, members: int) -> bool:
        """Whether a sum of so many slots and members is released now."""
        return self.left > 0 and is_due(slots, members, self.slots)

    def released(self, name: str, slots: int, members: int, draw: Draw | None = None) -> Ledger:
        """With one more release; the same ledger if it has a release of that name and slots.

        FederationError if all are spent, if it is not due, or if the name was another's. draw:
        what z is drawn with, `discrete_gaussian` unless another is given.
        """
        for before in self.releases:
            if before.name == name:
                if before.slots == slots:
                    return self
                raise FederationError(f"release {name} had {before.slots} slots, got {slots}")
        if not self.left:
            raise FederationError(f"all {MOST_RELEASES} releases of this group are spent")
        if not is_due(slots, members, self.slots):
            least = FIRST_SLOTS * members if self.slots is None else 2 * self.slots
            raise FederationError(f"the next release must have at least {least} slots, got {slots}")
        z = tuple(int(n) for n in (draw or discrete_gaussian)(self.budget, self.plays, self.size))
        if len(z) != self.size:
            raise ModelError(f"a draw must have {self.size} numbers, got {len(z)}")
        return replace(self, releases=(*self.releases, Release(name, slots, z)))

    def noise(self, name: str) -> Ints:
        """What is added to the sum of a release, (size,)."""
        return self._noise(self._number(name))

    def added(self, name: str) -> Ints:
        """What is added to the counts since the release before, (size,), so that all such sums
        together have the noise of this one."""
        number = self._number(name)
        return self._noise(number) - (self._noise(number - 1) if number > 1 else 0)

    def cell_noise(self) -> float:
        """s, the standard deviation of the noise in a count of the last release; 0 before."""
        many = len(self.releases)
        return cell_noise(self.budget, self.plays, many) if many else 0.0

    def _number(self, name: str) -> int:
        names = [release.name for release in self.releases]
        if name not in names:
            raise FederationError(f"there was no release {name}")
        return names.index(name) + 1

    def _noise(self, number: int) -> Ints:
        """round((B z)_t), t = number, counted from 1, in whole numbers throughout."""
        b = mixing()[:number]
        whole = GRID**number  # (B z)_t is a multiple of 1 / whole
        total = np.zeros(self.size, object)
        for place, release in enumerate(self.releases[:number]):
            total = total + int(b[number - 1 - place] * whole / GRID) * np.array(release.z, object)
        # Of n + y the nearest whole number is n + that of y, also half way between two.
        return np.array((2 * total + whole) // (2 * whole), np.int64)

    def to_table(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "plays": self.plays,
            "size": self.size,
            "releases": [[one.name, one.slots, list(one.z)] for one in self.releases],
        }

    @staticmethod
    def of_table(table: Mapping[str, Any]) -> Ledger:
        """What `to_table` gave; FederationError if it is none."""
        try:
            budget = Budget(table["epsilon"], table["delta"])
            plays, size = table["plays"], table["size"]
            releases = tuple(
                Release(str(name), int(slots), tuple(int(n) for n in z))
                for name, slots, z in table["releases"]
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FederationError(f"a ledger of releases cannot be read: {error}") from None
        if not (is_whole(plays) and is_whole(size)) or any(len(one.z) != size for one in releases):
            raise FederationError("a ledger of releases cannot be read: numbers are missing")
        return Ledger(budget, plays, size, releases)


def discrete_gaussian(budget: Budget, plays: int, size: int) -> Sequence[int]:
    """z of one release, (size,) in steps of 1 / GRID, drawn by OpenDP.

    OpenDP's own account of what it draws is held against the budget.
    """
    try:
        import opendp.prelude as dp
    except ImportError:
        raise FederationError(
            f"privacy.epsilon needs OpenDP, which draws the noise; {how_to_install('privacy')}"
        ) from None
    dp.enable_features("contrib")
    squared = sensitivity_squared(plays) * _squared_norm() * GRID**2  # in steps of the grid
    # Upwards by more than what was rounded before.
    scale = GRID * budget.scale(plays) * (1 + 2**-40)
    draw: Any = dp.m.make_gaussian(
        dp.vector_domain(dp.atom_domain(T=dp.i64)), dp.l2_distance(T=dp.f64), scale=scale
    )
    allowed = 0.5 / noise_multiplier(budget.epsilon, budget.delta) ** 2
    if draw.map(math.sqrt(squared)) > allowed:
        raise FederationError("OpenDP would not draw as much noise as privacy.epsilon asks for")
    drawn: Sequence[int] = draw([0] * size)
    return drawn


# ------------------------------------------------------------------------------- what is learnt


def mended(counts: Array, s: Array | float, *, least: float = 1.0) -> Array:
    """Sums with noise as counts that a learner may read, (C, S, S, ...).

    s: standard deviation of the noise of a count, above 0. Rows counts[c, a, :] with a total n
    below `least` sqrt(2) s, so many standard deviations of its noise, say too little and are left
    out. Others are cut at 0, and weighed by

        n p q / (n p q + s^2 (p^2 + q^2))

    for two states, p and q the shares of a row: so many observations without noise would tell p as
    well. Shares are taken with s more counts in each cell, as a cell that was cut at 0 is not known
    to be 0.
    """
    xp = array_namespace(counts)
    total = counts.sum(2, keepdims=True)
    cut = xp.maximum(counts, 0)
    n = cut.sum(2, keepdims=True)
    shares = (cut + s) / (n + counts.shape[2] * s)
    known = n * shares.prod(2, keepdims=True)
    weight = known / (known + s * s * (shares**2).sum(2, keepdims=True))
    return xp.where(total >= least * math.sqrt(counts.shape[2]) * s, cut * weight, 0)
