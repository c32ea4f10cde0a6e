"""The paper's figures: their files have its numbers, and their judges decide as one would.

Judges read results made up here, clearly for or clearly against each claim.
"""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rmab import StudyError
from rmab.planning.index.finite import Indices
from rmab.studies import beyond, paper
from rmab.studies import reproduce as reproducing
from rmab.studies.figure import Claim, Drawn, Figure
from rmab.studies.reproduce import FIGURES, figures, reproduce
from rmab.studies.results import Curve, PolicyResult, Results
from rmab.studies.run import Values
from rmab.studies.study import Study

ALL = ["fig06", "fig07", "fig08", "fig09a", "fig09b"]
ALL += ["fig10", "fig11", "fig12", "fig13", "theory"]
LOOKS = ["regret-horizon", "regret-agents", "regret-arms"]
BEYOND = ["fading", "machine", "adherence"]
PAPER_ARMS = [(0.20, 0.80, 0.4), (0.89, 0.17, 0.9), (0.10, 0.90, 0.7), (0.90, 0.16, 0.6)]
EPISODES, SLOTS = 20, 1000


def figure(name: str) -> Figure:
    (chosen,) = figures([name])
    return chosen


def arms_of(study: Study) -> list[tuple[float, ...]]:
    columns = (study.arms.p01, study.arms.p11, study.arms.reward)
    return [tuple(map(float, arm)) for arm in zip(*columns, strict=True)]


# ---------------------------------------------------------------------------------------- the files


def test_every_figure_has_a_file_and_a_judge():
    assert list(FIGURES) == [*ALL, *LOOKS, *BEYOND]
    assert [each.name for each in figures()] == [*ALL, *LOOKS, *BEYOND]
    sections = ["paper"] * len(ALL) + ["looks"] * len(LOOKS) + ["beyond"] * len(BEYOND)
    assert [each.section for each in figures()] == sections


def test_the_figures_have_the_numbers_of_the_paper():
    for each in figures(ALL):
        if each.name == "fig13":
            continue
        for variant in each.variants:
            study = variant.study
            assert (study.horizon, study.trials) == (1000, 10_000)
            assert study.agents == 4 or each.name == "fig08"
            assert study.plays == 2 or each.name == "fig06"
            assert (study.realisations, study.schedule) == ("independent", "paper")
            if each.name != "fig09a":
                assert arms_of(study) == PAPER_ARMS


def test_every_figure_says_how_it_is_drawn():
    for each in figures():
        assert each.title
        assert each.x in ("episode", "slot", "belief", "agents", "arms")
        assert each.y in ("reward", "regret", "error", "value", "theory")
        labels = [variant.label for variant in each.variants]
        assert len(set(labels)) == len(labels)
        assert all(labels) or len(labels) == 1


def test_fig06_varies_the_plays():
    assert [v.study.plays for v in figure("fig06").variants] == [1, 2, 3, 4]
    assert [v.label for v in figure("fig06").variants] == ["K = 1", "K = 2", "K = 3", "K = 4"]


def test_fig08_varies_the_agents():
    assert [v.study.agents for v in figure("fig08").variants] == [1, 2, 4, 8, 16]


def test_fig09a_has_arms_that_move_alike():
    first, second = figure("fig09a").variants
    assert arms_of(first.study) == [(0.2, 0.8, reward) for *_, reward in PAPER_ARMS]
    assert arms_of(second.study) == [(0.2, 0.8, 1.0)] * 4
    for variant in (first, second):
        assert variant.study.policies == ("optimal", "whittle", "myopic", "fixed", "random")


def test_fig10_compares_learning_with_knowing():
    expected = ("optimal", "whittle", "fedtswi", "fedts-myopic", "fed1-ucb")
    assert figure("fig10").variants[0].study.policies == expected


def test_fig12_runs_bounds_with_and_without_clipping():
    clipped, raw = (variant.study for variant in figure("fig12").variants)
    assert clipped.options == {}
    assert raw.options == {"feducb-wi": {"clip": False}, "feducb-myopic": {"clip": False}}
    assert {"fedtswi", "fedts-myopic", "feducb-wi", "feducb-myopic"} == set(clipped.policies)


