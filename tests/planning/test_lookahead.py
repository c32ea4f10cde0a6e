"""The lookahead: decisions against enumeration, values against the optimum, large problems."""

import math
from functools import cache, lru_cache, partial
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmab.errors import ModelError
from rmab.model.arms import Arm, Arms, Dynamics, channels
from rmab.model.beliefs import (
    NEVER,
    InformationStates,
    deviation,
    information_states,
    stationary_belief,
)
from rmab.model.information import expansion
from rmab.planning.channel.values import solve
from rmab.planning.exact.bounds import upper_bound
from rmab.planning.exact.optimum import lookahead_value, optimal, policy_value
from rmab.planning.general import whittle_table
from rmab.planning.lookahead.channel import ChannelOutlook, channel_outlook, channel_value
from rmab.planning.lookahead.tables import known_view, known_wraps, terminal_values
from rmab.planning.tables import Model
from rmab.policies import lookahead
from rmab.policies.lookahead import check_depth, choose, expected_largest

PAPER = channels([0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16], [0.4, 0.9, 0.7, 0.6])
POOR = channels([0.13, 0.26, 0.77, 0.57], [0.13, 0.44, 0.48, 0.19], [0.81, 0.38, 0.57, 0.66])
MAX_AGE = 12


def random_arm(rng: np.random.Generator, states: int, observed: str) -> Arm:
    passive, active = rng.dirichlet(np.ones(states), (2, states))
    return Arm(
        passive,
        active,
        reward_active=rng.normal(size=states),
        reward_passive=rng.normal(size=states),
        observed=observed,
    )


def some_channels(n_arms: int, seed: int) -> Arms:
    p01, p11, reward = np.random.default_rng(seed).uniform(0.05, 0.95, (3, n_arms))
    return channels(p01, p11, reward)


def mixed(seed: int) -> Arms:
    rng = np.random.default_rng(seed)
    kinds = [(2, "when_played"), (3, "when_played"), (2, "always"), (3, "always")]
    picked = rng.permutation(4)[:3]
    return Arms(random_arm(rng, *kinds[kind]) for kind in picked)


def hidden(seed: int) -> Arms:
    rng = np.random.default_rng(seed)
    return Arms(random_arm(rng, states, "when_played") for states in (3, 2, 3, 2))


def terminal(arms: Arms, plays: int):
    """The value of arm n last seen in s some slots ago, at the end of a lookahead."""
    if arms.are_channels:
        outlook = channel_outlook(arms.dynamics, plays)

        @cache
        def value(n: int, s: int, age: int) -> float:
            one = ChannelOutlook(*(np.asarray(x)[n] for x in outlook))
            states = InformationStates(np.int64(s), np.int64(age))
            belief = stationary_belief(one) + deviation(one, states)
            return float(channel_value(one, *states, belief))

        return value
    wraps = known_wraps(arms, MAX_AGE)
    table = terminal_values(Model.of(arms), MAX_AGE, plays, wraps)[:, :, 0]
    return lambda n, s, age: float(table[n, 0 if age == NEVER else age + s * MAX_AGE])


@lru_cache(maxsize=4096)
def moves(arm: Arm, state: tuple[int, int], played: bool):
    """What a slot pays, and the information states that may follow with their chances."""
    s, age = state
    if arm.observed == "always":
        law = (arm.active if played else arm.passive)[s]
        pays = (arm.reward_active if played else arm.reward_passive)[s]
        return pays, [((r, 1), float(law[r])) for r in range(arm.states)]
    belief = expansion(arm, MAX_AGE).beliefs[0 if age == NEVER else age + s * MAX_AGE]
    if played:
        return belief @ arm.reward_active, [((r, 1), float(belief[r])) for r in range(arm.states)]
    return belief @ arm.reward_passive, [((s, age if age == NEVER else age + 1), 1.0)]


