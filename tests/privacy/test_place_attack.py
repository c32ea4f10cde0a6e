"""Where is an agent? No attack on sums does better than who is told the places, but not whose."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from benchmarks.place_attack import (
    ATTACKS,
    PLACES,
    Attack,
    counted,
    find,
    find_raw,
    laws,
    measure,
    opened,
    rates,
    table,
    told,
)

from rmab.errors import FederationError
from rmab.policies.episodes import SCHEDULES
from rmab.privacy import unmasking as openings
from tests.privacy.test_noisy_openings import federation

TRIALS = 100
BY_NAME = {attack.name: attack for attack in ATTACKS}
# The rule that refuses each attack, by the function that checks it, and what is found without it.
RULES = {
    "one sum": ("_check_shares", 0.7),
    "sums in turn": ("_check_shares", 0.9),
    "unequal speed, linear": ("_check_shares", 0.55),
    "unequal speed, doubling": ("_check_shares", 0.55),
    "changing sets": ("_divided", 0.9),
    "one leaves": ("_divided", 0.85),
    "one comes": ("_divided", 0.85),
}


def error(attack: Attack) -> float:
    """Three standard errors; targets of a trial are not independent."""
    return 3 * 0.5 / sqrt(TRIALS * (1 if len(attack.targets) == 1 else 2))


@pytest.mark.parametrize("name", BY_NAME)
def test_with_the_rules_a_place_is_found_no_better_than_by_who_is_told_them(name):
    attack = BY_NAME[name]
    slots = opened(attack)
    assert len(slots)
    for row in slots:
        assert len(set(row[row > 0])) == 1  # equal shares
    least = min(int((row > 0).sum()) for row in slots)
    assert find(attack, slots, TRIALS, 1) <= told(least) + error(attack)


@pytest.mark.parametrize("name", RULES)
def test_without_a_rule_the_attack_that_it_refuses_finds_the_place(name, monkeypatch):
    attack, (rule, found) = BY_NAME[name], RULES[name]
    monkeypatch.setattr(openings, rule, lambda *_: {})
    slots = opened(attack)
    assert slots.tolist() == [list(row) for row in attack.slots]
    right = find(attack, slots, TRIALS, 1)
    assert right >= found
    assert right > told(3) + 0.1


def test_every_schedule_that_goes_with_secure_sums_is_attacked():
    attacked = {name.rpartition(" ")[2] for name in BY_NAME if "speed" in name}
    assert attacked < set(SCHEDULES)
    for schedule in attacked:
        assert federation(schedule=schedule).masks
    for schedule in set(SCHEDULES) - attacked:
        with pytest.raises(FederationError, match="the ends of episodes under"):
            federation(schedule=schedule)


def test_raw_counts_tell_a_place():
    assert find_raw(BY_NAME["one sum"], TRIALS, 1) > 0.95


def test_who_is_told_three_places_is_right_as_often_as_the_likeliest_occurs():
    alike, two, all_different = PLACES, 3 * PLACES * (PLACES - 1), PLACES * 7 * 6
    assert told(3) == pytest.approx((alike + two * 2 / 3 + all_different / 3) / PLACES**3)
    assert told(1) == 1
    assert told(4) < told(3) < told(2)


def test_the_attacker_knows_how_many_pairs_a_place_gives():
    law = laws()
    slots = np.array([[4000]])
    counts = counted(law[:, None], slots, np.random.default_rng(2))[:, 0, 0]
    assert np.allclose(counts / 4000, rates(law), atol=0.02)


def test_the_table_has_a_row_for_each_attack():
    found = measure(10, 1, [BY_NAME["changing sets"]])
    row = found["attacks"][0]
    assert row["without_rules"] > row["with_rules"]
    assert (found["trials"], found["error"]) == (10, pytest.approx(0.158, abs=0.001))
    assert table(found).splitlines()[2].startswith("| equal shares in four sums of three of four")
    assert "10 trials, seed 1" in table(found)
