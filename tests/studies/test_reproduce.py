"""Which figures there are, how they are chosen, and how the catalogue's are judged."""

import numpy as np
import pytest

from rmab import StudyError
from rmab.planning.index.finite import Indices
from rmab.studies import reproduce as reproducing
from rmab.studies.figures import FigureResult
from rmab.studies.reproduce import FIGURES, figures
from rmab.studies.run import Values
from tests.studies.made_up import drawn, figure, result, verdicts

PAPER = ["fig06", "fig07", "fig08", "fig09a", "fig09b"]
PAPER += ["fig10", "fig11", "fig12", "fig13", "theory"]
GAPS = ["regret-horizon", "regret-agents", "regret-arms"]
BEYOND = ["fading", "machine", "adherence"]


def test_every_figure_has_a_file_and_a_judge():
    assert list(FIGURES) == [*PAPER, *GAPS, *BEYOND, "privacy", "privacy-arms"]
    assert [each.name for each in figures()] == [*PAPER, *GAPS, *BEYOND]
    sections = ["paper"] * len(PAPER) + ["gaps"] * len(GAPS) + ["beyond"] * len(BEYOND)
    assert [each.section for each in figures()] == sections


def test_every_figure_says_how_it_is_drawn():
    for each in figures():
        assert each.title
        assert each.x in ("episode", "slot", "belief", "agents", "arms")
        assert each.y in ("reward", "regret", "error", "value", "theory")
        labels = [variant.label for variant in each.variants]
        assert len(set(labels)) == len(labels)
        assert all(labels) or len(labels) == 1


def test_figures_are_chosen_by_name_in_the_order_of_the_paper():
    assert [each.name for each in figures(["fig12", "fig06", "fig12"])] == ["fig06", "fig12"]


@pytest.mark.parametrize("name", ["fig14", "FIG06", "", "fig06.toml", "../fig06"])
def test_an_unknown_figure_is_refused(name):
    with pytest.raises(StudyError, match=r"unknown figure .* known are fig06, fig07"):
        figures(["fig06", name])


def test_trials_replace_the_papers():
    for each in figures(trials=7):
        assert all(variant.study.trials == 7 for variant in each.variants)
    assert figures(["fig08"], trials=7)[0].n_trials == 35
    assert figure("fig08").n_trials == 50_000
    with pytest.raises(StudyError, match="trials must be"):
        figures(["fig08"], trials=0)


def learning(final: float) -> FigureResult:
    """Machines on which Whittle earns 1, random .2 and FedTSWI as told in its last slots."""
    fedtswi = result(0.9, final=final)
    return drawn("machine", {"fedtswi": fedtswi, "whittle": result(1.0), "random": result(0.2)})


@pytest.mark.parametrize(("final", "held"), [(0.98, True), (0.81, True), (0.79, False)])
def test_fedtswi_approaches_whittle_or_does_not(monkeypatch, final, held):
    """Judged by how much of the distance from random it has closed in the last tenth."""
    monkeypatch.setattr(reproducing, "value", lambda _: Values({"optimum": 1.0}, {}))
    assert verdicts(learning(final)) == [True, held, True]


def test_arms_that_are_not_indexable_are_named(monkeypatch):
    monkeypatch.setattr(reproducing, "value", lambda _: Values({"optimum": 1.0}, {}))
    odd = Indices(np.zeros(2), False, "state 1 is passive, then active", (1, 0.0, 1.0))
    monkeypatch.setattr(reproducing, "whittle_indices", lambda _: odd)
    made = learning(0.98)
    assert verdicts(made) == [False, True, True]
    assert "arm 1: state 1 is passive, then active" in made.claims[0].measured
