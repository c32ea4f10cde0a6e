"""Choosing K arms together: decisions against enumeration, large problems."""

import math
from functools import cache, lru_cache
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmab.errors import ModelError
from rmab.model.arms import Arm, Arms, channels
from rmab.model.expansion import expansion
from rmab.model.information import NEVER, InformationStates, deviation, stationary_belief
from rmab.planning.joint.policy_value import lookahead_value
from rmab.planning.lookahead import tables
from rmab.planning.lookahead.channel import ChannelValues, channel_values, terminal_value
from rmab.planning.lookahead.tables import known_lookahead, known_wraps
from rmab.planning.tables import Model
from rmab.policies import lookahead
from rmab.policies.constraint import Constraint
from rmab.policies.lookahead import SearchLimits, check_depth, choose, expected_largest
from tests.planning.lookahead.arms import PAPER, hidden, mixed, random_arm, some_channels

MAX_AGE = 12


def terminal(arms: Arms, plays: int):
    """The value of arm n last seen in s some slots ago, at the end of a lookahead."""
    if arms.are_channels:
        values = channel_values(arms.dynamics, plays)

        @cache
        def value(n: int, s: int, age: int) -> float:
            one = ChannelValues(*(np.asarray(x)[n] for x in values))
            states = InformationStates(np.int64(s), np.int64(age))
            belief = stationary_belief(one) + deviation(one, states)
            return float(terminal_value(one, *states, belief))

        return value
    wraps = known_wraps(arms, MAX_AGE)
    rows = tables._rows(Model.of(arms), MAX_AGE, wraps)
    table = tables._terminal_values(rows, plays)[:, :, 0]
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
    state = known_lookahead(arms, plays, depth, MAX_AGE)(InformationStates(last_seen, age))
    played = choose(state, plays)
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
    played = choose(known_lookahead(alike, 2, depth, MAX_AGE)(states), 2)
    assert played[:, 0].tolist() == [True, True, False, False]


def test_sets_near_the_best_alone_are_those_of_all_where_the_best_is_near():
    """With seven arms the near sets hold what is best nearly always, and never lose much."""
    arms = some_channels(7, 1)
    rng = np.random.default_rng(0)
    states = InformationStates(rng.integers(0, 2, (7, 400)), rng.integers(0, 8, (7, 400)))
    state = known_lookahead(arms, 3, 2, MAX_AGE)(states)
    best, all_sets = choose(state, 3), Constraint(3).subsets(7)
    near = choose(state, 3, limits=SearchLimits(ways=0))
    assert (near.sum(0) == 3).all()
    assert (near == best).all(0).mean() > 0.95
    worth = np.array([_worth(state, one) for one in all_sets])
    which = (np.arange(7)[:, None] == all_sets[:, None]).any(-1)  # (A, N)
    lost = (
        worth.max(0)
        - worth[[int(np.flatnonzero((which == m).all(1))[0]) for m in near.T], np.arange(400)]
    )
    assert 0 <= lost.max() < 0.02


def _worth(state, arms):
    rest = np.setdiff1d(np.arange(len(state.now.gains[0])), arms)
    return state.now.gains[0][arms].sum(0) + lookahead._after_last(
        state, arms, rest, SearchLimits()
    )


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


# --- large problems ---


def test_many_arms_and_plays():
    """64 arms, 16 plays: 10^14 sets of 65,536 outcomes."""
    arms = some_channels(64, 2)
    rng = np.random.default_rng(1)
    states = InformationStates(rng.integers(0, 2, (64, 10)), rng.integers(0, 8, (64, 10)))
    state = known_lookahead(arms, 16, 2, MAX_AGE)(states)
    played = choose(state, 16)
    assert (played.sum(0) == 16).all()
    alone = np.argsort(np.argsort(-state.now.gains[0], 0), 0) < 16
    changed = (played != alone).sum(0)
    assert (changed <= 4).all()  # one or two arms exchanged
    case = int(changed.argmax())
    assert changed[case]
    one = type(state)(
        lookahead._mapped(lambda x: x[..., [case]], state.now),
        tuple(tuple(level) for level in state.observed),
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


# ------------------------------------------------------------------------------------------- edges


def test_entries_of_a_table_are_those_of_each_agent():
    rng = np.random.default_rng(1)
    rows = rng.integers(0, 5, (3, 2, 4))
    for agents in (1, 2):
        table = rng.random((3, 5, agents, 4))
        found = lookahead.table_entries(table, rows)
        for n, agent, run in product(range(3), range(2), range(4)):
            due = table[n, rows[n, agent, run], agent % agents, run]
            assert found[n, agent, run] == due


def test_ages_fall_back_by_arm_and_agent():
    """Ages past the tables' 3 fall back by 0 (never observed), 1 (to 3) or 2 (to 2 or 3)."""
    gains = np.arange(2 * 7, dtype=float).reshape(2, 7, 1, 1)
    built = lookahead.LookaheadTables((gains / 100,), (gains,), None)
    states = InformationStates(np.ones((2, 2, 1), int), np.full((2, 2, 1), 4))
    for wraps in (np.array([[0, 1], [2, 1]]), np.array([0, 2]), np.int64(2)):
        found = lookahead.state_from_tables(built, states, 1, wraps)
        by_arm = np.asarray(wraps)
        wide = np.broadcast_to(by_arm[:, None] if by_arm.ndim == 1 else by_arm, (2, 2))
        due = np.array([[0, 6, 5][wrap] for wrap in wide.ravel()]).reshape(2, 2)
        np.testing.assert_array_equal(found.now.gains[0][..., 0], due + np.array([[0], [7]]))


@pytest.mark.parametrize(
    ("n_arms", "plays", "margin", "inside", "outside"),
    [
        (6, 2, 1, [1], [2]),
        (6, 2, 2, [0, 1], [2, 3]),
        (4, 3, 2, [1, 2], [3]),
        (5, 2, 9, [0, 1], [2, 3, 4]),
    ],
)
def test_sets_near_the_border_exchange_one_or_two(n_arms, plays, margin, inside, outside):
    found = [tuple(arms) for arms in lookahead._near_sets(n_arms, plays, margin).tolist()]
    whole = set(range(plays))
    due = {tuple(range(plays))}
    for number in (1, 2):
        for leave, enter in product(combinations(inside, number), combinations(outside, number)):
            due.add(tuple(sorted((whole - {*leave}) | {*enter})))
    assert found[0] == tuple(range(plays))
    assert set(found) == due
    assert len(found) == len(due)
    one = [arms for arms in found if len(whole - {*arms}) == 1]
    assert found[1 : 1 + len(one)] == one  # exchanges of one come first
