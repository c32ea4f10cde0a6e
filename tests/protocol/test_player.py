"""An agent without input or output."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmab.errors import ModelError
from rmab.model.information import InformationStates, row_of
from rmab.policies.episodes import LONGEST
from rmab.policies.plans import IndexPlan, OwnPlan, TurnsPlan
from rmab.protocol.player import Player
from rmab.protocol.shape import Shape
from tests.protocol.test_messages import SHAPES, message_of


def test_pairs_are_counted_by_the_slots_between_the_looks():
    shape = Shape(1, (2, 2), 3)
    player = Player(message_of(shape), "0" * 32)
    # Arm 0 is seen in slots 0, 1, 3, 8; in between arm 1, or nothing.
    for look in [(0, 0), (0, 1), (1, 1), (0, 0), (1, 0), (), (), (), (0, 0)]:
        player.observe(look[:1], look[1:])
    expected = np.zeros((4, 2, 2, 2), int)
    expected[0, 0, 1, 0] = 1  # one slot apart
    expected[1, 1, 0, 0] = 1  # two
    expected[3, 0, 0, 0] = 1  # five: further than G = 3
    expected[1, 1, 0, 1] = 1  # arm 1: slots 2 and 4
    np.testing.assert_array_equal(player.counts, expected)
    np.testing.assert_array_equal(player.visits, [[3, 1], [1, 1]])
    assert player.slots == 9
    assert player.reward == 0.5 * 2


@given(st.sampled_from(SHAPES), st.integers(0, 10**6), st.integers(1, 80))
@settings(max_examples=50)
def test_counts_are_those_of_a_plain_log_of_looks(shape, seed, slots):
    rng = np.random.default_rng(seed)
    player = Player(message_of(shape), "0" * 32)
    log = []
    for slot in range(slots):
        arms = rng.permutation(shape.n_arms)[: shape.plays]
        states = [int(rng.integers(shape.states[a])) for a in arms]
        log += [(slot, int(a), s) for a, s in zip(arms, states, strict=True)]
        player.observe(arms.tolist(), states)
    expected = np.zeros_like(player.counts)
    for arm in range(shape.n_arms):
        mine = [(slot, s) for slot, a, s in log if a == arm]
        for (t0, s0), (t1, s1) in pairwise(mine):
            expected[min(t1 - t0, shape.gaps + 1) - 1, s0, s1, arm] += 1
    np.testing.assert_array_equal(player.counts, expected)


def test_the_largest_indices_are_played_where_the_arms_are():
    shape = Shape(2, (2, 2, 2), 1)
    index = np.zeros((3, 1 + 2 * 2), np.float32)
    index[:, 0] = 0.5, 0.4, 0.3  # never seen
    index[0, 1:] = 0.1, 0.2, 0.9, 0.8  # (0, 1), (0, 2), (1, 1), (1, 2)
    index[1, 1:] = 0.35, 0.3, 0.1, 0.6
    player = Player(replace(message_of(shape), plan=IndexPlan(2, 2, index, shape.states)), "0" * 32)
    assert player.choose().tolist() == [0, 1]
    player.observe([0, 1], [0, 1])
    assert player.choose().tolist() == [0, 2]  # .1, .1 and .3: a tie goes to the lower arm
    player.observe([0, 2], [1, 0])
    assert player.choose().tolist() == [0, 1]  # .9, .6 two slots after good, and 0


def test_ages_beyond_the_table_fall_back_or_become_never_seen():
    index = np.arange(1 + 2 * 4, dtype=np.float32)[None]
    index = np.concatenate([index, np.zeros_like(index)])

    def row(wrap, age):
        plan = IndexPlan(4, wrap, index, (2, 2))
        others = [plan.index[0, r] for r in range(9)]
        looks = InformationStates(np.array([1, 0]), np.array([age, 0]))
        return others[int(row_of(looks, plan.max_age, np.int64(plan.wrap))[0])]

    assert [row(2, age) for age in (3, 4, 5, 6, 7)] == [7, 8, 7, 8, 7]
    assert [row(0, age) for age in (3, 4, 5, 6)] == [7, 8, 0, 0]


def ended(player: Player, looks: list[tuple[int, int]]) -> list[bool]:
    """Whether the episode is over after each look."""
    over = []
    for arm, state in looks:
        player.observe([arm], [state])
        over.append(player.over)
    return over


def test_an_episode_ends_after_its_slots_and_play_goes_on():
    shape = SHAPES[0]
    player = Player(message_of(shape, slots=2), "0" * 32)
    assert ended(player, [(0, 0), (1, 0)]) == [False, True]
    upload = player.upload(1)
    assert (upload.round, upload.length, upload.slots) == (1, 2, 2)
    player.observe([1], [1])
    player.begin(message_of(shape, number=2))
    assert (player.round, player.length, player.over, player.slots) == (2, 0, False, 3)
    assert upload.slots == 2  # what was sent does not change


def test_an_episode_ends_when_visits_pass_their_limit():
    player = Player(message_of(SHAPES[0], slots=100, factor=2), "0" * 32)
    assert ended(player, [(0, 1)] * 3) == [False, False, True]  # 3 > 2 max(1, 0)
    player.begin(message_of(SHAPES[0], number=2, slots=100, factor=2))
    assert ended(player, [(0, 1)] * 4) == [False, False, False, True]  # 7 > 2 x 3


@pytest.mark.parametrize(
    ("arms", "states", "rule"),
    [
        ([0], [2], "arm 1: the state must lie from 0 to 1, got 2"),
        ([0], [-1], "got -1"),
        ([0], [], "one state for each"),
        ([0, 1], [0, 0], "at most 1 arms"),
        ([5], [0], "different ones below 2"),
        ([2], [0], "different ones below 2"),
        ([-1], [0], "different ones below 2"),
    ],
)
def test_what_cannot_be_seen_is_refused_and_nothing_changes(arms, states, rule):
    player = Player(message_of(SHAPES[0]), "0" * 32)
    with pytest.raises(ModelError, match=rule):
        player.observe(arms, states)
    assert player.slots == 0
    assert not player.visits.any()


def test_a_round_of_other_arms_is_refused():
    player = Player(message_of(SHAPES[0]), "0" * 32)
    with pytest.raises(ModelError, match="same federation and arms"):
        player.begin(message_of(SHAPES[1], number=2))


def test_an_arm_is_played_once_in_a_slot():
    player = Player(message_of(SHAPES[1]), "0" * 32)
    with pytest.raises(ModelError, match=r"arms must be different ones below 4, got \[1, 1\]"):
        player.observe([1, 1], [0, 0])
    assert player.slots == 0


@pytest.mark.parametrize(("controlled", "kind", "pairs"), [((), 1, 1), ((0,), 0, 0)])
def test_a_play_without_a_reading_parts_only_what_it_moves(controlled, kind, pairs):
    player = Player(message_of(Shape(1, (2, 2), 3, controlled=controlled)), "0" * 32)
    for state in (1, None, 0):
        player.observe([0], [state])
    assert player.counts.sum() == pairs
    assert player.counts[kind, 1, 0, 0] == pairs  # two slots apart
    assert player.visits.sum() == 2


def test_a_plan_of_its_own_lasts_until_the_next_round():
    player = Player(message_of(SHAPES[0]), "0" * 32)
    assert player.choose().tolist() == [0]
    player.play_by(TurnsPlan(np.array([False, True])))
    assert player.choose().tolist() == [1]
    player.begin(message_of(SHAPES[0], number=2))
    assert player.choose().tolist() == [0]


def test_a_player_goes_on_from_the_counts_of_the_one_before():
    first = Player(message_of(SHAPES[0]), "0" * 32)
    ended(first, [(0, 1), (0, 0)])
    second = Player(message_of(SHAPES[0]), "1" * 32)
    second.go_on(first)
    ended(second, [(0, 1), (0, 1)])
    assert (first.slots, second.slots) == (2, 4)
    assert (first.counts.sum(), second.counts.sum()) == (1, 2)  # none across the two
    assert (first.visits.sum(), second.visits.sum()) == (2, 4)


def test_a_learner_resumes_only_what_it_could_have_remembered():
    message = replace(message_of(SHAPES[0]), plan=OwnPlan("ucb", {}))
    first = Player(message, "0" * 32)
    ended(first, [(0, 1), (1, 0), (0, 1)])
    kept = first.learner_state
    assert kept is not None
    assert kept[0] == 3
    other = [Player(message, "1" * 32) for _ in range(5)]
    fresh = other[0].learner_state
    early, late, much = kept.copy(), kept.copy(), kept.copy()
    early[0], late[0], much[0] = -1, LONGEST * 2, LONGEST
    for player, numbers in zip(other, (None, kept[:-1], early, late, much), strict=True):
        player.resume_learner(numbers)
        wanted = much if numbers is much else fresh
        np.testing.assert_array_equal(player.learner_state, wanted)
    assert Player(message_of(SHAPES[0]), "0" * 32).learner_state is None
