"""How policies stand: shares, ranks, ties and verdicts, against plain arithmetic."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rmab import StudyError
from rmab.arena.scores import (
    ArenaOutcome,
    ProblemOutcome,
    Standing,
    compare,
    load_outcome,
    standings,
)
from rmab.studies.results import Curve, PolicyResult, Results
from tests.studies.small import STUDY

NAMES = ["whittle", "random", "quick", "slow", "other"]
KNOWS = ["whittle", "random"]
STANDING = Standing(
    label="Quick",
    knows=False,
    mean=0.5,
    se=0.01,
    final=0.5,
    final_se=0.01,
    regret=1.0,
    regret_low=0.5,
    regret_high=1.5,
    share=0.95,
    share_se=0.01,
    rank=2,
    tied=[],
    stuck=0.0,
    seconds=0.002,
    episodes=3.0,
    curve={"slot": [1, 2], "regret": [0.0, 1.0], "se": [0.0, 0.1]},
)


def results_of(by_trial: np.ndarray) -> Results:
    """As if these rewards, (policies, trials), were those of NAMES."""
    n = by_trial.shape[1]
    slots = Curve(np.ones(100), np.ones(100))
    regret = Curve(np.linspace(0, 5, 100), np.full(100, 0.5))
    one = PolicyResult(
        0.0,
        0.1,
        0.0,
        0.1,
        1.0,
        0.0,
        0.0,
        slots,
        regret,
        np.ones(1),
        slots,
        slots,
        slots,
        None,
        0.25,
    )
    means, errors = by_trial.mean(1), by_trial.std(1, ddof=1) / np.sqrt(n)
    policies = {
        name: replace(one, mean=float(m), se=float(e))
        for name, m, e in zip(NAMES, means, errors, strict=True)
    }
    return Results(STUDY, n, False, policies, np.cov(by_trial) / n)


@pytest.fixture(scope="module")
def rewards() -> np.ndarray:
    """Paired: a trial that is good for one is good for all."""
    rng = np.random.default_rng(5)
    luck = rng.normal(0, 0.2, 400)
    means = np.array([1.0, 0.2, 0.8, 0.799, 0.4])[:, None]
    return means + luck + rng.normal(0, 0.02, (5, 400))


def stands(rewards: np.ndarray) -> dict[str, Standing]:
    labels = {name: name.title() for name in NAMES}
    return standings(results_of(rewards), KNOWS, labels, {"quick": 0.5})


def test_shares_are_of_the_distance_from_random_to_the_best_known(rewards):
    found = stands(rewards)
    mean = dict(zip(NAMES, rewards.mean(1), strict=True))
    for name in NAMES:
        due = (mean[name] - mean["random"]) / (mean["whittle"] - mean["random"])
        assert found[name].share == pytest.approx(due, abs=1e-12)
    assert found["whittle"].share_se == found["random"].share_se == 0
    # The error is that of the paired trials, by a bootstrap.
    rng = np.random.default_rng(6)
    drawn = rewards[:, rng.integers(0, 400, (2000, 400))].mean(-1)
    shares = (drawn[2] - drawn[1]) / (drawn[0] - drawn[1])
    assert found["quick"].share_se == pytest.approx(shares.std(), rel=0.1)


def test_ranks_are_among_learners_and_ties_are_paired(rewards):
    found = stands(rewards)
    # Apart by .001, which luck of .2 hides alone, and .02 does between these two.
    assert found["quick"].rank == found["slow"].rank == 1
    assert found["quick"].tied == ["slow"]
    assert found["other"].rank == 3
    assert found["other"].tied == []
    assert [found[name].rank for name in KNOWS] == [None, None]
    assert next(iter(found)) == "whittle"
    assert list(found)[-1] == "random"
    assert (found["quick"].seconds, found["slow"].seconds) == (0.5, None)
    assert found["quick"].stuck == 0.25
    # Without the pairs, the luck of 400 trials would tie what .05 is apart.
    shifted = rewards + np.array([0, 0, 0, -0.05, 0])[:, None]
    assert stands(shifted)["slow"].rank == 2


def test_ties_end_at_four_standard_errors(rewards):
    apart = rewards[2] - rewards[3]
    se = apart.std(ddof=1) / np.sqrt(len(apart))
    for sigma, rank in ((3.9, 1), (4.1, 2)):
        level = rewards.copy()
        level[3] += apart.mean() - sigma * se
        found = stands(level)["slow"]
        assert (found.rank, found.tied == ["quick"]) == (rank, rank == 1)


def test_one_trial_tells_nothing_apart(rewards):
    found = standings(
        replace(results_of(rewards), covariance=np.full((5, 5), np.nan)),
        KNOWS,
        dict(zip(NAMES, NAMES, strict=True)),
        {},
    )
    assert [found[name].rank for name in ("quick", "slow", "other")] == [1, 1, 1]
    assert found["quick"].share_se is None


def test_nothing_to_gain_has_no_share(rewards):
    level = rewards.copy()
    level[0] = level[1]
    assert all(each.share is None for each in stands(level).values())


def test_a_curve_has_its_first_and_last_slot(rewards):
    curve = stands(rewards)["quick"].curve
    assert (curve["slot"][0], curve["slot"][-1]) == (1, 100)
    assert curve["regret"][-1] == 5
    assert len(set(map(len, curve.values()))) == 1


# ---------------------------------------------------------------------------------------- verdicts


def problem(name: str, **changes: Any) -> ProblemOutcome:
    """One that a learner `quick` played, with these numbers."""
    known = replace(STANDING, label="WI policy", knows=True, rank=None, share=1.0)
    chance = replace(known, label="Random", share=0.0)
    study = {"agents": 1, "plays": 1, "horizon": 100, "trials": 32, "seed": 0, "arm": [1, 2]}
    return ProblemOutcome(
        name,
        "a reason",
        study,
        32,
        interrupted=False,
        margin=0.1,
        exact={"optimum": 1.0},
        exact_reasons={},
        standings={"whittle": known, "quick": replace(STANDING, **changes), "random": chance},
        refused={"nobody": "is for others"},
        made={},
    )


def test_a_word_is_that_of_shares_and_failed_trials():
    """Neither ranks nor ties change it."""
    for rank, tied in ((1, ["other"]), (9, [])):
        done = [
            problem(f"p{n}", share=share, rank=rank, tied=tied) for n, share in enumerate(_FAIR)
        ]
        outcome = ArenaOutcome([replace(each, trials=1000) for each in done])
        assert outcome.words["quick"].word == "fair"
        assert outcome.verdicts["quick"].startswith("Fair: 80 % (76 to 84) of the distance")
        assert set(outcome.words) == {"quick"}


_FAIR = (0.8, 0.7, 0.85)


def test_an_undecided_verdict_names_both_words():
    done = [problem("p", share=0.92, share_se=0.02)]
    said = ArenaOutcome(done).verdicts["quick"]
    assert said.startswith("Undecided between fair and good: 92 % (")
    unknown = ArenaOutcome([problem("p", share=0.92, share_se=None)])
    assert "92 % (error unknown)" in unknown.verdicts["quick"]
    stored = unknown.to_json()["words"]["quick"]
    assert (stored["word"], stored["best"]) == ("undecided", "good")


def test_what_fails_by_chance_is_that_of_policies_that_know_and_do_well():
    made = problem("p", share=0.99, share_se=0.0, stuck=0.2)
    able = replace(made.standings["whittle"], share=0.97, stuck=0.19)
    poor = replace(able, share=0.2, stuck=0.7)
    assert made.failed_by_chance == 0.0
    made = replace(made, trials=1000, standings={**made.standings, "l": able, "myopic": poor})
    assert made.failed_by_chance == 0.19
    assert ArenaOutcome([made]).words["quick"].failed.value == pytest.approx(0.01)
    assert ArenaOutcome([made]).words["quick"].word == "good"


def test_a_verdict_names_the_worst_the_failed_and_the_time():
    fast = replace(STANDING, label="FedTSWI", seconds=0.001)
    done = [
        problem("easy", share=0.99, tied=["fedtswi"]),
        problem("hard", share=0.6, stuck=0.04),
        problem("odd", share=None),
    ]
    for each in done:  # fedtswi has the largest mean
        learner = {"fedtswi": replace(fast, tied=each.standings["quick"].tied and ["quick"])}
        others = dict(each.standings)
        each.standings.clear()
        each.standings.update(learner | others)
    said = ArenaOutcome(done).verdicts
    for words in (
        "80 % (",
        "60 % (55 to 65) at worst (hard)",
        "first or tied with the first on 1 of 3 problems",
        "up to 4 % of trials failed (hard)",
        "2 times",
    ):
        assert words in said["quick"], said["quick"]
    assert "time" not in said["fedtswi"]
    assert said["whittle"].startswith("Yardstick: 100 %")
    assert said["random"].startswith("Chance")
    assert said["nobody"].startswith("Played nowhere")
    assert all("\n" not in text for text in said.values())


# -------------------------------------------------------------------------------------- placements


def ranked(**tied: list[str]) -> ProblemOutcome:
    """Learners in order of their means, by name those that each is tied with."""
    made = problem("p")
    learners: dict[str, Standing] = {}
    for name, others in tied.items():
        ahead = [x for x in learners if x not in others]
        learners[name] = replace(STANDING, rank=1 + len(ahead), tied=others)
    yardsticks = {name: made.standings[name] for name in ("whittle", "random")}
    return replace(made, standings={**learners, **yardsticks})


def test_first_is_the_largest_mean_and_what_is_tied_with_it():
    made = ranked(a=["b", "c"], b=["a"], c=["a"], d=[])
    assert made.leaders == ["a", "b", "c"]
    assert [made.place(x) for x in (*"abcd", "whittle")] == ["first", "tied", "tied", "", ""]
    # A policy that another is better than by more than four standard errors may still be tied with
    # the first, and has no rank of 1.
    assert made.standings["c"].rank == 2
    assert ArenaOutcome([made]).places("c") == ["p"]


def test_ranks_are_explained_where_they_differ_from_the_order_of_means():
    assert ranked(a=["b"], b=["a"], c=[]).ranks_explained == []
    made = ranked(a=["c"], b=["c"], c=["a", "b"], d=[])
    assert [made.standings[x].rank for x in "abcd"] == [1, 2, 1, 4]
    (line,) = made.ranks_explained
    assert line.startswith(
        "c has rank 1, and b, whose mean is larger, rank 2: a is better than b by"
    )
    assert "and than c by less" in line
    two = ranked(a=["c"], e=["c"], b=["c"], c=["a", "e", "b"]).ranks_explained
    assert any("a and e are better than b" in line for line in two)


def test_refusals_are_by_policy_and_those_of_all_problems_last():
    done = [replace(problem(n), refused={"nobody": f"not {n}"}) for n in ("one", "two")]
    done[1] = replace(done[1], refused={**done[1].refused, "quick": "left out"})
    del done[1].standings["quick"]
    found = ArenaOutcome(done)
    assert found.refused == {
        "quick": {"two": "left out"},
        "nobody": {"one": "not one", "two": "not two"},
    }
    assert list(found.policies)[-1] == "nobody"


# ------------------------------------------------------------------------------ beside one another


def outcome(**changes: Any) -> ArenaOutcome:
    made = {"versions": {"rmab": "1", "jax": "2"}, "device": "here"}
    return ArenaOutcome([problem("one", **changes), problem("two")], made)


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


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("policies", "quick", "mean"), "x"),
        (("policies", "quick", "mean"), None),
        (("policies", "quick", "mean"), float("nan")),
        (("policies", "quick", "mean"), 10**400),
        (("policies", "quick", "se"), "x"),
        (("policies", "quick", "tied"), "abc"),
        (("policies", "quick", "curve"), {"slot": [1], "regret": [], "se": [0.0]}),
        (("policies",), {}),
        (("policies",), []),
        (("study",), []),
        (("study",), "abc"),
        (("study", "seed"), [1]),
        (("name",), ["a"]),
        (("trials",), 1.5),
        (("interrupted",), 1),
        (("made",), {"time": {"seconds": "x"}}),
        (("made",), {"versions": "abc"}),
    ],
)
def test_a_value_that_is_none_of_its_kind_is_refused(tmp_path, place, value):
    outcome().write(tmp_path)
    path = tmp_path / "arena.json"
    table = json.loads(path.read_text())
    *before, last = place
    inside = table["problems"]["one"]
    for key in before:
        inside = inside[key]
    assert last in inside
    inside[last] = value
    path.write_text(json.dumps(table))
    with pytest.raises(StudyError, match=r"arena\.json: is no arena\.json"):
        load_outcome(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"arena": 2}', "null", '{"arena": 1}', "\xff"])
def test_what_is_no_arena_is_refused(tmp_path, text):
    path = tmp_path / "other.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(StudyError, match=r"other\.json: is no arena\.json"):
        load_outcome(path)


# ------------------------------------------------------------------------------------------- edges


def test_a_band_of_regret_is_that_of_95_per_cent(rewards):
    found = stands(rewards)["quick"]
    assert (found.regret, found.regret_low, found.regret_high) == pytest.approx((5, 4.02, 5.98))


def test_the_best_known_is_the_yardstick_that_earned_most(rewards):
    """Not the first one, and not chance, even where that earned more."""
    for better in (0, 2):
        level = rewards.copy()
        level[1], level[better] = rewards[1] - 0.1, level[better] + 0.5
        knows = ["whittle", "random", "quick"]
        labels = dict(zip(NAMES, NAMES, strict=True))
        found = standings(results_of(level), knows, labels, {})
        assert found[NAMES[better]].share == 1
        assert (found["quick"].rank, found["slow"].rank) == (None, 1)
        mean = level.mean(1)
        due = (mean[4] - mean[1]) / (mean[better] - mean[1])
        assert found["other"].share == pytest.approx(due)
    level[1] = 9.0
    found = standings(results_of(level), KNOWS, labels, {})
    assert all(each.share is None for each in found.values())


@pytest.mark.parametrize(("slots", "points"), [(1, 1), (39, 39), (40, 40), (41, 40), (1000, 40)])
def test_a_curve_has_at_most_forty_points(rewards, slots, points):
    made = results_of(rewards)
    regret = Curve(np.arange(1.0, slots + 1), np.full(slots, np.nan))
    policies = {name: replace(each, regret=regret) for name, each in made.policies.items()}
    found = standings(
        replace(made, policies=policies), KNOWS, dict(zip(NAMES, NAMES, strict=True)), {}
    )["quick"]
    assert len(found.curve["slot"]) == points
    assert found.curve["slot"] == found.curve["regret"]
    assert (found.curve["slot"][0], found.curve["slot"][-1]) == (1, slots)
    assert set(found.curve["se"]) == {0.0}  # not known, so no band is drawn
    assert (found.regret_low, found.regret_high) == (None, None)


def test_policies_that_know_count_from_nine_tenths_of_the_best():
    made = problem("p")
    for share, due in ((0.9, 0.3), (0.8999, 0.1), (None, 0.1)):
        known = replace(made.standings["whittle"], share=share, stuck=0.3)
        best = replace(known, share=1.0, stuck=0.1)
        lost = replace(known, share=0.95, stuck=None)
        found = replace(made, standings={"whittle": best, "l": known, "m": lost})
        assert found.failed_by_chance == due
    learner = replace(made.standings["quick"], share=0.99, stuck=0.7)
    chance = replace(made.standings["random"], share=1.0, stuck=0.8)
    best = replace(made.standings["whittle"], stuck=0.0)
    found = replace(made, standings={"whittle": best, "quick": learner, "random": chance})
    assert found.failed_by_chance == 0.0


def test_failed_trials_are_told_from_one_in_a_hundred():
    for stuck, told in ((0.01, "up to 1 % of trials failed (p)"), (0.0099, "")):
        said = ArenaOutcome([problem("p", stuck=stuck)]).verdicts["quick"]
        assert told in said
        assert ("failed" in said) == bool(told)
    said = ArenaOutcome([problem("p", stuck=0.02), problem("q", stuck=None)]).verdicts["quick"]
    assert "up to 2 % of trials failed (p)" in said


def beside_fedtswi(*seconds: tuple[float | None, float | None]) -> ArenaOutcome:
    """Problems on which `quick` and `fedtswi` took these times."""
    done = []
    for n, (mine, other) in enumerate(seconds):
        made = problem(f"p{n}", seconds=mine)
        made.standings["fedtswi"] = replace(STANDING, seconds=other)
        done.append(made)
    return ArenaOutcome(done)


@pytest.mark.parametrize(
    ("seconds", "ratio", "said"),
    [
        ([(0.02, 0.002)], 10.0, "10 times"),
        ([(0.00997, 0.001)], 9.97, "10 times"),
        ([(0.0044, 0.002)], 2.2, "2.2 times"),
        ([(0.123, 0.001)], 123.0, "123 times"),
        ([(2.0, 1.0), (9.0, 1.0), (4.0, 1.0)], 4.0, "4 times"),
        ([(None, 0.001), (3.0, None), (3.0, 1.0)], 3.0, "3 times"),
        ([(None, 0.001), (3.0, 0.0)], None, ""),
    ],
)
def test_how_much_slower_than_fedtswi(seconds, ratio, said):
    found = beside_fedtswi(*seconds)
    assert found.slower("quick") == (None if ratio is None else pytest.approx(ratio))
    assert found.slower("fedtswi") is None
    verdict = found.verdicts["quick"]
    assert f"{said} fedtswi's time" in verdict if said else "time" not in verdict


def test_policies_stand_by_median_share_and_yardsticks_behind():
    one, two = problem("one", share=0.2), problem("two", share=None)
    one.standings["able"] = replace(STANDING, label="Able", share=0.9)
    two.standings["odd"] = replace(STANDING, label="Odd", share=None)
    found = ArenaOutcome([one, two])
    assert list(found.policies) == ["able", "quick", "odd", "whittle", "random", "nobody"]
    assert found.policies["able"] == "Able"
    assert set(found.words) == {"able", "quick"}
    assert found.verdicts["odd"].startswith("Nothing to say")
    assert "on 0 of 1 problem." in found.verdicts["able"]  # its rank is behind that of `quick`
    assert "of 2 problems" in found.verdicts["quick"]


def test_rows_have_no_curves_and_list_ties():
    made = problem("p", tied=["a", "b"])
    rows = ArenaOutcome([made]).rows()
    assert [row["policy"] for row in rows] == ["whittle", "quick", "random"]
    assert (rows[1]["problem"], rows[1]["tied"]) == ("p", "a b")
    assert not any("curve" in row for row in rows)
    assert made.size == "N = 2, K = 1, M = 1, T = 100"


def test_another_format_and_a_missing_file_are_said(tmp_path):
    ours = replace(outcome(), interrupted=True)
    ours.write(tmp_path)
    path = tmp_path / "arena.json"
    assert load_outcome(path).interrupted
    path.write_text(json.dumps({**json.loads(path.read_text()), "arena": 2}))
    with pytest.raises(StudyError, match=r"its format is 2, and 1 is known"):
        load_outcome(path)
    with pytest.raises(StudyError, match=r"none\.json: cannot be read: No such file"):
        load_outcome(tmp_path / "none.json")


def test_only_policies_that_know_the_dynamics_are_best_known():
    made = problem("one")
    table = {**made.to_json(), "policies": {"random": vars(made.standings["random"])}}
    with pytest.raises(ValueError, match="'one': nobody there knows the dynamics"):
        ProblemOutcome.from_json(table)


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
