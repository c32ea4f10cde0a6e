"""The arena's problems and entrants: what is shipped, who plays what, and why others do not."""

from dataclasses import replace
from importlib import resources

import jax.numpy as jnp
import pytest

import rmab
from rmab import StudyError
from rmab.arena.run import (
    PROBLEMS,
    REFERENCES,
    Arena,
    Problem,
    entrants,
    load_problem,
    own_entrant,
    problems,
)
from rmab.envs.evaluation import as_policy
from rmab.errors import RmabError
from rmab.policies.registry import POLICIES, STUDIED
from rmab.studies.run import value
from rmab.studies.study import load

# Of an independent program: relative value iteration, of jt4 a simulation.
OPTIMUM = {"c1": 0.456464, "ht": 0.957841, "rb-4": 2.129684, "whittle-loses": 0.355319}
WHITTLE = {
    "c1": 0.456464,
    "ht": 0.957826,
    "jt4": 1.1192,
    "ge5": 0.8428,
    "rb-4": 2.126492,
    "whittle-loses": 0.339833,
}
WITHIN = {"jt4": 2e-4, "ge5": 1e-4}


def test_every_file_is_listed_and_every_problem_has_a_reason():
    files = {
        file.name.removesuffix(".toml")
        for file in (resources.files("rmab.arena") / "problem_files").iterdir()
    }
    assert files == set(PROBLEMS)
    for problem in problems():
        assert problem.reason
        assert "\n" not in problem.reason
        assert set(problem.left_out) <= {each.name for each in entrants()}


@pytest.mark.parametrize("name", sorted(WHITTLE))
def test_exact_values_are_those_of_an_independent_program(name):
    found = value(load_problem(name).study)
    assert found["whittle"] == pytest.approx(WHITTLE[name], abs=WITHIN.get(name, 1e-6))
    if name in OPTIMUM:
        assert found["optimum"] == pytest.approx(OPTIMUM[name], abs=1e-6)
    if name == "ge5":
        assert found["fixed-best"] == pytest.approx(0.85, abs=2e-4)
    if name == "jt4":
        assert found["upper_bound"] == pytest.approx(1.12837, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "optimum", "whittle"),
    [("paper-k1-m1", 0.58614, 0.58235), ("paper-k2-m4", 0.98756, 0.98520)],
)
def test_exact_values_of_the_papers_channels(name, optimum, whittle):
    found = value(load_problem(name).study)
    assert found["optimum"] == pytest.approx(optimum, abs=1e-5)
    assert found["whittle"] == pytest.approx(whittle, abs=1e-5)


@pytest.mark.parametrize("name", ["fading", "machine", "adherence"])
def test_the_catalogues_problems_are_the_catalogues(name):
    ours, theirs = load_problem(name).study, load(f"catalogue:{name}")
    assert [arm.passive.tolist() for arm in ours.arms] == [a.passive.tolist() for a in theirs.arms]
    assert (ours.agents, ours.plays, ours.horizon) == (theirs.agents, theirs.plays, theirs.horizon)


def test_the_papers_problems_differ_in_plays_and_agents_alone():
    paper = [load_problem(name) for name in PROBLEMS if name.startswith("paper-")]
    assert sorted((p.study.plays, p.study.agents) for p in paper) == [
        (plays, agents) for plays in (1, 2) for agents in (1, 4, 16)
    ]
    assert len({str(p.study.to_table()["arm"]) for p in paper}) == 1


def test_a_problem_file_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('reason = "why"\nhorizon = 50\n[[arm]]\np01 = 0.1\np11 = 0.9\nreward = 1\n' * 1)
    problem = load_problem(str(path))
    assert (problem.name, problem.reason, problem.study.horizon) == ("mine", "why", 50)
    path.write_text("reason = 3\n[[arm]]\np01 = 0.1\np11 = 0.9\nreward = 1\n")
    with pytest.raises(StudyError, match=r"mine\.toml: reason must be one line"):
        load_problem(str(path))
    path.write_text('study = "fading"\n')
    with pytest.raises(StudyError, match="study must be the name of a bundled one"):
        load_problem(str(path))
    arm = "[[arm]]\np01 = 0.1\np11 = 0.9\nreward = 1\n"
    for more, rule in (
        ('[left_out]\nfly = "slow"\n', "left_out: unknown 'fly'"),
        ("[left_out]\nucb = 1\n", "left_out must be reasons"),
        ('[left_out]\nrandom = "slow"\n', "left_out: random must play"),
        ('[left_out]\nwhittle = "slow"\n', "left_out: whittle must play"),
        ("[sweep]\nagents = [1, 2]\n", "sweep: a problem is one study"),
    ):
        path.write_text(arm + more)
        with pytest.raises(StudyError, match=rf"mine\.toml: {rule}"):
            load_problem(str(path))
    with pytest.raises(StudyError, match="must differ in name, got 'c1' twice"):
        problems(["c1", "c1"])


