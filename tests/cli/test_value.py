"""`rmab value`: every key, known values, tables, what is too large."""

import pytest

from tests.cli.commands import VALUES, toml


def test_value_has_every_key_in_order(call, study):
    ran = call("value", study(toml()), "--json")
    assert (ran.code, ran.err) == (0, "")
    assert list(ran.json) == VALUES
    values = ran.json
    assert values["optimum"] <= values["upper_bound"] + 1e-9
    for name in VALUES[2:]:
        assert values[name] <= values["optimum"] + 1e-7
    assert values["random"] <= values["fixed-best"] <= values["optimum"]


def test_value_of_two_equal_arms_is_known(call, study):
    arm = "[[arm]]\np01 = 0.2\np11 = 0.8\nreward = 1\n"
    values = call("value", study(arm * 2), "--json").json
    assert values["optimum"] == pytest.approx(0.65, abs=1e-6)
    assert values["whittle"] == pytest.approx(0.65, abs=1e-6)
    assert values["myopic"] == pytest.approx(0.65, abs=1e-6)
    assert values["upper_bound"] == pytest.approx(0.68772, abs=5e-6)
    assert values["random"] == values["fixed"] == values["fixed-best"] == pytest.approx(0.5)


def test_value_prints_a_table(call, study):
    path = study(toml())
    values = call("value", path, "--json").json
    ran = call("value", path)
    assert (ran.code, ran.err) == (0, "")
    rows = {line.split()[0]: line.split() for line in ran.out.splitlines()[2:]}
    assert list(rows) == VALUES
    for name, row in rows.items():
        assert float(row[1]) == pytest.approx(values[name], abs=1e-6)
        assert float(row[2]) == pytest.approx(100 * values[name] / values["optimum"], abs=1e-3)


# Two sources whose ages are cut at 2: a play of the older one keeps both at ages 1 and 2.
AGES = """\
[[arm]]
passive = [[0, 1], [0, 1]]
active = [[1, 0], [1, 0]]
reward_active = [-1, -2]
reward_passive = [-1, -2]
observed = "always"
"""


def test_value_of_costs_says_how_far_below_the_optimum(call, study):
    path = study(AGES * 2)
    values = call("value", path, "--json").json
    assert list(values) == VALUES
    assert values["optimum"] == pytest.approx(-3, abs=1e-6)
    assert values["whittle"] == pytest.approx(-3, abs=1e-6)
    assert values["random"] == pytest.approx(-3, abs=1e-9)  # one of the two was played, any one
    lines = call("value", path).out.splitlines()
    assert lines[1].split() == ["value", "below", "optimum"]
    rows = {line.split()[0]: line.split() for line in lines[2:]}
    for name, row in rows.items():
        assert float(row[2]) == pytest.approx(values["optimum"] - values[name], abs=2e-6)


def test_what_is_too_large_is_null_with_the_reason_beside_it(call, study, monkeypatch):
    monkeypatch.setattr("rmab.studies.run.SIMULATED_SLOTS", 50)
    monkeypatch.setattr("rmab.studies.run.SIMULATED", {"whittle": 8, "myopic": 8, "lookahead": 8})
    arms = "".join(f"[[arm]]\np01 = 0.{n}\np11 = 0.{99 - n}\nreward = 1\n" for n in range(11, 41))
    path = study("plays = 15\n" + arms)
    ran = call("value", path, "--json")
    assert ran.code == 0
    assert list(ran.json) == [*VALUES, "simulated"]
    missing = [name for name, value in ran.json.items() if value is None]
    simulated = ran.json["simulated"]
    assert list(simulated) == missing[1:]  # the upper bound stands for the optimum
    for estimate in simulated.values():
        assert 0 < estimate["se"] < 0.5
        assert abs(estimate["mean"] - ran.json["upper_bound"]) < 2  # of few trials and slots
    assert missing == ["optimum", "whittle", "myopic", "lookahead"]
    assert [line.split(":")[0] for line in ran.err.splitlines()] == missing
    for line in ran.err.splitlines():
        assert "30 arms, 15 plays" in line
        assert "limit" in line
    table = call("value", path)
    assert table.code == 0
    rows = {line.split()[0]: line.split()[1:] for line in table.out.splitlines()[2:]}
    assert rows["optimum"] == ["-"]
    whittle = simulated["whittle"]
    assert rows["whittle"] == [f"{whittle['mean']:.5f}", "±", f"{whittle['se']:.5f}"]


def test_value_where_nothing_pays_or_all_is_played(call, study):
    nothing = call("value", study("[[arm]]\np01 = 0.3\np11 = 0.6\nreward = 0\n" * 2), "--json")
    assert nothing.json == dict.fromkeys(VALUES, 0)
    assert call("value", study("[[arm]]\np01 = 0.3\np11 = 0.6\nreward = 0\n" * 2)).code == 0
    everything = call("value", study(toml({"plays": "2"})), "--json").json
    level = 0.4 * 0.5 + 0.9 * 0.89 / 1.72
    assert list(everything.values()) == pytest.approx([level] * len(VALUES))
