"""Policies by name: what a study may name is what there is, with the same options."""

import pytest

from rmab.errors import ModelError, StudyError
from rmab.policies.policy import Policy
from rmab.policies.registry import GROUPS, LEARNERS, OPTIONS, POLICIES, check_options, named

VALUES = {
    "aggregation": "none",
    "c": 3.0,
    "clip": True,
    "depth": 3,
    "gaps": 16,
    "prior": 2.0,
    "sigma": 1.0,
}


@pytest.mark.parametrize("name", POLICIES)
def test_every_entry_makes_its_policy(name):
    """With exactly the options that it says it has."""
    entry = POLICIES[name]
    policy = named(name, 100)
    assert policy.name == name
    assert (policy.learner is not None or policy.own is not None) == (name in LEARNERS)
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
        assert named(name, 100).gaps == (32 if name.endswith("-gap") else 0)
    policy = named("fedtswi-gap", 100, {"gaps": 12})
    assert policy.gaps == 12
    assert getattr(policy.learner, "keywords", {})["gaps"] == 12


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
