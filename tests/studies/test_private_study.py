"""Studies whose sums are released with noise: what may be asked for."""

from dataclasses import replace
from pathlib import Path

import pytest

from rmab import Policy, Study, Sweep, channels
from rmab.cli import main
from rmab.errors import StudyError
from rmab.model.arms import Arm, Arms
from rmab.privacy.accounting import Budget
from rmab.report.page import _noise_notes
from rmab.studies.run import setting_of_study
from rmab.studies.study import from_table

STUDY = Study(
    arms=channels(p01=[0.89, 0.2], p11=[0.17, 0.8], reward=[0.9, 0.4]),
    agents=3,
    schedule="linear",
    policies=["fedtswi", "fedts-myopic", "fedtswi-gap", "fedts-myopic-gap", "whittle", "random"],
    privacy={"epsilon": 1.0},
)


def test_the_engine_is_told_the_budget():
    assert setting_of_study(STUDY).budget == Budget(1.0, 1e-6)
    assert setting_of_study(replace(STUDY, privacy=None)).budget is None


def test_who_learns_alone_needs_no_sums():
    """Nor does one that agents never tell of anything; the server of fed2-ucb reads their means."""
    alone = ["ucb", "rca", "rb-tsde", "stay"]
    assert replace(STUDY, policies=alone).policies == tuple(alone)
    with pytest.raises(StudyError, match="'fed2-ucb' reads more than counts of pairs"):
        replace(STUDY, policies=["fed2-ucb"])


def test_a_file_says_it():
    table = STUDY.to_table()
    assert table["privacy"] == {"epsilon": 1.0}
    assert from_table(table).budget == STUDY.budget
    assert "privacy" not in replace(STUDY, privacy=None).to_table()


def test_a_sweep_over_epsilon():
    sweep = Sweep(STUDY, {"privacy.epsilon": [0.5, 8], "privacy.delta": [1e-5]})
    assert [point.study.budget for point in sweep.points] == [Budget(0.5, 1e-5), Budget(8, 1e-5)]
    assert [point.label for point in sweep.points] == ["epsilon = 0.5", "epsilon = 8"]


def test_groups_are_for_sums_with_noise_and_without():
    many = replace(STUDY, agents=10, privacy={"epsilon": 1.0, "groups": 3})
    assert (setting_of_study(many).groups, many.budget) == (3, Budget(1.0))
    bare = replace(many, schedule="paper", privacy={"groups": 3})
    assert (setting_of_study(bare).groups, bare.budget, bare.cost_warning) == (3, None, None)
    assert from_table(bare.to_table()).groups == 3
    sweep = Sweep(replace(many, agents=20), {"privacy.groups": [1, 5]})
    assert [point.study.groups for point in sweep.points] == [1, 5]
    assert "(23 or more" not in (many.cost_warning or "")
    assert "37 or more gain" in (many.cost_warning or "")


def test_a_survey_is_for_agents_that_draw_for_themselves():
    own = replace(STUDY, draws="own", privacy={"epsilon": 8.0, "survey": 16})
    assert (setting_of_study(own).survey, own.budget) == (16, Budget(8.0))
    assert setting_of_study(replace(own, privacy={"epsilon": 8.0})).survey == 0
    assert "and a survey cost 3 agents about as much" in (own.cost_warning or "")
    sweep = Sweep(own, {"privacy.survey": [8, 32]})
    assert [point.study.survey for point in sweep.points] == [8, 32]


