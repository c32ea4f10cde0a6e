"""Runs of the arena: admitted policies, refusals, and policies of users that fail."""

from dataclasses import replace

import jax.numpy as jnp
import pytest

import rmab
from rmab import StudyError
from rmab.arena.contestants import contestants, own_contestant
from rmab.arena.problems import ArenaProblem, load_problem
from rmab.arena.run import Arena
from rmab.envs.evaluation import as_policy
from rmab.errors import RmabError
from tests.arena.made_up import expected, half


def test_sharing_is_compared_where_there_are_agents_to_share():
    alone = "fedtswi@aggregation=none"
    arena = Arena([each for each in contestants() if each.base == "fedtswi"])
    playing, refused = arena.admitted(load_problem("paper-k1-m4"))
    assert {"fedtswi", alone} <= set(playing)
    assert playing[alone].sharing.aggregation == "none"
    mixed = playing["fedtswi@aggregation=gossip"].sharing.aggregation
    study = replace(load_problem("paper-k1-m4").study, aggregation="gossip", policies=["fedtswi"])
    assert mixed == study.shares("fedtswi")
    playing, refused = arena.admitted(load_problem("paper-k1-m1"))
    assert alone in refused
    assert "one agent" in refused[alone]


def test_what_takes_long_plays_if_it_is_named():
    many = load_problem("n256")
    _, refused = Arena(contestants(["fedtswi-robust"])).admitted(many)
    assert refused["fedtswi-robust"].startswith("left out: ")
    assert refused["lookahead"].startswith("left out: ")
    asked = {"n256": ["fedtswi-robust"]}
    playing, refused = Arena(contestants(["fedtswi-robust"]), asked).admitted(many)
    assert "fedtswi-robust" in playing
    assert list(refused) == ["lookahead"]


def test_refusals_are_in_the_words_of_the_study():
    arena = Arena(contestants(["fedtswi", "fedtswi-robust", "optimal"]))
    _, refused = arena.admitted(load_problem("rb-4"))
    with pytest.raises(StudyError) as said:
        rmab.Study(arms=load_problem("rb-4").study.arms, policies=["fedtswi-robust"])
    assert refused == {"fedtswi-robust": str(said.value)}
    _, refused = arena.admitted(load_problem("n64"))
    assert set(refused) == {"optimal"}
    assert "64 arms" in refused["optimal"]


def wrong(evidence, draws):
    return evidence.nothing_like_it


def test_ones_own_policy_is_refused_where_it_is_not_for_the_arms():
    own = own_contestant("mine:policy", rmab.Policy("mine", planner=expected, learner=half))
    arena = Arena(contestants(["ucb"], [own]))
    _, refused = arena.admitted(load_problem("rb-4"))
    assert list(refused) == ["mine"]
    assert "table" in refused["mine"]
    assert not own.uses_true_dynamics


def _short(problem: ArenaProblem) -> ArenaProblem:
    return replace(problem, study=replace(problem.study, horizon=20))


def test_an_agent_of_another_library_is_ranked_with_those_that_learn():
    own = own_contestant("mine:agent", as_policy(lambda observation: observation["age"], "agent"))
    assert not own.uses_true_dynamics
    playing, _ = Arena(contestants(["ucb"], [own])).admitted(_short(load_problem("c1")))
    assert playing["agent"].name == "agent"
    knowing = own_contestant("mine:known", rmab.Policy("known", planner=expected))
    assert knowing.uses_true_dynamics


def test_ones_own_policy_that_fails_ends_the_arena(tmp_path):
    path = tmp_path / "tiny.toml"
    arm = "[[arm]]\np01 = 0.1\np11 = 0.9\nreward = 1\n"
    path.write_text("horizon = 20\ntrials = 32\n" + 2 * arm)
    own = own_contestant(
        "mine:policy", lambda: rmab.Policy("mine", planner=expected, learner=wrong)
    )
    arena = Arena(contestants(["ucb"], [own]))
    with pytest.raises(RmabError, match="mine:policy: fails on tiny: AttributeError") as said:
        arena.admitted(load_problem(str(path)))
    assert not isinstance(said.value, StudyError)


def test_ones_own_policy_that_fails_later_ends_the_arena_on_one_line():
    calls: list[object] = []

    def later(observation):
        calls.append(observation)
        if len(calls) > 20:  # slots of the trial that is tried
            raise ValueError("no\nmore")
        return observation["age"]

    own = own_contestant("mine:agent", as_policy(later, "agent"))
    with pytest.raises(RmabError, match=r"^--policy mine:agent: fails on c1: ValueError: no$"):
        Arena(contestants(["ucb"], [own])).run(_short(load_problem("c1")))


def test_ones_own_policy_that_no_problem_takes_ends_the_arena():
    wrong = own_contestant("mine:wrong", as_policy(lambda observation: [1, 2, 3], "wrong"))
    shape = rmab.Policy("shape", planner=lambda dynamics, states: jnp.zeros(3))
    short = [_short(load_problem("c1"))]
    for own, rule in (
        (wrong, "2 scores"),
        (own_contestant("mine:shape", shape), "its planner must"),
    ):
        with pytest.raises(StudyError, match=f"mine:.*: plays nowhere; c1: .*{rule}"):
            Arena(contestants(["ucb"], [own])).check_own(short)
    channels_alone = own_contestant("mine:one", rmab.Policy("one", planner=expected, learner=half))
    arena = Arena(contestants(["ucb"], [channels_alone]))
    arena.check_own([*short, _short(load_problem("rb-4"))])  # which one of them takes
