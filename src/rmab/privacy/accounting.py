"""Privacy accounting: the budget of a group, the sensitivity of its sums, and its releases.

Delta^2 = 6 K bounds by how much the counts of two logs differ that have the same plays and agree
except in the state shown in one slot of one agent. Where an agent would have played otherwise after
another reading, counts differ by more, and (epsilon, delta) is not promised. docs/privacy.md has
the proofs, and an audit of the effect of feedback.

A sum is released when the slots of its group have doubled since the last release, first at 8 slots
an agent, and at most 40 times. A `PrivacyAccountant` keeps the noise of all releases: one that is
requested again has the same noise, after a restart too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from rmab.errors import FederationError, ModelError
from rmab.privacy.noise import GRID, MOST_RELEASES, discrete_gaussian, mixing, squared_norm
from rmab.text import is_number, shown

__all__ = [
    "DELTA",
    "FIRST_SLOTS",
    "Budget",
    "PrivacyAccountant",
    "Release",
    "cell_noise",
    "is_due",
    "noise_multiplier",
    "sensitivity_squared",
]

FIRST_SLOTS = 8  # slots of each agent before the first release
DELTA = 1e-6
Ints = npt.NDArray[np.int64]

Draw = Callable[["Budget", int, int], Sequence[int]]  # budget, K, size -> steps of 1 / GRID

_MOST_EPSILON, _MOST_DELTA = 100.0, 1e-3
_LARGEST_SCALE = 2.0**50  # sigma in steps of the grid: more than any count, exact in a float
_BISECTIONS = 200
_NODES = 256  # nodes of the quadrature
_ROUNDED = 1e-9  # relative, upwards: more than the error of the quadrature and its sum
# Standard deviation, in steps of the grid, by which z is wider than a continuous Gaussian that is
# as private as requested. The grid then costs a factor of 1 + 1e-33, see `scale`.
_SMOOTHING = 2.0


@dataclass(frozen=True)
class Budget:
    """Privacy of all releases together: (epsilon, delta)-differential privacy of a slot, among logs
    with the same plays."""

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
        """Return sigma of an entry of z, in counts; plays: K.

        A continuous Gaussian of scale z(epsilon, delta) Delta ||c|| is exactly as private as
        requested. Draw it, then a discrete Gaussian of scale 2 steps around it: that is the
        discrete Gaussian of both variances together, up to a factor of 1 + 1e-33 in each
        probability.
        """
        continuous = noise_multiplier(self.epsilon, self.delta) * self.sensitivity(plays)
        return math.hypot(continuous, _SMOOTHING / GRID)

    def sensitivity(self, plays: int) -> float:
        """Return Delta ||c||, the L2 sensitivity of C g, in counts; plays: K."""
        return math.sqrt(sensitivity_squared(plays) * float(squared_norm()))

    @property
    def rho(self) -> float:
        """Zero-concentrated differential privacy of a Gaussian of z(epsilon, delta)."""
        return 0.5 / noise_multiplier(self.epsilon, self.delta) ** 2


def sensitivity_squared(plays: int) -> int:
    """Return Delta^2, the largest change of the counts of all releases by one slot, in the squared
    L2 norm, whether its pairs are in one release or in two; plays: K."""
    return 6 * plays


@lru_cache(maxsize=256)
def noise_multiplier(epsilon: float, delta: float) -> float:
    """Return z(epsilon, delta): sigma over sensitivity of the Gaussian mechanism that just is
    (epsilon, delta)-differentially private, rounded up.

    Reference: B. Balle and Y.-X. Wang, "Improving the Gaussian mechanism for differential
    privacy", ICML 2018, Theorem 8.
    """
    # mu = 1 / z lies between: delta of the lower one is less than any number above 0.
    low, high = epsilon / 100, 2 * math.sqrt(2 * epsilon) + 10
    for _ in range(_BISECTIONS):
        mu = math.sqrt(low * high)
        if _gaussian_delta(epsilon, mu) <= delta:
            low = mu
        else:
            high = mu
    return (1 + _ROUNDED) / low


def _gaussian_delta(epsilon: float, mu: float) -> float:
    """Return delta of the Gaussian mechanism with sensitivity / sigma = mu,

        Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu),

    as the integral over t from 0 to mu of its slope, phi(epsilon/t - t/2): a sum of numbers above
    0, while the difference of the two loses its digits where mu is small.
    """
    nodes, weights = _quadrature()
    heights = np.exp(-((epsilon / (mu * nodes) - mu * nodes / 2) ** 2) / 2)
    return float(mu * (weights @ heights) / math.sqrt(2 * math.pi))


@lru_cache(maxsize=1)
def _quadrature() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return Gauss-Legendre nodes and weights on (0, 1)."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return (nodes + 1) / 2, weights / 2


def cell_noise(budget: Budget, plays: int, releases: int) -> float:
    """Return s, the standard deviation of the noise in a count after `releases`, at least 1."""
    return budget.scale(plays) * math.sqrt(sum(float(b) ** 2 for b in mixing()[:releases]))


def is_due(slots: int, members: int, before: int | None) -> bool:
    """Return whether a sum of `slots` by `members` is released; before: slots of the last release,
    None before the first."""
    return slots >= (FIRST_SLOTS * max(1, members) if before is None else 2 * before)


@dataclass(frozen=True)
class Release:
    """One release: its name, by which it is requested again, its slots, and its noise z."""

    name: str
    slots: int
    noise: tuple[int, ...]  # (size,), in steps of 1 / GRID


@dataclass(frozen=True)
class PrivacyAccountant:
    """Releases of one group, as a value: the new one is stored durably before a sum leaves.

    plays: K; size: number of counts in a sum.
    """

    budget: Budget
    plays: int
    size: int
    releases: tuple[Release, ...] = ()

    @property
    def remaining(self) -> int:
        """Number of remaining releases."""
        return MOST_RELEASES - len(self.releases)

    @property
    def slots(self) -> int | None:
        """Slots of the last release; None before the first."""
        return self.releases[-1].slots if self.releases else None

    def is_due(self, slots: int, members: int) -> bool:
        """Return whether a sum of `slots` by `members` is released now."""
        return self.remaining > 0 and is_due(slots, members, self.slots)

    def released(
        self, name: str, slots: int, members: int, draw: Draw | None = None
    ) -> PrivacyAccountant:
        """Return the accountant with one more release, or itself if it has one of that name.

        FederationError if all are spent, if it is not due, or if the name has other slots. draw:
        draws z; by default `discrete_gaussian`.
        """
        for before in self.releases:
            if before.name == name:
                if before.slots == slots:
                    return self
                raise FederationError(f"release {name} had {before.slots} slots, got {slots}")
        if not self.remaining:
            raise FederationError(f"all {MOST_RELEASES} releases of this group are spent")
        if not is_due(slots, members, self.slots):
            least = FIRST_SLOTS * members if self.slots is None else 2 * self.slots
            raise FederationError(f"the next release must have at least {least} slots, got {slots}")
        z = tuple(int(n) for n in (draw or discrete_gaussian)(self.budget, self.plays, self.size))
        if len(z) != self.size:
            raise ModelError(f"a draw must have {self.size} numbers, got {len(z)}")
        return replace(self, releases=(*self.releases, Release(name, slots, z)))

    def noise(self, name: str) -> Ints:
        """Return the noise in the sum of a release, (size,)."""
        return self._noise(self._number(name))

    def new_noise(self, name: str) -> Ints:
        """Return the noise in the counts since the release before, (size,): all such increments
        together have the noise of this release."""
        number = self._number(name)
        return self._noise(number) - (self._noise(number - 1) if number > 1 else 0)

    def cell_noise(self) -> float:
        """Return s, the standard deviation of the noise in a last count; 0 before releases."""
        many = len(self.releases)
        return cell_noise(self.budget, self.plays, many) if many else 0.0

    def _number(self, name: str) -> int:
        names = [release.name for release in self.releases]
        if name not in names:
            raise FederationError(f"there was no release {name}")
        return names.index(name) + 1

    def _noise(self, number: int) -> Ints:
        """Return round((B z)_t), t = number, counted from 1, in whole numbers throughout."""
        b = mixing()[:number]
        whole = GRID**number  # (B z)_t is a multiple of 1 / whole
        total = np.zeros(self.size, object)
        for t, release in enumerate(self.releases[:number]):
            total = total + int(b[number - 1 - t] * whole / GRID) * np.array(release.noise, object)
        # Of n + y the nearest whole number is n + that of y, also half way between two.
        return np.array((2 * total + whole) // (2 * whole), np.int64)