def enumerated(arms: Arms, plays: int, states, depth: int, end) -> dict[tuple[int, ...], float]:
    """The worth of every set of arms, by the definition."""
    worth = {}
    for played in combinations(range(len(arms)), plays):
        each = [moves(arm, states[n], n in played) for n, arm in enumerate(arms)]
        total = sum(pays for pays, _ in each)
        for ways in product(*(ways for _, ways in each)):
            chance = math.prod(c for _, c in ways)
            after = tuple(state for state, _ in ways)
            if chance and depth == 1:
                total += chance * sum(end(n, *state) for n, state in enumerate(after))
            elif chance:
                total += chance * max(enumerated(arms, plays, after, depth - 1, end).values())
        worth[played] = total
    return worth


def check_decisions(arms: Arms, plays: int, depth: int, seed: int, cases: int) -> None:
    rng = np.random.default_rng(seed)
    last_seen = rng.integers(0, arms.sizes[:, None], (len(arms), cases))
    age = rng.integers(0, 6, (len(arms), cases))  # with never seen
    age = np.where(np.array([kind.fully_observed for kind in arms.kinds])[:, None], 1, age)
    view = known_view(arms, plays, depth, MAX_AGE)(InformationStates(last_seen, age))
    played = choose(view, plays)
    end = terminal(arms, plays)
    for case in range(cases):
        states = tuple(zip(last_seen[:, case].tolist(), age[:, case].tolist(), strict=True))
        worth = enumerated(arms, plays, states, depth, end)
        found = tuple(np.flatnonzero(played[:, case]).tolist())
        best = max(worth.values())
        first = next(arms for arms, w in worth.items() if w > best - 1e-9)
        assert found == first, (worth, states)


# --- decisions ---


@pytest.mark.parametrize("plays", [1, 2, 3])
@pytest.mark.parametrize("depth", [1, 2])
def test_decisions_on_channels_are_those_of_enumeration(plays, depth):
    for seed in range(3):
        check_decisions(some_channels(4, seed), plays, depth, seed, cases=4)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("arms", [mixed(0), mixed(1), mixed(2), hidden(3)])
def test_decisions_on_any_arms_are_those_of_enumeration(arms, depth):
    for plays in (1, 2):
        check_decisions(arms, plays, depth, seed=plays, cases=3)


def test_decisions_three_slots_ahead_are_those_of_enumeration():
    check_decisions(some_channels(3, 5), 1, 3, seed=0, cases=3)
    check_decisions(some_channels(3, 6), 2, 3, seed=1, cases=2)
    check_decisions(hidden(4)[:3], 1, 3, seed=2, cases=1)
    pair = Arms([mixed(0)[0], random_arm(np.random.default_rng(1), 2, "always")])
    check_decisions(pair, 1, 3, seed=3, cases=2)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_ties_go_to_the_lowest_arms(depth):
    alike = channels([0.3] * 4, [0.6] * 4, 1.0)
    states = InformationStates(np.zeros((4, 1), int), np.full((4, 1), NEVER))
    played = choose(known_view(alike, 2, depth, MAX_AGE)(states), 2)
    assert played[:, 0].tolist() == [True, True, False, False]


def test_sets_near_the_best_alone_are_those_of_all_where_the_best_is_near(monkeypatch):
    """With seven arms the near sets hold what is best nearly always, and never lose much."""
    arms = some_channels(7, 1)
    rng = np.random.default_rng(0)
    states = InformationStates(rng.integers(0, 2, (7, 400)), rng.integers(0, 8, (7, 400)))
    view = known_view(arms, 3, 2, MAX_AGE)(states)
    best, all_sets = choose(view, 3), lookahead._all_sets(7, 3)
    monkeypatch.setattr(lookahead, "MOST_WAYS", 0)
    near = choose(view, 3)
    assert (near.sum(0) == 3).all()
    assert (near == best).all(0).mean() > 0.95
    worth = np.array([_worth(view, one) for one in all_sets])
    which = (np.arange(7)[:, None] == all_sets[:, None]).any(-1)  # (A, N)
    lost = (
        worth.max(0)
        - worth[[int(np.flatnonzero((which == m).all(1))[0]) for m in near.T], np.arange(400)]
    )
    assert 0 <= lost.max() < 0.02


def _worth(view, arms):
    rest = np.setdiff1d(np.arange(len(view.now.gains[0])), arms)
    return view.now.gains[0][arms].sum(0) + lookahead._after_last(view, arms, rest)


