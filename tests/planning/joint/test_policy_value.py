"""Exact values of policies against recomputed numbers, simulation and joint states."""

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from rmab.errors import ModelError, TooLargeError
from rmab.markov import limit, limiting_distribution
from rmab.model.arms import Arm, Arms, Dynamics, channels
from rmab.model.information import NEVER, InformationStates, stationary_belief
from rmab.planning.joint.chain import TOLERANCES, kept_ages, table_size
from rmab.planning.joint.optimum import optimal
from rmab.planning.joint.policy_value import (
    KNOWN,
    fixed_value,
    known_values,
    policy_value,
    random_value,
)
from rmab.planning.joint.relaxation import upper_bound
from rmab.planning.tables import (
    fixed,
    fixed_best,
    fixed_best_scores,
    fixed_scores,
    myopic,
    myopic_table,
    whittle_at,
    whittle_table,
)
from tests.oracles.simulated_play import played, played_channels
from tests.planning.joint.arms import (
    EIGHT,
    FROZEN,
    ODD,
    PAPER,
    POOR,
    SIMULATED,
    SWINGING,
    always,
    arms_like,
    arms_of,
    earned,
    random_arms,
)


def longest_unplayed(dynamics: Dynamics, states: InformationStates) -> Any:
    """Arms by turns, new ones before all; what was observed does not matter."""
    return np.where(states.age == NEVER, np.inf, states.age)


# --- numbers computed elsewhere ---


@pytest.mark.parametrize(
    ("plays", "values"),
    [
        pytest.param(
            1,
            [0.58614, 0.58235, 0.58613, 0.58613, 0.33151, 0.46570, 0.46570],
            marks=pytest.mark.slow,
        ),
        (2, [0.98756, 0.98520, 0.98501, 0.98713, 0.66302, 0.77604, 0.81570]),
        (3, [1.21988, 1.21818, 1.21982, 1.21988, 0.99453, 0.97604, 1.12604]),
        (4, [1.32604] * 7),
    ],
)
def test_the_papers_arms(plays, values):
    known = known_values(PAPER, plays)
    assert list(known.values) == list(KNOWN)
    assert list(known.values.values()) == pytest.approx(values, abs=6e-6)
    assert known.reasons == {}


def test_eight_arms():
    """Arm 6 seen bad is believed below 1/2 for ever, and three others never fall below 1/2, so
    exact myopic play ends with those three; only rounding to 1/2 would ever bring arm 6 back."""
    assert earned(EIGHT, 3, whittle_at) == pytest.approx(2.1867, abs=1e-4)
    three = sum(stationary_belief(EIGHT)[[3, 6, 7]])
    assert earned(EIGHT, 3, myopic) == pytest.approx(three, abs=1e-8)


def test_four_arms_where_whittle_is_poor():
    assert optimal(POOR, 1).value == pytest.approx(0.355319, abs=5e-7)
    assert earned(POOR, 1, whittle_at) == pytest.approx(0.339833, abs=5e-7)
    assert earned(POOR, 1, myopic) == pytest.approx(0.340233, abs=5e-7)


def test_identical_arms_make_whittle_and_myopic_optimal():
    pair = channels([0.2, 0.2], 0.8, 1.0)
    four = channels([0.2] * 4, 0.8, 1.0)
    for arms, plays, value in ((pair, 1, 0.650000), (four, 2, 1.332827)):
        best = optimal(arms, plays)
        assert best.value == pytest.approx(value, abs=1e-6)
        for planner in (whittle_at, myopic):
            assert earned(arms, plays, planner) == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize(
    ("arms", "plays", "whittle", "near_optimal", "bound"),
    [
        (arms_of((0.3, 0.7), (0.4, 0.6), (0.5, 0.5), (0.6, 0.4)), 2, 1.119, 1.0912, 1.12837),
        (arms_of((0.2, 0.7), (0.4, 0.5), reward=[1, 0.8]), 1, 0.4565, 0.4467, 0.46061),
    ],
)
def test_scenarios_with_published_values(arms, plays, whittle, near_optimal, bound):
    assert earned(arms, plays, whittle_at) == pytest.approx(whittle, abs=5e-4)
    assert earned(arms, plays, myopic) == pytest.approx(near_optimal, abs=1e-4)
    assert whittle - 5e-4 < optimal(arms, plays).value < bound


