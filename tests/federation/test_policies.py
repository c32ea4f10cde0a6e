"""Policies by name: what a study may name is what there is, with the same options."""

import inspect

from rmab.federation.policies import POLICIES, named
from rmab.studies.study import KNOWN, LEARNERS, OPTIONS


def test_a_study_knows_the_policies_that_exist():
    assert sorted((*LEARNERS, *KNOWN)) == sorted(POLICIES)
    for name in POLICIES:
        assert (named(name, 100).learner is not None) == (name in LEARNERS)


def test_a_study_knows_the_options_that_exist():
    for name, make in POLICIES.items():
        parameters = inspect.signature(make).parameters.values()
        taken = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        assert sorted(OPTIONS.get(name, ())) == sorted(taken), name


def test_the_same_policy_is_the_same_object():
    """Its compiled program is found by identity."""
    assert named("feducb-wi", 100, {"clip": False}) is named("feducb-wi", 100, {"clip": False})
    assert named("fedtswi", 100, {"prior": [1, 2]}) is named("fedtswi", 100, {"prior": (1, 2)})
    assert named("fedtswi", 100) is not named("fedtswi", 200)
