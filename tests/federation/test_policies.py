"""Policies by name: what a study may name is what there is, with the same options."""

import pytest

from rmab.errors import ModelError
from rmab.policies.registry import POLICIES, Policy, named
from rmab.policies.settings import KNOWN, LEARNERS, OPTIONS


def test_a_study_knows_the_policies_that_exist():
    assert sorted((*LEARNERS, *KNOWN)) == sorted(POLICIES)
    for name in POLICIES:
        assert (named(name, 100).learner is not None) == (name in LEARNERS)


def test_a_study_knows_the_options_that_exist():
    values = {"clip": True, "depth": 3, "gaps": 16, "prior": 2.0, "sigma": 1.0}
    assert set(values) == {option for taken in OPTIONS.values() for option in taken}
    for name, make in POLICIES.items():
        for option, value in values.items():
            if option in OPTIONS.get(name, ()):
                make(name, 100, **{option: value})
            else:
                with pytest.raises(TypeError):
                    make(name, 100, **{option: value})


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