def test_known_values_of_machines():
    """Restart the most worn of two machines: index and joint optimum agree for equal machines."""
    worn = np.eye(4, k=1) * 0.4 + np.eye(4) * 0.6
    worn[3, 3] = 1
    machine = always(
        worn, np.eye(4)[[0] * 4], reward_passive=[1, 0.7, 0.3, 0], reward_active=[0.4] * 4
    )
    known = known_values(Arms([machine, machine]), 1)
    assert list(known.values) == list(KNOWN)
    assert known.reasons == {}
    assert known.values["whittle"] == pytest.approx(known.values["optimum"], abs=1e-8)
    assert known.values["fixed"] == pytest.approx(0.4)  # the other one wears out


# --- the same by other means ---


@pytest.mark.parametrize("plays", [1, 2])
def test_myopic_value_is_what_simulated_play_earns(plays):
    def decide(belief, last_seen, age):
        rank = np.argsort(np.argsort(-PAPER.reward[:, None] * belief, 0, kind="stable"), 0)
        return rank < plays

    mean, error = played_channels(PAPER, decide, runs=2000, slots=500, skip=50)
    assert abs(mean - earned(PAPER, plays, myopic)) < 4 * error


@pytest.mark.parametrize(("arms", "plays"), SIMULATED)
def test_index_policies_earn_what_simulated_play_earns(arms, plays):
    """A made-up index of the belief, as good a policy as any; beliefs repeat every 6 slots."""
    S, oldest = int(arms.sizes.max()), 60
    weights = np.random.default_rng(3).normal(size=(len(arms), S))
    index = np.zeros((len(arms), 1 + S * oldest))
    for arm, line, weight in zip(arms, index, weights, strict=True):
        worth = weight[: arm.states]
        line[0] = limiting_distribution(arm.passive) @ worth
        for s, k in product(range(arm.states), range(oldest)):
            belief = arm.active[s] @ np.linalg.matrix_power(arm.passive, k)
            line[1 + s * oldest + k] = worth[s] if arm.observed == "always" else belief @ worth
    by_state = index[:, 1:].reshape(len(arms), S, oldest)

    def table(age: int) -> Any:
        return np.concatenate([index[:, :1], by_state[:, :, :age].reshape(len(arms), -1)], 1)

    def decide(last_seen: Any, age: Any) -> Any:
        row = np.where(age == 0, 0, last_seen * oldest + np.where(age < 54, age, 54 + age % 6))
        seen = np.array([arm.observed == "always" for arm in arms])[:, None]
        row = np.where(seen, 1 + last_seen * oldest, row)
        here = np.take_along_axis(index, row, 1)
        rank = np.argsort(np.argsort(-here, 0, kind="stable"), 0)
        return rank < plays

    mean, error = played(arms, decide, runs=1500, slots=300, skip=60)
    assert error > 0
    assert abs(mean - policy_value(arms, plays, table)) < 4 * error


@pytest.mark.parametrize("plays", [1, 2, 3])
def test_closed_forms_are_what_the_chains_give(plays):
    rest = stationary_belief(PAPER)
    for planner, scores in ((fixed, rest), (fixed_best, PAPER.reward * rest)):
        chain = earned(PAPER, plays, planner)
        assert chain == pytest.approx(fixed_value(PAPER, plays, scores), abs=1e-8)
    if plays == 1:  # by turns, each arm is seen every N slots, and pays its mean
        assert earned(PAPER, 1, longest_unplayed) == pytest.approx(random_value(PAPER, 1))


def together(arms: Arms, subset: tuple[int, ...]) -> tuple[Any, Any]:
    """Transitions and rewards over the joint states when a subset is played."""
    move: Any = np.ones((1, 1))
    reward: Any = np.zeros(1)
    for n, arm in enumerate(arms):
        played = n in subset
        move = np.kron(move, arm.active if played else arm.passive)
        pays = arm.reward_active if played else arm.reward_passive
        reward = np.add.outer(reward, pays).ravel()
    return move, reward


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("plays", [1, 2])
def test_fixed_and_random_play_over_the_joint_states(seed, plays):
    """Neither looks at anything, so the chain of the true states tells what they earn."""
    rng = np.random.default_rng(seed)
    arms = Arms([*arms_like(seed, (3, "when_played"), (2, "always")), ODD["ends"]])
    start: Any = np.ones(1)
    for arm in arms:
        start = np.kron(start, limiting_distribution(arm.passive))
    every = [together(arms, subset) for subset in combinations(range(3), plays)]
    mixed = np.mean([move for move, _ in every], axis=0)
    wanted = start @ limit(mixed) @ np.mean([reward for _, reward in every], axis=0)
    assert random_value(arms, plays) == pytest.approx(wanted, abs=1e-12)

    scores = rng.random(3)
    move, reward = together(arms, tuple(np.argsort(-scores)[:plays].tolist()))
    wanted = start @ limit(move) @ reward
    assert fixed_value(arms, plays, scores) == pytest.approx(wanted, abs=1e-12)
    table = np.repeat(scores[:, None], 1 + 3 * 50, 1)
    earned = policy_value(arms, plays, lambda age: table[:, : 1 + 3 * age])
    assert earned == pytest.approx(wanted, abs=1e-8)


