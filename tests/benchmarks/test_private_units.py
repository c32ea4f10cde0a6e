"""What units of privacy that survive feedback cost."""

import numpy as np
import pytest
from benchmarks.private_units import ARMS, UNITS, Unit, rewards, table

SLOTS = 60


def mean(unit, slots=SLOTS):
    """Of 24 agents in 6 trials."""
    return float(rewards(unit, 4, 6, slots=slots).mean())


def test_arms_that_no_reading_chooses_earn_their_stationary_reward():
    good = ARMS.p01 / (1 + ARMS.p01 - ARMS.p11)
    best = np.sort(ARMS.reward * good)[-2:].sum()
    assert mean(UNITS["released only"], 400) == pytest.approx(best, abs=0.02)


def test_who_knows_the_dynamics_earns_more_than_who_learns_and_both_more_than_in_turns():
    known, alone = mean(None), mean(UNITS["alone"])
    in_turns = mean(Unit(SLOTS, 12.0))
    assert known > alone > in_turns


def test_a_survey_is_played_in_turns_and_then_no_more():
    first = rewards(Unit(16, 12.0), 4, 6, slots=16)
    np.testing.assert_array_equal(first, rewards(Unit(16), 4, 6, slots=16))
    assert mean(Unit(16)) > mean(Unit(SLOTS))


def test_agents_that_forget_earn_less():
    assert mean(Unit(None, window=4)) < mean(Unit(None)) - 0.02


def test_the_table_has_a_row_for_each_unit():
    rows = [{"unit": name, "loss": 0.01, "se": 0.001} for name in UNITS]
    lines = table({"rows": rows}).splitlines()
    assert len(lines) == 2 + len(UNITS)
    assert lines[2] == "| alone | 0.0100 ± 0.0010 |"
