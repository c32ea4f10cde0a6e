"""What one reading changes where plays follow readings: what docs/privacy.md promises, and no more.

The proof is for logs with the same plays, and holds there. Whoever strengthens the words of the
promise has to make the later tests here fail first.
"""

import math

import numpy as np
import pytest
from benchmarks.feedback_audit import (
    EPSILON,
    PLAYS,
    Case,
    changes,
    epsilon_of,
    fixed_plan,
    measure,
    released_change,
    replay,
    table,
)

from rmab.privacy.accounting import DELTA, noise_multiplier, sensitivity_squared

BOUND = sensitivity_squared(PLAYS)


def test_with_the_same_plays_the_proof_holds():
    same, counted, released = changes(Case("same plays", PLAYS, 120, 40))
    assert same.all()
    assert released.max() <= BOUND
    assert counted.max() <= BOUND
    assert (counted > 0).all()
    _, counted, released = changes(Case("same plays", 1, 120, 20))
    assert max(counted.max(), released.max()) <= BOUND / PLAYS


def test_with_feedback_one_reading_changes_more_than_the_noise_is_made_for():
    """By one plan for all rounds; so (epsilon, delta) of an agent that plays on is not promised."""
    for readings in (1, PLAYS):
        same, counted, released = changes(Case("fixed plan", readings, 120, 40))
        assert same.mean() < 0.3
        for change in (counted, released):
            assert np.median(change) > readings * BOUND / PLAYS
            assert change.max() > 2 * BOUND


def test_an_agent_that_draws_for_itself_never_forgets_a_reading():
    """Its counts differ by more and more: what holds for one plan does not bound this."""
    same, _, released = changes(Case("own draws", 1, 100, 12))
    assert same.mean() < 0.2
    assert np.median(released) > 2 * BOUND
    assert epsilon_of(float(np.median(released))) > 1.5 * EPSILON


def test_with_a_survey_the_proof_holds_however_an_agent_plays_on():
    same, counted, released = changes(Case("survey", PLAYS, 60, 12))
    assert same.mean() < 0.5
    assert max(counted.max(), released.max()) <= BOUND
    assert (counted > 0).all()


def test_worlds_are_the_same_until_the_reading_and_counts_are_those_of_plays():
    rng = np.random.default_rng(3)
    states = rng.integers(0, 2, (60, 4))
    plan = fixed_plan(0)
    first = replay(states, plan)
    assert released_change(first, replay(states, plan)) == 0
    second = replay(states, plan, (30, first.plays[30, :1].tolist()))
    np.testing.assert_array_equal(first.plays[:31], second.plays[:31])
    np.testing.assert_array_equal(first.counts[:2], second.counts[:2])  # after 8 and 16 slots
    assert released_change(first, second) > 0
    with pytest.raises(AssertionError, match=r"not all played in slot 30"):
        replay(states, plan, (30, [7]))  # an arm that is not played


def test_the_epsilon_of_a_change_is_that_of_so_much_less_noise():
    assert epsilon_of(BOUND) == pytest.approx(EPSILON, rel=1e-6)
    assert epsilon_of(0) == 0
    found = epsilon_of(4 * BOUND)
    assert noise_multiplier(found, DELTA) == pytest.approx(
        noise_multiplier(EPSILON, DELTA) / math.sqrt(4), rel=1e-6
    )


def test_what_is_measured_is_a_table():
    measured = measure([Case("same plays", 1, 40, 4), Case("fixed plan", 1, 40, 4)])
    assert measured["rows"][0]["same"] == 1
    lines = table(measured).splitlines()
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1
