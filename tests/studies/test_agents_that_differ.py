"""Agents that differ: [[agent]] tables, what agents meet, what is known of them, what is learnt."""

import tomllib
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import rmab
from rmab.errors import StudyError
from rmab.model.arms import Arm, Arms
from rmab.planning.tables import myopic
from rmab.policies.capabilities import Conditions
from rmab.policies.refusal import refusal
from rmab.policies.registry import POLICIES, STUDIED
from rmab.report.tables import settings_table
from rmab.studies.study import from_table
from rmab.studies.sweep import Sweep

ARMS = rmab.channels([0.2, 0.89, 0.1], [0.8, 0.17, 0.9], [0.4, 0.9, 0.7])
OTHER = rmab.channels([0.6, 0.3, 0.1], [0.9, 0.4, 0.9], [0.4, 0.9, 0.7])
PAID = rmab.channels([0.2, 0.89, 0.1], [0.8, 0.17, 0.9], [1.0, 0.2, 0.1])
STUDY = rmab.Study(
    ARMS, agents=2, horizon=100, trials=64, schedule="linear", policies=["whittle"], seed=5
)

FILE = """
agents = 4
horizon = 50
policies = ["whittle"]

[[arm]]
p01 = 0.2
p11 = 0.8
reward = 0.4

[[arm]]
passive = [[0.7, 0.3], [0.2, 0.8]]
active = [[0.5, 0.5], [0.1, 0.9]]
reward = [0.1, 1.0]
observed = "always"

[[agent]]
agents = [2, 3]

[[agent.arm]]
number = 2
reward = [0.0, 2.0]

[[agent.arm]]
number = 1
p11 = 0.5

[[agent]]
agents = 4
rewards = [0.9, [0.5, 0.6]]
"""


def differ(arms: Arms, agents: int | list[int] = 2) -> list[dict[str, Any]]:
    return [{"agents": agents, "arms": arms}]


# --------------------------------------------------------------------------------------- the tables


def test_a_file_says_which_agents_differ_and_in_what():
    study = from_table(tomllib.loads(FILE))
    first, second, third, fourth = study.agent_arms
    assert list(first) == list(study.arms)
    assert second is third
    assert second[0].passive[:, 1].tolist() == [0.2, 0.5]
    assert second[0].reward_active[1] == 0.4, "as the study has it"
    assert second[1].reward_active.tolist() == [0.0, 2.0]
    np.testing.assert_array_equal(second[1].active, study.arms[1].active)
    assert [arm.reward_active.tolist() for arm in fourth] == [[0.0, 0.9], [0.5, 0.6]]
    assert list(study.differing_arms.values()) == [1, 2, 1]
    again = from_table(study.to_table())
    assert again.to_table() == study.to_table()
    assert again.agent_arms[3][1].reward_active.tolist() == [0.5, 0.6]
    assert "agent" not in STUDY.to_table()
    assert "agents 2, 3, arm 1: p11 = 0.5" in str(settings_table([("", study, None)]))
    assert "Agents that differ" not in str(settings_table([("", STUDY, None)]))


def test_arms_may_be_given_whole():
    study = replace(STUDY, agent=differ(OTHER))
    np.testing.assert_array_equal(study.agent_arms[1].p01, OTHER.p01)
    again = from_table(study.to_table())
    np.testing.assert_array_equal(again.agent_arms[1].p11, OTHER.p11)


def test_a_sweep_changes_what_agents_do_not_override():
    study = replace(STUDY, agent=[{"agents": 2, "arm": [{"number": 1, "reward": 0.5}]}])
    sweep = Sweep(study, {"arm.1.p11": [0.3, 0.6], "copies": [1, 2]})
    last = sweep.points[-1].study
    own = last.agent_arms[1]
    assert len(own) == 6
    assert own.p11.tolist() == [0.6, 0.17, 0.9] * 2
    assert own.reward.tolist() == [0.5, 0.9, 0.7] * 2
    with pytest.raises(StudyError, match="agents must be numbers from 1 to 1, got 2"):
        Sweep(study, {"agents": [2, 1]})


CONTROLLED = Arm([[0.7, 0.3], [0.2, 0.8]], [[0.5, 0.5], [0.1, 0.9]], reward=[0.0, 1.0])