# --- the largest of random values ---


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    states=st.integers(2, 3),
    n_random=st.integers(1, 4),
    n_fixed=st.integers(0, 4),
    data=st.data(),
)
def test_expected_sum_of_the_largest(seed, states, n_random, n_fixed, data):
    plays = data.draw(st.integers(1, n_random + n_fixed))
    rng = np.random.default_rng(seed)
    chances = np.moveaxis(rng.dirichlet(np.ones(states), (n_random, 5)), -1, 0)
    values = rng.integers(-3, 4, (states, n_random, 5)).astype(float)  # with ties
    fixed = rng.integers(-3, 4, (n_fixed, 5)).astype(float)
    wanted = np.zeros(5)
    for outcome in product(range(states), repeat=n_random):
        pick = list(outcome), list(range(n_random))
        drawn = np.concatenate([values[pick], fixed])
        wanted += chances[pick].prod(0) * np.sort(drawn, 0)[-plays:].sum(0)
    best = lookahead._largest(fixed, plays)
    assert lookahead._by_outcomes(chances, values, best, plays) == pytest.approx(wanted)
    assert lookahead._by_counts(chances, values, fixed, plays) == pytest.approx(wanted)
    assert expected_largest(chances, values, fixed, plays) == pytest.approx(wanted)


# --- terminal values ---


@pytest.mark.parametrize("seed", range(6))
def test_values_of_channels_are_those_of_the_subsidy_problem(seed):
    arms = some_channels(5, seed)
    plays = 1 + seed % 4
    outlook = channel_outlook(arms.dynamics, plays)
    more = upper_bound(arms, plays + 1) - upper_bound(arms, plays)
    assert outlook.subsidy == pytest.approx(np.full(5, more), abs=1e-3)
    states = information_states(MAX_AGE)
    column = ChannelOutlook(*(x[:, None] for x in outlook))
    dynamics = Dynamics(*(x[:, None] for x in arms.dynamics))
    belief = stationary_belief(dynamics) + deviation(dynamics, states)
    exact = solve(*dynamics, column.subsidy)
    assert outlook.excess == pytest.approx(exact.excess[:, 0], abs=1e-3)
    short = (exact.waits[:, :, 0] <= 8).all(0) | (exact.excess[:, 0] <= 0)
    assert short.any()
    found = channel_value(column, *states, belief)
    assert found[short] == pytest.approx(exact.value(belief)[short], abs=1e-9)


def test_channels_that_never_change_or_always_do():
    arms = channels([0.0, 1.0, 0.0, 0.5], [1.0, 0.0, 0.5, 1.0], 1.0)
    for plays in (1, 2, 3):
        outlook = channel_outlook(arms.dynamics, plays)
        assert all(np.isfinite(x).all() for x in outlook[:8])
        assert lookahead_value(arms, plays) <= optimal(arms, plays).value + 1e-9


@pytest.mark.parametrize("plays", [1, 2])
def test_channels_taken_as_any_arms_have_nearly_the_same_values(plays):
    """A third state that is never reached makes tables of what has a closed form."""
    arms = some_channels(3, 8)
    wider = Arms(
        Arm(
            np.block([[arm.passive, np.zeros((2, 1))], [np.full((1, 3), 1 / 3)]]),
            reward=[*arm.reward_active, 0],
        )
        for arm in arms
    )
    assert lookahead_value(wider, plays) == pytest.approx(lookahead_value(arms, plays), rel=1e-3)


# --- exact values ---


@pytest.mark.parametrize(
    ("arms", "plays", "depth", "value"),
    [
        (PAPER, 1, 2, 0.586135),
        (PAPER, 2, 2, 0.987134),
        (PAPER, 3, 2, 1.219876),
        (POOR, 1, 1, 0.355319),
        (POOR, 1, 2, 0.355178),
        (POOR, 1, 3, 0.355319),
    ],
)
def test_exact_values(arms, plays, depth, value):
    found = lookahead_value(arms, plays, depth, max_states=60_000)
    assert found == pytest.approx(value, abs=3e-6)