@pytest.mark.parametrize(
    ("privacy", "said"),
    [
        ({"epsilon": 0}, r"^privacy\.epsilon must be a number above 0 and at most 100, got 0$"),
        ({"epsilon": 101}, r"^privacy\.epsilon must be .* got 101$"),
        ({"epsilon": 1, "delta": 0.01}, r"^privacy\.delta must be .* at most 0\.001, got 0\.01$"),
        ({"delta": 1e-6}, r"^privacy\.epsilon is missing$"),
        (
            {"epsilon": 1, "sigma": 3},
            r"^privacy: unknown 'sigma'; known are epsilon, delta, groups, survey$",
        ),
        (3, r"^privacy must be a table, got 3$"),
        ({}, r"^privacy\.epsilon is missing$"),
        ({"groups": 1, "delta": 1e-6}, r"^privacy\.epsilon is missing$"),
        ({"groups": 2}, r"^privacy\.groups must be .* from 1 to 1, for 3 of 3 agents .* got 2$"),
        ({"epsilon": 1, "groups": 0}, r"^privacy\.groups must be a whole number .* got 0$"),
        ({"epsilon": 1, "groups": 1.5}, r"^privacy\.groups must be a whole number .* got 1\.5$"),
        ({"epsilon": 1, "survey": 1}, r"^privacy\.survey must be .* from 2 to 1000000, got 1$"),
        ({"survey": 16}, r"^privacy\.survey needs privacy\.epsilon"),
        ({"epsilon": 1, "survey": 16}, r"^privacy\.survey needs draws = 'own', .* got 'shared'$"),
    ],
)
def test_a_bad_budget_is_refused(privacy, said):
    with pytest.raises(StudyError, match=said):
        replace(STUDY, privacy=privacy)


def test_a_run_warns_of_noise_that_costs_few_agents_much(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arms = "[[arm]]\np01 = 0.2\np11 = 0.8\nreward = 1.0\n" * 2
    keys = 'schedule = "linear"\nhorizon = 20\ntrials = 2\npolicies = ["random"]\n'
    Path("study.toml").write_text(f"plays = 1\n{keys}{arms}[privacy]\nepsilon = 8\n")
    assert main(["run", "study.toml", "--json"]) == 0
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert said.startswith("warning: noise of epsilon = 8 costs 1 agent more than they gain")


def test_a_report_names_the_points_where_noise_costs_much():
    sweep = Sweep(STUDY, {"privacy.epsilon": [1, 8], "agents": [3, 30]})
    notes = str(_noise_notes([(point.label, point.study) for point in sweep.points]))
    assert notes.count("Warning: ") == 2
    assert "epsilon = 1 costs 3 agents more than they gain" in notes
    assert "epsilon = 8 costs 3 agents" in notes
    assert "30" not in notes.replace("<p", "")
    assert not str(_noise_notes([("", replace(STUDY, privacy=None))]))


FULLY = Arms([Arm([[0.5, 0.5], [0.2, 0.8]], reward_active=[0, 1], observed="always")])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schedule": "paper"}, r"^schedule must be 'linear' or 'doubling' with privacy\.epsilon"),
        ({"weights": [1, 2, 3]}, r"^weights cannot go with privacy\.epsilon"),
        ({"policies": ["feducb-wi"]}, r"'feducb-wi' reads more than counts of pairs"),
        ({"policies": ["fed1-ucb"]}, r"'fed1-ucb' reads more than counts of pairs"),
        ({"policies": ["fedts-lookahead-gap"]}, r"is no Thompson index policy; fedtswi, "),
        ({"policies": ["fedtswi-robust"]}, r"'fedtswi-robust' reads more"),
        ({"aggregation": "gossip"}, r"'fedtswi' needs a sum over agents"),
        ({"options": {"fedtswi-gap": {"forget": 50}}}, r"'fedtswi-gap' forgets, and what is"),
        ({"options": {"fedtswi-gap": {"prior": "population"}}}, r"'fedtswi-gap' learns its prior"),
        (
            {"arms": FULLY, "policies": ["fedtswi"]},
            r"'fedtswi' learns from noise where all arms are channels, and arm 1",
        ),
    ],
)
def test_what_noise_is_not_for_is_refused_with_the_reason(changes, said):
    with pytest.raises(StudyError, match=said):
        replace(STUDY, **changes)


def test_a_learner_of_ones_own_is_refused():
    own = Policy("mine", lambda *_: None, lambda *_: None)
    with pytest.raises(StudyError, match=r"^privacy\.epsilon: 'mine' is a learner of one's own"):
        replace(STUDY, policies=[own])


def test_who_learns_alone_may_learn_by_anything():
    """Nothing of it is released."""
    alone = {"feducb-wi": {"aggregation": "none"}}
    assert replace(STUDY, policies=["feducb-wi", "fedtswi"], options=alone).budget
