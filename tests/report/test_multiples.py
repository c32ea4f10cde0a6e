"""The drawing of a sweep and its page: what is the x axis, what the panels, what is left out."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rmab import Study, Sweep, SweepResults, channels
from rmab.report import multiples
from rmab.report.canvas import save
from rmab.report.page import write_sweep
from rmab.report.style import label
from rmab.studies.results import Curve, PolicyResult, Results
from tests.experiments.made_up import flat, result
from tests.report.test_page import Page

ARMS = channels([0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16], [0.4, 0.9, 0.7, 0.6])
STUDY = Study(arms=ARMS, agents=4, plays=2, policies=["fedtswi", "fedtswi-gap", "whittle"])


def made_up(sweep: Sweep, count: int | None = None, **changes: Any) -> SweepResults:
    """Results of the first points, in which regret falls with the agents, changed as told."""

    def policy(study: Study, place: int) -> PolicyResult:
        regret = 0.0 if place == 2 else (30 - 20 * place) / math.sqrt(study.agents)
        mean = study.plays - regret / 1000
        curve = flat(regret, 1000, se=0.0 if place == 2 else 0.5)
        made: dict[str, Any] = {"regret": curve, "behind": regret / 1000, **changes}
        return replace(result(mean), **made)

    points = {}
    for point in sweep.points[:count]:
        policies = {name: policy(point.study, n) for n, name in enumerate(STUDY.policy_names)}
        points[point.label] = Results(point.study, point.study.trials, False, policies, np.eye(3))
    return SweepResults(sweep, points)


def drawn(values: dict[str, Any], **settings: Any) -> Any:
    return multiples.sweep(made_up(Sweep(STUDY, values, **settings)))


def shown(figure: Any) -> list[Any]:
    return [axes for axes in figure.axes if axes.get_visible()]


def titles(figure: Any) -> list[str]:
    return [axes.get_title() for axes in shown(figure) if axes.get_title()]


def x_labels(figure: Any) -> set[str]:
    return {axes.get_xlabel().replace("\n", " ") for axes in shown(figure)} - {""}


def test_rewards_and_regrets_against_a_number():
    results = made_up(Sweep(STUDY, {"agents": [1, 2, 4]}))
    figure = multiples.sweep(results)
    reward, regret = shown(figure)
    assert [axes.get_ylabel() for axes in (reward, regret)] == [
        "Average reward",
        "Regret against WI policy",
    ]
    assert x_labels(figure) == {"Agents M"}
    assert reward.get_xticks().tolist() == [1, 2, 4]
    bars = {bar.get_label(): bar for bar in reward.containers}
    assert list(bars) == [label(name) for name in STUDY.policy_names]
    line, _, (reach,) = bars["FedTSWI"]
    assert line.get_xdata().tolist() == [1, 2, 4]
    assert line.get_ydata().tolist() == [each["fedtswi"].mean for each in results.values()]
    low, high = reach.get_segments()[0][:, 1]
    assert high - low == pytest.approx(2 * 1.96 * 1e-4)
    # Without the policy that regret is measured against.
    assert [bar.get_label() for bar in regret.containers] == ["FedTSWI", "FedTSWI-gap"]
    assert regret.containers[0][0].get_ydata().tolist() == [30, 30 / math.sqrt(2), 15]


def test_without_regret_there_are_rewards_alone():
    results = made_up(Sweep(STUDY, {"agents": [1, 2]}), regret=flat(0.0, 1000, se=0.0))
    (axes,) = shown(multiples.sweep(results))
    assert axes.get_ylabel() == "Average reward"


@pytest.mark.parametrize(
    ("values", "x", "panels"),
    [
        ({"agents": [1, 2, 4], "plays": [1, 2]}, "Agents M", ["K = 1", "K = 2"]),
        ({"plays": [1, 2], "agents": [1, 2, 4]}, "Agents M", ["K = 1", "K = 2"]),
        ({"plays": [1, 2], "agents": [1, 2]}, "Plays in a slot K", ["M = 1", "M = 2"]),
        ({"plays": [2], "agents": [1, 2]}, "Agents M", []),
        (
            {"schedule": ["paper", "linear", "doubling"], "agents": [1, 2]},
            "Agents M",
            ["schedule = paper", "schedule = linear", "schedule = doubling"],
        ),
        (
            {"draws": ["shared", "per-agent"], "schedule": ["paper", "linear", "doubling"]},
            "Schedule",
            ["draws = shared", "draws = per-agent"],
        ),
        ({"seed": [1, 2, 3], "agents": [1, 2]}, "Agents M", ["seed = 1", "seed = 2", "seed = 3"]),
        ({"seed": [1, 2, 3]}, "Seed", []),
        ({"policies.fedtswi-gap.gaps": [8, 32]}, "fedtswi-gap.gaps", []),
        ({"arm.2.p11": [0.1, 0.5]}, "arm.2.p11", []),
    ],
)
def test_the_number_of_most_values_is_the_x_axis_and_the_rest_are_panels(values, x, panels):
    figure = drawn(values)
    assert x_labels(figure) == {x}
    assert titles(figure) == panels


def test_what_goes_together_is_one_line():
    figure = drawn({"agents": [1, 2, 4], "plays": [1, 2, 3], "seed": [0, 1, 2]}, together=True)
    assert titles(figure) == []
    assert x_labels(figure) == {"Agents M (with it: Plays in a slot K, Seed)"}
    assert shown(figure)[0].containers[0][0].get_xdata().tolist() == [1, 2, 4]


def test_numbers_far_apart_have_a_logarithmic_axis():
    assert shown(drawn({"agents": [1, 2, 4]}))[0].get_xscale() == "linear"
    axes = shown(drawn({"agents": [1, 4, 16]}))[0]
    assert axes.get_xscale() == "log"
    assert axes.get_xticks().tolist() == [1, 4, 16]
    regret = shown(drawn({"agents": [1, 4, 16, 64]}))[1]
    assert regret.get_yscale() == "log"
    assert shown(drawn({"agents": [1, 4]}))[1].get_yscale() == "linear"


def test_words_are_categories_beside_one_another():
    figure = drawn({"schedule": ["paper", "linear"]})
    axes = shown(figure)[-1]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["paper", "linear"]
    places = [bar[0].get_xdata().tolist() for bar in axes.containers]
    assert len({x for at in places for x in at}) == 4
    for at in places:
        assert [round(x) for x in at] == [0, 1]
    assert all(bar[0].get_linestyle() == "None" for bar in axes.containers)


def test_values_of_the_last_key_stand_side_by_side():
    figure = drawn({"agents": [1, 2, 4], "plays": [1, 2, 3], "policies.fedtswi.prior": [1, 2]})
    rows, columns = shown(figure)[0].get_gridspec().get_geometry()
    assert (rows, columns) == (6, 2)
    assert titles(figure)[:3] == [
        "K = 1, fedtswi.prior = 1",
        "K = 1, fedtswi.prior = 2",
        "K = 2, fedtswi.prior = 1",
    ]


def test_one_point_is_drawn_as_a_study():
    figure = drawn({"agents": [4]})
    assert figure.axes[-1].get_xlabel() == "Slots"


@pytest.mark.parametrize(("plays", "left_out"), [([1, 2], 0), ([1, 2, 3, 4], 2)])
def test_too_many_panels_are_left_out_and_that_is_said(tmp_path, monkeypatch, plays, left_out):
    monkeypatch.setattr(multiples, "_MAX_PANELS", 2)
    results = made_up(Sweep(STUDY, {"agents": [1, 2, 4, 8, 16], "plays": plays}))
    assert titles(multiples.sweep(results)) == ["K = 1", "K = 2"]
    page = Page(write_sweep(tmp_path, "many", results).read_text(encoding="utf-8"))
    assert (f"{left_out} more panels are left out" in page.words) == (left_out > 0)
    assert any(row[0] == f"M = 16, K = {plays[-1]}" for row in page.rows)


def test_an_interrupted_sweep_is_drawn_with_what_there_is(tmp_path):
    sweep = Sweep(STUDY, {"plays": [1, 2], "agents": [1, 2, 4]})
    results = made_up(sweep, 4)
    figure = multiples.sweep(results)
    assert titles(figure) == ["K = 1", "K = 2"]
    assert [len(axes.containers[0][0].get_xdata()) for axes in shown(figure)[:2]] == [3, 1]
    page = Page(write_sweep(tmp_path, "cut", results).read_text(encoding="utf-8"))
    assert "Interrupted: 4000 of 6000 trials were done, of 4 of 6 points" in page.words


def test_one_trial_has_no_bars_but_is_drawn(tmp_path):
    unknown = Curve(np.full(1000, 2.0), np.full(1000, np.nan))
    results = made_up(Sweep(STUDY, {"agents": [1, 2]}), se=np.nan, regret=unknown)
    save(multiples.sweep(results), tmp_path, "one", "")


# ---------------------------------------------------------------------------------------- the page


def test_the_page_of_a_sweep_has_every_number(tmp_path):
    results = made_up(Sweep(STUDY, {"agents": [1, 2], "plays": [1, 2]}))
    path = write_sweep(tmp_path, "a <sweep>", results)
    page = Page(path.read_text(encoding="utf-8"))
    assert "Study a <sweep>" in page.words
    assert "4 points; swept: Agents M, Plays in a slot K." in page.words
    for each, found in results.items():
        for name, r in found.items():
            row = next(x for x in page.rows if x[0] == each and x[1].endswith(name))
            assert row[2] == f"{r.mean:.5f} ± {r.se:.5f}"
    assert ["Point", "Variant", "Agents M", "Plays in a slot K"] in page.rows
    assert ["3", "M = 2, K = 1", "2", "1"] in page.rows
    assert ["Slots T", "1000"] in page.rows
    assert ["2", "0.89", "0.17", "0.9", "0.5174"] in page.rows
    assert page.tags.count("svg") == 1
    assert {"sweep.csv", "sweep.json", "results.json", "figure.png"} <= set(page.addresses)
    assert len(page.ids) == len(set(page.ids))


def test_the_page_says_what_points_with_labels_set(tmp_path):
    values = {"arm.1.reward": [0.4, 1.0], "policies.fedtswi.prior": [1, [1, 2]]}
    sweep = Sweep(STUDY, values, together=True, labels=["low", "high <>"])
    page = Page(write_sweep(tmp_path, "study", made_up(sweep)).read_text(encoding="utf-8"))
    assert ["2", "high <>", "1.0", "[1, 2]"] in page.rows
    assert [row[0] for row in page.rows if row[1:2] == ["WI policy whittle"]] == ["low", "high <>"]


def test_the_same_sweep_gives_the_same_bytes(tmp_path):
    results = made_up(Sweep(STUDY, {"agents": [1, 2], "schedule": ["paper", "linear"]}))
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        write_sweep(folder, "study", results)
    for name in ("report.html", "figure.svg", "figure.png"):
        first, second = ((folder / name).read_bytes() for folder in folders)
        assert first == second