@pytest.mark.parametrize(
    ("agent", "why"),
    [
        (
            [{"agents": 3, "rewards": [1, 1, 1]}],
            r"\[\[agent\]\] 1: agents must be numbers from 1 to 2",
        ),
        ([{"agents": [0], "rewards": [1, 1, 1]}], r".*: agents must be numbers from 1 to 2, got 0"),
        ([{"rewards": [1, 1, 1]}], r".*: agents is missing"),
        ([{"agents": 1}], r".*: arm or rewards must say what is different"),
        ([{"agents": 1, "rewards": [1, 1]}], r".*: rewards must be 3 numbers, or lists"),
        ([{"agents": 1, "arm": [{"number": 4}]}], r".*number of an arm must be from 1 to 3, got 4"),
        ([{"agents": 1, "who": 1}], r".*: unknown key 'who'; known are agents, arm, rewards"),
        ([{"agents": 1, "arm": [{"p11": 2}]}], r"agent 1, arm 1: p11 must lie in \[0, 1\]"),
        ([{"agents": 1, "arm": [{"p12": 2}]}], r"agent 1, arm 1: unknown key 'p12'"),
        ([{"agents": 1, "arm": [{"reward": 1e31}]}], r"agent 1, arm 1: reward_active of state 1"),
        (
            [{"agents": [1, 2], "rewards": [1, 1, 1]}, {"agents": 2, "arm": [{"p11": 0.1}]}],
            r"\[\[agent\]\] 2: agent 2, arm 1 is there twice",
        ),
        (
            [{"agents": 1, "rewards": [1, 1, 1], "arm": [{"reward": 0.1}]}],
            r".*: arm 1: reward is there twice",
        ),
        (differ(Arms([CONTROLLED, *ARMS[1:]])), r"agent 2, arm 1 must be of the kind of arm 1"),
        ("two", r"agent must be \[\[agent\]\] tables"),
    ],
)
def test_what_no_agent_can_have_is_refused_in_a_line(agent, why):
    with pytest.raises(StudyError, match=rf"^{why}[^\n]*$"):
        replace(STUDY, agent=agent)


def test_agents_share_realisations_where_only_rewards_differ():
    shared = replace(STUDY, realisations="shared", trials=32, horizon=60)
    with pytest.raises(StudyError, match=r"^realisations must be 'independent', as agent 2, arm 1"):
        replace(shared, agent=differ(OTHER))
    found = rmab.run(replace(shared, agent=differ(PAID), policies=["stay", "whittle"]))
    assert found.mean["whittle"] > 0


# -------------------------------------------------------------------------------- what agents earn


def by_slot(study: rmab.Study, first: Arms, second: Arms) -> dict[str, np.ndarray]:
    """What policies earn where the first agent has these arms and the second those."""
    alike = first is second
    found = rmab.run(replace(study, arms=first, agent=() if alike else differ(second)))
    return {name: found[name].slots.mean for name in found.mean}


def check_each_plays_its_own_game(study: rmab.Study, arms: Arms, other: Arms) -> None:
    """Agents that share nothing do not notice each other: what two of a kind earn and two of the
    other is what one of each earns, first and second, on the same trials."""
    alike = [by_slot(study, one, one) for one in (arms, other)]
    mixed = by_slot(study, arms, other), by_slot(study, other, arms)
    for name in alike[0]:
        total = alike[0][name] + alike[1][name]
        np.testing.assert_allclose(mixed[0][name] + mixed[1][name], total, rtol=1e-6, err_msg=name)
        assert abs(mixed[0][name] - mixed[1][name]).max() > 1e-3


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(OTHER, id="laws", marks=pytest.mark.slow),
        pytest.param(PAID, id="rewards", marks=pytest.mark.slow),
    ],
)
def test_agents_that_differ_play_and_know_and_learn_their_own_arms(other):
    policies = ["whittle", "lookahead", "optimal", "stay", "fedtswi"]
    study = replace(STUDY, policies=policies, aggregation="none", horizon=60)
    check_each_plays_its_own_game(study, ARMS, other)


GENERAL = Arms(
    [
        Arm(
            [[0.9, 0.1], [0.4, 0.6]], [[0.5, 0.5], [0.1, 0.9]], reward=[0.0, 1.0], observed="always"
        ),
        Arm([[0.7, 0.3, 0.0], [0.2, 0.5, 0.3], [0.0, 0.4, 0.6]], reward=[0.0, 0.5, 1.0]),
    ]
)
GENERAL_OTHER = Arms(
    [
        Arm(
            [[0.2, 0.8], [0.3, 0.7]], [[0.9, 0.1], [0.6, 0.4]], reward=[0.2, 0.9], observed="always"
        ),
        # The other one's states in reverse: tables of learnt dynamics have as many ages.
        Arm([[0.6, 0.4, 0.0], [0.3, 0.5, 0.2], [0.0, 0.3, 0.7]], reward=[0.0, 0.4, 1.2]),
    ]
)