def test_it_is_near_the_optimum_where_whittle_is_not():
    best, whittle = 0.987557, 0.985198
    two = lookahead_value(PAPER, 2, max_states=20_000)
    three = lookahead_value(PAPER, 2, 3, max_states=5_000)
    assert 0.9866 < two < three < best + 1e-5
    assert two - whittle > 0.8 * (best - whittle)
    assert lookahead_value(POOR, 1, max_states=20_000) > 0.3549


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), plays=st.integers(1, 2), depth=st.integers(1, 3))
def test_never_above_the_optimum(seed, plays, depth):
    p01, p11, reward = np.random.default_rng(seed).uniform(0.1, 0.9, (3, 3))
    arms = channels(p01, (p01 + p11) / 2, reward)
    best = optimal(arms, plays, max_states=20_000)
    assert lookahead_value(arms, plays, depth, max_states=5_000) <= best.value + 1e-4


@pytest.mark.parametrize("seed", range(4))
def test_never_above_the_optimum_on_any_arms(seed):
    rng = np.random.default_rng(seed)
    arms = Arms([random_arm(rng, 2, "when_played"), random_arm(rng, 3, "always")])
    best = optimal(arms, 1).value
    values = [lookahead_value(arms, 1, depth) for depth in (1, 2, 3)]
    assert max(values) <= best + 1e-6
    assert values[2] >= best - 0.05 * abs(best)


def test_machines_are_mended_though_that_pays_later():
    worn = np.eye(4, k=1) * 0.4 + np.eye(4) * 0.6
    worn[3, 3] = 1
    machine = Arm(
        worn,
        np.eye(4)[[0] * 4],
        reward_passive=[1, 0.7, 0.3, 0],
        reward_active=[0.2] * 4,
        observed="always",
    )
    arms = Arms([machine] * 3)
    best = optimal(arms, 1).value
    assert lookahead_value(arms, 1) == pytest.approx(best, rel=0.01)
    assert best > 1.5 * policy_value(arms, 1, lambda age: np.zeros((3, 1 + 4 * age)))


# --- large problems ---


def test_many_arms_and_plays():
    """64 arms, 16 plays: 10^14 sets of 65,536 outcomes."""
    arms = some_channels(64, 2)
    rng = np.random.default_rng(1)
    states = InformationStates(rng.integers(0, 2, (64, 10)), rng.integers(0, 8, (64, 10)))
    view = known_view(arms, 16, 2, MAX_AGE)(states)
    played = choose(view, 16)
    assert (played.sum(0) == 16).all()
    alone = np.argsort(np.argsort(-view.now.gains[0], 0), 0) < 16
    changed = (played != alone).sum(0)
    assert (changed <= 4).all()  # one or two arms exchanged
    case = int(changed.argmax())
    assert changed[case]
    one = type(view)(
        lookahead._mapped(lambda x: x[..., [case]], view.now),
        tuple(tuple(level) for level in view.seen),
    )
    worth = [_worth(one, np.flatnonzero(mask[:, case]))[0] for mask in (played, alone)]
    assert worth[0] > worth[1]


def test_a_depth_that_would_take_too_long_is_refused():
    check_depth(PAPER.kinds, 2, 3)
    with pytest.raises(ModelError, match="depth must be one of 1, 2, 3, got 4"):
        check_depth(PAPER.kinds, 2, 4)
    many = some_channels(64, 0)
    check_depth(many.kinds, 16, 2)
    with pytest.raises(ModelError, match=r"depth must be at most 2 .* more than 64 ways; got 3"):
        lookahead_value(many, 16, 3)
    # A number of outcomes with more digits than Python prints.
    with pytest.raises(ModelError, match=r"of 15000 played arms, .* got 3"):
        check_depth(PAPER.kinds * 3750, 15_000, 3)


def test_whittle_is_beaten_on_average():
    """Ten random sets of channels; both exact."""
    gain = []
    for seed in range(10):
        arms = some_channels(3, 100 + seed)
        whittle = policy_value(arms, 1, partial(whittle_table, arms), max_states=3_000)
        gain.append(lookahead_value(arms, 1, max_states=3_000) / whittle - 1)
    assert np.mean(gain) > 0
    assert min(gain) > -0.01