# --- between other values ---


@pytest.mark.parametrize("seed", range(6))
def test_optimum_is_above_every_policy_and_grows_with_plays(seed):
    arms = random_arms(3, seed)
    optima = [optimal(arms, plays) for plays in (1, 2, 3)]
    assert np.all(np.diff([best.value for best in optima]) > 0)
    for plays, best in enumerate(optima, start=1):
        others = [earned(arms, plays, p) for p in (whittle_at, myopic, longest_unplayed)]
        others += [random_value(arms, plays), earned(arms, plays, fixed_best)]
        assert best.value >= max(others) - best.error - 1e-8


@pytest.mark.parametrize("seed", range(8))
def test_between_every_policy_and_the_upper_bound(seed):
    rng = np.random.default_rng(100 + seed)
    kinds = [(int(rng.integers(2, 5)), str(rng.choice(["always", "when_played"]))) for _ in "abc"]
    arms, plays = arms_like(seed, *kinds), 1 + seed % 2
    best = optimal(arms, plays)
    others = [
        policy_value(arms, plays, lambda age: myopic_table(arms, age)),
        policy_value(arms, plays, lambda age: whittle_table(arms, age)),
        random_value(arms, plays),
        fixed_value(arms, plays, fixed_scores(arms)),
        fixed_value(arms, plays, fixed_best_scores(arms)),
    ]
    assert max(others) - 1e-7 <= best.value <= upper_bound(arms, plays) + 1e-7
    assert best.error < 1e-7


def test_channels_written_as_arms_of_three_states():
    """A third state that is never met changes nothing but the method."""
    pair = channels([0.2, 0.5], [0.7, 0.3], [0.9, 1.0])
    wider = Arms(
        Arm(
            np.block([[arm.passive, np.zeros((2, 1))], [np.array([[0.5, 0.5, 0]])]]),
            reward=[0, arm.reward_active[1], 7],
        )
        for arm in pair
    )
    assert optimal(wider, 1).value == pytest.approx(optimal(pair, 1).value, abs=1e-7)
    assert upper_bound(wider, 1) == pytest.approx(upper_bound(pair, 1), abs=1e-7)
    narrow = known_values(pair, 1).values
    assert {**known_values(wider, 1).values, "fixed": narrow["fixed"]} == pytest.approx(
        narrow, abs=1e-7
    )


def test_policies_on_arms_that_never_change():
    """Never seen, an arm is worth 1/2; a good one is kept, a bad one left for ever."""
    assert earned(arms_of(FROZEN, FROZEN), 1, myopic) == pytest.approx(0.75)
    never_looks = arms_of((0.6, 0.6), FROZEN)
    assert earned(never_looks, 1, myopic) == pytest.approx(0.6)
    assert optimal(never_looks, 1).value == pytest.approx(0.8)
    assert optimal(arms_of(FROZEN, SWINGING), 1).layout.caps.tolist() == [1, 2]


# --- limits ---


def test_too_large_is_told_at_once_with_the_count():
    many = channels(*np.random.default_rng(7).uniform(0.05, 0.95, (3, 100)))
    with pytest.raises(TooLargeError, match=r"100 arms, 20 plays: about 10\^\d+ .*limit") as error:
        optimal(many, 20)
    assert error.value.states > 10**90
    with pytest.raises(TooLargeError, match=r"100 arms, 20 plays: about 10\^\d+ joint codes"):
        earned(many, 20, whittle_at)
    known = known_values(many, 20)
    assert [name for name, value in known.values.items() if value is None] == list(known.reasons)
    assert list(known.reasons) == ["optimum", "whittle", "myopic", "lookahead"]
    rest = stationary_belief(many)
    assert known.values["fixed-best"] == pytest.approx(np.sort(many.reward * rest)[-20:].sum())
    assert known_values(many, 100).values["optimum"] == pytest.approx((many.reward * rest).sum())


