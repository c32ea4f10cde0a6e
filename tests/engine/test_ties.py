"""Tied rows in the engine: who reads them, and what they are worth."""

from dataclasses import replace

import pytest

from rmab import load, load_sweep, run
from rmab.engine.program import _as_needed
from rmab.engine.setting import Setting
from rmab.policies.registry import named


def test_only_a_policy_that_reads_ties_has_a_program_that_depends_on_them():
    """And it depends on which rows are tied, not on the chance that is to be learnt."""
    arms = load("catalogue:age-of-information").arms
    setting = Setting.of(arms, 1, 100)
    assert _as_needed(setting, named("fedtswi", 100, {"tied": True})).kinds == arms.kinds
    assert len(set(arms.kinds)) == 1  # three chances of success
    plain = _as_needed(setting, named("fedtswi", 100))
    assert {kind.tie for kind in plain.kinds} == {None}


@pytest.mark.slow
def test_one_unknown_is_learnt_where_many_rows_are_not():
    """docs/learners.md: .778 behind with every row learnt alone, .001 with rows tied."""
    alone, tied = (point.study for point in load_sweep("catalogue:tied-ages").points)
    found = [run(replace(study, trials=256))["fedtswi"] for study in (alone, tied)]
    assert found[0].behind == pytest.approx(0.778, abs=4 * (found[0].behind_se + 0.010))
    assert found[1].behind == pytest.approx(0.001, abs=4 * (found[1].behind_se + 0.005))
