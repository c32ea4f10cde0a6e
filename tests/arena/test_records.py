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
