"""The environments: what Gymnasium and PettingZoo demand, what is observed, paid and drawn.

Warnings are errors in this suite, so the checkers' warnings are failures.
"""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from pettingzoo.test.parallel_test import parallel_api_test
from pettingzoo.test.seed_test import parallel_seed_test

import rmab.envs
from rmab import Arms, Study, StudyError, catalogue, channels
from rmab.model.realisation import RealisedArms
from tests.protocol.lockstep import true_states

IDS = ("rmab/Channels-v0", "rmab/Arms-v0")
THREE = channels(p01=[0.2, 0.89, 0.1], p11=[0.8, 0.17, 0.9], reward=[0.4, 0.9, 0.7])
SURE = channels(p01=[0.0, 1.0], p11=[0.0, 1.0], reward=[1.0, 0.5])  # always bad, always good
MIXED = [catalogue.machine(4, 0.3, repair_cost=0.5), catalogue.adherence(0.3, 0.6)]


def make(name: str, **options):
    return gymnasium.make(name, **options).unwrapped


# ------------------------------------------------------------------------------- the checkers


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize(
    "options",
    [{}, {"actions": "scores"}, {"fully_observed": True}, {"plays": 2, "horizon": 5}],
    ids=str,
)
def test_gymnasium_checks_the_environments_of_one_agent(name, options):
    check_env(make(name, **options))


@pytest.mark.parametrize("arms", [THREE, MIXED], ids=["channels", "mixed"])
def test_gymnasium_checks_arms_of_ones_own(arms):
    check_env(make("rmab/Arms-v0", arms=arms, plays=1))


PARALLEL = [
    {},
    {"arms": THREE, "agents": 3, "plays": 2, "realisations": "shared"},
    {"arms": MIXED, "agents": 2, "actions": "scores"},
    {"study": "catalogue:adherence", "fully_observed": True},
]


@pytest.mark.parametrize("options", PARALLEL, ids=str)
def test_pettingzoo_checks_the_environment_of_several_agents(options, capsys):
    parallel_api_test(rmab.envs.parallel_env(horizon=30, **options), num_cycles=40)
    parallel_seed_test(lambda: rmab.envs.parallel_env(horizon=30, **options), num_cycles=20)
    assert "Passed" in capsys.readouterr().out


def test_vectors_of_environments_differ_without_a_seed():
    envs = gymnasium.make_vec("rmab/Channels-v0", num_envs=3, vectorization_mode="sync")
    _, info = envs.reset()
    assert len(set(info["seed"].tolist())) == 3
    _, info = envs.reset(seed=4)
    assert info["seed"].tolist() == [4, 5, 6]
    envs.close()


# -------------------------------------------------------------------- the engine's realisations


def test_states_are_those_of_the_engines_trial_slot_by_slot():
    study = Study(arms=THREE, agents=2, horizon=60, seed=11)
    expected = true_states(THREE, 11, 2, 60)  # (slots, agents, arms) of trial 0
    env = make("rmab/Channels-v0", study=study, agent=1)
    env.reset(seed=11)
    both = rmab.envs.parallel_env(study)
    both.reset(seed=11)
    for slot in range(60):
        np.testing.assert_array_equal(env.states, expected[slot, 1])
        np.testing.assert_array_equal(both.states, expected[slot])
        env.step(slot % 3)
        both.step({"agent_0": 0, "agent_1": slot % 3})


def test_another_trial_is_that_trial_and_plays_move_arms():
    study = Study(arms=Arms(MIXED), horizon=40, seed=3)
    env = make("rmab/Arms-v0", study=study)
    env.reset(options={"trial": 9})
    arms = RealisedArms(study.arms, 3, [9])  # the engine's: tests/model/test_realisation.py
    for slot in range(40):
        states = arms.states[0, 0]
        np.testing.assert_array_equal(env.states, states)
        pays = [arm.reward_passive[s] for arm, s in zip(MIXED, states, strict=True)]
        pays[slot % 2] = MIXED[slot % 2].reward_active[states[slot % 2]]
        arms.move(np.arange(2)[None, None] == slot % 2)
        _, reward, *_ = env.step(slot % 2)
        assert reward == pytest.approx(sum(pays))


def test_shared_realisations_are_one():
    env = rmab.envs.parallel_env(arms=THREE, agents=3, realisations="shared")
    env.reset(seed=2)
    arms = RealisedArms(THREE, 2, [0], [0])
    for _ in range(20):
        np.testing.assert_array_equal(env.states, np.tile(arms.states[0], (3, 1)))
        env.step(dict.fromkeys(env.agents, 0))
        arms.move(np.zeros((1, 1, 3), bool))


def test_resets_go_on_to_the_next_trial():
    env = make("rmab/Channels-v0")

    def named(**how) -> tuple[int, int]:
        info = env.reset(**how)[1]
        return info["seed"], info["trial"]

    seed, trial = named()
    assert trial == 0
    assert named() == (seed, 1)
    assert named(seed=5) == (5, 0)
    assert named() == (5, 1)
    assert named(options={"trial": 7}) == (5, 7)
    assert named() == (5, 8)
    assert named(seed=6, options={"trial": 2}) == (6, 2)
    fresh = make("rmab/Channels-v0", study=Study(arms=THREE, seed=42))
    assert fresh.reset(options={"trial": 3})[1] == {"seed": 42, "trial": 3, "slot": 0}


# ----------------------------------------------------------------------- observed, played, paid


