"""Arms that are always observed or action-dependent: what is said of them, counted and refused."""

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmab.errors import ModelError, ProtocolError
from rmab.model.information import NEVER
from rmab.policies.lookahead import LookaheadTables
from rmab.policies.plans import IndexPlan, LookaheadPlan, OwnPlan, TurnsPlan
from rmab.protocol.growth import Record, check_growth
from rmab.protocol.messages import RoundMessage, parse_round
from rmab.protocol.outliers import outlier_scores
from rmab.protocol.player import Player
from rmab.protocol.shape import Shape
from rmab.protocol.uploads import most_bytes, parse_upload

# Arm 0 is as most are; 1 is action-dependent; 2 and 3 are always observed, and 3 is both.
SHAPE = Shape(2, (2, 3, 2, 3), 8, always=(2, 3), controlled=(1, 3))
SHAPES = (SHAPE, Shape(1, (2, 2), 1, always=(0, 1)), Shape(1, (6, 2), 9, (1,), (0,)))


def message_of(shape: Shape, plan: Any = None, **changes: Any) -> RoundMessage:
    """A round in which the arms take turns."""
    rewards = tuple(tuple(0.5 * s for s in range(S)) for S in shape.states)
    idle = tuple(tuple(0.25 for _ in range(S)) for S in shape.states)
    plan = plan or TurnsPlan(np.ones(shape.n_arms, bool))
    made = RoundMessage("test", "radio", 1, 5, None, shape, rewards, plan, idle)
    return replace(made, **changes)


def player_of(shape: Shape, **changes: Any) -> Player:
    return Player(message_of(shape, **changes), "0" * 32)


# ------------------------------------------------------------------------------------------ rounds


def test_a_round_says_what_kind_an_arm_is_and_of_most_arms_nothing():
    plain = (0.0,) * 2
    message = message_of(SHAPE)
    idle = (plain, *(message.idle_rewards or ())[1:])
    body = replace(message, idle_rewards=idle).to_json()
    arms = json.loads(body)["arms"]
    assert arms[0] == {"states": 2, "reward": [0.0, 0.5]}
    assert arms[3] == {
        "states": 3,
        "reward": [0.0, 0.5, 1.0],
        "reward_passive": [0.25] * 3,
        "observed": "always",
        "action_dependent": True,
    }
    assert (arms[1]["observed"], arms[2]["action_dependent"]) == ("when_played", False)
    again = parse_round(body)
    assert again.shape == SHAPE
    assert again.idle_rewards == idle
    assert again.to_json() == body


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"observed": "sometimes"}, r"arms\[2\].observed must be one of when_played, always"),
        ({"observed": None}, "observed must be one of"),
        ({"action_dependent": 1}, r"arms\[2\].action_dependent must be true or false, got 1"),
        ({"reward_passive": [0.1]}, r"arms\[2\].reward_passive must be a list of 2, got 1"),
        ({"colour": "red"}, "unknown key 'colour'"),
    ],
)
def test_a_round_with_an_arm_of_no_kind_is_refused(change, rule):
    table = json.loads(message_of(SHAPE).to_json())
    table["arms"][2] |= change
    with pytest.raises(ProtocolError, match=rule):
        parse_round(json.dumps(table).encode())
    del table["arms"][2]["observed"]
    with pytest.raises(ProtocolError, match="observed is missing"):
        parse_round(json.dumps(table).encode())


def test_a_lookahead_says_where_arms_go_that_are_left_alone():
    rows = 1 + 3 * 2
    rng = np.random.default_rng(1)

    def tables(n):
        return tuple(rng.random((4, rows)).astype(np.float32) for _ in range(n))

    plan = LookaheadPlan(2, 2, 0, LookaheadTables(tables(2), tables(2), tables(2)), SHAPE.always)
    again = parse_round(message_of(SHAPE, plan).to_json()).plan
    assert isinstance(again, LookaheadPlan)
    assert again.always == (2, 3)
    for one, other in zip(again.tables, plan.tables, strict=True):
        np.testing.assert_array_equal(one, other)
    bare = replace(plan, tables=plan.tables._replace(passive_probs=None))
    with pytest.raises(ProtocolError, match="passive is missing"):
        parse_round(message_of(SHAPE, bare).to_json())


# ----------------------------------------------------------------------------------------- playing


