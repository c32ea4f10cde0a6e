"""Exact values of arms of any kind against plainly written chains, kron products and simulation."""

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from scipy.linalg import block_diag
from scipy.optimize import linprog

from rmab.errors import TooLargeError
from rmab.markov import limit, limiting_distribution
from rmab.model.arms import Arm, Arms, channels
from rmab.model.information import expand, expansion
from rmab.planning.exact.bounds import upper_bound
from rmab.planning.exact.optimum import (
    KNOWN,
    fixed_value,
    joint_code,
    known_values,
    optimal,
    policy_value,
    random_value,
)
from rmab.planning.general import fixed_best_scores, fixed_scores, myopic_table, whittle_table

IDENTITY, SWAP = [[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]


def fast_arm(rng: np.random.Generator, states: int, observed: str) -> Arm:
    """Forgets to 1e-9 within a dozen slots; moves and pays differently when left alone."""
    moves = 0.15 * rng.dirichlet(np.ones(states), (2, states)) + 0.85 * rng.dirichlet(
        np.ones(states), (2, 1)
    )
    pays = rng.normal(size=(2, states))
    return Arm(*moves, reward_passive=pays[0], reward_active=pays[1], observed=observed)


def arms_like(seed: int, *kinds: tuple[int, str]) -> Arms:
    rng = np.random.default_rng(seed)
    return Arms(fast_arm(rng, states, observed) for states, observed in kinds)


def always(passive: Any, active: Any = None, **rewards: Any) -> Arm:
    return Arm(passive, active, observed="always", **rewards)


MIXED = arms_like(5, (3, "when_played"), (2, "always"), (2, "when_played"))


# --- the same by other means ---


class Plain:
    """One arm from what an arm is; past the cap ages fall back. A row is a state, or None for
    never seen, or (last seen, age)."""

    def __init__(self, arm: Arm, cap: int, fold: int) -> None:
        self.arm, self.cap, self.fold = arm, cap, fold
        self.seen = arm.observed == "always"
        law = limiting_distribution(arm.passive)
        self.start = {s: p for s, p in enumerate(law) if p > 0} if self.seen else {None: 1.0}

    def belief(self, row: Any) -> Any:
        if self.seen:
            return np.eye(self.arm.states)[row]
        if row is None:
            return limiting_distribution(self.arm.passive)
        return self.arm.active[row[0]] @ np.linalg.matrix_power(self.arm.passive, row[1] - 1)

    def step(self, row: Any, played: bool) -> tuple[float, dict[Any, float]]:
        belief = self.belief(row)
        reward = belief @ (self.arm.reward_active if played else self.arm.reward_passive)
        if self.seen:
            chances = (self.arm.active if played else self.arm.passive)[row]
            return reward, {s: p for s, p in enumerate(chances) if p > 0}
        if played:
            return reward, {(s, 1): p for s, p in enumerate(belief) if p > 0}
        if row is None:
            return reward, {None: 1.0}
        age = row[1] + 1 if row[1] < self.cap else self.cap + 1 - self.fold
        return reward, {(row[0], age): 1.0}


def product_law(laws: list[dict[Any, float]]) -> dict[Any, float]:
    return {
        tuple(row for row, _ in joint): float(np.prod([p for _, p in joint]))
        for joint in product(*(law.items() for law in laws))
    }


def long_run(start: dict[Any, float], steps: Any) -> tuple[Any, Any, Any, Any]:
    """The equations of Hordijk and Kallenberg over the shares x and y of all (row, choice) pairs:
    matrix, right-hand side, rewards and choices. steps: row -> [(choice, reward, law ahead)]."""
    place: dict[Any, int] = {}
    pairs, todo = [], list(start)
    while todo:
        row = todo.pop()
        if row not in place:
            place[row] = len(place)
            for choice, reward, after in steps(row):
                pairs.append((row, choice, reward, after))
                todo.extend(after)
    R, C = len(place), len(pairs)
    balance, here, first = np.zeros((R, C)), np.zeros((R, C)), np.zeros(R)
    for j, (row, _, _, after) in enumerate(pairs):
        here[place[row], j] = 1
        for target, chance in after.items():
            balance[place[target], j] -= chance
    balance += here
    for row, chance in start.items():
        first[place[row]] = chance
    matrix = np.block([[balance, np.zeros((R, C))], [here, balance]])
    rewards = np.append([reward for _, _, reward, _ in pairs], np.zeros(C))
    choices = np.append([choice for _, choice, _, _ in pairs], np.zeros(C))
    return matrix, np.append(np.zeros(R), first), rewards, choices


def maximum(rewards: Any, matrix: Any, sides: Any) -> float:
    solved = linprog(-rewards, A_eq=matrix, b_eq=sides)
    assert solved.fun is not None, solved.message
    return -float(solved.fun)


def plain_optimum(arms: Arms, plays: int, cap: int, fold: int = 1) -> float:
    """The optimum of the joint chain, one state after another."""
    each = [Plain(arm, cap, fold) for arm in arms]
    subsets = list(combinations(range(len(arms)), plays))

    def steps(rows: Any) -> Any:
        for number, subset in enumerate(subsets):
            moved = [
                arm.step(row, n in subset)
                for n, (arm, row) in enumerate(zip(each, rows, strict=True))
            ]
            yield number, sum(reward for reward, _ in moved), product_law([law for _, law in moved])

    matrix, sides, rewards, _ = long_run(product_law([arm.start for arm in each]), steps)
    return maximum(rewards, matrix, sides)


def plain_bound(arms: Arms, plays: int, cap: int, fold: int = 1) -> float:
    """The best of arms that meet only in the number of plays a slot, in the long run."""

    def steps(arm: Plain) -> Any:
        return lambda row: [(a, *arm.step(row, a == 1)) for a in (0, 1)]

    each = [Plain(arm, cap, fold) for arm in arms]
    blocks = [long_run(arm.start, steps(arm)) for arm in each]
    matrix = np.vstack(
        [
            block_diag(*(block[0] for block in blocks)),
            np.concatenate([block[3] for block in blocks]),
        ]
    )
    sides = np.concatenate([*(block[1] for block in blocks), [plays]])
    return maximum(np.concatenate([block[2] for block in blocks]), matrix, sides)


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


# Arms that never forget, end somewhere, move only when played, or come back with a period.
ODD = {
    "frozen": always(IDENTITY, reward=[0, 1]),
    "frozen, restarted": always(IDENTITY, [[0.5, 0.5]] * 2, reward=[-0.1, 0.4]),
    "frozen, hidden": Arm(IDENTITY, reward=[0, 1]),
    "swaps": always(SWAP, reward=[0, 1]),
    "swaps, hidden": Arm(SWAP, IDENTITY, reward=[0, 1], reward_passive=[0.1, 0]),
    "wears out": always([[0.7, 0.3], [0, 1]], [[1, 0], [1, 0]], reward_passive=[0.8, 0]),
    "ends": always([[1, 0, 0], [0, 1, 0], [0.2, 0.2, 0.6]], reward=[0.2, 0.9, 0.5]),
    "ends, hidden": Arm(
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0]],
        [[0, 0, 1], [0, 1, 0], [0, 0, 1]],
        reward=[0, 0.6, 0.5],
    ),
    "turns": Arm(np.roll(np.eye(3), 1, 1), reward=[1, 0, 0]),
}


