"""Outcomes: verdicts, placements, and arena.json."""

import json
from dataclasses import replace

import pytest

from rmab import StudyError
from rmab.arena.records import ArenaOutcome, ProblemOutcome, load_outcome
from rmab.arena.scores import Standing
from tests.arena.made_up import STANDING, outcome, problem


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


def test_policies_that_know_count_from_nine_tenths_of_the_best():
    made = problem("p")
    for share, due in ((0.9, 0.3), (0.8999, 0.1), (None, 0.1)):
        known = replace(made.standings["whittle"], score=share, failed=0.3)
        best = replace(known, score=1.0, failed=0.1)
        lost = replace(known, score=0.95, failed=None)
        found = replace(made, standings={"whittle": best, "l": known, "m": lost})
        assert found.failed_by_chance == due
    learner = replace(made.standings["quick"], score=0.99, failed=0.7)
    chance = replace(made.standings["random"], score=1.0, failed=0.8)
    best = replace(made.standings["whittle"], failed=0.0)
    found = replace(made, standings={"whittle": best, "quick": learner, "random": chance})
    assert found.failed_by_chance == 0.0


def test_failed_trials_are_told_from_one_in_a_hundred():
    for stuck, told in ((0.01, "up to 1 % of trials failed (p)"), (0.0099, "")):
        said = ArenaOutcome([problem("p", failed=stuck)]).verdicts["quick"]
        assert told in said
        assert ("failed" in said) == bool(told)
    said = ArenaOutcome([problem("p", failed=0.02), problem("q", failed=None)]).verdicts["quick"]
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
    one, two = problem("one", score=0.2), problem("two", score=None)
    one.standings["able"] = replace(STANDING, label="Able", score=0.9)
    two.standings["odd"] = replace(STANDING, label="Odd", score=None)
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
    table = made.to_json()
    table["policies"] = {"random": table["policies"]["random"]}
    with pytest.raises(ValueError, match="'one': nobody there knows the dynamics"):
        ProblemOutcome.from_json(table)
