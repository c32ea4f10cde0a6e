"""Policies are put together from parts, or from options that become parts."""

from dataclasses import fields, replace

import pytest

from rmab.policies.episode_rules import EpisodeRule, OwnVisits
from rmab.policies.policy import Forgetting, Learner, Lengths, OwnIndexRule, Policy, Sharing
from rmab.policies.rules.index import IndexRule
from rmab.policies.rules.lookahead import LookaheadRule
from rmab.policies.rules.turns import TurnsRule


def planner(dynamics, states):
    return dynamics.reward * states.age


def function(evidence, draws):
    return evidence.counts


def test_a_policy_has_five_parts():
    names = [field.name for field in fields(Policy)]
    assert names == ["name", "learner", "rule", "episodes", "sharing"]


def test_options_become_parts():
    forget = Forgetting((50.0,))
    policy = Policy(
        "mine", planner, function, max_age=9, gaps=8, forget=forget, longest=7, draws="per-agent"
    )
    assert isinstance(policy.rule, IndexRule)
    assert (policy.rule.planner, policy.rule.max_age, policy.rule.statewise) == (planner, 9, False)
    assert (policy.learner.function, policy.learner.gaps) == (function, 8)
    assert policy.learner.forget == forget
    assert policy.episodes.longest == 7
    assert policy.sharing == Sharing(None, "per-agent")
    assert policy.learns


def test_a_policy_without_learner_knows_the_dynamics():
    policy = Policy("mine", depth=2)
    assert policy.rule == LookaheadRule(2)
    assert not policy.learns
    assert type(policy.episodes) is EpisodeRule


def test_episodes_are_a_part():
    assert isinstance(Policy("mine", planner, function, own_visits=True).episodes, OwnVisits)
    lengths = Lengths(lambda evidence, output: 3, least=3)
    policy = Policy("mine", planner, function, lengths=lengths, explores=planner)
    assert isinstance(policy.episodes, Lengths)
    assert (policy.episodes.least, policy.episodes.explored) == (3, planner)
    assert policy.estimates
    assert not Policy("mine", planner, function, lengths=replace(lengths, least=1)).estimates
    assert not Policy("mine", learner=function, rule=TurnsRule()).estimates


def test_parts_are_given_as_they_are():
    parts = Learner(function, gaps=8), TurnsRule(), OwnVisits(), Sharing("none")
    policy = Policy("mine", learner=parts[0], rule=parts[1], episodes=parts[2], sharing=parts[3])
    assert (policy.learner, policy.rule, policy.episodes, policy.sharing) == parts
    other = replace(policy, name="other", sharing=Sharing())
    assert (other.name, other.learner, other.sharing) == ("other", parts[0], Sharing())


def test_a_learner_with_a_state_is_of_the_rule_or_gives_dynamics():
    policy = Policy("mine", rule=OwnIndexRule(object()))
    assert policy.rule.learns
    assert not policy.learns


def test_an_unknown_option_is_refused():
    with pytest.raises(TypeError, match="unexpected keyword argument 'ages'"):
        Policy("mine", planner, ages=3)
