"""A figure that is run: all its studies, then the judge; or cut short, with what was done."""

from dataclasses import replace

import numpy as np
import pytest

from rmab.experiments import figure as running
from rmab.experiments.figure import FigureResult
from rmab.experiments.registry import FIGURES, reproduce
from rmab.experiments.verdict import Claim
from rmab.studies.provenance import Provenance
from rmab.studies.results import Results
from rmab.studies.study import Study
from tests.experiments.made_up import figure, result


def test_fig13_counts_as_one_step_of_progress():
    steps: list[int] = []
    reproduce(figure("fig13"), steps.append)
    assert steps == [figure("fig13").n_trials] == [1]


def runner(monkeypatch: pytest.MonkeyPatch, done: int, *, cut: bool = False) -> None:
    """Let `done` studies run, the last one cut short, and the next be interrupted at once."""
    ran: list[Study] = []

    def run(study: Study, _: object) -> Results:
        if len(ran) == done:
            raise KeyboardInterrupt
        ran.append(study)
        last = cut and len(ran) == done
        policies = {"fedtswi": result(0.9 + len(ran) / 100)}
        return Results(study, 50 if last else study.trials, last, policies, np.eye(1) * 1e-8)

    monkeypatch.setattr(running, "run", run)


def test_a_figure_is_judged_once_all_its_studies_ran(monkeypatch):
    runner(monkeypatch, 5)
    made = reproduce(figure("fig08"))
    assert made is not None
    assert not made.interrupted
    assert [each["fedtswi"].mean for each in made.results] == pytest.approx(
        [0.91, 0.92, 0.93, 0.94, 0.95]
    )
    assert len(made.claims) == 2
    labels = ["M = 1", "M = 2", "M = 4", "M = 8", "M = 16"]
    assert list(made.to_json()["variants"]) == labels


@pytest.mark.parametrize("cut", [False, True])
def test_an_interrupted_figure_keeps_what_ran_and_is_not_judged(monkeypatch, cut):
    runner(monkeypatch, 2, cut=cut)
    made = reproduce(figure("fig08"))
    assert made is not None
    assert made.interrupted
    assert len(made.results) == 2
    assert made.claims == []
    assert list(made.to_json()["variants"]) == ["M = 1", "M = 2"]


def test_a_figure_interrupted_at_once_is_nothing(monkeypatch):
    runner(monkeypatch, 0)
    assert reproduce(figure("fig08")) is None


def test_an_interruption_while_judging_keeps_the_results(monkeypatch):
    def interrupt(_: FigureResult) -> list[Claim]:
        raise KeyboardInterrupt

    runner(monkeypatch, 5)
    monkeypatch.setitem(FIGURES, "fig08", interrupt)
    made = reproduce(figure("fig08"))
    assert made is not None
    assert made.interrupted
    assert len(made.results) == 5
    assert made.claims == []


def test_a_figure_says_its_seed_and_where_its_results_come_from(monkeypatch):
    runner(monkeypatch, 5)
    made = reproduce(figure("fig08"))
    assert made is not None
    assert made.to_json()["made"] is None  # what was made up comes from nowhere
    known = [replace(each, provenance=Provenance("rmab reproduce")) for each in made.results]
    table = replace(made, results=known).to_json()
    assert table["seed"] == made.figure.variants[0].study.seed
    assert table["made"]["command"] == "rmab reproduce"
    assert set(table["made"]["versions"]) >= {"rmab", "jax"}