def test_arms_that_are_always_observed_are_where_they_are_now():
    shape = Shape(1, (2, 2), 1, always=(1,))
    index = np.zeros((2, 1 + 2 * 3), np.float32)
    index[0] = 0.5
    index[1, 1], index[1, 4] = 0.4, 0.6  # (0, 1) and (1, 1)
    player = player_of(shape, plan=IndexPlan(3, 0, index, shape.states))
    for state, chosen in ((0, [0]), (1, [1]), (0, [0]), (None, [0]), (1, [1]), (None, [1])):
        player.look([state])
        assert player.choose().tolist() == chosen
        player.observe(chosen, [0 if chosen == [0] else state])


def test_turns_are_by_plays():
    shape = Shape(1, (2, 2), 1, always=(0,))
    player = player_of(shape)
    turns = []
    for _ in range(4):
        player.look([1])
        turns += player.choose().tolist()
        player.observe(player.choose().tolist(), [1])
    assert turns == [0, 1, 0, 1]


def test_steps_are_counted_by_whether_the_arm_was_played():
    player = player_of(Shape(1, (2, 2), 1, always=(0,), controlled=(0,)))
    for look, played in ((0, 0), (1, 1), (1, 1), (0, 0), (0, 0)):
        player.look([look])
        player.observe([played], [look if played == 0 else 1])
    expected = np.zeros((2, 2, 2), int)
    expected[0, 0, 1] = 1  # played in slot 0
    expected[0, 0, 0] = 1  # and in slot 3
    expected[1, 1, 1] = expected[1, 1, 0] = 1
    np.testing.assert_array_equal(player.counts[..., 0], expected)
    np.testing.assert_array_equal(player.visits[:, 0], [3, 0])  # plays alone
    # State 0 of arm 0 pays nothing when played; left alone in two slots it pays a quarter.
    assert player.reward == 2 * 0.25 + 2 * 0.5


def test_a_reading_that_is_missing_parts_the_steps():
    player = player_of(Shape(1, (2, 2), 1, always=(0,)))
    for look in (0, None, 1, 1, 0):
        player.look([look])
        player.observe([1], [0])
    assert player.counts[..., 0].sum() == 2  # of slots 2, 3 and 3, 4
    assert player.counts[1, 1, 1, 0] == player.counts[1, 1, 0, 0] == 1
    # What a play shows is newer than a look, and serves where there was none.
    player.look([None])
    player.observe([0], [1])
    assert player.counts[1, 0, 1, 0] == 1
    player.look([1])
    player.observe([0], [None])
    assert player.visits[1, 0] == 2


def test_a_play_without_a_reading_parts_the_waits_of_an_action_dependent_arm():
    shape = Shape(2, (2, 2), 8, controlled=(1,))
    player = player_of(shape)
    player.observe([0, 1], [1, 1])
    player.observe([0, 1], [None, None])
    assert player.age.tolist() == [2, NEVER]
    player.observe([0, 1], [0, 0])
    assert player.counts[1, 1, 0, 0] == 1  # two slots apart, however often it was played
    assert player.counts[..., 1].sum() == 0
    assert parse_upload(player.upload(1).to_json(shape, "test"), shape, "test").slots == 3


def test_an_own_learner_is_told_what_is_seen():
    shape = Shape(1, (2, 2), 1, always=(0,))
    player = player_of(shape, plan=OwnPlan("ucb", {}))
    for _ in range(20):
        player.look([1])
        chosen = player.choose().tolist()
        player.observe(chosen, [1])
    state = player.learner_state
    assert state is not None
    assert state[0] == 20
    assert state[1:3].sum() == 20  # plays
    assert state[3:].sum() == 10.0  # what they paid


def test_a_look_is_checked():
    player = player_of(SHAPE)
    with pytest.raises(ModelError, match="one state for each of 2 arms that are always observed"):
        player.look([0])
    with pytest.raises(ModelError, match="must lie from 0 to 1, got 2"):
        player.look([2, 0])


# ----------------------------------------------------------------------------------------- uploads


def played(shape: Shape, seed: int, slots: int, missing: float) -> Player:
    """A player that has played random arms; missing: the share of readings that are."""
    rng = np.random.default_rng(seed)
    player = player_of(shape)

    def reading(arm: int) -> int | None:
        state = int(rng.integers(shape.states[arm]))
        return None if rng.random() < missing else state

    for _ in range(slots):
        player.look([reading(arm) for arm in shape.always])
        arms = rng.permutation(shape.n_arms)[: rng.integers(0, shape.plays + 1)].tolist()
        player.observe(arms, [reading(arm) for arm in arms])
    return player


