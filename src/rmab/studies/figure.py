"""A figure of the report: what is run, how it is drawn, what is claimed, what came out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rmab.studies.results import Floats, Results
from rmab.studies.running import Values
from rmab.studies.study import Study

__all__ = ["SURE", "Claim", "Drawn", "Figure", "Variant"]

SURE = 4  # standard errors a difference must exceed to count


@dataclass(frozen=True, eq=False)
class Variant:
    """One study of a figure; label is empty where there is but one."""

    label: str
    study: Study


@dataclass(frozen=True, eq=False)
class Figure:
    """What is run and how it is drawn: x is episode, slot or belief."""

    name: str
    title: str
    x: str
    y: str
    variants: tuple[Variant, ...]
    subsidy: float = 0.0
    beyond: bool = False  # not of the paper

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


@dataclass
class Drawn:
    """A figure with its results."""

    figure: Figure
    results: list[Results]
    values: list[Values] = field(default_factory=list)  # exact, by variant; may be empty
    series: dict[str, Floats] = field(default_factory=dict)  # computed curves
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
            "variants": {v: r.to_json() for v, r in zip(variants, self.results, strict=False)},
        }
