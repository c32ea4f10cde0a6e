"""What one agent that lies costs the others, and that the remedies help: `make liar`, small."""

from dataclasses import replace

import numpy as np
import pytest
from benchmarks.liar import (
    ATTACKS,
    CLAIMS,
    LIAR,
    Run,
    attacked,
    careful,
    costs,
    lie,
    measure,
    played,
    remedies,
)

from rmab.protocol.growth import Record, check_growth
from rmab.protocol.shape import Shape
from rmab.protocol.uploads import parse_upload

SHAPE = Shape(2, (2, 2, 2, 2), 1)


def test_a_lie_is_possible_and_may_grow():
    before = None
    for sequence, slots in enumerate((0, 1, 2, 3, 40, 41, 42, 43, 1000, 10**5, 2**40), start=1):
        told = lie(SHAPE, slots, sequence=sequence)
        upload = parse_upload(told.to_json(SHAPE, "liar"), SHAPE, "liar")
        check_growth(before, upload, 2)
        before = Record(sequence, 1, upload.slots, upload.counts, upload.visits)


def test_the_remedies_help():
    rows = remedies("fedtswi", 240)

    def found(name: str, claims: int | None):
        return played(replace(rows[name], claims=claims))

    truth = found("before", None)
    before = found("before", 10**5)
    assert before.late < 0.6 < 0.8 < truth.late
    limited = found("slot_seconds = 1, cap = 2", 2**40)
    assert limited.refused > 0
    assert limited.late > before.late + 0.15
    # Forgotten, it has had no part in what is learnt; only what was seen meanwhile is other.
    forgotten = found("forgotten", 10**5)
    assert forgotten.late > before.late + 0.25
    assert LIAR not in forgotten.scores
    # It was seen to lie, and nobody else was.
    honest = [score for name, score in before.scores.items() if name != LIAR]
    assert before.scores[LIAR] > 6 > max(honest)


def test_a_cap_changes_nothing_among_equals():
    run = Run(None, slots=120)
    one, other = played(run), played(replace(run, cap=2.0))
    np.testing.assert_array_equal(one.reward, other.reward)


def lost(run: Run, attack: str) -> float:
    """The share of the late reward that an attack takes from honest agents, on one trial."""
    truth = played(replace(run, cap=2.0))
    return 1 - played(attacked(run)[attack]).late / truth.late


@pytest.mark.parametrize("attack", ATTACKS)
def test_under_careful_settings_no_liar_costs_much(attack):
    """One short trial tells no more than a few in a hundred; `make liar` tells it better."""
    run = careful(slots=300)
    assert lost(run, attack) < 0.03
    if attack != "sleeper":  # before it lies it is believed, and then little is left to be learnt
        assert lost(replace(run, cap=None, draws="shared"), attack) > 0.05


def test_one_whose_counts_stand_out_has_no_weight():
    """Where a majority is clear: a liar at the honest rate is no louder than one of five."""
    run = replace(careful(slots=200), claims=0)
    outcome = played(run)
    assert (outcome.scores[LIAR] or 0) > 6
    assert outcome.weights[LIAR] == 0.0
    assert min(weight for name, weight in outcome.weights.items() if name != LIAR) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fedtswi", "fedtswi-gap"])
def test_no_liar_costs_more_than_one_in_a_hundred(policy):
    found = costs(policy, trials=16)
    for name, row in found["attacks"].items():
        for of in ("", "late_"):
            assert row[f"{of}cost"] < 0.01 + 2 * row[f"{of}se"], (name, of, row)
        assert row["score"] > 6 > row["honest_score"]


def test_all_remedies_meet_all_claims():
    said: list[str] = []
    found = measure(1, 40, "fedtswi", said.append)
    assert list(found["rewards"]) == list(remedies("fedtswi", 40))
    for cells in found["rewards"].values():
        assert list(cells) == list(CLAIMS)
        assert not cells["no liar"]["refused"]
        assert all(0 < cell["reward"][0] < 2 for cell in cells.values())
        assert all(cell["reward"][1] is None for cell in cells.values())  # of one trial
    assert not found["rewards"]["before"]["2^40 slots"]["refused"]
    assert found["rewards"]["defaults"]["2^40 slots"]["refused"]
    assert not found["rewards"]["defaults"]["10^5 slots"]["refused"]
    assert found["rewards"]["slot_seconds = 1"]["10^5 slots"]["refused"]
    assert found["rewards"]["before"]["no liar"] == found["rewards"]["defaults"]["no liar"]
    assert set(found["scores"]) == {"honest", LIAR}
    low, high, number = found["scores"][LIAR]
    assert low <= high
    assert number > 0
    assert said[0] == "before, no liar"
