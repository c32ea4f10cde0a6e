"""Problems of the arena: files, values, and problems of users."""

from importlib import resources

import pytest

from rmab import StudyError
from rmab.arena.contestants import contestants
from rmab.arena.problems import PROBLEMS, load_problem, load_problems
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
        for file in resources.files("rmab.arena.problems").iterdir()
        if file.name.endswith(".toml")
    }
    assert files == set(PROBLEMS)
    for problem in load_problems():
        assert problem.reason
        assert "\n" not in problem.reason
        assert set(problem.left_out) <= {each.name for each in contestants()}


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
        load_problems(["c1", "c1"])