@pytest.mark.parametrize("names", list(combinations(ODD, 2)))
def test_optimum_and_bound_of_arms_that_do_not_forget(names):
    """All their beliefs repeat every 6 slots, from age 2 on at the latest."""
    arms = Arms(ODD[name] for name in names)
    best = optimal(arms, 1).value
    assert best == pytest.approx(plain_optimum(arms, 1, cap=7, fold=6), abs=1e-7)
    assert upper_bound(arms, 1) == pytest.approx(plain_bound(arms, 1, cap=7, fold=6), abs=1e-7)
    assert best <= upper_bound(arms, 1) + 1e-7


def odd_arm(rng: np.random.Generator) -> Arm:
    """Many zeros: classes that are never left, periods, states that are met once. Hidden states
    move for sure when left alone, so that beliefs repeat."""
    states = int(rng.integers(2, 4))
    always_seen = bool(rng.integers(2))
    moves = rng.random((2, states, states)) * (rng.random((2, states, states)) < 0.5)
    certain = np.eye(states)[rng.integers(states, size=(2, states))]
    moves = np.where(moves.sum(-1, keepdims=True) > 0, moves, certain)
    if not always_seen:
        moves[0] = certain[0]
    return Arm(
        *(moves / moves.sum(-1, keepdims=True)),
        reward_passive=rng.integers(0, 3, states) / 4,
        reward_active=rng.integers(0, 4, states) / 2,
        observed="always" if always_seen else "when_played",
    )


@pytest.mark.parametrize("seed", range(30))
def test_optimum_and_bound_of_arms_with_many_zeros(seed):
    rng = np.random.default_rng(seed)
    arms = Arms([odd_arm(rng), odd_arm(rng)])
    best = optimal(arms, 1).value
    assert best == pytest.approx(plain_optimum(arms, 1, cap=14, fold=12), abs=1e-7)
    assert policy_value(arms, 1, lambda age: myopic_table(arms, age)) <= best + 1e-8
    assert upper_bound(arms, 1) == pytest.approx(plain_bound(arms, 1, cap=14, fold=12), abs=1e-7)
    assert best <= upper_bound(arms, 1) + 1e-7


def test_frozen_arms_in_plain_sight():
    """One of two is good with chance 3/4, and it shows which."""
    arms = Arms([ODD["frozen"], ODD["frozen"]])
    assert optimal(arms, 1).value == pytest.approx(0.75, abs=1e-8)
    assert policy_value(arms, 1, lambda age: myopic_table(arms, age)) == pytest.approx(0.75)


