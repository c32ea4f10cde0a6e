"""The optimum, and the bound beside it, against linear programmes, simulation and plain cases."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from rmab.errors import ConvergenceError, TooLargeError
from rmab.model.arms import Arm, Arms, channels
from rmab.model.expansion import expand
from rmab.model.information import stationary_belief
from rmab.planning.joint.chain import TOLERANCES, merged_ages, table_size
from rmab.planning.joint.optimum import optimal, solve_optimum
from rmab.planning.joint.policy_value import (
    fixed_value,
    known_values,
    policy_value,
    random_value,
)
from rmab.planning.joint.relaxation import upper_bound
from rmab.planning.tables import (
    myopic,
    myopic_table,
    whittle_at,
)
from tests.oracles.joint_chain import plain_bound, plain_chain, plain_optimum
from tests.oracles.simulated_play import played, played_channels
from tests.planning.joint.arms import (
    ENDS_BAD,
    ENDS_GOOD,
    FROZEN,
    MIXED,
    ODD,
    PAPER,
    POOR,
    SIMULATED,
    SWINGING,
    arms_like,
    arms_of,
    earned,
    odd_arm,
    random_arms,
)

# --- the same by other means ---


@pytest.mark.parametrize(("n_arms", "plays", "seed"), [(2, 1, 1), (2, 1, 2), (3, 2, 3)])
def test_optimum_is_that_of_the_linear_program(n_arms, plays, seed):
    """max sum r z over the shares z of (state, subset) pairs that a policy can keep up."""
    arms = random_arms(n_arms, seed)
    best = optimal(arms, plays)
    chain = plain_chain(arms, plays, best.layout.caps.tolist())
    assert best.states == len(chain)
    place = {x: i for i, x in enumerate(chain)}
    pairs = [(x, reward, ahead) for x in chain for reward, ahead in chain[x].values()]
    balance = np.zeros((len(chain) + 1, len(pairs)))
    for j, (x, _, ahead) in enumerate(pairs):
        balance[place[x], j] += 1
        for y, chance in ahead.items():
            balance[place[y], j] -= chance
    balance[-1] = 1
    shares = np.append(np.zeros(len(chain)), 1)
    solved = linprog([-reward for _, reward, _ in pairs], A_eq=balance, b_eq=shares)
    assert -best.value == pytest.approx(solved.fun, abs=1e-7)


@pytest.mark.parametrize(
    ("kinds", "plays"),
    [
        ([(2, "always"), (3, "always")], 1),
        ([(2, "always"), (2, "always"), (3, "always")], 2),
        ([(3, "when_played"), (2, "always")], 1),
        ([(2, "when_played"), (2, "always"), (2, "always")], 2),
        ([(2, "when_played"), (2, "when_played")], 1),
        ([(4, "when_played")], 1),
    ],
)
def test_optimum_and_bound_are_those_of_linear_programmes(kinds, plays):
    arms = arms_like(len(kinds) + plays, *kinds)
    assert optimal(arms, plays).value == pytest.approx(plain_optimum(arms, plays, cap=12), abs=2e-7)
    assert upper_bound(arms, plays) == pytest.approx(plain_bound(arms, plays, cap=12), abs=2e-7)


@pytest.mark.parametrize("names", list(combinations(ODD, 2)))
def test_optimum_and_bound_of_arms_that_do_not_forget(names):
    """All their beliefs repeat every 6 slots, from age 2 on at the latest."""
    arms = Arms(ODD[name] for name in names)
    best = optimal(arms, 1).value
    assert best == pytest.approx(plain_optimum(arms, 1, cap=7, fold=6), abs=1e-7)
    assert upper_bound(arms, 1) == pytest.approx(plain_bound(arms, 1, cap=7, fold=6), abs=1e-7)
    assert best <= upper_bound(arms, 1) + 1e-7


@pytest.mark.parametrize("seed", range(30))
def test_optimum_and_bound_of_arms_with_many_zeros(seed):
    rng = np.random.default_rng(seed)
    arms = Arms([odd_arm(rng), odd_arm(rng)])
    best = optimal(arms, 1).value
    assert best == pytest.approx(plain_optimum(arms, 1, cap=14, fold=12), abs=1e-7)
    assert policy_value(arms, 1, lambda age: myopic_table(arms, age)) <= best + 1e-8
    assert upper_bound(arms, 1) == pytest.approx(plain_bound(arms, 1, cap=14, fold=12), abs=1e-7)
    assert best <= upper_bound(arms, 1) + 1e-7


@pytest.mark.parametrize("plays", [1, 2])
def test_an_arm_seen_when_played_is_its_chain_of_information_states(plays):
    """Expanded beforehand, the arms are always seen, and nothing else changes."""
    expanded = Arms(arm if arm.observed == "always" else expand(arm, 12) for arm in MIXED)
    assert optimal(expanded, plays).value == pytest.approx(optimal(MIXED, plays).value, abs=2e-7)
    assert upper_bound(expanded, plays) == pytest.approx(upper_bound(MIXED, plays), abs=2e-7)
    assert random_value(expanded, plays) == pytest.approx(random_value(MIXED, plays), abs=2e-7)


@pytest.mark.parametrize(
    ("arms", "plays"), [(PAPER, 2), (arms_of(SWINGING, SWINGING, (0.4, 0.6), FROZEN), 2)]
)
def test_the_action_table_of_channels_earns_the_optimum(arms, plays):
    best = optimal(arms, plays)

    def decide(belief, last_seen, age):
        action = best.actions[best.code(last_seen, age)]
        assert action.min() >= 0  # only what is reachable is met, at any age
        return best.subsets[action].T

    mean, error = played_channels(arms, decide, runs=2000, slots=500, skip=100)
    assert abs(mean - best.value) < 4 * error


@pytest.mark.parametrize(("arms", "plays"), SIMULATED)
def test_the_action_table_earns_the_optimum(arms, plays):
    best = optimal(arms, plays, max_states=20_000)

    def decide(last_seen: Any, age: Any) -> Any:
        action = best.actions[best.code(last_seen, age)]
        assert action.min() >= 0  # only what is reachable is met, at any age
        return best.subsets[action].T

    mean, error = played(arms, decide, runs=1500, slots=300, skip=60)
    assert abs(mean - best.value) < 4 * error + best.error


# --- arms that forget nothing, or everything ---


@pytest.mark.parametrize(
    ("arms", "plays", "value"),
    [
        (arms_of((0.3, 0.8), (0.6, 0.2)), 2, 0.6 + 3 / 7),  # nothing to choose
        (arms_of(FROZEN, FROZEN), 1, 0.75),  # one of them is good
        (arms_of(FROZEN, FROZEN, FROZEN), 1, 0.875),
        (arms_of(FROZEN, FROZEN, reward=[1, 0.5]), 1, 0.5 + 0.5 * 0.25),
        (arms_of(SWINGING, SWINGING), 1, 0.75),  # together: half the time, in turn: always
        (arms_of(SWINGING, SWINGING, SWINGING), 2, 1.375),
        (arms_of(FROZEN, SWINGING), 1, 0.75),
        (arms_of(FROZEN, (0.3, 0.3), reward=[0.6, 1]), 1, 0.45),
        (arms_of(FROZEN, (0.3, 0.3), reward=[0.301, 1]), 1, 0.3005),  # a look pays in the end
        (arms_of(ENDS_BAD, (0.4, 0.4)), 1, 0.4),
        (arms_of(ENDS_GOOD, (0.4, 0.4)), 1, 1.0),
        (arms_of((0, 0)), 1, 0.0),
        (arms_of((1, 1), (0, 0)), 1, 1.0),
        (arms_of((0.7, 0.7), (0.4, 0.4), reward=[1, 2]), 1, 0.8),
    ],
)
def test_degenerate_arms(arms, plays, value):
    assert optimal(arms, plays).value == pytest.approx(value, abs=1e-8)
    for planner in (whittle_at, myopic):
        assert earned(arms, plays, planner) <= value + 1e-8


def test_frozen_arms_in_plain_sight():
    """One of two is good with chance 3/4, and it shows which."""
    arms = Arms([ODD["frozen"], ODD["frozen"]])
    assert optimal(arms, 1).value == pytest.approx(0.75, abs=1e-8)
    assert policy_value(arms, 1, lambda age: myopic_table(arms, age)) == pytest.approx(0.75)


# --- ties, units, limits ---


def test_ties_go_to_the_lower_arm():
    best = optimal(arms_of((0.2, 0.8), (0.2, 0.8), (0.2, 0.8)), 2)
    assert best.subsets.tolist() == [[1, 1, 0], [1, 0, 1], [0, 1, 1]]
    assert best.actions[0] == 0
    # b0 is 1/2 for both, up to the last digit
    even = arms_of((0.1, 0.9), (0.3, 0.7), reward=[0.2, 1.0])
    assert fixed_value(even, 1, stationary_belief(even)) == pytest.approx(0.1)
    assert known_values(even, 1).values["fixed"] == pytest.approx(0.1)


def test_values_scale_with_the_unit_of_reward():
    in_bits = channels(POOR.p01, POOR.p11, POOR.reward * 2e6)
    assert optimal(in_bits, 1).value == pytest.approx(optimal(POOR, 1).value * 2e6, rel=1e-8)
    assert earned(in_bits, 1, whittle_at) == pytest.approx(0.339833 * 2e6, rel=2e-6)


def test_rewards_that_every_slot_pays_only_shift_the_values():
    moved = Arms(
        Arm(
            arm.passive,
            arm.active,
            reward_passive=3 * arm.reward_passive - 2,
            reward_active=3 * arm.reward_active - 2,
            observed=arm.observed,
        )
        for arm in MIXED
    )
    for value in (
        lambda arms: optimal(arms, 1).value,
        lambda arms: upper_bound(arms, 1),
        lambda arms: random_value(arms, 1),
        lambda arms: policy_value(arms, 1, lambda age: myopic_table(arms, age)),
    ):
        assert value(moved) == pytest.approx(3 * value(MIXED) - 6, abs=1e-7)


@pytest.mark.parametrize("order", [(2, 0, 1), (1, 2, 0)])
def test_the_order_of_arms_does_not_matter(order):
    moved = Arms(MIXED[n] for n in order)
    for plays in (1, 2):
        assert optimal(moved, plays).value == pytest.approx(optimal(MIXED, plays).value, abs=1e-8)
        assert upper_bound(moved, plays) == pytest.approx(upper_bound(MIXED, plays), abs=1e-9)
        assert random_value(moved, plays) == pytest.approx(random_value(MIXED, plays), abs=1e-12)


def test_caps_change_the_value_by_less_than_the_stated_error():
    fine, coarse = optimal(PAPER, 2), optimal(PAPER, 2, max_states=16_000)
    assert coarse.tolerance == pytest.approx(1e-2)
    assert coarse.states <= 16_000 < fine.states
    assert 1e-6 < abs(fine.value - coarse.value) < 2e-5 < coarse.error
    # Two plays, each of at most .9 in reward and the span in what follows; idle arms pay nothing.
    assert coarse.error == pytest.approx(1e-2 * 2 * (0.9 + coarse.span), rel=1e-12)
    assert fine.error == pytest.approx(fine.tolerance * 2 * (0.9 + fine.span), rel=1e-12)


@pytest.mark.parametrize(("plays", "hidden_plays"), [(1, 1), (2, 2), (3, 2)])
def test_the_stated_error_counts_every_hidden_arm(plays, hidden_plays):
    """Plays of hidden arms only, at the widest reward of each action; all of them may be idle."""
    paid = [([0.0, 3.0], [0.5, 0.0]), ([0.0, 1.0], [2.0, 0.0])]
    moves = [[0.6, 0.4], [0.3, 0.7]]
    hidden = [Arm(moves, reward_active=up, reward_passive=idle) for up, idle in paid]
    seen = Arm(moves, reward_active=[0, 50], reward_passive=[90, 0], observed="always")
    best = optimal(Arms([*hidden, seen]), plays)
    wanted = best.tolerance * (hidden_plays * (3 + best.span) + 2 * 2)
    assert best.error == pytest.approx(wanted, rel=1e-12)
    assert optimal(Arms([seen, seen]), 1).error == 0


# --- limits of memory ---


def test_states_and_transitions_end_at_their_limits(monkeypatch):
    """Two visible arms of two states: at most 8 joint states, of 8 transitions each."""
    two = arms_like(1, (2, "always"), (2, "always"))
    assert optimal(two, 1, max_states=8).states == 4
    with pytest.raises(TooLargeError, match="8 joint information states of 8 transitions each"):
        optimal(two, 1, max_states=7)
    monkeypatch.setattr("rmab.planning.joint.optimum.MAX_TRANSITIONS", 64)
    assert optimal(two, 1).states == 4
    monkeypatch.setattr("rmab.planning.joint.optimum.MAX_TRANSITIONS", 63)
    with pytest.raises(TooLargeError, match="1,000,000 states and 63 transitions") as error:
        optimal(two, 1)
    assert error.value.states == 8


@pytest.mark.parametrize("limit", ["MAX_CAP", "MAX_CODES", "_MAX_TABLE_CODES"])
def test_tolerances_become_coarser_at_the_limits_of_ages_and_codes(limit, monkeypatch):
    arms = arms_of((0.3, 0.7), (0.6, 0.2))
    fine = optimal(arms, 1)
    assert fine.tolerance == TOLERANCES[0]
    size = {"MAX_CAP": int(fine.layout.caps.max()), "MAX_CODES": fine.size + 1}
    just_enough = size.get(limit, fine.size)
    monkeypatch.setattr(f"rmab.planning.joint.optimum.{limit}", just_enough)
    assert optimal(arms, 1).tolerance == TOLERANCES[0]
    monkeypatch.setattr(f"rmab.planning.joint.optimum.{limit}", just_enough - 1)
    assert optimal(arms, 1).tolerance == TOLERANCES[1]


def test_an_action_table_is_worth_a_tolerance_of_one_in_ten_thousand_at_most(monkeypatch):
    arms = arms_of((0.3, 0.7), (0.6, 0.2))
    places = [TOLERANCES.index(x) for x in TOLERANCES if x <= 1e-4 * (1 + 1e-9)]
    sizes = [table_size(arms, merged_ages(arms, TOLERANCES[place])) for place in places]
    assert TOLERANCES[places[-1]] == pytest.approx(1e-4)
    monkeypatch.setattr("rmab.planning.joint.optimum._MAX_TABLE_CODES", sizes[-1])
    small = optimal(arms, 1)
    assert small.tolerance == TOLERANCES[places[-1]]
    assert small.actions.size == sizes[-1]
    monkeypatch.setattr("rmab.planning.joint.optimum._MAX_TABLE_CODES", sizes[-1] - 1)
    finest = optimal(arms, 1)  # without a table
    assert finest.tolerance == TOLERANCES[0]
    with pytest.raises(TooLargeError, match=f"{finest.size:,} joint codes"):
        _ = finest.actions


def test_many_plays_need_few_states_but_no_table():
    pairs = [*zip(PAPER.p01, PAPER.p11, strict=True), (0.15, 0.85), (0.85, 0.2)]
    best = optimal(arms_of(*pairs), 5)
    assert best.tolerance < 1e-8
    with pytest.raises(TooLargeError, match=r"an action table of .* joint codes"):
        _ = best.actions


def test_iteration_that_does_not_settle():
    known = known_values(random_arms(2, 0), 1, max_sweeps=3)
    assert "after 3 sweeps" in known.reasons["optimum"]
    with pytest.raises(ConvergenceError):
        solve_optimum(random_arms(2, 0), 1, max_sweeps=3)


def test_arms_that_forget_too_slowly_are_refused():
    slow = Arm(0.99999 * np.eye(3) + 0.00001 / 3, reward=[0, 1, 2])
    with pytest.raises(TooLargeError, match="arm 2 takes more than 5,000 slots to forget"):
        optimal(Arms([MIXED[0], slow]), 1)
    with pytest.raises(TooLargeError, match="ages up to 5,001"):
        upper_bound(Arms([MIXED[0], slow]), 1)
