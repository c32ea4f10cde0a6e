"""Exact values against recomputed numbers, a linear program, simulation and hand-made cases."""

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from rmab.errors import ConvergenceError, ModelError, TooLargeError
from rmab.model.arms import Arms, channels
from rmab.model.beliefs import stationary_belief, update_belief
from rmab.planning.channel.index import whittle_at
from rmab.planning.exact import gains
from rmab.planning.exact.optimum import (
    KNOWN,
    fixed_value,
    known_values,
    optimal,
    policy_value,
    random_value,
)
from rmab.planning.planners import (
    Planner,
    fixed,
    fixed_best,
    index_table,
    myopic,
    round_robin,
)

PAPER = channels([0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16], [0.4, 0.9, 0.7, 0.6])
POOR = channels([0.13, 0.26, 0.77, 0.57], [0.13, 0.44, 0.48, 0.19], [0.81, 0.38, 0.57, 0.66])
EIGHT = channels(
    [0.1, 0.2, 0.5, 0.5, 0.1, 0.2, 0.7, 0.9], [0.4, 0.1, 0.2, 0.8, 0.7, 0.8, 0.5, 0.8], 1.0
)
# What never changes (0, 1), changes in every slot (1, 0), ends bad (0, .5) or ends good (.5, 1).
FROZEN, SWINGING, ENDS_BAD, ENDS_GOOD = (0, 1), (1, 0), (0, 0.5), (0.5, 1)


def arms_of(*pairs: tuple[float, float], reward: float | list[float] = 1.0) -> Arms:
    p01, p11 = zip(*pairs, strict=True)
    return channels(p01, p11, reward)


def earned(arms: Arms, plays: int, planner: Planner, **limits: int) -> float:
    """What a planner for channels earns."""
    return policy_value(arms, plays, lambda age: index_table(planner, arms, age), **limits)


def random_arms(n_arms: int, seed: int) -> Arms:
    """Arms that forget fast enough for small chains."""
    p01, p11, reward = np.random.default_rng(seed).uniform(0.1, 0.9, (3, n_arms))
    return channels(p01, (p01 + p11) / 2, reward)


# --- numbers computed elsewhere ---


