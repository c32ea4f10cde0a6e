"""Joint plans of drawn dynamics: against plain loops, against the exact optimum, and in a study."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

import rmab
from rmab.errors import StudyError
from rmab.model.arms import Intervals
from rmab.planning.joint.joint_plan import JointSpace, bounded_arms, drawn_arms, joint_plan
from rmab.planning.joint.optimum import optimal
from rmab.planning.tables import Model
from rmab.policies.rules.joint import JointRule
from tests.oracles.joint_plan import channel_rows, plain_joint_plan

PAPER = rmab.channels([0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16], [0.4, 0.9, 0.7, 0.6])
C1 = rmab.channels([0.2, 0.4], [0.7, 0.5], [1.0, 0.8])
SEEN = rmab.Arm(
    [[0.7, 0.3], [0.4, 0.6]], [[0.2, 0.8], [0.1, 0.9]], reward_passive=[0, 0.3],
    reward_active=[-0.2, 0.2], observed="always",
)  # fmt: skip
HIDDEN = rmab.Arm(
    [[0.6, 0.4, 0], [0.1, 0.6, 0.3], [0, 0.4, 0.6]],
    [[0.2, 0.5, 0.3], [0.2, 0.4, 0.4], [0.3, 0.5, 0.2]],
    reward_passive=[0, 0.1, 0.2],
    reward_active=[0, 0.5, 1],
)


def plan_of(moves: rmab.Moves, arms: rmab.Arms, space: JointSpace, accuracy: float):
    """A plan for these dynamics, (S, S, N, R) each, of arms that pay as these do."""
    known = Model.of(arms)
    idle, pays = (jnp.asarray(x, jnp.float32) for x in (known.reward_passive, known.reward_active))
    model = Model(rmab.Moves(*(jnp.asarray(x, jnp.float32) for x in moves)), idle, pays, arms.kinds)
    return joint_plan(drawn_arms(model, space), space, accuracy)


@pytest.mark.parametrize(
    ("arms", "plays", "ages"),
    [
        (C1, 1, 15),
        (rmab.Arms([SEEN, HIDDEN]), 1, 12),
        pytest.param(rmab.Arms([SEEN, C1[0], C1[1]]), 2, 12, marks=pytest.mark.slow),
    ],
)
def test_the_gain_is_that_of_the_exact_optimum(arms, plays, ages):
    """Of arms of any kind, once ages are told apart until beliefs settle."""
    plan = plan_of(Model.of(arms).moves, arms, JointSpace(arms.kinds, plays, ages), 2e-4)
    assert float(plan.high[0] - plan.low[0]) <= 2e-4
    assert plan.low[0] - 1e-4 <= optimal(arms, plays).value <= plan.high[0] + 1e-4


def test_a_plan_does_not_depend_on_those_made_with_it():
    """Dynamics that take long to settle, beside some that do not: the ends are each its own."""
    quick, slow = rmab.channels([0.4, 0.5], [0.5, 0.4], 1.0), rmab.channels([0.02, 0.5], 0.97, 1.0)
    space = JointSpace(C1.kinds, 1, 4)
    each = [np.asarray(Model.of(arms).moves.passive, np.float32) for arms in (quick, slow)]
    both = np.concatenate(each, -1)
    together = plan_of(rmab.Moves(both, both), C1, space, 1e-3)
    for place, rows in enumerate(each):
        alone = plan_of(rmab.Moves(rows, rows), C1, space, 1e-3)
        np.testing.assert_array_equal(together.actions[:, place], alone.actions[:, 0])
        assert together.low[place] == alone.low[0]
        assert together.high[place] == alone.high[0]


RNG = np.random.default_rng(8)
DRAWS = RNG.beta(1, 1, (2, 2, 3))  # p01 and p11, arms, trials
AGES = 2
TWO = JointSpace(C1.kinds, 1, AGES)
ALL = JointSpace(C1.kinds, 2, AGES)
PAYS = [(0.0, float(r)) for r in C1.reward]


def check(plan, space: JointSpace, trial: int, gain: float, worths) -> None:
    """That a plan is the one of plain loops, where choices differ."""
    assert plan.low[trial] - 1e-5 <= gain <= plan.high[trial] + 1e-5
    assert len(worths) == space.size
    for code, worth in enumerate(worths.values()):
        best = worth[int(plan.actions[code, trial])]
        assert best >= max(worth) - 1e-3


def test_plans_are_those_of_plain_loops():
    rows = jnp.stack([1 - DRAWS, DRAWS], 1)  # by state, next state, arm and trial
    for space in (TWO, ALL):
        plays = int(space.subsets[0].sum())
        plan = plan_of(rmab.Moves(rows, rows), C1, space, 1e-5)
        for trial in range(3):
            tables = [
                [channel_rows(DRAWS[0, n, trial], DRAWS[1, n, trial], AGES)] for n in range(2)
            ]
            check(plan, space, trial, *plain_joint_plan(tables, PAYS, plays, AGES))


def between(lower: np.ndarray, upper: np.ndarray, accuracy: float):
    """A plan for chances that lie between two ends, (rows, N, R) each."""
    ends = Intervals(*(jnp.asarray(x, jnp.float32) for x in (lower, upper, accuracy)))
    known = Model.of(C1)
    return bounded_arms(ends, jnp.asarray(known.reward_passive), jnp.asarray(known.reward_active))


def tables_of(trial: int) -> np.ndarray:
    """(rows, N): the chances of good of both arms."""
    return np.array(
        [
            list(channel_rows(DRAWS[0, n, trial], DRAWS[1, n, trial], AGES).values())
            for n in range(2)
        ]
    ).T


def test_plans_between_two_ends_are_those_of_plain_loops():
    """The best of all corners."""
    table = tables_of(0)
    widths = RNG.random(table.shape) * 0.4
    lower, upper = np.clip(table - widths, 0, 1), np.clip(table + widths, 0, 1)
    keys = list(channel_rows(0.5, 0.5, AGES))
    ends = [[dict(zip(keys, end[:, n], strict=True)) for end in (lower, upper)] for n in range(2)]
    for space in (TWO, ALL):
        arms = between(lower[..., None], upper[..., None], 1e-5)
        plan = joint_plan(arms, space, 1e-5)
        plays = int(space.subsets[0].sum())
        check(plan, space, 0, *plain_joint_plan(ends, PAYS, plays, AGES))


def test_optimism_never_lies_below_the_truth_and_without_width_is_the_truth():
    table = np.stack([tables_of(trial) for trial in range(3)], -1)
    rows = jnp.stack([1 - DRAWS, DRAWS], 1)
    true = plan_of(rmab.Moves(rows, rows), C1, TWO, 1e-5)
    same = joint_plan(between(table, table, 1e-5), TWO, 1e-5)
    np.testing.assert_array_equal(same.actions, true.actions)
    np.testing.assert_allclose(same.low, true.low, atol=2e-5)
    for width in (0.05, 0.3, 1.0):
        ends = np.clip(table - width, 0, 1), np.clip(table + width, 0, 1)
        hopeful = joint_plan(between(*ends, 1e-5), TWO, 1e-5)
        assert np.all(hopeful.high >= true.low)
    np.testing.assert_allclose(hopeful.low, 1.0, atol=1e-4)  # the largest reward in every slot


# ------------------------------------------------------------------------------------- in a study


def told(evidence, draws):
    """The truth, whatever was counted."""
    p = jnp.asarray([[0.2, 0.4], [0.7, 0.5]], jnp.float32)[..., None]
    rows = jnp.stack([1 - p, p], 1)
    return rmab.Moves(rows, rows)


@pytest.mark.slow
def test_a_draw_at_the_truth_plays_as_the_optimum():
    mine = rmab.Policy("told", rule=JointRule(12, accuracy=1e-4), learner=told)
    study = rmab.Study(C1, plays=1, horizon=300, trials=64, policies=[mine, "optimal"])
    found = rmab.run(study)
    np.testing.assert_array_equal(found["told"].slots.mean, found["optimal"].slots.mean)


@pytest.mark.slow
@pytest.mark.parametrize("aggregation", ["none", "sum", "gossip", "pairs"])
def test_agents_plan_from_what_they_share(aggregation):
    study = rmab.Study(
        C1,
        agents=2,
        plays=1,
        horizon=100,
        trials=32,
        policies=["tsde"],
        aggregation=aggregation,
        schedule="linear",
    )
    found = rmab.run(study)["tsde"]
    assert 0.35 < found.mean < 0.46
    np.testing.assert_array_equal(found.episode_length.mean[:-1], np.arange(2, 14))


def test_problems_that_are_too_large_are_refused():
    words = "policies: 'tsde' is for few arms: ages up to 4 give 531,441 joint information states"
    with pytest.raises(StudyError, match=words):
        rmab.Study(rmab.Arms([PAPER[0]] * 6), plays=1, horizon=10, trials=32, policies=["tsde"])
    options = {"tsde": {"ages": 2}}
    rmab.Study(
        rmab.Arms([PAPER[0]] * 6), plays=1, horizon=10, trials=32, policies=["tsde"],
        options=options,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("plays", "value", "se"), [(1, 0.544, 0.002), (2, 0.962, 0.004)])
def test_the_value_of_tsde_in_the_papers_scenario(plays, value, se):
    study = rmab.Study(PAPER, plays=plays, horizon=1000, trials=128, policies=["tsde"])
    found = rmab.run(study)
    assert abs(found.mean["tsde"] - value) < 4 * math.hypot(found.se["tsde"], se)
