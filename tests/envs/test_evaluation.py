"""Callables on the engine's trials, beside the engine's policies."""

import numpy as np
import pytest

import rmab.envs
from rmab import InformationStates, Study, StudyError, channels
from rmab.arena.contestants import own_contestant
from rmab.arena.problems import load_problem
from rmab.arena.run import Arena
from rmab.errors import RmabError
from rmab.planning.channel.whittle import whittle_at

# Rewards whose sums tell which arms paid them.
ARMS = channels(
    p01=[0.2, 0.89, 0.1, 0.9],
    p11=[0.8, 0.17, 0.9, 0.16],
    reward=[0.4137, 0.9021, 0.7333, 0.6179],
)


def small(**others) -> Study:
    return Study(**{"arms": ARMS, "horizon": 60, "trials": 40, "seed": 7, **others})


def by_whittle(observation):
    states = InformationStates(observation["last_seen"], observation["age"])
    return whittle_at(ARMS.dynamics, states)


def always_second(observation):
    return 1


@pytest.mark.parametrize(
    "study",
    [small(policies=["whittle"]), small(policies=["whittle"], agents=3, plays=2)],
    ids=["one agent", "three agents"],
)
def test_whittle_from_outside_earns_what_the_engines_whittle_earns_to_the_last_digit(study):
    found = rmab.envs.evaluate(by_whittle, study, name="mine")
    for key in ("mean", "se", "final", "final_se"):
        assert getattr(found["mine"], key) == getattr(found["whittle"], key)
    np.testing.assert_array_equal(found["mine"].slots.mean, found["whittle"].slots.mean)
    assert found.difference("mine", "whittle") == (0.0, 0.0)
    assert (found["mine"].behind, found["mine"].behind_se) == (0.0, 0.0)
    at_once = rmab.envs.evaluate(by_whittle, study, name="mine", batched=True)
    assert at_once["mine"].mean == found["mine"].mean


@pytest.mark.slow
def test_on_shared_realisations_only_the_order_of_a_sum_differs():
    study = small(policies=["whittle"], agents=3, plays=2, realisations="shared")
    found = rmab.envs.evaluate(by_whittle, study, batched=True)
    assert found["agent"].mean == pytest.approx(found["whittle"].mean, rel=3e-7)


def test_differences_are_paired():
    """A fixed arm's rewards go up and down with the channels that all policies meet."""
    study = small(policies=["fixed-best"], trials=64)
    found = rmab.envs.evaluate(always_second, study)  # which is the best fixed one
    assert found.difference("agent", "fixed-best") == (0.0, 0.0)

    def mostly_second(seen):
        return int(0 < seen["age"][0] < 40)

    other = rmab.envs.evaluate(mostly_second, study)
    gap, error = other.difference("agent", "fixed-best")
    apart = np.hypot(other["agent"].se, other["fixed-best"].se)
    assert gap < 0
    assert 0 < error < 0.5 * apart


def test_trials_may_be_fewer_and_a_study_may_be_a_file(tmp_path):
    file = tmp_path / "study.toml"
    rows = zip(ARMS.p01, ARMS.p11, ARMS.reward, strict=True)
    arms = "".join(f"[[arm]]\np01 = {a}\np11 = {b}\nreward = {c}\n" for a, b, c in rows)
    head = 'horizon = 60\ntrials = 1000\nseed = 7\npolicies = ["whittle"]\n'
    file.write_text(head + arms, encoding="utf-8")
    found = rmab.envs.evaluate(by_whittle, file, trials=8, batched=True)
    assert found.trials == 8
    assert list(found) == ["whittle", "agent"]
    assert found["agent"].mean == found["whittle"].mean


class Counts:
    """A learner: it plays every arm once, then the one that has paid most on average."""

    def __init__(self) -> None:
        self.trials = self.slots = 0

    def reset(self) -> None:
        self.trials += 1
        self.plays, self.paid = np.zeros(4), np.zeros(4)

    def __call__(self, observation):
        self.observation = observation
        return np.where(self.plays > 0, self.paid / np.maximum(self.plays, 1), np.inf)

    def observe(self, observation, action, reward, after) -> None:
        assert observation is self.observation
        (arm,) = np.flatnonzero(after["age"] == 1)
        assert arm == np.argmax(action)
        assert reward == pytest.approx(ARMS.reward[arm] * after["last_seen"][arm])
        self.plays[arm] += 1
        self.paid[arm] += reward
        self.slots += 1