# ---------------------------------------------------------------------------------------- entrants


def test_all_policies_of_studies_enter_by_default():
    found = {each.name: each for each in entrants()}
    assert set(STUDIED) <= set(found)
    assert {each.partition("@")[0] for each in found} == set(STUDIED)
    for name, entry in POLICIES.items():
        if name in found:
            assert found[name].knows == (entry.group == "known")


def test_sharing_is_compared_where_there_are_agents_to_share():
    alone = "fedtswi@aggregation=none"
    arena = Arena([each for each in entrants() if each.base == "fedtswi"])
    playing, refused = arena.admitted(load_problem("paper-k1-m4"))
    assert {"fedtswi", alone} <= set(playing)
    assert playing[alone].sharing.aggregation == "none"
    mixed = playing["fedtswi@aggregation=gossip"].sharing.aggregation
    study = replace(load_problem("paper-k1-m4").study, aggregation="gossip", policies=["fedtswi"])
    assert mixed == study.shares("fedtswi")
    playing, refused = arena.admitted(load_problem("paper-k1-m1"))
    assert alone in refused
    assert "one agent" in refused[alone]


def test_named_ones_enter_with_the_references_and_options():
    found = entrants(["ucb@c=3", "fedtswi@prior=[1, 0.5]"])
    assert [each.name for each in found] == ["ucb@c=3", "fedtswi@prior=[1, 0.5]", *REFERENCES]
    assert found[0].options == {"c": 3}
    assert found[0].label == "UCB, c 3"
    values = {"ucb@c=.5": 0.5, "ucb@c=1.": 1.0, "ucb@c=1e1": 10.0, "ucb@c=.5e1": 5.0}
    assert [each.options["c"] for each in entrants(list(values))[:4]] == list(values.values())
    study = load_problem("c1").study
    assert found[0].enter(study).name == "ucb@c=3"
    assert found[0].enter(study) is entrants(["ucb@c=3"])[0].enter(study)  # and so its program


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["fly"], "policies: unknown 'fly'; known are fedtswi"),
        (["c1"], "'c1' is a problem"),
        (["ucb@c"], "NAME@OPTION=VALUE"),
        (["ucb@speed=2"], "unknown key 'speed'; ucb has c"),
        (["ucb@c=-1"], r"policies: ucb@c=-1: ucb\.c must be a number from 0"),
        (["ucb@c=."], "c must be a number from 0"),
    ],
)
def test_bad_names_are_refused(names, words):
    with pytest.raises(StudyError, match=words):
        entrants(names)


def test_what_takes_long_plays_if_it_is_named():
    many = load_problem("n256")
    _, refused = Arena(entrants(["fedtswi-robust"])).admitted(many)
    assert refused["fedtswi-robust"].startswith("left out: ")
    assert refused["lookahead"].startswith("left out: ")
    asked = {"n256": ["fedtswi-robust"]}
    playing, refused = Arena(entrants(["fedtswi-robust"]), asked).admitted(many)
    assert "fedtswi-robust" in playing
    assert list(refused) == ["lookahead"]


def test_refusals_are_in_the_words_of_the_study():
    arena = Arena(entrants(["fedtswi", "fedtswi-robust", "optimal"]))
    _, refused = arena.admitted(load_problem("rb-4"))
    with pytest.raises(StudyError) as said:
        rmab.Study(arms=load_problem("rb-4").study.arms, policies=["fedtswi-robust"])
    assert refused == {"fedtswi-robust": str(said.value)}
    _, refused = arena.admitted(load_problem("n64"))
    assert set(refused) == {"optimal"}
    assert "64 arms" in refused["optimal"]


