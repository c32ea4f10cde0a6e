"""The tables of what policies earn on traces."""

import numpy as np
from benchmarks.documents.traces import against_stay, of_backtest, rewards
from benchmarks.documents.words import plus

import rmab


def test_a_table_has_means_agent_slots_and_intervals():
    state = np.zeros((2, 60, 3), np.int8)
    state[:, :, 1] = 1
    found = rmab.backtest(rmab.Trace(state, np.zeros(60, int)), ["stay", "genie"])
    numbers = of_backtest(found, over="stay")
    head, _, row = rewards({"made": numbers}, ["stay", "genie"]).splitlines()
    assert head == "| trace | agent-slots | `stay` | `genie` |"
    low, high = numbers["policies"]["genie"]["over"]
    genie = f"1.0000 ({plus(low, 4)} to {plus(high, 4)})"
    assert row == f"| made | 120 | .9833 (+.0000 to +.0000) | {genie} |"
    apart = found.over("genie", "stay")
    assert (low, high) == (apart.low, apart.high)
    assert "(" not in rewards({"made": of_backtest(found)}, ["stay", "genie"])


def test_a_policy_that_draws_has_an_error():
    state = np.random.default_rng(0).integers(0, 2, (2, 60, 3)).astype(np.int8)
    found = rmab.backtest(rmab.Trace(state, np.zeros(60, int)), ["stay", "random"], runs=3)
    numbers = of_backtest(found)["policies"]
    assert numbers["stay"]["mean"][1] is None
    assert numbers["random"]["mean"][1] > 0
    assert " ± ." in rewards({"made": of_backtest(found)}, ["random"])


def test_an_interval_that_is_not_known_decides_nothing():
    each = {"mean": [0.5, None], "over": [None, None]}
    found = {"made": {"agent slots": 9, "policies": {"stay": each, "genie": each}}}
    assert rewards(found, ["genie"]).endswith("| made | 9 | .5000 (undecided) |")
    assert against_stay(found, ["genie"]) == "- made: undecided: `genie`."
    surely = {"made": {"agent slots": 9, "policies": {"genie": {**each, "over": [0.1, 0.3]}}}}
    assert against_stay(surely, ["genie"]) == "- made: more than `stay`: `genie`."