@pytest.mark.slow  # tables, filled for each agent
def test_agents_of_arms_of_any_kind_differ():
    policies = ["whittle", "lookahead", "fixed-best", "stay", "fedtswi"]
    study = replace(STUDY, policies=policies, aggregation="none", horizon=60)
    check_each_plays_its_own_game(study, GENERAL, GENERAL_OTHER)


def test_many_states_of_agents_that_differ_move_by_their_own_law():
    """More states than are selected one by one: found by bisection, in one table for all agents."""
    size = 6
    up = np.roll(np.eye(size), 1, axis=1)  # always one further
    down = np.roll(np.eye(size), -1, axis=1)
    pays = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    study = replace(
        STUDY, arms=Arms([Arm(up, reward=pays)]), policies=["stay"], trials=32, horizon=12
    )
    found = rmab.run(replace(study, agent=differ(Arms([Arm(down, reward=pays[::-1])]))))
    # An arm that goes round pays the same in six slots, wherever it starts.
    np.testing.assert_allclose(found["stay"].mean, 2.5, rtol=1e-6)
    by_slot = found["stay"].slots.mean
    np.testing.assert_allclose(by_slot[:6], by_slot[6:], rtol=1e-6)


# ----------------------------------------------------------------------------------- what is learnt


def test_a_shared_draw_is_planned_with_each_agents_own_rewards():
    """Agents with the same laws and other rewards share counts and a draw."""
    study = replace(STUDY, policies=["fedtswi"], horizon=400, agent=differ(PAID))
    found = rmab.run(study)
    # Whoever went by the other's rewards would earn half as much.
    values = rmab.value(study)
    assert values["whittle"] is not None
    assert found["fedtswi"].final > 0.9 * values["whittle"]


@pytest.mark.parametrize("draws", ["shared", "per-agent"])
def test_estimates_are_held_against_each_agents_own_law(draws):
    def half(evidence, draws):
        guess = jnp.full((3, 1), 0.5)
        return guess, guess

    mine = rmab.Policy("half", myopic, half, statewise=True)
    study = replace(STUDY, agents=3, policies=[mine], draws=draws, horizon=20, trials=32)
    found = rmab.run(replace(study, agent=differ(OTHER, [2, 3])))["half"].episode_error
    assert found is not None

    def off(arms: Arms) -> np.ndarray:
        return np.asarray(((arms.p01 - 0.5) ** 2 + (arms.p11 - 0.5) ** 2) / 2)

    expected = (off(ARMS) + 2 * off(OTHER)) / 3
    np.testing.assert_allclose(found.mean, np.tile(expected, (len(found.mean), 1)), rtol=1e-5)


def test_exact_values_are_means_over_agents():
    study = replace(STUDY, agents=3, agent=differ(OTHER, [2, 3]))
    found = rmab.value(study)
    first, second = rmab.value(STUDY), rmab.value(replace(STUDY, arms=OTHER))
    for name, value in found.items():
        one, other = first[name], second[name]
        assert value is not None
        assert one is not None
        assert other is not None
        assert value == pytest.approx((one + 2 * other) / 3)


WATCHED = Arms(
    [GENERAL[0], Arm(GENERAL[0].active, GENERAL[0].passive, reward=[0.3, 0.5], observed="always")]
)
WATCHED_OTHER = Arms([GENERAL_OTHER[0], WATCHED[1]])
WATCHED_PAID = Arms(
    Arm(arm.passive, arm.active, reward=[0.4, 0.9], observed="always") for arm in WATCHED
)
# Agents wait for one another where a policy has lengths of its own, or learn from one another.
TOGETHER = ("dsee", "fed1-ucb", "fed2-ucb", "restless-ucb", "ucw-", "-robust")


@pytest.mark.slow  # every policy there is
@pytest.mark.parametrize("what", ["laws", "rewards"])
@pytest.mark.parametrize("name", STUDIED)
def test_every_policy_plays_where_agents_differ(name, what):
    watched = refusal(name, Conditions(ARMS.kinds))
    arms, others = (WATCHED, (WATCHED_OTHER, WATCHED_PAID)) if watched else (ARMS, (OTHER, PAID))
    other = others[what == "rewards"]
    options = {name: {"aggregation": "none"}} if "aggregation" in POLICIES[name].options else {}
    study = replace(STUDY, arms=arms, policies=[name], options=options, horizon=40, trials=32)
    if not any(part in name for part in TOGETHER):
        check_each_plays_its_own_game(study, arms, other)
        return
    mixed = by_slot(study, arms, other)[name]
    assert np.isfinite(mixed).all()
    assert mixed.mean() > 0
