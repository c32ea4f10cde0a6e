"""Tables of a page, cell by cell, from results that are made up."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rmab import Arm, Arms, Study, Sweep, channels
from rmab.experiments.powers import fit
from rmab.report.tables import (
    arms_table,
    exact_table,
    means_table,
    points_table,
    policy_cell,
    powers_table,
    settings_table,
    what_was_run,
)
from rmab.studies.results import Curve, PolicyResult, Results
from rmab.studies.run import Values

NAN = float("nan")
PAIR = channels([0.2, 0.89], [0.8, 0.17], [0.4, 0.9])
STUDY = Study(PAIR, agents=2, horizon=40, trials=30, policies=["fedtswi", "whittle"])


def cells(markup):
    """Rows of all tables, each a list of its cells' texts."""
    rows = re.findall(r"<tr>(.*?)</tr>", str(markup), re.DOTALL)
    found = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    return [[re.sub(r"<[^>]*>", "", cell) for cell in row] for row in found]


def results_of(study, trials=30, interrupted=False, **changes):
    slots = Curve(np.ones(40), np.ones(40))
    curves: Any = (slots, slots, np.ones(1), slots, slots, slots, None, 0.0)
    one = PolicyResult(0.5, 0.01, 0.25, NAN, 7.26, 0.125, 0.0625, *curves)
    policies = {name: replace(one, **changes) for name in study.policy_names}
    return Results(study, trials, interrupted, policies, np.zeros((2, 2)))


def test_means_are_shown_with_their_errors_where_they_are_known():
    head, first, second = cells(means_table([("", results_of(STUDY))]))
    assert head == ["Policy", "Mean", "Last tenth", "Episodes", "Shortfall to whittle"]
    numbers = ["0.50000 ± 0.01000", "0.25000", "7.3", "0.12500 ± 0.06250"]
    assert first == ["FedTSWI fedtswi", *numbers]
    assert second == ["WI policy whittle", *numbers]
    head, *rows = cells(means_table([("K = 1", results_of(STUDY)), ("K = 2", results_of(STUDY))]))
    assert head[:2] == ["Variant", "Policy"]
    assert [row[:2] for row in rows] == [
        [f"K = {K}", name] for K in (1, 2) for name in ("FedTSWI fedtswi", "WI policy whittle")
    ]


@pytest.mark.parametrize(
    ("changes", "trials", "text"),
    [
        ({}, 30, "M = 2 agents, N = 2 arms, K = 1 play in each of 40 slots; 30 trials."),
        (
            {"agents": 1, "plays": 2, "horizon": 1},
            1,
            "M = 1 agent, N = 2 arms, K = 2 plays in each of 1 slot; 1 trial.",
        ),
    ],
)
def test_what_was_run_is_said_in_a_sentence(changes, trials, text):
    study = replace(STUDY, **changes)
    assert str(what_was_run(results_of(study, trials))) == f"<p>{text}</p>"
    cut = str(what_was_run(results_of(study, trials, interrupted=True)))
    assert f"Interrupted: {trials} of 30 trials were done; numbers are of those." in cut


def values_of(reasons=None, **values):
    return Values({"optimum": 0.5, "upper_bound": 0.75, "whittle": 0.4, **values}, reasons or {})


def test_exact_values_and_their_shares_of_the_optimum():
    assert str(exact_table(["a"], [])) == ""
    head, *rows = cells(exact_table([""], [values_of()]))
    assert head == ["Known dynamics", "Long-run average", "of the optimum"]
    assert rows == [
        ["Optimum", "0.500000", "100.000 %"],
        ["Upper bound (Lagrangian)", "0.750000", "150.000 %"],
        ["WI policy whittle", "0.400000", "80.000 %"],
    ]
    second = values_of({"optimum": "is too large"}, optimum=None)
    markup = exact_table(["K = 1", "K = 2", "more"], [values_of(), second])
    head, *rows = cells(markup)
    assert head[1::2] == ["Long-run average, K = 1", "Long-run average, K = 2"]
    assert [row[3:] for row in rows] == [["not known", ""], ["0.750000", ""], ["0.400000", ""]]
    assert "<p>optimum: is too large.</p>" in str(markup)


@pytest.mark.parametrize(("places", "errors"), [(3, True), (9, True), (10, False)])
def test_slopes_have_errors_while_they_are_few(places, errors):
    x = np.geomspace(1, 100, places)
    found = fit(x, Curve(3 * x**0.5, 0.01 * x**0.5))
    assert found is not None
    head, row = cells(powers_table({"regret": found}))
    assert head == ["Curve", "Power", "Chi-squared per degree", "Fits", "From point to point"]
    assert row[:1] + row[2:4] == ["regret", "0.0", "yes"]
    assert row[1].startswith("0.500 ± 0.00")
    slopes = row[4].split(", ")
    assert len(slopes) == places - 1
    assert all(slope.startswith("0.50") for slope in slopes)
    assert all(("±" in slope) == errors for slope in slopes)