@pytest.mark.parametrize("plays", [1, 2])
def test_an_arm_seen_when_played_is_its_chain_of_information_states(plays):
    """Expanded beforehand, the arms are always seen, and nothing else changes."""
    expanded = Arms(arm if arm.observed == "always" else expand(arm, 12) for arm in MIXED)
    assert optimal(expanded, plays).value == pytest.approx(optimal(MIXED, plays).value, abs=2e-7)
    assert upper_bound(expanded, plays) == pytest.approx(upper_bound(MIXED, plays), abs=2e-7)
    assert random_value(expanded, plays) == pytest.approx(random_value(MIXED, plays), abs=2e-7)


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


def simulated(arms: Arms, decide: Any, *, runs: int, slots: int, skip: int) -> tuple[float, float]:
    """Mean reward per slot and its standard error; decide: from states last seen and ages, (N,
    runs) each, to what is played, (N, runs)."""
    rng = np.random.default_rng(12)
    n_arms = len(arms)
    seen = np.array([arm.observed == "always" for arm in arms])[:, None]
    state = np.stack(
        [rng.choice(arm.states, runs, p=limiting_distribution(arm.passive)) for arm in arms]
    )
    last_seen, age, total = np.zeros_like(state), np.zeros_like(state), np.zeros(runs)
    for slot in range(skip + slots):
        last_seen = np.where(seen, state, last_seen)
        played = decide(last_seen, age)
        for n, arm in enumerate(arms):
            pays = np.where(played[n], arm.reward_active[state[n]], arm.reward_passive[state[n]])
            total += pays * (slot >= skip)
        last_seen = np.where(played, state, last_seen)
        age = np.where(played, 1, np.where(age > 0, age + 1, 0))
        for n, arm in enumerate(arms):
            rows = np.where(played[n][:, None], arm.active[state[n]], arm.passive[state[n]])
            drawn = (rng.random((runs, 1)) > rows.cumsum(1)).sum(1)
            state[n] = np.minimum(drawn, arm.states - 1)
    mean = total / slots
    assert played.shape == (n_arms, runs)
    return float(mean.mean()), float(mean.std(ddof=1) / np.sqrt(runs))


SIMULATED = [
    (MIXED, 1),
    (MIXED, 2),
    (Arms([*MIXED, ODD["wears out"], ODD["swaps, hidden"]]), 2),
    (Arms([ODD["frozen, hidden"], ODD["turns"], MIXED[0]]), 1),
]


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

    mean, error = simulated(arms, decide, runs=1500, slots=300, skip=60)
    assert error > 0
    assert abs(mean - policy_value(arms, plays, table)) < 4 * error


@pytest.mark.parametrize(("arms", "plays"), SIMULATED)
def test_the_action_table_earns_the_optimum(arms, plays):
    best = optimal(arms, plays, max_states=20_000)

    def decide(last_seen: Any, age: Any) -> Any:
        action = best.actions[best.code(last_seen, age)]
        assert action.min() >= 0  # only what is reachable is met, at any age
        return best.subsets[action].T

    mean, error = simulated(arms, decide, runs=1500, slots=300, skip=60)
    assert abs(mean - best.value) < 4 * error + best.error


def test_codes_of_mixed_arms():
    pytest.importorskip("jax")
    import jax.numpy as jnp

    arms = Arms([MIXED[0], MIXED[1], ODD["turns"]])
    layout = optimal(arms, 1).layout
    cap = int(layout.caps[0])
    assert layout.caps.tolist() == [cap, 0, 3]
    assert layout.wraps.tolist() == [0, 0, 3]
    assert layout.always.tolist() == [False, True, False]
    assert layout.strides.tolist() == [20, 10, 1]
    last_seen = np.array([[2, 2, 0, 1], [1, 0, 1, 0], [0, 1, 2, 2]])
    age = np.array([[cap, cap + 1, 0, 1], [0, 7, 0, 0], [0, 3, 4, 6]])
    expected = [20 * 3 * cap + 10, 6, 10 + 7, 20 * (1 + cap) + 9]
    assert joint_code(last_seen, age, layout).tolist() == expected
    on_device = type(layout)(*map(jnp.asarray, layout))
    assert joint_code(jnp.asarray(last_seen), jnp.asarray(age), on_device).tolist() == expected


# --- bounds, units, limits ---


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


def test_arms_that_forget_too_slowly_are_refused():
    slow = Arm(0.99999 * np.eye(3) + 0.00001 / 3, reward=[0, 1, 2])
    with pytest.raises(TooLargeError, match="arm 2 takes more than 5,000 slots to forget"):
        optimal(Arms([MIXED[0], slow]), 1)
    with pytest.raises(TooLargeError, match="ages up to 5,001"):
        upper_bound(Arms([MIXED[0], slow]), 1)


@pytest.mark.parametrize("period", [2, 3, 5])
def test_ages_past_the_cap_fall_back_as_the_chain_does(period):
    arm = Arm(np.roll(np.eye(period), 1, 1), reward=np.arange(period))
    arms = Arms([arm])
    layout = optimal(arms, 1).layout
    after = expansion(arm, int(layout.caps[0])).after
    assert layout.wraps[0] == period
    for state in range(period):
        row = joint_code(np.array([state]), np.array([1]), layout)
        for age in range(2, 4 * period):
            row = after[row]
            assert joint_code(np.array([state]), np.array([age]), layout) == row
