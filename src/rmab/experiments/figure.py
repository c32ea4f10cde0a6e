"""Figures of the report: studies, axes, claims and results.

A figure's `study.toml` is a study, perhaps with a `[sweep]`, whose points are the figure's
variants, and a `[figure]` table: title and axes. It may begin from a bundled study. A *judge* reads
the results and states each claim as effects with their errors; rmab.experiments.verdict decides.
rmab.experiments.registry lists the figures.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any

from rmab.experiments.powers import PowerLaw
from rmab.experiments.verdict import Claim
from rmab.studies.results import Floats, Results
from rmab.studies.run import Values, run
from rmab.studies.study import read_table, with_bundled_study
from rmab.studies.sweep import Point, sweep_of

__all__ = ["Figure", "FigureResult", "Judge", "load_figure", "run_figure"]


@dataclass(frozen=True, eq=False)
class Figure:
    """Variants to run, and axes; x is episode, slot, belief, agents, arms, epsilon or draw."""

    name: str
    title: str
    x: str
    y: str
    variants: tuple[Point, ...]
    subsidy: float = 0.0
    section: str = "paper"  # of the report; see rmab.experiments.registry

    @property
    def label(self) -> str:
        """Name for readers: fig09a is Fig. 9(a), regret-arms is Regret arms."""
        match = re.fullmatch(r"fig0*(\d+)([a-z]?)", self.name)
        if match is None:
            return self.name.capitalize().replace("-", " ")
        number, letter = match.groups()
        return f"Fig. {number}" + (f"({letter})" if letter else "")

    @property
    def is_computed(self) -> bool:
        """Whether the judge computes the curves, so that nothing is simulated."""
        return self.x == "belief"

    @property
    def n_trials(self) -> int:
        """Trials of all variants, for a progress bar."""
        return 1 if self.is_computed else sum(v.study.trials for v in self.variants)


@dataclass
class FigureResult:
    """Results of a figure by variant, with its judge's curves, fits and claims."""

    figure: Figure
    results: list[Results]  # fewer than variants when interrupted
    values: list[Values] = field(default_factory=list)  # exact, by variant; may be empty
    series: dict[str, Floats] = field(default_factory=dict)  # computed curves
    fits: dict[str, PowerLaw] = field(default_factory=dict)  # by curve
    claims: list[Claim] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def name(self) -> str:
        """fig06, ..., fading, ..."""
        return self.figure.name

    def to_json(self) -> dict[str, Any]:
        """Claims and the numbers of the curves."""
        variants = [variant.label for variant in self.figure.variants]
        made = next((each.provenance for each in self.results), None)  # None: it is computed
        return {
            "title": self.figure.title,
            "seconds": round(self.seconds, 2),
            "claims": [claim.to_json() for claim in self.claims],
            "exact": {v: dict(x) for v, x in zip(variants, self.values, strict=False)},
            "fits": {curve: fit.to_json() for curve, fit in self.fits.items()},
            "variants": {v: r.summary() for v, r in zip(variants, self.results, strict=False)},
            "seed": self.figure.variants[0].study.seed,
            "made": None if made is None else made.to_json(),
        }


Judge = Callable[[FigureResult], list[Claim]]


def load_figure(name: str, section: str, trials: int | None = None) -> Figure:
    """Load a figure from its folder, with another number of trials if given."""
    folder = resources.files("rmab.experiments") / name.replace("-", "_")
    with resources.as_file(folder / "study.toml") as path:
        table = with_bundled_study(read_table(path))
    about = table.pop("figure")
    variants = sweep_of(table).points
    if trials is not None:
        variants = tuple(replace(v, study=replace(v.study, trials=trials)) for v in variants)
    return Figure(name=name, variants=variants, section=section, **about)


def run_figure(
    figure: Figure, judge: Judge, progress: Callable[[int], None] | None = None
) -> FigureResult | None:
    """Run a figure's studies and judge its claims; None if interrupted before any was run."""
    done = FigureResult(figure, [])
    begun = time.perf_counter()
    try:
        for variant in () if figure.is_computed else figure.variants:
            done.results.append(run(variant.study, progress))
            if done.results[-1].interrupted:
                raise KeyboardInterrupt
        done.claims = judge(done)
        if figure.is_computed and progress is not None:
            progress(1)
    except KeyboardInterrupt:
        if not done.results:
            return None
        done.interrupted = True
    done.seconds = time.perf_counter() - begun
    return done