def test_fig13_has_two_arms_and_a_subsidy():
    (variant,) = figure("fig13").variants
    assert figure("fig13").subsidy == 0.5
    assert arms_of(variant.study) == [(0.2, 0.8, 1.0), (0.89, 0.17, 1.0)]


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


# ------------------------------------------------------------------------------- results made up


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


def drawn(name: str, *variants: dict[str, PolicyResult]) -> Drawn:
    """A figure with results made up, one of each variant; policies are independent."""
    made = figure(name)
    results = []
    for variant, policies in zip(made.variants, variants, strict=True):
        covariance = np.diag([each.se**2 for each in policies.values()])
        results.append(Results(variant.study, 100, False, policies, covariance))
    return Drawn(made, results)


def verdicts(made: Drawn) -> list[bool | None]:
    """What the judge says; every claim has words, and the whole is JSON."""
    made.claims = FIGURES[made.name](made)
    for claim in made.claims:
        assert claim.held is None or type(claim.held) is bool
        assert claim.text.endswith((".", ")"))
        assert claim.measured.endswith(".")
        assert "nan" not in claim.measured
        assert claim.verdict in ("held", "did not hold", "noted")
    json.dumps(made.to_json(), allow_nan=False)
    return [claim.held for claim in made.claims]


def exactly(monkeypatch: pytest.MonkeyPatch, **values: float) -> None:
    """Let the exact values be these."""
    known = {"random": 0.5, "fixed": 0.6, "fixed_best": 0.7, "upper_bound": 1.1, **values}
    named = {key.replace("fixed_best", "fixed-best"): known[key] for key in known}
    monkeypatch.setattr(paper, "value", lambda _: Values(dict(named), {}))


def test_a_verdict_is_in_words():
    assert [Claim("", "", held).verdict for held in (True, False, None)] == [
        "held",
        "did not hold",
        "noted",
    ]


def by_plays(means: list[float], start: float = 0.8, all_arms: float = 1.32604250200481) -> Drawn:
    """fig06: means by K, every K < 4 starting at start times its mean, K = 4 at all_arms."""
    each = [
        {"fedtswi": result(mean, episode_reward=falling(start * mean, mean))} for mean in means[:-1]
    ]
    return drawn("fig06", *each, {"fedtswi": result(means[-1], episode_reward=flat(all_arms))})


def test_fig06_judges_the_number_of_plays():
    means = [0.5, 0.9, 1.2, 1.326]
    assert verdicts(by_plays(means)) == [True, True, True]
    assert verdicts(by_plays([0.5, 0.9, 0.9, 1.326])) == [False, True, True]
    assert verdicts(by_plays(means, start=1.0)) == [True, False, True]
    assert verdicts(by_plays(means, all_arms=1.2)) == [True, True, False]


def by_errors(last: list[float], first: float = 0.1) -> Drawn:
    steps = np.linspace(0, 1, EPISODES)[:, None]
    mean = first * (1 - steps) + np.asarray(last) * steps
    curve = Curve(mean, np.full(mean.shape, 1e-5))
    return drawn("fig07", {"fedtswi": result(episode_error=curve)})


def test_fig07_judges_the_errors_of_the_dynamics():
    assert verdicts(by_errors([0.01, 0.001, 0.002, 0.02])) == [True, True]
    assert verdicts(by_errors([0.01, 0.001, 0.02, 0.02])) == [True, False]
    assert verdicts(by_errors([0.2, 0.001, 0.002, 0.2])) == [False, True]


def by_agents(*means: float) -> Drawn:
    return drawn("fig08", *({"fedtswi": result(mean)} for mean in means))


