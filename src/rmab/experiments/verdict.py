"""Verdicts on claims: claims stated as data, and the one function that decides.

A claim has one effect or several. An *effect* is a measured number with its standard error, the
claimed value and the direction. With x the effect less the claimed value, counted in the claimed
direction, and w the tolerance of a claimed amount (0 where a bound is claimed),

    contradicted   x + c e < -w
    held           x - c e > -w
    exceeded       x - c e > w, where an amount was claimed (w is given)
    undecided      otherwise, or the standard error e is not known

c is 4 with very many trials. Few trials know their own error badly and may have missed what is
rare, so c is larger with n trials: t + (2 z^2 + 1) s / (6 sqrt(n)), where z = 4, t is the point of
Student's t law with the same tail, and the second term is the first of the expansion of the t
statistic for outcomes of skewness s (Hall 1992, section 2.6). s = 4 is that of a loss that one
trial in twenty suffers. So c is 4.2 with 10,000 trials, 4.7 with 1,000, 6.4 with 100 and 10 with
20. Fewer trials than MIN_TRIALS decide nothing. Computed values have no error and are decided by
their sign.

A claim with m effects (every arm, every horizon, a maximum over many points) holds if all of them
do, each by its own c. One of them is enough to contradict it, and the largest of m is large by
chance, so for that z is the point with an m-th of the tail: 4.8 for 41 effects, 5.1 for 200. That
is right whatever their correlation.

A claim about a law, such as a rate of growth, says that there is one. Where the law does not fit
the measurements, the claim is undecided, or contradicted by its effects, but not held.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from scipy.special import ndtr, ndtri, stdtrit

__all__ = ["MIN_SIGMA", "MIN_TRIALS", "Claim", "Effect", "Estimate", "Verdict", "decide", "sigmas"]

MIN_SIGMA = 4.0  # least standard errors of a difference that decides
MIN_TRIALS = 8  # least trials that decide
_SKEWNESS = 4.0  # skewness of outcomes that is allowed for


class Verdict(StrEnum):
    """Words for the outcome of a claim."""

    HELD = "held"
    EXCEEDED = "exceeded"  # more than was claimed, in the claimed direction
    CONTRADICTED = "contradicted"
    UNDECIDED = "undecided"  # too few trials, or too small an effect
    NOTED = "noted"  # nothing was claimed that could be decided


class Estimate(NamedTuple):
    """A measured mean and its standard error."""

    mean: float
    se: float

    def less(self, other: Estimate) -> Estimate:
        """Difference of two estimates of the same trials, whose correlation is not known.

        Errors are added, which bounds the error of the difference.
        """
        return Estimate(self.mean - other.mean, self.se + other.se)

    def apart(self, other: Estimate) -> Estimate:
        """Difference of two independent estimates."""
        return Estimate(self.mean - other.mean, math.hypot(self.se, other.se))

    def times(self, factor: float) -> Estimate:
        """Estimate in another unit."""
        return Estimate(factor * self.mean, abs(factor) * self.se)


@dataclass(frozen=True)
class Effect:
    """Measured number beside its claimed value.

    se: 0 if value was computed, NaN if it is not known (of a single trial); within: how far from
    the claimed value an amount still is that amount, None where only a bound is claimed; trials:
    the number that se was estimated from, None if value was computed.
    """

    of: str  # name of the number, for readers
    value: float
    se: float
    claimed: float = 0.0
    direction: Literal["above", "below", "about"] = "above"
    within: float | None = None
    trials: int | None = None

    def __post_init__(self) -> None:
        if self.direction == "about" and self.within is None:
            raise ValueError(f"{self.of}: an effect about {self.claimed:g} needs within")

    @property
    def margin(self) -> float:
        """Value less the claimed one, in the claimed direction."""
        return (self.value - self.claimed) * (-1 if self.direction == "below" else 1)

    def verdict(self, n_effects: int = 1) -> Verdict:
        """Verdict on this effect, one of n_effects of a claim."""
        x, width = self.margin, self.within or 0.0
        needed, against = (sigmas(self.trials, tests) * self.se for tests in (1, n_effects))
        if not (math.isfinite(x) and math.isfinite(against)):
            return Verdict.UNDECIDED
        if self.direction == "about":
            x = -abs(x)
        if x + against < -width:
            return Verdict.CONTRADICTED
        if not x - needed > -width:
            return Verdict.UNDECIDED
        if self.within is not None and x - needed > width:
            return Verdict.EXCEEDED
        return Verdict.HELD

    @property
    def missing(self) -> str:
        """Reason why an effect decides nothing."""
        if self.trials is not None and self.trials < MIN_TRIALS:
            return f"{self.trials} trials are too few, {MIN_TRIALS} or more are needed"
        if not (math.isfinite(self.value) and math.isfinite(self.se)):
            return f"{self.of}: not known"
        off = abs(abs(self.margin) - (self.within or 0)) if self.within else abs(self.margin)
        apart = off / self.se if self.se else 0.0
        trials = "" if self.trials is None else f" with {self.trials:,} trials"
        return (
            f"{self.of}: {apart:.1f} standard errors from the bound, where "
            f"{sigmas(self.trials):.1f} decide{trials}"
        )

    def to_json(self) -> dict[str, Any]:
        """Numbers of the effect; an unknown one is null."""
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in asdict(self).items()
        }


def sigmas(trials: int | None, tests: int = 1) -> float:
    """Standard errors that decide, by the number of trials (None: computed) and of tests.

    >>> [round(sigmas(n), 1) for n in (None, 1_000_000, 10_000, 1000, 100, 20, 2)]
    [4.0, 4.0, 4.2, 4.7, 6.4, 10.0, inf]
    >>> round(sigmas(1_000_000, tests=41), 1)
    4.8
    """
    if trials is None:
        return MIN_SIGMA
    if trials < MIN_TRIALS:
        return math.inf
    tail = float(ndtr(-MIN_SIGMA)) / tests
    skewed = (2 * ndtri(tail) ** 2 + 1) * _SKEWNESS / (6 * math.sqrt(trials))
    return float(skewed - stdtrit(trials - 1, tail))


def decide(effects: Iterable[Effect], *, fits: bool = True) -> Verdict:
    """Decide a claim that all these effects are as claimed.

    fits: whether the law that the claim is about describes the measurements.
    """
    each = list(effects)
    if not each:
        return Verdict.NOTED
    words = {effect.verdict(len(each)) for effect in each}
    for word in (Verdict.CONTRADICTED, Verdict.UNDECIDED):
        if word in words:
            return word
    if not fits:
        return Verdict.UNDECIDED
    return Verdict.EXCEEDED if words == {Verdict.EXCEEDED} else Verdict.HELD


@dataclass(frozen=True, eq=False)
class Claim:
    """Claim with its measurement and the effects that decide it; without effects it is noted."""

    text: str
    measured: str
    effects: Sequence[Effect] = ()
    fits: bool = True  # see decide

    @property
    def verdict(self) -> Verdict:
        """Outcome in a word."""
        return decide(self.effects, fits=self.fits)

    @property
    def found(self) -> str:
        """Measured values in words and, where the claim is undecided, the reason."""
        if self.verdict != Verdict.UNDECIDED:
            return self.measured
        open_ones = [each for each in self.effects if each.verdict() == Verdict.UNDECIDED]
        missing = open_ones[0].missing if open_ones else "no power law fits"
        more = f" (and {len(open_ones) - 1} more)" if len(open_ones) > 1 else ""
        return f"{self.measured} Undecided: {missing}{more}."

    def to_json(self) -> dict[str, Any]:
        """JSON of the claim; `held` is true for "held", false for "contradicted", else null."""
        return {
            "claim": self.text,
            "measured": self.measured,
            "verdict": str(self.verdict),
            "held": {Verdict.HELD: True, Verdict.CONTRADICTED: False}.get(self.verdict),
            "effects": [effect.to_json() for effect in self.effects],
        }
