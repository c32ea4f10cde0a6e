"""Which figures there are, how they are chosen, and how the catalogue's are judged."""

from importlib import resources
from types import SimpleNamespace

import numpy as np
import pytest

from rmab import StudyError
from rmab.experiments import estimates, general_arms
from rmab.experiments.figure import FigureResult
from rmab.experiments.registry import FIGURES, figures, summary
from rmab.experiments.verdict import Claim, Effect, Verdict
from rmab.planning.index.finite import Indices
from rmab.studies.run import Values
from tests.experiments.made_up import (
    CONTRADICTED,
    EXCEEDED,
    HELD,
    NOTED,
    UNDECIDED,
    drawn,
    figure,
    result,
    verdicts,
)

PAPER = ["fig06", "fig07", "fig08", "fig09a", "fig09b"]
PAPER += ["fig10", "fig11", "fig12", "fig13", "theory"]
GAPS = ["regret-horizon", "regret-agents", "regret-arms"]
BEYOND = ["fading", "machine", "adherence"]


def test_every_figure_has_a_file_and_a_judge():
    assert list(FIGURES) == [*PAPER, *GAPS, *BEYOND, "privacy", "privacy-arms"]
    assert [each.name for each in figures()] == [*PAPER, *GAPS, *BEYOND]
    sections = ["paper"] * len(PAPER) + ["gaps"] * len(GAPS) + ["beyond"] * len(BEYOND)
    assert [each.section for each in figures()] == sections


def test_every_folder_has_one_shape_and_is_a_figure():
    package = resources.files("rmab.experiments")
    folders = {each.name: each for each in package.iterdir() if (each / "claims.py").is_file()}
    assert set(folders) == {name.replace("-", "_") for name in FIGURES}
    for name, folder in folders.items():
        files = {each.name for each in folder.iterdir() if each.is_file()}
        assert files == {"__init__.py", "claims.py", "study.toml"}, name


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


@pytest.mark.parametrize(
    ("final", "found"), [(0.98, HELD), (0.81, HELD), (0.8001, UNDECIDED), (0.79, CONTRADICTED)]
)
def test_fedtswi_approaches_whittle_or_does_not(monkeypatch, final, found):
    """Judged by how much of the distance from random it has closed in the last tenth."""
    monkeypatch.setattr(general_arms, "value", lambda _: Values({"optimum": 1.0}, {}))
    assert verdicts(learning(final)) == [HELD, found, HELD]


def test_arms_that_are_not_indexable_are_named(monkeypatch):
    monkeypatch.setattr(general_arms, "value", lambda _: Values({"optimum": 1.0}, {}))
    odd = Indices(np.zeros(2), False, "state 1 is passive, then active", (1, 0.0, 1.0))
    monkeypatch.setattr(general_arms, "whittle_indices", lambda _: odd)
    made = learning(0.98)
    assert verdicts(made) == [CONTRADICTED, HELD, HELD]
    assert "arm 1: state 1 is passive, then active" in made.claims[0].measured


def told(name: str, *words: Verdict) -> FigureResult:
    """A figure whose claims have these verdicts."""
    effects = {
        HELD: [Effect("it", 1.0, 0.0)],
        EXCEEDED: [Effect("it", 41.0, 0.0, 15.0, within=1.0)],
        CONTRADICTED: [Effect("it", -1.0, 0.0)],
        UNDECIDED: [Effect("it", 1.0, 1.0, trials=20)],
        NOTED: [],
    }
    claims = [Claim("A claim.", "1.", effects[word]) for word in words]
    return FigureResult(figure(name), [], claims=claims)


def test_the_summary_counts_the_papers_claims_apart():
    done = [
        told("fig09a", HELD, CONTRADICTED),
        told("fig10", HELD, EXCEEDED, CONTRADICTED, CONTRADICTED),
        told("regret-arms", UNDECIDED, HELD, NOTED, NOTED),
        told("privacy", CONTRADICTED),
    ]
    assert summary(done) == (
        "Of 6 claims of the paper, 2 held, 1 was exceeded and 3 were contradicted. "
        "Of 5 claims beyond the paper, 1 held, 1 was contradicted, 1 is undecided and 2 are noted "
        "without a verdict. "
        "Contradicted were claims of Fig. 9(a), Fig. 10 (2) and Privacy, and more than was claimed "
        "was measured in Fig. 10."
    )


def test_the_summary_of_little():
    assert summary([told("fig10", UNDECIDED)]) == (
        "Of 1 claim of the paper, 1 is undecided. No claim beyond the paper was judged. "
        "None was contradicted."
    )


def test_the_paper_has_25_claims(monkeypatch):
    """Counted where they are judged, with results made up."""
    known = dict.fromkeys(("optimum", "whittle", "myopic", "fixed", "fixed-best", "random"), 0.9)
    monkeypatch.setattr(estimates, "value", lambda _: Values({**known}, {}))
    monkeypatch.setattr(
        "rmab.experiments.theory.claims.optimal", lambda *_: SimpleNamespace(span=0.5)
    )
    count = 0
    for name in PAPER:
        chosen = figure(name)
        made = (
            FigureResult(chosen, [])
            if chosen.is_computed
            else drawn(
                name,
                *(
                    {str(p): result() for p in variant.study.policies}
                    for variant in chosen.variants
                ),
            )
        )
        count += len(FIGURES[name](made))
    assert count == 25