def expected(dynamics, states):
    return dynamics.reward * jnp.where(states.last_seen == 1, dynamics.p11, dynamics.p01)


def half(evidence, draws):
    return tuple(0 * evidence.transitions[:, 0] + 0.5)


def wrong(evidence, draws):
    return evidence.nothing_like_it


def test_ones_own_policy_is_refused_where_it_is_not_for_the_arms():
    own = own_entrant("mine:policy", rmab.Policy("mine", planner=expected, learner=half))
    arena = Arena(entrants(["ucb"], [own]))
    _, refused = arena.admitted(load_problem("rb-4"))
    assert list(refused) == ["mine"]
    assert "table" in refused["mine"]
    assert not own.knows


def _short(problem: Problem) -> Problem:
    return replace(problem, study=replace(problem.study, horizon=20))


def test_an_agent_of_another_library_is_ranked_with_those_that_learn():
    own = own_entrant("mine:agent", as_policy(lambda observation: observation["age"], "agent"))
    assert not own.knows
    playing, _ = Arena(entrants(["ucb"], [own])).admitted(_short(load_problem("c1")))
    assert playing["agent"].name == "agent"
    knowing = own_entrant("mine:known", rmab.Policy("known", planner=expected))
    assert knowing.knows


def test_ones_own_policy_that_fails_ends_the_arena(tmp_path):
    path = tmp_path / "tiny.toml"
    arm = "[[arm]]\np01 = 0.1\np11 = 0.9\nreward = 1\n"
    path.write_text("horizon = 20\ntrials = 32\n" + 2 * arm)
    own = own_entrant("mine:policy", lambda: rmab.Policy("mine", planner=expected, learner=wrong))
    arena = Arena(entrants(["ucb"], [own]))
    with pytest.raises(RmabError, match="mine:policy: fails on tiny: AttributeError") as said:
        arena.admitted(load_problem(str(path)))
    assert not isinstance(said.value, StudyError)


def test_ones_own_policy_that_fails_later_ends_the_arena_on_one_line():
    calls: list[object] = []

    def later(observation):
        calls.append(observation)
        if len(calls) > 20:  # slots of the trial that is tried
            raise ValueError("no\nmore")
        return observation["age"]

    own = own_entrant("mine:agent", as_policy(later, "agent"))
    with pytest.raises(RmabError, match=r"^--policy mine:agent: fails on c1: ValueError: no$"):
        Arena(entrants(["ucb"], [own])).run(_short(load_problem("c1")))


def test_ones_own_policy_that_no_problem_takes_ends_the_arena():
    wrong = own_entrant("mine:wrong", as_policy(lambda observation: [1, 2, 3], "wrong"))
    shape = rmab.Policy("shape", planner=lambda dynamics, states: jnp.zeros(3))
    short = [_short(load_problem("c1"))]
    for own, rule in ((wrong, "2 scores"), (own_entrant("mine:shape", shape), "its planner must")):
        with pytest.raises(StudyError, match=f"mine:.*: plays nowhere; c1: .*{rule}"):
            Arena(entrants(["ucb"], [own])).check_own(short)
    channels_alone = own_entrant("mine:one", rmab.Policy("one", planner=expected, learner=half))
    arena = Arena(entrants(["ucb"], [channels_alone]))
    arena.check_own([*short, _short(load_problem("rb-4"))])  # which one of them takes


def ending():
    raise SystemExit(3)


def test_a_policy_that_would_end_the_program_or_has_two_lines_is_refused():
    with pytest.raises(StudyError, match="--policy mine:it: cannot be made: SystemExit: 3"):
        own_entrant("mine:it", ending)
    with pytest.raises(StudyError, match="its name must be one line"):
        own_entrant("mine:it", rmab.Policy("a\nb", planner=expected))


@pytest.mark.parametrize("found", [3, "policy", lambda: 4, None])
def test_what_is_no_policy_is_refused(found):
    with pytest.raises(StudyError, match=r"--policy mine:it: must be an rmab\.Policy"):
        own_entrant("mine:it", found)


def test_two_of_a_name_are_refused():
    own = own_entrant("mine:policy", rmab.Policy("ucb", planner=expected, learner=half))
    with pytest.raises(StudyError, match="must differ in name, got 'ucb' twice"):
        entrants(["ucb"], [own])
