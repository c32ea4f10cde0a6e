"""What one agent that lies costs the others, and that the remedies help: `make liar`, small."""

from dataclasses import replace

import numpy as np
from benchmarks.liar import LIAR, Run, lie, played, remedies

from rmab.federation.messages import Shape
from rmab.federation.uploads import Record, check_growth, parse_upload

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
