"""Surveys: what is played in them, and that nothing else is ever given."""

from dataclasses import replace
from zlib import crc32

import jax.numpy as jnp
import numpy as np
import pytest

from rmab.errors import FederationError, ProtocolError
from rmab.policies.plans import IndexPlan
from rmab.privacy.accounting import sensitivity_squared
from rmab.privacy.settings import Privacy
from rmab.privacy.survey import BLOCK, first_turn, scheduled
from rmab.protocol.messages import parse_round
from rmab.protocol.player import Player
from rmab.protocol.shape import Shape
from tests.protocol.test_messages import message_of
from tests.service.support.serving import spectrum

SHAPE, SURVEY, SLOTS = Shape(2, (2,) * 5, 3), 20, 60
WHO = "0123456789abcdef" * 2


def wandering(number=1, survey=SURVEY, seed=1):
    """A round whose plan depends on all that was seen: indices without order."""
    index = np.random.default_rng(seed).random((5, 1 + 2 * 6)).astype(np.float32)
    message = message_of(SHAPE, number=number, slots=10**6)
    return replace(message, plan=IndexPlan(6, 2, index, SHAPE.states), survey=survey)


def played(states, shown=lambda slot, arm, state: state, message=None):
    """A player after all slots, its plays, and what it has given after each. In each slot it has
    another plan by all that it has counted itself."""
    player, plays, given = Player(message or wandering(), WHO), [], []
    for slot, state in enumerate(states):
        player.play_by(wandering(seed=crc32(player.own_counts.tobytes())).plan)
        arms = player.choose().tolist()
        player.observe(arms, [shown(slot, arm, int(state[arm])) for arm in arms])
        plays.append(arms)
        given.append(player.upload(1).counts)
    return player, np.array(plays), np.array(given)


STATES = np.random.default_rng(2).integers(0, 2, (SLOTS, 5))


def test_all_arms_are_played_in_turn_for_a_block_of_slots():
    found = np.array([scheduled(slot, 3, 5, 2) for slot in range(5 * BLOCK)])
    assert (found.sum(1) == 2).all()
    assert (found.sum(0) == 2 * BLOCK).all()
    for block in found.reshape(5, BLOCK, 5):
        assert (block == block[0]).all()
    assert np.flatnonzero(found[0]).tolist() == [1, 2]  # from arm 3 * 2 mod 5 on
    assert np.flatnonzero(found[BLOCK]).tolist() == [3, 4]


def test_the_schedule_of_the_engine_is_that_of_the_player():
    turns = jnp.arange(3)[:, None]
    for slot in (0, 7, 8, 19):
        found = np.asarray(scheduled(jnp.int32(slot), turns, 5, jnp.int32(2)))
        assert found.shape == (5, 3, 1)
        for agent in range(3):
            np.testing.assert_array_equal(found[:, agent, 0], scheduled(slot, agent, 5, 2))
    player = Player(wandering(), WHO)
    expected = np.flatnonzero(scheduled(0, first_turn(WHO), 5, 2))
    np.testing.assert_array_equal(player.choose(), expected)


def test_what_is_given_is_of_the_survey_and_an_agent_counts_all_for_itself():
    player, plays, given = played(STATES)
    np.testing.assert_array_equal(given[SURVEY:], given[SURVEY - 1 : -1])
    assert given[SURVEY - 1].sum() > given[SURVEY - 2].sum()
    upload = player.upload(1)
    assert upload.slots == SLOTS
    assert upload.visits.sum() == SHAPE.plays * SURVEY
    everything = played(STATES, message=wandering(survey=0))[0]
    assert everything.own_counts is everything.counts
    forced = Player(wandering(survey=0), WHO)
    for slot, arms in enumerate(plays):
        forced.observe(arms.tolist(), STATES[slot, arms].tolist())
    np.testing.assert_array_equal(player.own_counts, forced.counts)
    assert player.own_counts.sum() > 2 * player.counts.sum()


@pytest.mark.parametrize("flipped", [0, 7, 8, SURVEY - 1, SURVEY, SURVEY + 9])
@pytest.mark.parametrize("other", [lambda state: 1 - state, lambda _: None])
def test_no_reading_changes_what_is_given_by_more_than_the_noise_is_made_for(flipped, other):
    """However the agent plays on; and after the survey by nothing."""

    def shown(slot, arm, state):
        return other(state) if slot == flipped else state

    _, plays, given = played(STATES)
    _, others, changed = played(STATES, shown)
    np.testing.assert_array_equal(plays[:SURVEY], others[:SURVEY])
    assert (plays[SURVEY:] != others[SURVEY:]).any()  # it plays on by what it saw
    change = ((given[-1] - changed[-1]) ** 2).sum()
    assert change <= sensitivity_squared(SHAPE.plays)
    assert (change > 0) == (flipped < SURVEY)


def test_no_later_round_asks_for_more():
    player, _, given = played(STATES[: SURVEY + 5])
    for survey in (0, 1000):
        player.begin(wandering(2, survey))
        assert not player.surveys
        player.observe(player.choose().tolist(), [1, 1])
        np.testing.assert_array_equal(player.upload(1).counts, given[-1])


def test_a_round_says_how_long_it_is():
    message = wandering()
    assert parse_round(message.to_json()).survey == SURVEY
    bare = replace(message, survey=0).to_json()
    assert b"survey" not in bare
    assert parse_round(bare).survey == 0
    for wrong in (b"0", b"-3", b"2.5", b'"all"', b"null"):
        body = message.to_json().replace(b'"survey":20', b'"survey":' + wrong)
        if wrong == b"null":
            assert parse_round(body).survey == 0
            continue
        with pytest.raises(ProtocolError, match="survey must be"):
            parse_round(body)
    watched = message_of(Shape(1, (2, 2), 1, always=(0,)))
    with pytest.raises(ProtocolError, match="survey must not be given"):
        parse_round(replace(watched, survey=8).to_json())


@pytest.mark.parametrize("survey", [0, 1, -1, 10**6 + 1, 2.5, "16", True])
def test_a_survey_without_pairs_is_refused(survey):
    with pytest.raises(FederationError, match=r"^privacy\.survey must be .* from 2 to 1000000"):
        Privacy(epsilon=1.0, survey=survey)


def test_a_survey_is_for_sums_with_noise():
    with pytest.raises(FederationError, match=r"^privacy\.survey needs privacy\.epsilon"):
        Privacy("https://helper.example", survey=16)
    privacy = Privacy("https://helper.example", epsilon=1.0, survey=16)
    assert privacy.to_table()["survey"] == 16
    assert "survey" not in replace(privacy, survey=None).to_table()


def test_a_survey_is_for_agents_that_draw_for_themselves():
    privacy = Privacy(epsilon=8.0, survey=16)
    with pytest.raises(
        FederationError, match=r'^privacy\.survey needs draws = "own", .* \'shared\'$'
    ):
        spectrum(privacy=privacy, schedule="linear")
    own = spectrum(privacy=privacy, schedule="linear", draws="own")
    assert own.survey == 16
    assert replace(own, privacy=None).survey == 0
    assert "and a survey cost 3 agents" in (own.cost_warning(3) or "")
