"""Policies by name: what a study may name is what there is, with the same options."""

import pytest

from rmab.errors import ModelError, StudyError
from rmab.policies.policy import Forgetting, Policy, Sharing
from rmab.policies.registry import GROUPS, LEARNERS, OPTIONS, POLICIES, check_options, named

VALUES = {
    "L": 2.0,
    "ages": 3,
    "aggregation": "none",
    "c": 3.0,
    "clip": True,
    "degree": 3,
    "delta": 0.01,
    "depth": 3,
    "epsilon": 1.0,
    "equal": True,
    "exploration": 2.0,
    "explore": 0.2,
    "exponent": 0.5,
    "failure": 0.25,
    "forget": "bank",
    "gaps": 16,
    "graph": "grid",
    "index_rate": 0.3,
    "longest": 50,
    "plan_by": "mode",
    "planner": "myopic",
    "prior": 2.0,
    "pulls": 10,
    "radius": 0.0,
    "rate": 0.05,
    "scale": 0.1,
    "sigma": 1.0,
    "sigma_c": 0.1,
    "support": 4,
    "tied": True,
}


@pytest.mark.parametrize("name", POLICIES)
def test_every_entry_makes_its_policy(name):
    """With exactly the options that it says it has."""
    entry = POLICIES[name]
    policy = named(name, 100)
    assert policy.name == name
    assert (policy.learns or policy.rule.learns) == (name in LEARNERS)
    assert set(entry.options) <= set(VALUES) == set(OPTIONS)
    for option, value in VALUES.items():
        if option in entry.options:
            check_options(name, {option: value}, "options")
            named(name, 100, {option: value})
        else:
            with pytest.raises(StudyError, match=f"unknown key '{option}'; {name} "):
                check_options(name, {option: value}, "options")


def test_entries_differ_where_people_tell_them_apart():
    entries = list(POLICIES.values())
    assert {entry.group for entry in entries} == set(GROUPS)
    for key in ("summary", "label", "colour"):
        assert len({getattr(entry, key) for entry in entries}) == len(entries)
    assert all(option.allowed(VALUES[name]) for name, option in OPTIONS.items())


def test_policies_that_learn_from_every_look_count_by_gap():
    for name in LEARNERS:
        every_look = name.endswith(("-gap", "-robust", "-grid"))
        colours = 3 if name == "colored-ucrl2" else 0  # gaps below the highest age
        assert named(name, 100).learner.gaps == (32 if every_look else colours)
    policy = named("fedtswi-gap", 100, {"gaps": 12})
    assert policy.learner.gaps == 12
    assert getattr(policy.learner.function, "keywords", {})["gaps"] == 12


def test_the_same_policy_is_the_same_object():
    """Its compiled program is found by identity."""
    assert named("feducb-wi", 100, {"clip": False}) is named("feducb-wi", 100, {"clip": False})
    assert named("fedtswi", 100, {"prior": [1, 2]}) is named("fedtswi", 100, {"prior": (1, 2)})
    assert named("fedtswi", 100) is not named("fedtswi", 200)


@pytest.mark.parametrize(
    ("key", "value"), [("depth", 2.0), ("depth", -1), ("gaps", -1), ("gaps", 2.5), ("max_age", 0)]
)
def test_numbers_of_ones_own_policy_are_checked(key, value):
    with pytest.raises(
        ModelError, match=f"policy mine: {key} must be a whole number .* got {value}"
    ):
        Policy("mine", None, **{key: value})


@pytest.mark.parametrize("value", [0, -3, float("nan"), float("inf"), True, "soon", None])
def test_a_half_life_is_a_positive_number(value):
    with pytest.raises(StudyError, match=r"options\.forget must be .*half-life.*, got "):
        check_options("fedtswi-gap", {"forget": value}, "options")


@pytest.mark.parametrize("value", [0, -1, 2.5, True, "50"])
def test_the_longest_episode_is_a_whole_number(value):
    with pytest.raises(StudyError, match=r"options\.longest must be a whole number from 1 .* got "):
        check_options("fedtswi-gap", {"longest": value}, "options")


def test_a_prior_is_learnt_by_those_that_learn_from_any_gap():
    check_options("fedtswi-gap", {"prior": "population"}, "options")
    with pytest.raises(
        StudyError, match=r"prior must be a number.*, or 'population', got 'people'"
    ):
        check_options("fedtswi-gap", {"prior": "people"}, "options")
    with pytest.raises(StudyError, match=r"prior must be a number.* got 'population'"):
        check_options("fedtswi", {"prior": "population"}, "options")
    with pytest.raises(StudyError, match=r"plan_by must be \"draw\" or \"mode\", got 'mean'"):
        check_options("fedtswi-gap", {"plan_by": "mean"}, "options")


def test_robust_names_have_all_of_it_set_and_options_go_over_it():
    for name in ("fedtswi-robust", "fedts-myopic-robust", "fedce-myopic-robust"):
        policy = named(name, 100)
        assert policy.sharing == Sharing("pairs", "per-agent")
        assert policy.episodes.longest == 50
        bank = Forgetting((float("inf"), 2048.0, 512.0, 128.0), (0.7, 0.1, 0.1, 0.1))
        assert policy.learner.forget == bank
        assert policy.learner.prior == "population"
        assert policy.learner.randomised == (name != "fedce-myopic-robust")
    other = named("fedtswi-robust", 100, {"forget": "never", "aggregation": "sum", "prior": 2.0})
    assert (other.learner.forget, other.learner.prior) == (None, 2.0)
    assert (other.sharing.aggregation, other.episodes.longest) == ("sum", 50)


def test_plain_names_have_the_defaults_of_before():
    policy = named("fedtswi-gap", 100)
    assert (policy.learner.forget, policy.episodes.longest) == (None, None)
    assert policy.sharing == Sharing()
    assert policy.learner.prior == 1.0
    assert policy.learner.randomised


def test_a_half_life_is_one_expert():
    assert named("fedtswi-gap", 100, {"forget": 200}).learner.forget == Forgetting((200.0,), (1.0,))
