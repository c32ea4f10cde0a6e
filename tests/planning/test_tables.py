"""Index tables: their rows, what planners for channels and tables of known arms put there, and
tables filled from drawn dynamics against those of known arms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rmab.errors import ModelError
from rmab.model.arms import CHANNEL, Arm, Arms, Dynamics, Moves, channels
from rmab.model.information import InformationStates, stationary_belief
from rmab.planning.index.hidden import information_table
from rmab.planning.tables import (
    Model,
    fill_myopic,
    fill_whittle,
    fixed,
    fixed_best,
    fixed_best_scores,
    fixed_scores,
    index_table,
    myopic,
    myopic_table,
    whittle_at,
    whittle_table,
)

PAPER = channels([0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16], [0.4, 0.9, 0.7, 0.6])
REST = [0.5, 0.89 / 1.72, 0.5, 0.9 / 1.74]
# Its Whittle indices under average reward are 1.5 and 1.0.
OBSERVED = Arm(
    [[0.5, 0.5], [0.25, 0.75]],
    [[1.0, 0.0], [0.5, 0.5]],
    reward_passive=[0.5, 0.5],
    reward_active=[2, 1],
    observed="always",
)
THREE = Arm(
    [[0.6, 0.4, 0], [0.1, 0.7, 0.2], [0, 0.5, 0.5]],
    np.eye(3)[[2, 2, 2]],
    reward_passive=[0, 0.5, 1],
    reward_active=[-1, 0, 1],
)
AGES = 40  # by which these arms have settled
SEVERAL_KINDS = Arms(
    [
        Arm([[0.7, 0.2, 0.1], [0.2, 0.6, 0.2], [0.1, 0.3, 0.6]], reward=[0.0, 0.4, 1.0]),
        Arm([[0.5, 0.5], [0.25, 0.75]], [[1.0, 0.0], [0.5, 0.5]], reward=[2, 1], observed="always"),
        Arm(
            [[0.8, 0.2], [0.4, 0.6]],
            [[0.4, 0.6], [0.1, 0.9]],
            reward_active=[0, 0.5],
            reward_passive=[0.1, 0.4],
        ),
        Arm(
            [[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.1, 0.2, 0.7]],
            [[0.9, 0.1, 0.0], [0.8, 0.1, 0.1], [0.7, 0.2, 0.1]],
            reward_active=[-0.3, -0.2, -0.1],
            reward_passive=[0.9, 0.5, 0.1],
            observed="always",
        ),
        Arm([[0.8, 0.2], [0.25, 0.75]], reward=[0, 0.6]),
    ]
)
FILLED_AND_KNOWN = [(fill_whittle, whittle_table), (fill_myopic, myopic_table)]


# --- planners for channels ---


def test_whittle_indices_of_channels():
    """Never seen, ages 1 to 3 after bad, ages 1 to 3 after good; rewards .4 and .9."""
    table = index_table(whittle_at, PAPER, max_age=3)
    assert table.shape == (4, 7)
    unit = [
        [0.5 / 0.7, 0.2, 0.392857, 0.518987, 0.8, 0.772727, 0.752475],
        [0.89 / 1.1224, 0.89, 0.270634, 0.792944, 0.17, 0.792944, 0.405115],
    ]
    wanted = np.array([[0.4], [0.9]]) * unit
    np.testing.assert_allclose(table[:2], wanted, rtol=0, atol=5e-7)


def test_myopic_index_of_channels_is_reward_times_belief():
    table = index_table(myopic, PAPER, max_age=5)
    np.testing.assert_allclose(table[:, 0], PAPER.reward * REST, rtol=1e-14)
    belief = np.array([[0.0] * 4, [1.0] * 4])  # (last seen, arm)
    for age in range(1, 6):
        belief = belief * PAPER.p11 + (1 - belief) * PAPER.p01
        np.testing.assert_allclose(table[:, [age, 5 + age]].T, PAPER.reward * belief, rtol=1e-12)


def test_fixed_tables_do_not_depend_on_what_was_observed():
    for planner, wanted in [
        (fixed, np.array(REST)),
        (fixed_best, PAPER.reward * REST),
    ]:
        table = index_table(planner, PAPER, max_age=4)
        assert table.shape == (4, 9)
        np.testing.assert_allclose(table, np.repeat(wanted[:, None], 9, axis=1), rtol=1e-15)


def test_the_closed_form_of_arms_whose_bad_state_pays_or_that_pay_when_left_alone():
    """fill_whittle takes the formula for these, information_table solves them by parametric policy
    iteration: memory of both signs, either state the better one, idle pay of any size."""
    rng = np.random.default_rng(17)
    passive = rng.dirichlet([1, 1], (2, 1, 60)).transpose(0, 3, 1, 2)  # [s, s', arm, trial]
    passive = 0.1 + 0.8 * passive  # so that the ages below settle
    pays, idle = rng.normal(size=(2, 2, 1, 60))
    kinds = (CHANNEL,)
    found = fill_whittle(Model(Moves(passive, passive), idle, pays, kinds), 60)[0]
    solved = information_table(passive, passive, idle, pays, 60)[:, 0]
    np.testing.assert_allclose(found, solved, rtol=0, atol=1e-6)
    assert ((pays - idle)[1] < (pays - idle)[0]).any()  # both orders are there
    assert ((pays - idle)[1] > (pays - idle)[0]).any()


def test_fixed_policies_choose_as_the_paper_and_better():
    """Largest b0: arms 2 and 4, worth .776; largest reward x b0: arms 2 and 3, worth .816."""
    worth = PAPER.reward * REST
    for planner, chosen, value in [
        (fixed, [1, 3], 0.7760),
        (fixed_best, [1, 2], 0.8157),
    ]:
        table = index_table(planner, PAPER, max_age=1)
        assert np.argsort(-table[:, 0], kind="stable")[:2].tolist() == chosen
        assert worth[chosen].sum() == pytest.approx(value, abs=5e-5)


@pytest.mark.parametrize(
    "planner", [whittle_at, myopic, fixed, fixed_best], ids=lambda planner: planner.__name__
)
def test_planners_broadcast_over_agents_and_trials(planner):
    """(arms, agents, trials) at once equals one look-up after the other in the tables."""
    rng = np.random.default_rng(4)
    p01, p11 = rng.random((2, 3, 1, 5))
    dynamics = Dynamics(p01, p11, np.array([0.4, 0.9, 0.7])[:, None, None])
    states = InformationStates(rng.integers(0, 2, (3, 2, 5)), rng.integers(0, 7, (3, 2, 5)))
    index = np.broadcast_to(planner(dynamics, states), (3, 2, 5))
    for trial in range(5):
        arms = channels(p01[:, 0, trial], p11[:, 0, trial], [0.4, 0.9, 0.7])
        table = index_table(planner, arms, max_age=6)
        seen, age = states.last_seen[..., trial], states.age[..., trial]
        row = np.where(age == 0, 0, seen * 6 + age)  # (arms, agents)
        wanted = np.take_along_axis(table, row, axis=1)
        np.testing.assert_allclose(index[..., trial], wanted, rtol=1e-13)


# --- known arms ---


def test_tables_of_channels_are_those_of_the_planners():
    assert np.array_equal(whittle_table(PAPER, 9), index_table(whittle_at, PAPER, 9))
    assert myopic_table(PAPER, 9) == pytest.approx(index_table(myopic, PAPER, 9), abs=1e-12)


def test_rows_of_arms_of_several_sizes():
    """Three states and two ages: never seen, (0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (2, 2)."""
    arms = Arms([OBSERVED, PAPER[0], THREE])
    observed, channel, three = myopic_table(arms, 2)
    assert observed.tolist() == [0, 1.5, 0, 0.5, 0, 0, 0]
    assert channel == pytest.approx([0.2, 0.08, 0.128, 0.32, 0.272, 0, 0])
    # A play resets to state 2, then (0, .5, .5); the limiting distribution is (5, 20, 8) / 33.
    assert three == pytest.approx([-15 / 33, 0, -0.25, 0, -0.25, 0, -0.25])


def test_whittle_rows_of_several_kinds():
    arms = Arms([OBSERVED, PAPER[0]])
    observed, channel = whittle_table(arms, 3)
    assert observed == pytest.approx([0, 1.5, 0, 0, 1.0, 0, 0], abs=1e-9)
    assert channel.tolist() == whittle_table(PAPER, 3)[0].tolist()


def test_scores_of_fixed_play():
    assert fixed_scores(PAPER) == pytest.approx(stationary_belief(PAPER), abs=1e-12)
    wanted = PAPER.reward * stationary_belief(PAPER)
    assert fixed_best_scores(PAPER) == pytest.approx(wanted, abs=1e-12)
    # Always played OBSERVED ends in state 0, which pays most; THREE in state 2.
    assert fixed_scores(Arms([OBSERVED, THREE])) == pytest.approx([1, 1], abs=1e-12)
    assert fixed_best_scores(Arms([OBSERVED, THREE])) == pytest.approx(
        [1.5, 1 - 18 / 33], abs=1e-12
    )


def test_scores_of_channels_that_pay_nothing_or_never_change():
    odd = channels([0.3, 0.0], [0.6, 1.0], [0.0, 1.0])
    assert fixed_scores(odd) == pytest.approx([3 / 7, 0.5], abs=1e-12)


def test_ages_start_at_one():
    with pytest.raises(ModelError, match="max_age must be at least 1, got 0"):
        myopic_table(PAPER, 0)


# --- drawn dynamics ---


@pytest.mark.parametrize(("fill", "exact"), FILLED_AND_KNOWN)
def test_filled_tables_are_those_of_known_arms(fill, exact):
    filled = fill(Model.of(SEVERAL_KINDS), AGES)
    assert filled.shape == (5, 1 + 3 * AGES, 1)
    np.testing.assert_allclose(filled[:, :, 0], exact(SEVERAL_KINDS, AGES), atol=1e-6)


@pytest.mark.parametrize(("fill", "exact"), FILLED_AND_KNOWN)
def test_single_precision_under_jax_comes_close(fill, exact):
    known = Model.of(SEVERAL_KINDS)
    narrow = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), known[:3])

    @jax.jit
    def filled_in(given):
        moves, idle, pays = given
        return fill(Model(moves, idle, pays, SEVERAL_KINDS.kinds), AGES)

    filled = filled_in(narrow)
    np.testing.assert_allclose(filled[:, :, 0], exact(SEVERAL_KINDS, AGES), atol=1e-3)