def test_fig08_judges_the_number_of_agents():
    assert verdicts(by_agents(0.90, 0.94, 0.96, 0.970, 0.972)) == [True, True]
    assert verdicts(by_agents(0.90, 0.94, 0.96, 0.970, 0.999)) == [True, False]
    assert verdicts(by_agents(0.96, 0.94, 0.90, 0.970, 0.972)) == [False, False]
    assert verdicts(by_agents(0.9, 0.9, 0.9, 0.9, 0.9)) == [False, False]  # nothing gained at all


def known_policies(**means: float) -> dict[str, PolicyResult]:
    each = {"optimal": 0.99, "whittle": 0.985, "myopic": 0.985, "fixed": 0.776, "random": 0.663}
    return {name: result(mean) for name, mean in {**each, **means}.items()}


def test_fig09a_judges_by_the_exact_values(monkeypatch):
    made = drawn("fig09a", known_policies(), known_policies())
    exactly(monkeypatch, optimum=0.9, whittle=0.9, myopic=0.9)
    assert verdicts(made) == [True, True]
    exactly(monkeypatch, optimum=0.9, whittle=0.9 - 1e-8, myopic=0.89)
    assert verdicts(made) == [False, False]
    assert len(made.values) == 2


def test_fig09b_judges_by_the_exact_values_and_the_fixed_policy(monkeypatch):
    exactly(monkeypatch, optimum=0.9876, whittle=0.985, myopic=0.985)
    assert verdicts(drawn("fig09b", known_policies())) == [True, True]
    assert verdicts(drawn("fig09b", known_policies(fixed=0.985))) == [True, False]
    exactly(monkeypatch, optimum=0.9876, whittle=0.985, myopic=0.9)
    assert verdicts(drawn("fig09b", known_policies())) == [False, True]


def learners(behind: float, myopic: float, ucb: float, mean: float = 0.974) -> Drawn:
    policies = {
        "optimal": result(0.9876),
        "whittle": result(0.985),
        "fedtswi": result(mean, behind=behind),
        "fedts-myopic": result(myopic),
        "fed1-ucb": result(ucb),
    }
    return drawn("fig10", policies)


def test_fig10_judges_learning_beside_knowing(monkeypatch):
    exactly(monkeypatch, optimum=0.98756, whittle=0.9852, myopic=0.985)
    assert verdicts(learners(0.011, 0.962, 0.68)) == [True, True, False, False]
    assert verdicts(learners(0.1, 0.974, 0.974 / 1.15)) == [False, False, True, False]
    exactly(monkeypatch, optimum=0.98756, whittle=0.98756 - 4.56e-5, myopic=0.985)
    assert verdicts(learners(0.011, 0.98, 0.68)) == [True, False, False, True]


def by_regret(start: float, end: float) -> Drawn:
    policies = ("fedtswi", "fedts-myopic")
    return drawn("fig11", {name: result(episode_regret=falling(start, end)) for name in policies})


def test_fig11_judges_the_regret():
    assert verdicts(by_regret(0.1, 0.01)) == [True, True, True, True]
    assert verdicts(by_regret(0.1, 0.1)) == [False, True, False, True]
    assert verdicts(by_regret(0.1, -0.1)) == [True, False, True, False]


def samplers(clipped: float, raw: float) -> Drawn:
    bounds = ("feducb-wi", "feducb-myopic")
    first = {name: result(0.95) for name in ("fedtswi", "fedts-myopic")}
    return drawn(
        "fig12",
        {**first, **{name: result(clipped) for name in bounds}},
        {name: result(raw) for name in bounds},
    )


def test_fig12_judges_thompson_against_bounds():
    assert verdicts(samplers(0.90, 0.90)) == [True, True]
    assert verdicts(samplers(0.97, 0.90)) == [False, False]
    assert verdicts(samplers(0.90, 0.97)) == [False, False]
    assert verdicts(samplers(0.95, 0.95)) == [False, False]  # within the errors is no difference