def test_state_limits_are_kept():
    with pytest.raises(TooLargeError, match="limit is 1,000 states") as error:
        optimal(PAPER, 1, max_states=1_000)
    assert error.value.states > 1_000
    with pytest.raises(TooLargeError, match="at least 101 joint information states") as error:
        earned(PAPER, 2, whittle_at, max_states=100)
    assert error.value.states == 101
    coarse = earned(PAPER, 1, whittle_at, max_states=5_000)
    assert coarse == pytest.approx(0.58235, abs=1e-5)


def test_many_arms_are_refused_at_once_with_the_count():
    many = arms_like(1, *[(4, "always")] * 30)
    with pytest.raises(TooLargeError, match=r"30 arms, 5 plays: about 10\^\d+ joint") as error:
        optimal(many, 5)
    assert error.value.states > 4**30
    with pytest.raises(TooLargeError, match=r"30 arms, 5 plays: .* transitions each"):
        policy_value(many, 5, lambda age: myopic_table(many, age))
    few = arms_like(1, *[(8, "always")] * 5)  # 32,768 states, of 8^5 transitions each
    with pytest.raises(TooLargeError, match=r"327,680 transitions each"):
        optimal(few, 2)
    with pytest.raises(TooLargeError, match=r"32,768 transitions each"):
        policy_value(few, 2, lambda age: myopic_table(few, age))


def never_built(*_: Any) -> Any:
    raise AssertionError("a chain was begun")


def myopic_value(arms: Arms, plays: int = 1, **limits: int) -> float:
    return policy_value(arms, plays, lambda age: myopic_table(arms, age), **limits)


@pytest.mark.parametrize("limit", ["MAX_CAP", "MAX_CODES"])
def test_ages_and_codes_end_at_their_limits_before_anything_is_built(limit, monkeypatch):
    arms = arms_of((0.3, 0.7), (0.6, 0.2))
    wanted, coarsest = myopic_value(arms), kept_ages(arms, TOLERANCES[-1])
    enough = {"MAX_CAP": int(coarsest.caps.max()), "MAX_CODES": table_size(arms, coarsest) + 1}
    monkeypatch.setattr(f"rmab.planning.joint.policy_value.{limit}", enough[limit])
    assert myopic_value(arms) == pytest.approx(wanted, abs=1e-2)
    monkeypatch.setattr(f"rmab.planning.joint.policy_value.{limit}", enough[limit] - 1)
    monkeypatch.setattr("rmab.planning.joint.policy_value.joint_chain", never_built)
    with pytest.raises(TooLargeError, match="2 arms, 1 plays"):
        myopic_value(arms)


def test_one_step_that_is_too_large_is_never_taken(monkeypatch):
    """Outcomes of one choice, and joint states to begin with, are counted beforehand."""
    branching = arms_like(1, (3, "when_played"), (3, "when_played"))  # 1 to begin with, then 9
    many_first = Arms([always(np.eye(3), reward=[0, 1, 2])] * 2)  # 9, and each of them stays
    wanted = myopic_value(many_first)
    assert myopic_value(many_first, max_states=9) == pytest.approx(wanted)
    monkeypatch.setattr("rmab.planning.joint.policy_value.MAX_TRANSITIONS", 9 * 10)
    assert np.isfinite(myopic_value(branching, plays=2))  # 10 states of 9 outcomes
    monkeypatch.setattr("rmab.planning.joint.policy_value.joint_chain", never_built)
    with pytest.raises(TooLargeError, match="at least 9 joint information states"):
        myopic_value(many_first, max_states=8)
    monkeypatch.setattr("rmab.planning.joint.policy_value.MAX_TRANSITIONS", 9 * 9 - 1)
    with pytest.raises(TooLargeError, match=r"at least 9 .* with 9 transitions each"):
        myopic_value(branching, plays=2)


@pytest.mark.parametrize("plays", [0, 3])
def test_plays_must_fit_the_arms(plays):
    with pytest.raises(
        ModelError, match=f"plays must lie in 1..2, the number of arms, got {plays}"
    ):
        known_values(arms_of((0.2, 0.8), (0.3, 0.3)), plays)
