"""`rmab backtest`: the table, the JSON, what it writes, bad input, Ctrl-C."""

import json

import numpy as np
import pytest

from rmab.traces.outcome import FEWEST_BLOCKS
from rmab.traces.replay import Replay
from rmab.traces.trace import save_trace
from tests.traces.made import chain, trace_of

AGENTS, SLOTS, ARMS = 2, 60, 3  # as tests/traces/test_backtest.py has them
SEGMENTS = np.repeat([0, 1, 2], [25, 5, 30])


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    state = chain(0.2, 0.8, AGENTS, ARMS, SLOTS)
    state[1, :, 2] = -1
    made = trace_of(state, SEGMENTS, arms=("a", "b", "c"), agents=("x", "y"))
    level = trace_of(np.where(state == 1, 2, state), SEGMENTS, states=3)
    path = tmp_path_factory.mktemp("traces") / "trace.npz"
    save_trace(made, path, level)
    return path


def test_a_table_and_what_is_written(call, trace, tmp_path):
    out = tmp_path / "out"
    ran = call("backtest", trace, "--policies", "stay,whittle,random,genie", "--out", out)
    assert ran.code == 0
    head, titles, *rows = ran.out.splitlines()
    assert head.startswith("2 agents, 60 slots, 3 arms, 3 segments; 1 arm played in a slot")
    assert titles.split()[:3] == ["policy", "mean", "se"]
    assert [row.split()[0] for row in rows[:4]] == ["stay", "whittle", "random", "genie"]
    assert "fitted to this trace" in rows[1]
    assert "sees the states" in rows[3]
    assert "agent y: never measured and left out: arm c" in ran.err
    assert sorted(path.name for path in out.iterdir()) == sorted(
        ["backtest.html", "backtest.json", "time.csv", "agents.csv"]
        + [
            f"{name}.{kind}"
            for name in ("differences", "time", "agents")
            for kind in ("png", "svg")
        ]
    )
    page = (out / "backtest.html").read_text(encoding="utf-8")
    assert "Of what could have been played, stay earned most" in page
    assert "fitted to this trace" in page
    again = call("backtest", trace, "--policies", "stay,whittle,random,genie", "--json").json
    assert json.loads((out / "backtest.json").read_text()) == again


