"""Refusals of policy objects; refusals by name are tested with studies and federations."""

import pytest

from rmab.model.arms import CHANNEL, ArmKind
from rmab.policies.aggregation import AGGREGATIONS
from rmab.policies.capabilities import Conditions
from rmab.policies.policy import Forgetting, Policy
from rmab.policies.refusal import refusal
from rmab.policies.registry import POLICIES, named

OWN = Conditions((CHANNEL,), channels=(True,), draws="own")
LEVELS = ArmKind(3, fully_observed=False, action_dependent=False)


@pytest.mark.parametrize("name", ["feducb-wi", "fed1-ucb", "fedts-lookahead-gap", "tsde"])
def test_policies_that_do_not_draw_for_an_index_are_refused(name):
    why = refusal(named(name, 100), OWN)
    assert why == f"policy {name}: draws must not be 'own' but for Thompson sampling and an index"


def test_local_draws_need_channels_and_a_sum_of_counts():
    policy = named("fedtswi", 100)
    assert refusal(policy, OWN) is None
    for at, why in (
        (Conditions((CHANNEL,), channels=(False,), draws="own"), "unless arms are channels"),
        (Conditions((CHANNEL,), aggregation="none", draws="own"), "unless agents share a sum"),
    ):
        assert refusal(policy, at) == f"policy fedtswi: draws must not be 'own' {why}"
    forgets = named("fedtswi-gap", 100, {"forget": 100.0})
    assert "where counts are forgotten or a prior is learnt" in (refusal(forgets, OWN) or "")


def test_learnt_priors_and_several_half_lives_are_for_channels():
    several = Policy(
        "mine", lambda _d, _s: 0, lambda _e, _d: 0, forget=Forgetting((1.0, 9.0), (0.5, 0.5))
    )
    assert refusal(several, Conditions((CHANNEL,))) is None
    assert "several half-lives are for arms of two states" in (
        refusal(several, Conditions((LEVELS,))) or ""
    )


def test_a_learner_of_unknown_reading_is_refused_with_noise():
    mine = Policy("mine", lambda _d, _s: 0, lambda _e, _d: 0)
    why = refusal(mine, Conditions((CHANNEL,), noise=True))
    assert why is not None
    assert why.endswith("of which it is not known what it reads")
    assert refusal(named("whittle", 100), Conditions((CHANNEL,), noise=True)) is None


@pytest.mark.parametrize("name", POLICIES)
def test_capabilities_agree_with_the_policy(name):
    able, policy = POLICIES[name].capabilities, named(name, 100)
    assert (able.reads in ("own", "counts")) == (policy.learns or policy.rule.learns)
    if able.local_draws:
        assert refusal(policy, OWN) is None
    if policy.sharing.aggregation is not None:
        assert policy.sharing.aggregation in AGGREGATIONS
