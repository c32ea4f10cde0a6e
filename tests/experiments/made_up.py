"""Results made up for judges: clearly for or clearly against a claim."""

import json
from dataclasses import replace
from typing import Any

import numpy as np

from rmab.experiments.figure import Figure, FigureResult
from rmab.experiments.registry import FIGURES, figures
from rmab.experiments.verdict import Verdict
from rmab.studies.results import Curve, PolicyResult, Results

EPISODES, SLOTS = 20, 1000


def figure(name: str) -> Figure:
    (chosen,) = figures([name])
    return chosen


def flat(level: float, size: int = EPISODES, se: float = 1e-4) -> Curve:
    return Curve(np.full(size, level), np.full(size, se))


def falling(start: float, end: float, size: int = EPISODES, se: float = 1e-4) -> Curve:
    return Curve(np.linspace(start, end, size), np.full(size, se))


def result(mean: float = 0.9, se: float = 1e-4, **changes: Any) -> PolicyResult:
    """A policy that always earns `mean`."""
    return replace(
        PolicyResult(
            mean=mean,
            se=se,
            final=mean,
            final_se=se,
            episodes=float(EPISODES),
            behind=0.0,
            behind_se=se,
            slots=flat(mean, SLOTS),
            regret=flat(0.0, SLOTS),
            episode_trials=np.full(EPISODES, 100.0),
            episode_length=flat(SLOTS / EPISODES),
            episode_reward=flat(mean),
            episode_regret=flat(0.0),
            episode_error=Curve(np.full((EPISODES, 4), 0.1), np.full((EPISODES, 4), 1e-4)),
        ),
        **changes,
    )


def drawn(name: str, *variants: dict[str, PolicyResult]) -> FigureResult:
    """A figure with results made up, one of each variant; policies are independent."""
    made = figure(name)
    results = []
    for variant, policies in zip(made.variants, variants, strict=True):
        covariance = np.diag([each.se**2 for each in policies.values()])
        results.append(Results(variant.study, 100, False, policies, covariance))
    return FigureResult(made, results)


HELD, EXCEEDED, CONTRADICTED, UNDECIDED, NOTED = Verdict  # in this order


def verdicts(made: FigureResult) -> list[Verdict]:
    """What is found of the claims; every claim has words, and the whole is JSON."""
    made.claims = FIGURES[made.name](made)
    for claim in made.claims:
        assert claim.text.endswith((".", ")"))
        assert claim.found.endswith(".")
        assert "nan" not in claim.measured
    json.dumps(made.to_json(), allow_nan=False)
    return [claim.verdict for claim in made.claims]
