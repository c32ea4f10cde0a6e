"""Small results, run once: a study with a policy of the user's own, and all figures."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

import rmab
from rmab.experiments.figure import Figure, FigureResult
from rmab.experiments.registry import FIGURES, SECTIONS, figures, reproduce
from rmab.experiments.regret_growth import GAP, PLAIN
from rmab.experiments.verdict import Claim, Effect
from rmab.policies.registry import named
from rmab.studies.results import Curve, Results
from rmab.studies.run import Values

HORIZON = 60
NAME = "<b>&$x"  # a policy may be called anything


class Small(NamedTuple):
    """Results of several policies, the odd name of one of them, and all figures."""

    several: Results
    odd: str
    drawn: list[FigureResult]


@pytest.fixture(scope="session")
def small() -> Small:
    """All figures, from one run: compiling it takes longer than all else."""
    about = {figure.name: figure for figure in figures(trials=64)}
    theory = short(about["theory"])
    study = replace(theory.variants[0].study, agents=2, policies=["fedtswi", "whittle"])
    results = rmab.run(study)
    learnt = replace(
        results, policies={"fedtswi": results["fedtswi"]}, covariance=results.covariance[:1, :1]
    )
    own = replace(named("fedtswi", HORIZON), name=NAME)
    several = replace(
        results,
        study=replace(study, policies=[own, "whittle"]),
        policies={NAME: results["fedtswi"], "whittle": results["whittle"]},
    )
    judged = FigureResult(theory, [learnt])
    judged.claims = FIGURES["theory"](judged)
    of_one = dict.fromkeys(("fig06", "fig07", "fig08"), learnt)
    compared_ones = dict.fromkeys(SECTIONS["gaps"], compared(several))
    drawn = []
    for name, figure in about.items():
        if name == "theory":
            drawn.append(judged)
        elif name == "fig13":
            computed = reproduce(figure)
            assert computed is not None
            drawn.append(computed)
        else:
            given = {**of_one, **compared_ones}.get(name, several)
            drawn.append(pretended(short(figure), given))
    return Small(several, NAME, drawn)


def short(figure: Figure) -> Figure:
    """The figure with few slots."""
    variants = (replace(v, study=replace(v.study, horizon=HORIZON)) for v in figure.variants)
    return replace(figure, variants=tuple(variants))


def compared(results: Results) -> Results:
    """As if the user's policy had been FedTSWI, and another had half of its regret."""
    learnt, known = results.policies.values()
    better = replace(
        learnt,
        mean=(learnt.mean + known.mean) / 2,
        regret=Curve(learnt.regret.mean / 2, learnt.regret.se / 2),
    )
    places = [0, 0, 1]
    return replace(
        results,
        policies={PLAIN: learnt, GAP: better, "whittle": known},
        covariance=results.covariance[np.ix_(places, places)],
    )


def pretended(figure: Figure, results: Results) -> FigureResult:
    """The figure as if every variant had given these results, with a claim of each kind."""
    exact = {"optimum": 1.25, "upper_bound": 1.5, "whittle": 1.0, "fixed": None}
    return FigureResult(
        figure,
        [results] * len(figure.variants),
        values=[Values(exact, {"fixed": "too <large>"}) for _ in figure.variants],
        claims=[
            Claim(f"{figure.name}: a < b & c", "0.25 > 0.125.", [Effect("it", 1.0, 0.0)]),
            Claim(f"{figure.name}: second", "<i>", [Effect("it", -1.0, 0.0)]),
            Claim(f"{figure.name}: third", "nothing.", [Effect("it", 1.0, 1.0, trials=64)]),
            Claim(f"{figure.name}: fourth", "more.", [Effect("it", 2.0, 0.0, 1.0, within=0.5)]),
            Claim(f"{figure.name}: fifth", "by the way."),
        ],
        seconds=1.25,
    )
