"""Contestants: names with options, references, and policies of users."""

import pytest

import rmab
from rmab import StudyError
from rmab.arena.contestants import REFERENCES, contestants, own_contestant
from rmab.arena.problems import load_problem
from rmab.policies.registry import POLICIES, STUDIED
from tests.arena.made_up import expected, half


def test_all_policies_of_studies_enter_by_default():
    found = {each.name: each for each in contestants()}
    assert set(STUDIED) <= set(found)
    assert {each.partition("@")[0] for each in found} == set(STUDIED)
    for name, entry in POLICIES.items():
        if name in found:
            assert found[name].uses_true_dynamics == (entry.group == "known")


def test_named_ones_enter_with_the_references_and_options():
    found = contestants(["ucb@c=3", "fedtswi@prior=[1, 0.5]"])
    assert [each.name for each in found] == ["ucb@c=3", "fedtswi@prior=[1, 0.5]", *REFERENCES]
    assert found[0].options == {"c": 3}
    assert found[0].label == "UCB, c 3"
    values = {"ucb@c=.5": 0.5, "ucb@c=1.": 1.0, "ucb@c=1e1": 10.0, "ucb@c=.5e1": 5.0}
    assert [each.options["c"] for each in contestants(list(values))[:4]] == list(values.values())
    study = load_problem("c1").study
    assert found[0].enter(study).name == "ucb@c=3"
    assert found[0].enter(study) is contestants(["ucb@c=3"])[0].enter(study)  # and so its program


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["fly"], "policies: unknown 'fly'; known are fedtswi"),
        (["c1"], "'c1' is a problem"),
        (["ucb@c"], "NAME@OPTION=VALUE"),
        (["ucb@speed=2"], "unknown key 'speed'; ucb has c"),
        (["ucb@c=-1"], r"policies: ucb@c=-1: ucb\.c must be a number from 0"),
        (["ucb@c=."], "c must be a number from 0"),
    ],
)
def test_bad_names_are_refused(names, words):
    with pytest.raises(StudyError, match=words):
        contestants(names)


def ending():
    raise SystemExit(3)


def test_a_policy_that_would_end_the_program_or_has_two_lines_is_refused():
    with pytest.raises(StudyError, match="--policy mine:it: cannot be made: SystemExit: 3"):
        own_contestant("mine:it", ending)
    with pytest.raises(StudyError, match="its name must be one line"):
        own_contestant("mine:it", rmab.Policy("a\nb", planner=expected))


@pytest.mark.parametrize("found", [3, "policy", lambda: 4, None])
def test_what_is_no_policy_is_refused(found):
    with pytest.raises(StudyError, match=r"--policy mine:it: must be an rmab\.Policy"):
        own_contestant("mine:it", found)


def test_two_of_a_name_are_refused():
    own = own_contestant("mine:policy", rmab.Policy("ucb", planner=expected, learner=half))
    with pytest.raises(StudyError, match="must differ in name, got 'ucb' twice"):
        contestants(["ucb"], [own])