@given(
    st.sampled_from(SHAPES),
    st.integers(0, 10**6),
    st.integers(0, 60),
    st.integers(0, 60),
    st.sampled_from([0.0, 0.1, 0.9]),
)
@settings(max_examples=150, deadline=None)
def test_all_that_a_player_counts_is_possible(shape, seed, first, more, missing):
    sent = played(shape, seed, first + more, missing).upload(7)
    body = sent.to_json(shape, "test")
    assert len(body) <= most_bytes(shape)
    got = parse_upload(body, shape, "test")
    assert got.digest == sent.digest
    before = played(shape, seed, first, missing).upload(6)
    record = Record(6, 1, before.slots, before.counts, before.visits)
    check_growth(record, sent, shape.plays, shape.always)
    if not missing:
        for arm in shape.always:
            assert sent.counts[..., arm].sum() == max(0, sent.slots - 1)


def body_of() -> Any:
    return json.loads(played(SHAPE, 3, 60, 0.0).upload(4).to_json(SHAPE, "test"))


def more(table: Any, *path: int, by: int = 1) -> int:
    *way, last = path
    for step in way:
        table = table[step]
    table[last] += by
    return by


IMPOSSIBLE = {
    "more pairs than slots": (
        lambda t: more(t["counts"], 2, 1, 0, 0),
        r"counts\[2\] must add up to at most 59 pairs of consecutive slots, got 60",
    ),
    "a play where there was none": (
        lambda t: more(t["visits"], 2, 0, by=2),
        r"visits\[2\] and the pairs that begin without a play must add up to at most 60 slots",
    ),
    "more pairs after plays than plays": (
        lambda t: (more(t["counts"], 3, 0, 0, 0, by=3), more(t["counts"], 3, 1, 0, 0, by=-3)),
        r"counts\[3\]\[0\]: pairs from state 0 must be at most its visits",
    ),
    "steps that are no path": (
        lambda t: (more(t["counts"], 2, 1, 0, 1, by=2), more(t["counts"], 2, 1, 1, 0, by=-2)),
        r"counts\[2\]: pairs from and to state . must differ by at most 1",
    ),
    "waits without plays": (
        lambda t: more(t["counts"], 1, 0, 0, 0, by=30),
        r"counts\[1\] must add up to at most \d+ pairs",
    ),
    "as many slices as others have": (
        lambda t: t["counts"][2].append(t["counts"][2][0]),
        r"counts\[2\] must be nested lists of 2 x 2 x 2: level 1 has 3",
    ),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_cannot_be_is_refused_with_the_place_and_the_rule(name):
    table = body_of()
    change, rule = IMPOSSIBLE[name]
    change(table)
    with pytest.raises(ProtocolError) as caught:
        parse_upload(json.dumps(table).encode(), SHAPE, "test")
    assert re.search(rule, str(caught.value)), str(caught.value)


def test_steps_grow_by_one_a_slot():
    before, after = (played(SHAPE, 5, slots, 0.0).upload(n) for n, slots in ((1, 10), (2, 20)))
    fewer = before.counts.copy()
    fewer[..., 2] = 0
    record = Record(1, 1, before.slots, fewer, before.visits)
    with pytest.raises(ProtocolError, match="at most one pair in each of 10 slots, got 19"):
        check_growth(record, after, SHAPE.plays, SHAPE.always)


def test_agents_are_held_against_others_action_by_action():
    """Who plays often and who does not give steps of two laws, and neither is unlike the other."""
    shape = Shape(1, (2, 2), 8, always=(0,), controlled=(0, 1))
    rng = np.random.default_rng(8)
    passive, active = [[0.9, 0.1], [0.4, 0.6]], [[0.2, 0.8], [0.1, 0.9]]
    counts = np.zeros((6, shape.kinds, 2, 2, 2), np.int64)
    for agent, share in enumerate(np.linspace(0.1, 0.9, 6)):
        for s in range(2):
            played = rng.binomial(1000, share)
            counts[agent, 0, s, :, 0] = rng.multinomial(played, active[s])
            counts[agent, 1, s, :, 0] = rng.multinomial(1000 - played, passive[s])
            counts[agent, :9, s, :, 1] = rng.multinomial(50, [0.5, 0.5], 9)
    assert shape.exact_kinds == [2, 8]
    assert (outlier_scores(counts, shape) < 4).all()
    counts[2, 1, :, :, 0] = counts[2, 1, :, ::-1, 0]
    scores = outlier_scores(counts, shape)
    assert scores.argmax() == 2
    assert scores[2] > 10
    assert (np.delete(scores, 2) < 4).all()