def test_observations_are_information_states():
    env = make("rmab/Channels-v0", arms=SURE, horizon=4)
    seen, _ = env.reset(seed=0)
    assert (seen["last_seen"].tolist(), seen["age"].tolist()) == ([0, 0], [0, 0])
    expected = [
        (1, 0.5, [0, 1], [0, 1]),  # the arm played, what it paid, last seen, ages
        (0, 0.0, [0, 1], [1, 2]),
        (0, 0.0, [0, 1], [1, 3]),
        (1, 0.5, [0, 1], [2, 1]),
    ]
    for slot, (arm, paid, last_seen, age) in enumerate(expected, start=1):
        seen, reward, terminated, truncated, info = env.step(arm)
        assert (reward, terminated, truncated) == (paid, False, slot == 4)
        assert (seen["last_seen"].tolist(), seen["age"].tolist()) == (last_seen, age)
        assert info["slot"] == slot
        assert seen in env.observation_space
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)


def test_arms_that_are_always_observed_show_their_state_now():
    env = make("rmab/Arms-v0", arms=MIXED)
    seen, _ = env.reset(seed=1)
    for _ in range(20):
        assert (seen["last_seen"][0], seen["age"][0]) == (env.states[0], 1)
        assert seen["age"][1] == 0  # never played
        seen, *_ = env.step(0)


def test_the_fully_observed_variant_shows_all_states_now():
    env = make("rmab/Channels-v0", fully_observed=True)
    seen, _ = env.reset(seed=1)
    for _ in range(10):
        np.testing.assert_array_equal(seen["last_seen"], env.states)
        assert (seen["age"] == 1).all()
        seen, *_ = env.step(0)


def test_sets_are_numbered_in_order_and_scores_go_to_the_largest():
    env = make("rmab/Channels-v0", arms=channels([0, 1, 1], [0, 1, 1], [1, 2, 4]), plays=2)
    env.reset(seed=0)
    assert env.action_space.n == 3
    assert [env.step(action)[1] for action in range(3)] == [2, 4, 6]  # {0, 1}, {0, 2}, {1, 2}
    scored = make("rmab/Channels-v0", arms=env.study.arms, plays=2, actions="scores", horizon=10)
    scored.reset(seed=0)
    for scores, paid in (([0.1, 0.9, 0.3], 6), ([0.5, 0.5, 0.5], 2), ([0, -1, -0.5], 4)):
        assert scored.step(np.array(scores))[1] == paid


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (3, "from 0 to 2"),
        (-1, "from 0 to 2"),
        (0.5, "the number of a set of arms"),
        ([0, 1], "3 scores"),
        ([0.0, np.nan, 1.0], "got NaN"),
    ],
)
def test_actions_that_are_none_are_refused(action, message):
    env = make("rmab/Channels-v0", arms=THREE)
    env.reset(seed=0)
    with pytest.raises(StudyError, match=message):
        env.step(action)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arms": MIXED}, "arm 1 must be a channel"),
        ({"arms": THREE, "study": "catalogue:fading"}, "must not both be given"),
        ({"study": "catalogue:none"}, "unknown 'none'"),
        ({"actions": "all"}, "actions: unknown 'all'"),
        ({"render_mode": "human"}, "render_mode: unknown 'human'"),
        ({"agent": 1}, "agent must be from 0 to 0"),
        ({"plays": 5}, "plays must be a whole number between 1 and 4"),
        ({"arms": channels([0.2] * 40, 0.8, 1), "plays": 9}, "actions must be 'scores'"),
    ],
    ids=str,
)
def test_environments_that_cannot_be_are_refused(options, message):
    with pytest.raises(StudyError, match=message):
        rmab.envs.ChannelsEnv(**options)


@pytest.mark.parametrize("options", [{"trial": -1}, {"trial": 0.5}, {"trial": 2**32}])
def test_trials_that_cannot_be_are_refused(options):
    with pytest.raises(StudyError, match="trial must be a whole number from 0"):
        make("rmab/Channels-v0").reset(options=options)


def test_every_live_agent_must_act():
    env = rmab.envs.parallel_env(arms=THREE, agents=2)
    env.reset(seed=0)
    with pytest.raises(StudyError, match="got none for agent_1"):
        env.step({"agent_0": 0})


# ------------------------------------------------------------------------------------ rendering


def test_text_shows_what_is_known_and_what_is():
    env = make("rmab/Channels-v0", arms=SURE, render_mode="ansi", horizon=9)
    env.reset(seed=8, options={"trial": 2})
    env.step(1)
    assert env.render().splitlines() == [
        "trial 2, slot 1 of 9, reward so far 0.5",
        "agent  arm  last seen  age  state  played",
        "    1    1          -    -      0",
        "    1    2          1    1      1  *",
    ]


def test_pictures_have_a_row_for_each_arm_and_mark_plays():
    env = rmab.envs.parallel_env(arms=SURE, agents=2, render_mode="rgb_array")
    env.reset(seed=0)
    blank = env.render()
    env.step({"agent_0": 0, "agent_1": 1})
    picture = env.render()
    assert picture.shape == blank.shape
    assert picture.dtype == np.uint8
    changed = (picture != blank).any(-1)
    assert changed[:, 20:].sum() == 0  # one slot, one column
    marks = (picture == (213, 94, 0)).all(-1)
    rows = np.flatnonzero(marks.any(1))
    assert (np.diff(rows) > 1).sum() == 1  # arm 1 of the first agent, arm 2 of the second
    assert (blank == 255).all()


def test_nothing_is_rendered_without_a_mode():
    env = make("rmab/Channels-v0")
    env.reset(seed=0)
    assert env.render() is None