def test_a_callable_may_learn_within_a_trial():
    learner = Counts()
    found = rmab.envs.evaluate(learner, small(policies=["random"], trials=33))
    assert (learner.trials, learner.slots) == (33, 33 * 60)
    assert found["agent"].mean > found["random"].mean


def test_agents_may_have_callables_of_their_own():
    study = small(policies=["whittle"], agents=3, plays=2)
    players = dict.fromkeys(["agent_0", "agent_1", "agent_2"], always_second)
    alike = rmab.envs.evaluate(players, study)
    assert alike["agent"].mean == rmab.envs.evaluate(always_second, study)["agent"].mean
    other = rmab.envs.evaluate({**players, "agent_1": by_whittle}, study)
    better = (other["whittle"].mean - alike["agent"].mean) / 3  # one agent's share of the way
    assert other["agent"].mean - alike["agent"].mean == pytest.approx(better, rel=0.2)


def test_what_sees_all_states_earns_more():
    def best(seen):
        return seen["last_seen"] * ARMS.reward

    found = rmab.envs.evaluate(best, small(policies=["whittle"]), fully_observed=True)
    assert found["agent"].mean > found["whittle"].mean + 10 * found["agent"].se


def test_a_callable_is_a_policy_of_a_study_in_python():
    mine = rmab.envs.as_policy(by_whittle, "mine", batched=True)
    found = rmab.run(small(policies=["whittle", mine]))
    assert found["mine"].mean == found["whittle"].mean
    assert found.to_json()["study"] is None


def test_a_callable_stands_in_the_arena_among_those_that_learn(tmp_path):
    path = tmp_path / "tiny.toml"
    arm = "[[arm]]\np01 = 0.1\np11 = 0.9\nreward = 1\n"
    path.write_text("horizon = 20\ntrials = 32\n" + 2 * arm)
    problem = load_problem(str(path))
    own = own_contestant("mine:policy", rmab.envs.as_policy(always_second, "mine"))
    assert not own.uses_true_dynamics
    playing, refused = Arena([own]).admitted(problem)
    assert (list(playing), refused) == (["mine"], {})
    fails = own_contestant("mine:policy", rmab.envs.as_policy(lambda seen: seen["nothing"], "mine"))
    with pytest.raises(RmabError, match="mine:policy: fails on tiny: KeyError"):
        Arena([fails]).admitted(problem)
    none = own_contestant("mine:policy", rmab.envs.as_policy(lambda seen: 2, "mine"))
    assert "action must be from 0 to 1" in Arena([none]).admitted(problem)[1]["mine"]


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        ({"agent_0": always_second}, {}, "callable for agent_1"),
        ({"agent_0": always_second}, {"batched": True}, "one callable for all agents"),
        ("whittle", {}, "must be a callable"),
        (always_second, {"trials": 0}, "trials must be"),
        (always_second, {"name": ""}, "name must not be empty"),
        (lambda seen: 9, {}, "action must be from 0 to 5"),
        (lambda seen: ["a", "b", "c", "d"], {}, "or 4 scores"),
        (lambda seen: [None, 1, 2, 3], {}, "or 4 scores"),
        (lambda seen: [[1], [1, 2]], {}, "or 4 scores"),
        (lambda seen: [1, 2], {"batched": True}, "the number of a set of arms"),
    ],
)
def test_what_cannot_play_is_refused(policy, options, message):
    with pytest.raises(StudyError, match=message):
        rmab.envs.evaluate(policy, small(policies=["whittle"], agents=3, plays=2), **options)


def test_a_trace_has_no_trials_to_play_from_outside():
    trace = rmab.Trace(np.arange(160).reshape(1, 40, 4) % 2, np.zeros(40, int))
    with pytest.raises(StudyError, match="is played outside the engine"):
        rmab.backtest(trace, policies=[rmab.envs.as_policy(always_second)])


def test_agents_that_differ_meet_their_own_arms_outside_as_inside():
    """Of one arm there is no choice: what is earned is what it pays."""
    one, other = channels(0.2, 0.8, 0.4137), channels(0.7, 0.6, 0.9021)
    study = small(arms=one, agents=2, policies=["random"], agent=[{"agents": 2, "arms": other}])
    found = rmab.envs.evaluate(lambda _: 0, study, name="mine")
    np.testing.assert_array_equal(found["mine"].slots.mean, found["random"].slots.mean)
    both = small(arms=one, agents=2, policies=["random"])
    assert abs(rmab.run(both).mean["random"] - found.mean["mine"]) > 0.05
