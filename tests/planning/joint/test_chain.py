"""Joint codes and where ages end."""

import numpy as np
import pytest

from rmab.errors import TooLargeError
from rmab.model.arms import Arm, Arms
from rmab.model.expansion import expansion
from rmab.planning.joint.chain import (
    Ages,
    Start,
    check_caps,
    count_outcomes,
    count_states,
    count_transitions,
    explore,
    joint_chain,
    joint_code,
    kept_ages,
    merged_ages,
    readable,
    rows_of_arms,
    table_size,
    transitions,
)
from rmab.planning.joint.optimum import optimal
from tests.planning.joint.arms import FROZEN, IDENTITY, MIXED, ODD, SWINGING, always, arms_of


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


# --- where ages end ---


def test_ages_end_where_beliefs_have_settled():
    """By hand: |memory|^k / 2 and less at age k, against a tolerance of 1e-2."""
    arms = Arms(
        [*arms_of((0.3, 0.7), (0.7, 0.3), (0.2, 0.2), FROZEN, SWINGING), ODD["frozen"], MIXED[1]]
    )
    merged, kept = merged_ages(arms, 1e-2), kept_ages(arms, 1e-2)
    assert merged.caps.tolist() == [5, 5, 1, 1, 2, 0, 0]
    assert merged.wraps.tolist() == [0, 0, 0, 1, 2, 0, 0]
    assert kept.caps.tolist() == [5, 6, 1, 1, 2, 0, 0]  # on both sides of the limit
    assert kept.wraps.tolist() == [1, 2, 1, 1, 2, 0, 0]
    assert kept.at_least(4).caps.tolist() == [5, 6, 4, 4, 4, 0, 0]
    assert merged_ages(arms, 0.0128 + 1e-9).caps[:2].tolist() == [4, 4]
    assert merged_ages(arms, 0.0128 - 1e-9).caps[:2].tolist() == [5, 5]


def test_an_arm_that_forgets_too_slowly_is_named():
    ages = Ages(np.array([3, 5_000, 4_999]), np.zeros(3, int))
    check_caps(ages)
    with pytest.raises(TooLargeError, match=r"^arm 2 takes more than 5,000 slots") as error:
        check_caps(ages._replace(caps=ages.caps + 1))
    assert error.value.states == 5_001


# --- the size ---


def test_sizes_by_hand():
    """(2z + 5)(2z + 7) = 4 z^2 + 24 z + 35 of caps 3 and 4; a visible arm has three states."""
    hidden = arms_of((0.3, 0.7), (0.6, 0.2))
    three = always(np.full((3, 3), 1 / 3), np.eye(3), reward=[0, 1, 2])
    mixed = Arms([*hidden, three])
    two, with_third = (
        Ages(np.array(caps), np.zeros(len(caps), int)) for caps in ([3, 4], [3, 4, 0])
    )
    assert count_states(hidden, two, 1) == 24 + 1
    assert count_states(hidden, two, 2) == 4 + 1
    # Age 1 is met again where the cap falls back to it: (2z + 7)(2z + 7).
    assert count_states(hidden, two._replace(wraps=np.array([3, 0])), 1) == 28 + 1
    assert count_states(mixed, with_third, 1) == 3 * (35 + 24 + 1)
    assert count_states(mixed, with_third, 2) == 3 * (24 + 4 + 1)
    assert rows_of_arms(mixed, with_third).tolist() == [7, 9, 3]
    assert table_size(mixed, with_third) == 7 * 9 * 3
    # (1 + 2z)^2 and (3 + z): three ways for the third arm when left alone, one when played.
    assert [count_transitions(hidden, plays) for plays in (1, 2)] == [4, 4]
    assert [count_transitions(mixed, plays) for plays in (1, 2, 3)] == [3 * 4 + 1, 3 * 4 + 4, 4]
    assert [count_outcomes(mixed, plays) for plays in (1, 2)] == [3 * 2, 3 * 4]
    wider = Arms([*hidden, Arm(np.full((4, 4), 0.25), reward=[0, 1, 2, 3])])
    assert [count_outcomes(wider, plays) for plays in (1, 2, 3)] == [4, 8, 16]


def test_large_counts_are_told_by_their_size():
    assert readable(10**12 - 1) == "999,999,999,999"
    assert readable(10**12) == "about 10^12"
    assert readable(4 * 10**20) == "about 10^21"


def test_exploration_ends_at_its_limit():
    arms = arms_of((0.3, 0.7), (0.6, 0.2))
    chain = joint_chain(arms, merged_ages(arms, 1e-2))
    start = Start.of(chain, arms)
    assert (start.codes.tolist(), start.chances.tolist()) == ([0], [1])

    def explored(limit):
        return explore(chain, start.codes, lambda _: [np.array([0])], limit)

    assert explored(3).tolist() == sorted(explored(99).tolist())  # never seen, seen bad, seen good
    with pytest.raises(TooLargeError, match="more than 2 joint information states") as error:
        explored(2)
    assert error.value.states == 3


def test_visible_arms_begin_in_the_law_of_arms_left_alone():
    moves = [[0.9, 0.1], [0.3, 0.7]]
    arms = Arms([always(moves, IDENTITY, reward=[0, 1]), *arms_of((0.3, 0.7))])
    ages = merged_ages(arms, 1e-2)
    chain = joint_chain(arms, ages)
    start = Start.of(chain, arms)
    rows = 1 + 2 * int(ages.caps[1])
    assert start.codes.tolist() == [0, rows]
    assert start.chances == pytest.approx([0.75, 0.25])
    assert start.over(np.array([0, 3, rows])).tolist() == pytest.approx([0.75, 0, 0.25])


def test_each_state_moves_and_pays_by_what_is_played_there():
    moves = [[0.9, 0.1], [0.3, 0.7]]
    hidden = Arm(moves, reward_active=[0, 1], reward_passive=[0.25, 0.25])
    seen = always(moves, IDENTITY, reward_passive=[0.5, 2], reward_active=[3, 4])
    arms = Arms([hidden, seen])
    chain = joint_chain(arms, merged_ages(arms, 1e-1))
    start = Start.of(chain, arms)
    codes = explore(chain, start.codes, lambda _: [np.array([0]), np.array([1])], 99)
    whole = [transitions(chain, codes, np.array([n])) for n in (0, 1)]
    assert whole[0][1][:2] == pytest.approx([0.25 + 0.5, 0.25 + 2])  # never seen: good in a quarter
    assert whole[1][1][:2] == pytest.approx([0.25 + 3, 0.25 + 4])
    played = np.arange(codes.size) % 2
    mixed, reward = transitions(chain, codes, played[:, None])
    for row, n in enumerate(played.tolist()):
        assert reward[row] == whole[n][1][row]
        np.testing.assert_allclose(mixed.toarray()[row], whole[n][0].toarray()[row], atol=1e-15)
    np.testing.assert_allclose(mixed.toarray().sum(1), 1, atol=1e-12)
