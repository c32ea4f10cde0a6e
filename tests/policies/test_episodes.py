"""Rounds of Algorithm 1: merging, schedules and the stop rule, against plain loops."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmab.policies.episodes import (
    FIRST_LENGTH,
    SCHEDULES,
    first_limit,
    most_episodes,
    next_limit,
    round_length,
    visit_limit,
    visits_can_end,
)


@pytest.mark.parametrize(
    ("schedule", "lengths"),
    [("paper", [2, 3, 4, 5, 6]), ("linear", [2, 3, 4, 5, 6]), ("doubling", [2, 4, 8, 16, 32])],
)
def test_episodes_that_run_to_their_limit(schedule, lengths):
    length, seen = FIRST_LENGTH, []
    for _ in lengths:
        length = next_limit(schedule, length)
        seen.append(length)
    assert seen == lengths
    np.testing.assert_array_equal(next_limit(schedule, np.array(lengths[:-1])), lengths[1:])


def test_visit_limit_is_a_power_of_two_times_the_visits():
    visits = np.array([0, 1, 2, 7, 40])
    assert visit_limit(visits, 2, 1000).tolist() == [2, 2, 4, 14, 80]
    assert visit_limit(visits, 8, 1000).tolist() == [8, 8, 16, 56, 320]
    assert visit_limit(visits, 32, 1000).tolist() == [32, 32, 64, 224, 1000]


@given(
    visits=st.integers(0, 10**6),
    n_agents=st.integers(1, 80),
    horizon=st.integers(1, 10**6),
)
@example(visits=40_000, n_agents=16, horizon=100_000)  # 2^16 x 40,000 does not fit 32 bits
@example(visits=1, n_agents=80, horizon=10**6)  # nor does 2^80 fit 64
def test_visit_limit_neither_overflows_nor_passes_the_horizon(visits, n_agents, horizon):
    visits = min(visits, horizon)
    plain = min(2**n_agents * max(1, visits), horizon)
    assert visit_limit(np.array([visits], np.int64), 2**n_agents, horizon).tolist() == [plain]
    assert visit_limit(np.array([visits], np.int32), 2**n_agents, horizon).tolist() == [plain]
    assert visit_limit(jnp.array([visits], jnp.int32), 2**n_agents, horizon).tolist() == [plain]


Seen = Sequence[Sequence[tuple[int, int] | tuple[()]]]


def episodes(
    schedule: str, n_agents: int, n_arms: int, horizon: int, seen: Seen
) -> tuple[int, int]:
    """How many episodes there are, and how many of them visits end, in a plain loop.

    seen[t % len][m % len]: the arm that agent m plays in slot t, and the state it shows; () lets
    the agent choose what ends the episode soonest.
    """
    visits = [{(n, s): 0 for n in range(n_arms) for s in (0, 1)} for _ in range(n_agents)]
    slot, begun, early, length = 0, 0, 0, 1  # T_0 = 1
    while slot < horizon:
        begun += 1
        limit = 2 * length if schedule == "doubling" else length + 1
        start = [dict(of_agent) for of_agent in visits]
        length, ended = 0, False
        while slot < horizon and length < limit and not ended:
            row = seen[slot % len(seen)]
            for m in range(n_agents):
                what = row[m % len(row)]
                if not what or what not in visits[m]:
                    left = {k: 2**n_agents * max(1, n) - visits[m][k] for k, n in start[m].items()}
                    what = min(left, key=lambda k: left[k])
                visits[m][what] += 1
            slot, length = slot + 1, length + 1
            ended = schedule == "paper" and any(
                visits[m][k] > 2**n_agents * max(1, n)
                for m in range(n_agents)
                for k, n in start[m].items()
            )
        early += ended
    return begun, early


whatever = st.lists(
    st.lists(st.just(()) | st.tuples(st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=3),
    min_size=1,
    max_size=30,
)


@given(
    schedule=st.sampled_from(SCHEDULES),
    n_agents=st.integers(1, 3),
    n_arms=st.integers(1, 4),
    horizon=st.integers(1, 200),
    seen=whatever,
)
@example(schedule="paper", n_agents=1, n_arms=4, horizon=200, seen=[[()]])
@example(schedule="paper", n_agents=2, n_arms=4, horizon=200, seen=[[()]])
@example(schedule="paper", n_agents=7, n_arms=1, horizon=129, seen=[[(0, 1)]])
def test_no_run_has_more_episodes_than_the_bound(schedule, n_agents, n_arms, horizon, seen):
    begun, early = episodes(schedule, n_agents, n_arms, horizon, seen)
    assert begun <= most_episodes(schedule, n_agents, n_arms, horizon)
    if early:
        assert visits_can_end(schedule, n_agents, horizon)


@pytest.mark.parametrize(
    ("schedule", "n_agents", "n_arms", "horizon", "options", "most"),
    [
        # sqrt(2 T (ends + 1)), rounded up, and the episode that the horizon cuts.
        ("linear", 3, 2, 1000, {}, 45 + 1),
        ("paper", 10, 2, 1000, {}, 45 + 1),  # no count passes 2^10
        ("paper", 1, 4, 1000, {}, 403 + 1),  # 8 counts end at most 10 episodes each
        ("paper", 2, 4, 200, {}, 162 + 1),  # 16 counts, 4 each
        ("paper", 2, 4, 200, {"n_states": 3}, 197 + 1),  # 24 counts, 4 each
        ("paper", 3, 2, 1000, {}, 314 + 1),  # 12 counts, 4 each
        ("paper", 3, 2, 1000, {"own_visits": True}, 695 + 1),  # 24 counts, 10 each
        ("paper", 10, 1, 1000, {"own_visits": True}, 896 + 1),  # 40 counts, 10 each
        ("linear", 1, 1, 1000, {"longest": 10}, 45 + 1 + 101),
        ("doubling", 1, 1, 1000, {}, 10 + 1),
        ("doubling", 1, 1, 1000, {"longest": 300}, 10 + 1 + 4),
        ("doubling", 1, 1, 1023, {}, 10 + 1),
        ("doubling", 1, 1, 1024, {}, 11 + 1),
        ("doubling", 1, 1, 1000, {"longest": 1}, 1000),  # never more than slots
        ("paper", 1, 4, 30, {}, 30),
    ],
)
def test_the_bound_counts_what_lemma_1_counts(schedule, n_agents, n_arms, horizon, options, most):
    assert most_episodes(schedule, n_agents, n_arms, horizon, **options) == most


def test_a_longest_episode_bounds_every_limit():
    assert next_limit("linear", 6, 7) == 7
    assert next_limit("linear", 7, 7) == 7
    assert next_limit("doubling", 6, 11) == 11
    assert next_limit("doubling", np.array([1, 5, 6]), 11).tolist() == [2, 10, 11]
    assert [first_limit(schedule) for schedule in SCHEDULES] == [2, 2, 2]
    assert [first_limit(schedule, 1) for schedule in SCHEDULES] == [1, 1, 1]


@pytest.mark.parametrize(
    ("schedule", "reported", "length"),
    [
        ("paper", [3, 5, 4], 5),
        ("paper", [3, 9], 7),  # a late report of an earlier, longer round
        ("paper", [], 7),
        ("linear", [3, 5], 7),
        ("doubling", [3, 5], 7),
    ],
)
def test_the_next_round_follows_from_the_longest_report_of_the_papers_rule(
    schedule, reported, length
):
    assert round_length(schedule, 7, iter(reported)) == length


def test_visits_do_end_episodes_where_they_can():
    for schedule, n_agents, n_arms, horizon in (("paper", 1, 4, 200), ("paper", 2, 4, 200)):
        begun, early = episodes(schedule, n_agents, n_arms, horizon, [[()]])
        assert early > 3
        assert begun > episodes("linear", n_agents, n_arms, horizon, [[()]])[0]
    # One state seen again and again passes 2^M at slot 2^M + 1, and not before.
    for n_agents in (1, 4, 6):
        first = 2**n_agents + 1
        assert not visits_can_end("paper", n_agents, first - 1)
        assert visits_can_end("paper", n_agents, first)
    assert not any(visits_can_end(schedule, 1, 1000) for schedule in ("linear", "doubling"))


def test_the_bound_is_not_far_off_without_the_second_rule():
    for schedule in ("linear", "doubling"):
        for horizon in (1, 2, 3, 10, 100, 1000, 4321):
            begun, _ = episodes(schedule, 1, 1, horizon, [[(0, 0)]])
            assert begun <= most_episodes(schedule, 1, 1, horizon) <= begun + 3


@given(
    n_agents=st.integers(1, 3),
    n_arms=st.integers(1, 3),
    horizon=st.integers(1, 150),
    seed=st.integers(0, 1000),
)
def test_no_run_has_more_episodes_than_the_bound_where_agents_own_visits_end_them(
    n_agents, n_arms, horizon, seed
):
    """All arms are observed in every slot; each is played or not, as chance has it."""
    random = np.random.default_rng(seed)
    visits = np.zeros((n_agents, n_arms, 2, 2), int)  # by state and action
    slot, begun, length = 0, 0, 1
    agent, arm = np.ogrid[:n_agents, :n_arms]
    while slot < horizon:
        begun += 1
        limit, length = length + 1, 0
        cap = visit_limit(visits, 2, horizon)
        while slot < horizon and length < limit and not (visits > cap).any():
            state, action = random.integers(0, 2, (2, n_agents, n_arms))
            visits[agent, arm, state, action] += 1
            slot, length = slot + 1, length + 1
    assert begun <= most_episodes("paper", n_agents, n_arms, horizon, own_visits=True)