def test_json(call, trace):
    ran = call("backtest", trace, "--plays", "1", "--policies", "stay,whittle", "--runs", "3",
               "--seed", "7", "--json")  # fmt: skip
    assert ran.code == 0
    found = ran.json
    assert list(found) == ["trace", "plays", "runs", "seed", "policies"]
    assert (found["plays"], found["runs"], found["seed"]) == (1, 3, 7)
    assert found["trace"] == {
        "agents": 2,
        "slots": 60,
        "arms": 3,
        "agent_slots": 120,
        "segments": 3,
        "missing": pytest.approx(1 / 6),
        "good": pytest.approx(found["trace"]["good"]),
    }
    assert list(found["policies"]) == ["stay", "whittle"]
    stay, whittle = found["policies"].values()
    assert {key: type(value) for key, value in stay.items()} == {
        "mean": float,
        "se": float,
        "by_agent": list,
        "by_block": list,
        "learns": bool,
        "fitted": bool,
        "over_stay": dict,
        "over_fixed": dict,
    }
    assert (len(stay["by_agent"]), len(stay["by_block"])) == (2, 50)
    assert stay["over_stay"] == {
        "difference": 0, "low": 0, "high": 0, "blocks": 50, "undecided": "",
    }  # fmt: skip
    assert (stay["fitted"], whittle["fitted"], whittle["learns"]) == (False, True, False)
    apart = whittle["over_stay"]
    assert apart["difference"] == pytest.approx(whittle["mean"] - stay["mean"])
    known = apart["blocks"] >= FEWEST_BLOCKS
    assert known == (apart["undecided"] == "") == (apart["low"] is not None)
    assert not known or apart["low"] <= apart["difference"] <= apart["high"]
    parts = ((25, 21), (5, 4), (30, 25))  # slots and blocks of each segment
    blocks = np.concatenate([np.diff(np.arange(b + 1) * s // b) for s, b in parts])
    assert np.dot(stay["by_block"], blocks) / 60 == pytest.approx(stay["mean"])


def test_good_levels_and_rewards(call, trace):
    def genie(*options):
        ran = call("backtest", trace, "--policies", "genie", "--json", *options)
        return ran.json["policies"]["genie"]["mean"]

    best = genie()
    assert genie("--reward", "0.5") == pytest.approx(best / 2)
    assert genie("--levels", "--reward", "0,0.1,1") == pytest.approx(best)  # nothing is at level 1
    assert genie("--levels", "--good", "== 2") == pytest.approx(best)
    worst = call("backtest", trace, "--good", "== 0", "--policies", "genie", "--json").json
    assert worst["trace"]["good"] == pytest.approx(1 - call("trace", trace, "--json").json["good"])


def test_several_agents_on_one_recording(call, trace):
    ran = call("backtest", trace, "--same", "0", "--agents", "2", "--policies", "stay", "--json")
    assert ran.json["trace"]["agents"] == 2
    first, second = ran.json["policies"]["stay"]["by_agent"]
    assert first == second
    named = call("backtest", trace, "--same", "x", "--agents", "2", "--policies", "stay", "--json")
    assert named.json == ran.json


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (["--plays", "4"], "between 1 and 3, the number of arms, got 4"),
        (["--plays", "0"], "--plays must be a whole number of at least 1"),
        (["--same", "2"], "--same 2: there is no such agent; there are 0 to 1: x, y"),
        (["--agents", "2"], "--agents needs --same"),
        (["--policies", "optimal"], "'optimal' needs one law"),
        (["--policies", "stay,nobody"], "unknown 'nobody'"),
        (["--policies", "stay@pooled"], "@pooled is for those that know the dynamics"),
        (["--policies", ""], "policies must be a list of names"),
        (["--reward", "1,2,3"], "--reward must be one number, of good, or two"),
        (["--reward", "much"], "--reward must be numbers"),
        (["--levels", "--reward", "1"], "--reward must be 3 numbers"),
        (["--schedule", "slow"], "schedule: unknown 'slow'"),
        (["--set", "gaps=3"], "--set must be POLICY.OPTION=VALUE"),
        (["--set", "fedtswi-gap.gaps=3"], "options.fedtswi-gap.gaps must be"),
        (["--set", "fedtswi-gap.aggregation=all"], "options.fedtswi-gap.aggregation must be"),
        (["--good", "most"], "--good must be one of"),
        (["--runs", "many"], "--runs must be a whole number"),
    ],
)
def test_bad_input_is_one_line(call, trace, options, rule):
    ran = call("backtest", trace, *options)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert rule in ran.err


def test_a_trace_that_is_not_there(call, tmp_path):
    ran = call("backtest", tmp_path / "none.npz")
    assert ran.code == 2
    assert "none.npz" in ran.err


def test_an_interruption_keeps_what_is_done(call, trace, tmp_path, monkeypatch):
    """stay and fixed-best come first, as differences are to them."""
    play = Replay.rewards

    def interrupted(replay, policy, *others):
        if policy.name == "whittle":
            raise KeyboardInterrupt
        return play(replay, policy, *others)

    monkeypatch.setattr(Replay, "rewards", interrupted)
    policies = ["--policies", "genie,whittle,random"]
    ran = call("backtest", trace, *policies, "--json", "--out", tmp_path)
    assert ran.code == 130
    assert list(ran.json["policies"]) == ["genie"]
    assert "interrupted: 1 of 3 policies done" in ran.err
    assert "Interrupted" in (tmp_path / "backtest.html").read_text(encoding="utf-8")
    ran = call("backtest", trace, "--policies", "whittle", "--json")
    assert (ran.code, ran.out) == (130, "")
    assert ran.err.count("\n") == 1
