"""Comparison of two runs."""

from dataclasses import replace

import numpy as np
import pytest

from rmab.arena.comparison import compare
from rmab.arena.records import load_outcome
from tests.arena.made_up import outcome


def test_a_run_beside_itself_has_no_differences(tmp_path):
    ours = outcome()
    ours.write(tmp_path)
    again = load_outcome(tmp_path / "arena.json")
    assert again == ours
    found = compare(ours, again)
    assert found.differ == []
    assert len(found.rows) == 6
    assert found.apart == []
    assert "6 means compared, 0 differ" in found.in_short


def test_what_differs_is_said():
    ours, theirs = outcome(), outcome(mean=0.58)
    theirs = replace(theirs, made={"versions": {"rmab": "2", "jax": "2"}, "device": "there"})
    found = compare(ours, theirs)
    assert "rmab: '1' here, '2' there" in found.differ
    assert "device: 'here' here, 'there' there" in found.differ
    (row,) = found.apart
    assert (row["problem"], row["policy"]) == ("one", "quick")
    assert row["difference"] == pytest.approx(-0.08)
    assert row["se"] == pytest.approx(np.hypot(0.01, 0.01))
    assert row["sigma"] == pytest.approx(-0.08 / np.hypot(0.01, 0.01))
    assert "quick on one" in found.in_short


def test_an_unknown_error_is_never_a_known_number_of_standard_errors():
    ours = outcome()
    for se, apart, due in (
        (None, 0.0, None),
        (None, -0.1, None),
        (0.0, 0.0, 0.0),
        (0.0, -0.1, None),
    ):
        theirs = outcome(mean=0.5 - apart, se=se)
        here = outcome(se=se)
        row = next(r for r in compare(here, theirs).rows if r["policy"] == "quick")
        assert (row["sigma"], row["se"]) == (due, se), (se, apart)
    assert compare(ours, outcome(se=None)).apart == []


def test_other_problems_and_policies_are_said_and_not_compared():
    ours, theirs = outcome(), outcome()
    one, two = theirs.problems
    longer = replace(one, study={**one.study, "horizon": 200})
    fewer = replace(two, standings={k: v for k, v in two.standings.items() if k != "quick"})
    found = compare(ours, replace(theirs, problems=[longer, replace(fewer, trials=64)]))
    assert "one: horizon is 100 here, 200 there" in found.differ
    assert "two: trials is 32 here, 64 there" in found.differ
    assert "two: only here: quick" in found.differ
    assert {row["problem"] for row in found.rows} == {"two"}
    assert compare(ours, replace(theirs, problems=[])).in_short.startswith("nothing to compare")


def test_a_difference_of_exactly_four_standard_errors_is_chance():
    """Of .125, whose square root of squares is exact: 3 and 4 eighths make 5."""
    here = outcome(mean=1.0, se=0.375)
    found = compare(here, outcome(mean=3.5, se=0.5))
    row = next(r for r in found.rows if r["sigma"])
    assert (row["sigma"], found.apart) == (-4.0, [])
    assert "the most: quick on one, -2.50000 (-4.0 standard errors)" in found.in_short
    assert len(compare(here, outcome(mean=3.51, se=0.5)).apart) == 1
    assert len(compare(outcome(mean=3.51, se=0.5), here).apart) == 1


def test_other_seeds_and_trials_are_compared_but_not_other_problems():
    ours = outcome()
    for key, compared in (("seed", True), ("trials", True), ("agents", False), ("plays", False)):
        one, two = ours.problems
        other = replace(one, study={**one.study, key: 7}, trials=7 if key == "trials" else 32)
        found = compare(ours, replace(ours, problems=[other, two]))
        assert ({row["problem"] for row in found.rows} == {"one", "two"}) == compared
        assert f"one: {key} is {ours.problems[0].study[key]} here, 7 there" in found.differ
    alone = compare(ours, replace(ours, problems=ours.problems[:1]))
    assert "two: only here" in alone.differ
    alone = compare(replace(ours, problems=ours.problems[:1]), ours)
    assert alone.differ == ["two: only there"]
