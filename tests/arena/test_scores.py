"""How policies stand: shares, ranks, ties and verdicts, against plain arithmetic."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rmab import StudyError
from rmab.arena.comparison import compare
from rmab.arena.records import ArenaOutcome, ProblemOutcome, load_outcome
from rmab.arena.scores import Standing, standings
from rmab.studies.results import Curve, PolicyResult, Results
from tests.studies.small import STUDY

NAMES = ["whittle", "random", "quick", "slow", "other"]
KNOWS = ["whittle", "random"]
STANDING = Standing(
    label="Quick",
    uses_true_dynamics=False,
    mean=0.5,
    se=0.01,
    final=0.5,
    final_se=0.01,
    regret=1.0,
    regret_low=0.5,
    regret_high=1.5,
    score=0.95,
    score_se=0.01,
    rank=2,
    tied=[],
    failed=0.0,
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
        assert found[name].score == pytest.approx(due, abs=1e-12)
    assert found["whittle"].score_se == found["random"].score_se == 0
    # The error is that of the paired trials, by a bootstrap.
    rng = np.random.default_rng(6)
    drawn = rewards[:, rng.integers(0, 400, (2000, 400))].mean(-1)
    shares = (drawn[2] - drawn[1]) / (drawn[0] - drawn[1])
    assert found["quick"].score_se == pytest.approx(shares.std(), rel=0.1)


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
    assert found["quick"].failed == 0.25
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
    assert found["quick"].score_se is None


def test_nothing_to_gain_has_no_share(rewards):
    level = rewards.copy()
    level[0] = level[1]
    assert all(each.score is None for each in stands(level).values())


def test_a_curve_has_its_first_and_last_slot(rewards):
    curve = stands(rewards)["quick"].curve
    assert (curve["slot"][0], curve["slot"][-1]) == (1, 100)
    assert curve["regret"][-1] == 5
    assert len(set(map(len, curve.values()))) == 1


# ---------------------------------------------------------------------------------------- verdicts


def problem(name: str, **changes: Any) -> ProblemOutcome:
    """One that a learner `quick` played, with these numbers."""
    known = replace(STANDING, label="WI policy", uses_true_dynamics=True, rank=None, score=1.0)
    chance = replace(known, label="Random", score=0.0)
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
            problem(f"p{n}", score=share, rank=rank, tied=tied) for n, share in enumerate(_FAIR)
        ]
        outcome = ArenaOutcome([replace(each, trials=1000) for each in done])
        assert outcome.words["quick"].word == "fair"
        assert outcome.verdicts["quick"].startswith("Fair: 80 % (76 to 84) of the distance")
        assert set(outcome.words) == {"quick"}


_FAIR = (0.8, 0.7, 0.85)


def test_an_undecided_verdict_names_both_words():
    done = [problem("p", score=0.92, score_se=0.02)]
    said = ArenaOutcome(done).verdicts["quick"]
    assert said.startswith("Undecided between fair and good: 92 % (")
    unknown = ArenaOutcome([problem("p", score=0.92, score_se=None)])
    assert "92 % (error unknown)" in unknown.verdicts["quick"]
    stored = unknown.to_json()["words"]["quick"]
    assert (stored["word"], stored["best"]) == ("undecided", "good")


def test_what_fails_by_chance_is_that_of_policies_that_know_and_do_well():
    made = problem("p", score=0.99, score_se=0.0, failed=0.2)
    able = replace(made.standings["whittle"], score=0.97, failed=0.19)
    poor = replace(able, score=0.2, failed=0.7)
    assert made.failed_by_chance == 0.0
    made = replace(made, trials=1000, standings={**made.standings, "l": able, "myopic": poor})
    assert made.failed_by_chance == 0.19
    assert ArenaOutcome([made]).words["quick"].failed.value == pytest.approx(0.01)
    assert ArenaOutcome([made]).words["quick"].word == "good"


def test_a_verdict_names_the_worst_the_failed_and_the_time():
    fast = replace(STANDING, label="FedTSWI", seconds=0.001)
    done = [
        problem("easy", score=0.99, tied=["fedtswi"]),
        problem("hard", score=0.6, failed=0.04),
        problem("odd", score=None),
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
