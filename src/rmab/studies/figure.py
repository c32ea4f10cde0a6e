"""A figure of the report: what is run, how it is drawn, what is claimed, what came out."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from rmab.studies.results import Floats, Results
from rmab.studies.run import Values
from rmab.studies.study import Study

__all__ = ["SURE", "Claim", "Drawn", "Figure", "Fit", "Variant"]

SURE = 4  # standard errors a difference must exceed to count


@dataclass(frozen=True, eq=False)
class Variant:
    """One study of a figure; label is empty where there is but one."""

    label: str
    study: Study


@dataclass(frozen=True, eq=False)
class Figure:
    """What is run and how it is drawn: x is episode, slot, belief, agents or arms."""

    name: str
    title: str
    x: str
    y: str
    variants: tuple[Variant, ...]
    subsidy: float = 0.0
    section: str = "paper"  # of the report; see rmab.studies.reproduce

    @property
    def n_trials(self) -> int:
        """Trials of all variants, for a progress bar."""
        if self.x == "belief":
            return 1
        return sum(variant.study.trials for variant in self.variants)


@dataclass(frozen=True, eq=False)
class Claim:
    """What is said, what was measured, and whether it held (None: nothing to decide)."""

    text: str
    measured: str
    held: bool | None

    @property
    def verdict(self) -> str:
        """In words."""
        return {True: "held", False: "did not hold", None: "noted"}[self.held]


@dataclass(frozen=True)
class Fit:
    """A power law fitted to a curve: factor x^slope."""

    factor: float
    slope: float
    slope_se: float  # an upper bound on it
    start: float  # of the x it was fitted to
    end: float

    def at(self, x: Floats) -> Floats:
        """The law at x, of the same shape."""
        return self.factor * x**self.slope

    def to_json(self) -> dict[str, float | None]:
        """Its numbers; what is unknown (one trial's error) is null."""
        return {k: None if math.isnan(v) else v for k, v in asdict(self).items()}


@dataclass
class Drawn:
    """A figure with its results."""

    figure: Figure
    results: list[Results]
    values: list[Values] = field(default_factory=list)  # exact, by variant; may be empty
    series: dict[str, Floats] = field(default_factory=dict)  # computed curves
    fits: dict[str, Fit] = field(default_factory=dict)  # by curve
    claims: list[Claim] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def name(self) -> str:
        """fig06, ..., fading, ..."""
        return self.figure.name

    def to_json(self) -> dict[str, Any]:
        """Claims and the numbers behind the curves."""
        variants = [variant.label for variant in self.figure.variants]
        return {
            "title": self.figure.title,
            "seconds": round(self.seconds, 2),
            "claims": [
                {"claim": c.text, "measured": c.measured, "held": c.held} for c in self.claims
            ],
            "exact": {v: dict(x) for v, x in zip(variants, self.values, strict=False)},
            "fits": {curve: fit.to_json() for curve, fit in self.fits.items()},
            "variants": {v: r.to_json() for v, r in zip(variants, self.results, strict=False)},
        }