@pytest.mark.parametrize(
    ("plays", "values"),
    [
        (1, [0.58614, 0.58235, 0.58613, 0.58613, 0.33151, 0.46570, 0.46570]),
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


def test_eight_arms():
    """Arm 6 seen bad is believed below 1/2 for ever, and three others never fall below 1/2, so
    exact myopic play ends with those three; only rounding to 1/2 would ever bring arm 6 back."""
    assert earned(EIGHT, 3, whittle_at) == pytest.approx(2.1867, abs=1e-4)
    three = sum(stationary_belief(EIGHT)[[3, 6, 7]])
    assert earned(EIGHT, 3, myopic) == pytest.approx(three, abs=1e-8)


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


# --- the same by other means ---


def belief_of(arms: Arms, n: int, state: tuple[int, int]) -> float:
    last_seen, age = state
    rest = stationary_belief(arms)[n]
    return float(rest + (0 if age == 0 else (arms.p11 - arms.p01)[n] ** age * (last_seen - rest)))


def plain_chain(arms: Arms, plays: int, caps: list[int]):
    """{joint state: {subset: (reward, {next: chance})}}, one state after another."""
    n_arms = len(arms)
    chain: dict[Any, Any] = {}
    todo = [((0, 0),) * n_arms]
    while todo:
        x = todo.pop()
        if x in chain:
            continue
        chain[x] = {}
        for subset in combinations(range(n_arms), plays):
            belief = {n: belief_of(arms, n, x[n]) for n in subset}
            ahead = {}
            for seen in product((0, 1), repeat=plays):
                shown = dict(zip(subset, seen, strict=True))
                chance = np.prod([belief[n] if shown[n] else 1 - belief[n] for n in subset])
                y = []
                for n, (last_seen, age) in enumerate(x):
                    older = (last_seen, age + 1) if 0 < age < caps[n] else (0, 0)
                    y.append((shown[n], 1) if n in shown else older)
                if chance > 0:
                    ahead[tuple(y)] = chance
            chain[x][subset] = sum(arms.reward[n] * belief[n] for n in subset), ahead
            todo.extend(ahead)
    return chain


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


def simulated(arms: Arms, decide, *, runs: int, slots: int, skip: int) -> tuple[float, float]:
    """Mean reward per slot and its standard error; decide: from beliefs, last seen and ages
    (all (N, runs)) to what is played, (N, runs) bool."""
    rng = np.random.default_rng(11)
    column = channels(arms.p01, arms.p11, arms.reward).dynamics
    p01, p11, reward = (x[:, None] for x in column)
    rest = np.broadcast_to(stationary_belief(arms)[:, None], (len(arms), runs))
    state, belief = rng.random(rest.shape) < rest, rest.copy()
    last_seen, age = np.zeros(rest.shape, int), np.zeros(rest.shape, int)
    total = np.zeros(runs)
    for slot in range(slots + skip):
        played = decide(belief, last_seen, age)
        if slot >= skip:
            total += (reward * state * played).sum(0)
        belief = update_belief(type(column)(p01, p11, reward), belief, played, state)
        last_seen = np.where(played, state, last_seen)
        age = np.where(played, 1, np.where(age > 0, age + 1, 0))
        state = rng.random(rest.shape) < np.where(state, p11, p01)
    mean = total / slots
    return float(mean.mean()), float(mean.std(ddof=1) / np.sqrt(runs))


@pytest.mark.parametrize("plays", [1, 2])
def test_myopic_value_is_what_simulated_play_earns(plays):
    def decide(belief, last_seen, age):
        rank = np.argsort(np.argsort(-PAPER.reward[:, None] * belief, 0, kind="stable"), 0)
        return rank < plays

    mean, error = simulated(PAPER, decide, runs=2000, slots=500, skip=50)
    assert abs(mean - earned(PAPER, plays, myopic)) < 4 * error


@pytest.mark.parametrize(
    ("arms", "plays"), [(PAPER, 2), (arms_of(SWINGING, SWINGING, (0.4, 0.6), FROZEN), 2)]
)
def test_the_action_table_earns_the_optimum(arms, plays):
    best = optimal(arms, plays)

    def decide(belief, last_seen, age):
        action = best.actions[best.code(last_seen, age)]
        assert action.min() >= 0  # only what is reachable is met, at any age
        return best.subsets[action].T

    mean, error = simulated(arms, decide, runs=2000, slots=500, skip=100)
    assert abs(mean - best.value) < 4 * error


@pytest.mark.parametrize("seed", range(6))
def test_optimum_is_above_every_policy_and_grows_with_plays(seed):
    arms = random_arms(3, seed)
    optima = [optimal(arms, plays) for plays in (1, 2, 3)]
    assert np.all(np.diff([best.value for best in optima]) > 0)
    for plays, best in enumerate(optima, start=1):
        others = [earned(arms, plays, p) for p in (whittle_at, myopic, round_robin)]
        others += [random_value(arms, plays), earned(arms, plays, fixed_best)]
        assert best.value >= max(others) - best.error - 1e-8


@pytest.mark.parametrize("plays", [1, 2, 3])
def test_closed_forms_are_what_the_chains_give(plays):
    rest = stationary_belief(PAPER)
    for planner, scores in ((fixed, rest), (fixed_best, PAPER.reward * rest)):
        chain = earned(PAPER, plays, planner)
        assert chain == pytest.approx(fixed_value(PAPER, plays, scores), abs=1e-8)
    if plays == 1:  # by turns, each arm is seen every N slots, and pays its mean
        assert earned(PAPER, 1, round_robin) == pytest.approx(random_value(PAPER, 1))


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


def test_policies_on_arms_that_never_change():
    """Never seen, an arm is worth 1/2; a good one is kept, a bad one left for ever."""
    assert earned(arms_of(FROZEN, FROZEN), 1, myopic) == pytest.approx(0.75)
    never_looks = arms_of((0.6, 0.6), FROZEN)
    assert earned(never_looks, 1, myopic) == pytest.approx(0.6)
    assert optimal(never_looks, 1).value == pytest.approx(0.8)
    assert optimal(arms_of(FROZEN, SWINGING), 1).layout.caps.tolist() == [1, 2]


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


def test_caps_change_the_value_by_less_than_the_stated_error():
    fine, coarse = optimal(PAPER, 2), optimal(PAPER, 2, max_states=16_000)
    assert coarse.tolerance == pytest.approx(1e-2)
    assert coarse.states <= 16_000 < fine.states
    assert 1e-6 < abs(fine.value - coarse.value) < 2e-5 < coarse.error


def test_codes_fold_ages_past_the_cap():
    """An arm that forgets becomes never seen, one that swings falls back by two slots."""
    best = optimal(arms_of((0.2, 0.8), SWINGING), 1)
    (forgets, swings), (first, second) = best.layout.caps.tolist(), best.layout.strides.tolist()
    assert (swings, first, second) == (2, 5, 1)
    assert best.layout.wraps.tolist() == [0, 2]
    last_seen = np.array([[1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1]])
    age = np.array([[1, forgets, forgets + 5, 0, 0, 0], [0, 0, 2, 2, 3, 4]])
    expected = [(forgets + 1) * first, 2 * forgets * first, 2, 4, 3, 4]
    assert best.code(last_seen, age).tolist() == expected
    assert best.actions.size == best.size == (1 + 2 * forgets) * 5
    assert np.count_nonzero(best.actions >= 0) == best.states


def test_codes_of_jax_arrays():
    jnp = pytest.importorskip("jax.numpy")
    best = optimal(arms_of((0.2, 0.8), (0.8, 0.2)), 1)
    last_seen, age = np.array([[1, 0], [0, 1]]), np.array([[90, 0], [2, 91]])
    codes = best.code(jnp.asarray(last_seen), jnp.asarray(age))
    assert codes.tolist() == best.code(last_seen, age).tolist()


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


def test_many_plays_need_few_states_but_no_table():
    pairs = [*zip(PAPER.p01, PAPER.p11, strict=True), (0.15, 0.85), (0.85, 0.2)]
    best = optimal(arms_of(*pairs), 5)
    assert best.tolerance < 1e-8
    with pytest.raises(TooLargeError, match=r"an action table of .* joint codes"):
        _ = best.actions


def test_iteration_that_does_not_settle(monkeypatch):
    monkeypatch.setattr(gains, "MAX_SWEEPS", 3)
    known = known_values(random_arms(2, 0), 1)
    assert "after 3 sweeps" in known.reasons["optimum"]
    with pytest.raises(ConvergenceError):
        optimal(random_arms(2, 0), 1)


@pytest.mark.parametrize("plays", [0, 3])
def test_plays_must_fit_the_arms(plays):
    with pytest.raises(
        ModelError, match=f"plays must lie in 1..2, the number of arms, got {plays}"
    ):
        known_values(arms_of((0.2, 0.8), (0.3, 0.3)), plays)