def test_a_power_that_does_not_fit_says_so():
    x = np.asarray([1.0, 2, 4])
    bent = fit(x, Curve(np.asarray([1.0, 2, 2]), np.full(3, 0.01)))
    two = fit(x[:2], Curve(np.asarray([1.0, 2]), np.full(2, 0.01)))
    assert bent is not None
    assert two is not None
    _, first, second = cells(powers_table({"bent": bent, "two": two}))
    assert (first[3], second[2], second[3]) == ("no", "", "no")
    assert float(first[2]) > 100


def test_points_and_what_they_set():
    sweep = Sweep(STUDY, {"agents": [1, 2], "policies.fedtswi.prior": [0.5]})
    head, *rows = cells(points_table(sweep))
    assert head == ["Point", "Variant", "Agents M", "fedtswi.prior"]
    assert rows == [["1", "M = 1", "1", "0.5"], ["2", "M = 2", "2", "0.5"]]


def settings_rows(*studies, results=None):
    return dict(row[:2] for row in cells(settings_table([("", each, results) for each in studies])))


def test_settings_are_shared_or_of_a_variant():
    shared = settings_rows(STUDY)
    assert shared["Arms N"] == "2"
    assert (shared["Weights"], shared["Options"]) == ("1 each", "none")
    assert (shared["Policies"], shared["Privacy"]) == ("fedtswi, whittle", "sums without noise")
    assert not {"Graph", "Degree", "Failure", "Agents that differ"} & set(shared)
    other = replace(STUDY, agents=3, weights=[1, 0.5, 2])
    listed = settings_table([("one", STUDY, None), ("other", other, None)])
    rows = cells(listed)
    assert ["Variant", "Agents M", "Weights"] in rows
    assert rows[-2:] == [["one", "2", "1 each"], ["other", "3", "1, 0.5, 2"]]
    assert not any(row[0] == "Agents M" for row in rows)


def test_settings_that_few_studies_have():
    gossip = replace(STUDY, aggregation="gossip", options={"fedtswi": {"prior": 2, "tied": False}})
    found = settings_rows(gossip)
    assert {"Graph", "Degree", "Failure"} <= set(found)
    assert found["Options"] == "fedtswi: prior = 2; fedtswi: tied = false"
    own = [{"agents": [2], "arm": [{"number": 2, "p11": 0.5, "reward": 1.0}]}]
    assert settings_rows(replace(STUDY, agent=own))["Agents that differ"] == (
        "agents 2, arm 2: p11 = 0.5, reward = 1.0"
    )
    noisy = replace(STUDY, schedule="linear", agents=6, privacy={"epsilon": 2, "groups": 2})
    assert settings_rows(noisy)["Privacy"] == "ε = 2, δ = 1e-06 for each slot, 2 groups"
    cut = results_of(STUDY, trials=12, interrupted=True)
    assert settings_rows(STUDY, results=cut)["Trials"] == "12 of 30"
    assert settings_rows(STUDY, results=results_of(STUDY))["Trials"] == "30"


def test_arms_that_variants_share_are_listed_once():
    wider = Arms(list(PAIR) * 3)
    other = channels([0.5], [0.5], [1.0])
    markup = str(arms_table([("one", PAIR), ("three", wider)]))
    assert "<h3>Arms, 1 to 3 copies of each</h3>" in markup
    head, *rows = cells(markup)
    assert head == ["Arm", "p01", "p11", "Reward", "Stationary belief"]
    assert rows[0] == ["1", "0.2", "0.8", "0.4", "0.5000"]
    assert len(rows) == 2
    apart = str(arms_table([("one", PAIR), ("other", other), ("three", wider)]))
    titles = re.findall(r"<h3>(.*?)</h3>", apart)
    assert titles == ["Arms: one", "Arms: other", "Arms: three, 3 copies of each"]
    assert "<h3>Arms</h3>" in str(arms_table([("", PAIR)]))


def test_arms_of_several_states_have_a_row_for_each():
    seen = Arm([[0.9, 0.1], [0.25, 0.75]], reward=[0, 1], observed="always")
    three = Arm(np.full((3, 3), 1 / 3), np.eye(3), reward=[0, 1, 2], reward_passive=[3, 4, 5])
    head, *rows = cells(arms_table([("", Arms([seen, three]))]))
    assert head[:3] == ["Arm", "State", "Passive transitions"]
    assert rows[0] == ["1, fully observed", "0", "0.9, 0.1", "0.9, 0.1", "0", "0"]
    assert rows[1][:3] == ["", "1", "0.25, 0.75"]
    assert rows[2][0] == "2, observed when played"
    assert rows[4] == ["", "2", "0.333333, 0.333333, 0.333333", "0, 0, 1", "5", "2"]


def test_a_name_that_is_no_policys_stands_alone():
    assert str(policy_cell("mine & yours")) == "mine &amp; yours"
    assert str(policy_cell("whittle")) == "WI policy <code>whittle</code>"