def test_theory_judges_the_bounds(monkeypatch):
    monkeypatch.setattr(paper, "optimal", lambda *_: SimpleNamespace(span=0.5))
    # As the paper has it: episodes one slot longer each time.
    lengths = Curve(np.append(np.arange(2.0, 45.0), 11.0), np.full(44, 1e-4))
    good = result(episode_length=lengths, episodes=44.0, regret=falling(0, 11, SLOTS))
    made = drawn("theory", {"fedtswi": good})
    assert verdicts(made) == [True, True]
    assert made.series["episodes"].shape == (SLOTS,)
    assert made.series["episodes"][0] == 1
    assert made.series["episodes"][-1] == 44
    ones = Curve(np.ones(SLOTS), np.full(SLOTS, 1e-4))
    many = replace(good, episode_length=ones, episodes=1000.0)
    assert verdicts(drawn("theory", {"fedtswi": many})) == [False, True]
    monkeypatch.setattr(paper, "optimal", lambda *_: SimpleNamespace(span=0.0))
    far = replace(good, regret=falling(0, 1e6, SLOTS))
    assert verdicts(drawn("theory", {"fedtswi": far})) == [True, False]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_one_trial_proves_nothing():
    nothing = float("nan")
    one = result(0.9, se=nothing, final_se=nothing, episode_reward=flat(0.9, se=nothing))
    made = drawn("fig06", *({"fedtswi": one},) * 4)
    assert not any(claim.held for claim in FIGURES["fig06"](made))


# -------------------------------------------------------------------------------------- reproduced


def test_fig13_is_computed():
    made = reproduce(figure("fig13"))
    assert made is not None
    assert not made.interrupted
    assert made.results == []
    belief = made.series["belief"]
    for arm, crossing in ((0, 0.38), (1, 0.39)):
        at, above = made.series[f"threshold {arm}"]
        assert at == pytest.approx(crossing, abs=1e-6)
        assert above == 1
        active = made.series[f"active {arm}"] > made.series[f"passive {arm}"]
        np.testing.assert_array_equal(
            active[np.abs(belief - at) > 1e-6], belief[np.abs(belief - at) > 1e-6] > at
        )
    one_crossing, on_the_left = made.claims
    assert one_crossing.held is True
    assert "b* = 0.3800" in one_crossing.measured
    assert on_the_left.held is False
    assert "on the right" in on_the_left.measured
    assert set(made.to_json()) >= {"title", "claims", "seconds"}


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

    monkeypatch.setattr(reproducing, "run", run)


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
    def interrupt(_: Drawn) -> list[Claim]:
        raise KeyboardInterrupt

    runner(monkeypatch, 5)
    monkeypatch.setitem(FIGURES, "fig08", interrupt)
    made = reproduce(figure("fig08"))
    assert made is not None
    assert made.interrupted
    assert len(made.results) == 5
    assert made.claims == []


# --------------------------------------------------------------------------------- beyond the paper


def learning(final: float) -> Drawn:
    """Machines on which Whittle earns 1, random .2 and FedTSWI as told in its last slots."""
    fedtswi = result(0.9, final=final)
    return drawn("machine", {"fedtswi": fedtswi, "whittle": result(1.0), "random": result(0.2)})


@pytest.mark.parametrize(("final", "held"), [(0.98, True), (0.81, True), (0.79, False)])
def test_fedtswi_approaches_whittle_or_does_not(monkeypatch, final, held):
    """Judged by how much of the distance from random it has closed in the last tenth."""
    monkeypatch.setattr(beyond, "value", lambda _: Values({"optimum": 1.0}, {}))
    assert verdicts(learning(final)) == [True, held, True]


def test_arms_that_are_not_indexable_are_named(monkeypatch):
    monkeypatch.setattr(beyond, "value", lambda _: Values({"optimum": 1.0}, {}))
    odd = Indices(np.zeros(2), False, "state 1 is passive, then active", (1, 0.0, 1.0))
    monkeypatch.setattr(beyond, "whittle_indices", lambda _: odd)
    made = learning(0.98)
    assert verdicts(made) == [False, True, True]
    assert "arm 1: state 1 is passive, then active" in made.claims[0].measured
