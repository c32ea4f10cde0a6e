"""rmab arena: two problems, a few policies, few trials; compare, Ctrl-C, refusals."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from rmab.arena import run as arenas
from rmab.arena.problems import PROBLEMS
from rmab.arena.records import FORMAT
from rmab.cli import main
from rmab.studies.run import run_watched
from tests.cli.commands import OTHER_ARM, program
from tests.report.test_page import Page

ROOT = Path(__file__).parent.parent.parent
ARM = "[[arm]]\np01 = 0.2\np11 = 0.8\nreward = 0.4\n"
HEAD = "agents = 2\nhorizon = 40\ntrials = 32\n"
POLICIES = ["fedtswi", "ucb", "mine", "whittle", "lookahead", "random"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two problems of one shape, and the policy of docs/arena.md."""
    folder = tmp_path_factory.mktemp("arena")
    (folder / "first.toml").write_text(f'reason = "the first"\n{HEAD}{ARM}{OTHER_ARM}')
    (folder / "second.toml").write_text(f'reason = "a <second> one"\n{HEAD}{OTHER_ARM}{ARM}')
    page = (ROOT / "docs/arena.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    assert len([line for line in example.splitlines() if line]) <= 10
    (folder / "mine.py").write_text(example)
    return folder


@pytest.fixture(scope="module")
def ran(folder: Path) -> Path:
    """The folder of a run of both."""
    out = folder / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        command = ["arena", "first.toml", "second.toml", "--policies", "fedtswi,ucb"]
        assert main([*command, "--policy", "mine:policy", "--out", str(out)]) == 0
    return out


@pytest.fixture
def stored(ran: Path) -> Any:
    return json.loads((ran / "arena.json").read_text(encoding="utf-8"))


def test_the_stored_run_has_every_number_and_where_it_is_from(stored):
    assert stored["arena"] == FORMAT
    assert stored["interrupted"] is False
    assert {"versions", "device", "threads", "time", "command"} <= set(stored)
    assert stored["command"].startswith("rmab arena first.toml")
    assert list(stored["problems"]) == ["first", "second"]
    for problem in stored["problems"].values():
        assert problem["trials"] == 32
        assert problem["study"]["horizon"] == 40
        assert {"optimum", "upper_bound", "whittle", "lookahead"} <= set(problem["exact"])
        assert problem["best_known"]["policy"] in ("whittle", "lookahead")
        assert problem["margin"] > 0
        assert set(problem["policies"]) == set(POLICIES)
        for name, each in problem["policies"].items():
            assert each["regret_low"] <= each["regret"] <= each["regret_high"]
            assert 0 <= each["stuck"] <= 1
            assert each["seconds"] > 0
            assert len(each["curve"]["regret"]) == 40
            assert (each["rank"] is None) == (name in ("whittle", "lookahead", "random"))
        assert problem["policies"]["whittle"]["regret"] == 0
        assert problem["policies"]["whittle"]["stuck"] == 0
        assert problem["policies"]["random"]["share"] == 0
        assert problem["policies"][problem["best_known"]["policy"]]["share"] == 1
        means = [each["mean"] for each in problem["policies"].values()]
        assert means == sorted(means, reverse=True)
    assert set(stored["verdicts"]) == set(POLICIES)


def test_a_policy_earns_what_it_does_in_a_study(stored, call, folder):
    """The same trials as `rmab run`: to the last bit."""
    path = folder / "study.toml"
    text = (folder / "first.toml").read_text(encoding="utf-8")
    path.write_text('policies = ["fedtswi", "random"]\n' + text.partition("\n")[2])
    due = call("run", path, "--json").json["policies"]
    for name in ("fedtswi", "random"):
        each = stored["problems"]["first"]["policies"][name]
        assert (each["mean"], each["se"]) == (due[name]["mean"], due[name]["se"])


def test_the_page_is_whole_and_has_every_number(ran, stored):
    html = (ran / "arena.html").read_text(encoding="utf-8")
    page = Page(html)
    assert {"first", "second"} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    for address in page.addresses:
        assert address.startswith("#") or (ran / address).is_file(), address
        assert not address.startswith("#") or address[1:] in page.ids
    assert "A <second> one." in page.words
    assert set(stored["words"]) == {"fedtswi", "ucb", "mine"}
    for name, found in stored["words"].items():
        said = [row for row in page.rows if len(row) == 7 and row[0].endswith(name)]
        assert len(said) == 1
        assert said[0][1].startswith(found["word"])
        assert said[0][2].startswith(f"{100 * found['middle']['value']:.0f}\N{NO-BREAK SPACE}%")
    for name in ("whittle", "lookahead", "random"):
        text = stored["verdicts"][name]
        assert any(name in row[0] and row[1] == text for row in page.rows if len(row) == 2), name
    heat = next(row for row in page.rows if row and row[0] == "fedtswi" and len(row) == 3)
    shares = [p["policies"]["fedtswi"]["share"] for p in stored["problems"].values()]
    assert heat[1:] == [f"{100 * share:.0f}" for share in shares]
    whole = [row for row in page.rows if len(row) == 10 and row[0].endswith("ucb")]
    means = [p["policies"]["ucb"]["mean"] for p in stored["problems"].values()]
    assert [row[1].split()[0] for row in whole] == [f"{mean:.5f}" for mean in means]
    tied = [row[5] for row in page.rows if len(row) == 10 and row[0] != "Policy"]
    assert tied.count("the first") == len(stored["problems"])
    assert set(tied) <= {"the first", "yes", "no", ""}
    assert "<svg" in html
    assert "http" not in re.sub(r'(xmlns|about)[:\w]*="[^"]*"', "", html)


def test_the_table_has_a_row_for_each_problem_and_policy(ran):
    with (ran / "arena.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * len(POLICIES)
    assert {"problem", "policy", "mean", "share", "rank", "stuck"} <= set(rows[0])


def test_few_trials_decide_little(stored):
    """32 trials of 40 slots: nothing is said to be good."""
    words = {found["word"] for found in stored["words"].values()}
    assert "undecided" in words
    assert not words & {"good", "uneven"}


def test_a_page_is_written_again_from_what_is_kept(ran, stored, call, tmp_path, monkeypatch):
    """Without simulating, and with the words of today's rules."""
    monkeypatch.setattr(arenas, "run_watched", None)
    stored["verdicts"], stored["words"] = {}, {}
    stored["problems"]["first"]["refused"]["rca"] = "is not for these arms"
    tmp_path.joinpath("arena.json").write_text(json.dumps(stored))
    found = call("arena", "--out", tmp_path, "--page")
    assert found.code == 0
    assert "\nfedtswi: Undecided between " in found.out
    assert "refused by every problem:\n  rca" in found.out
    again = json.loads((tmp_path / "arena.json").read_text(encoding="utf-8"))
    assert set(again["words"]) == {"fedtswi", "ucb", "mine"}
    assert again["problems"] == stored["problems"]
    page = Page((tmp_path / "arena.html").read_text(encoding="utf-8"))
    assert "Refused policies" in page.words
    assert ["rca", "all problems", "is not for these arms"] in page.rows
    yardsticks = [row for row in page.rows if len(row) == 3 and row[0] == "rca"]
    assert len(yardsticks) == 1  # no row among shares


def test_a_page_without_learners(folder, call, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    found = call("arena", "first.toml", "--policies", "whittle", "--out", tmp_path, "--json")
    assert found.code == 0
    assert set(found.json["problems"]["first"]["policies"]) == {"whittle", "lookahead", "random"}
    assert (tmp_path / "arena.html").is_file()


# ---------------------------------------------------------------------------------------- comparing


def test_the_run_of_a_folder_is_laid_beside_another(ran, stored, call, tmp_path):
    other = tmp_path / "other.json"
    stored["versions"]["jax"] = "9.9"
    stored["problems"]["second"]["policies"]["ucb"]["mean"] += 1
    other.write_text(json.dumps(stored))
    before = (ran / "arena.json").read_bytes()
    found = call("arena", "--out", ran, "--compare", other, "--json")
    assert found.code == 0
    told = found.json["compare"]
    (differs,) = told["differ"]
    assert differs.startswith("jax: ")
    assert "9.9" in differs
    assert told["apart"] == 1
    assert len(told["rows"]) == 2 * len(POLICIES)
    assert (ran / "arena.json").read_bytes() == before  # nothing was run
    plain = call("arena", "--out", ran, "--compare", other)
    assert "1 differ by more than 4 standard errors" in plain.out
    assert "ucb on second" in plain.out
    assert "Beside another run" in (ran / "arena.html").read_text(encoding="utf-8")


def test_without_a_run_that_of_the_other_is_run(call, tmp_path, monkeypatch, stored):
    """Its problems, policies, trials and seed."""
    asked: dict[str, Any] = {}

    def note(names: list[str], trials: int, seed: int) -> None:
        asked.update(names=names, trials=trials, seed=seed)
        raise KeyboardInterrupt

    c1 = {**stored["problems"]["first"], "name": "c1", "trials": 16, "interrupted": True}
    stored["problems"] = {"c1": c1}
    other = tmp_path / "other.json"
    other.write_text(json.dumps(stored))
    monkeypatch.setattr("rmab.arena.problems.load_problems", note)
    found = call("arena", "--out", tmp_path / "new", "--compare", other)
    assert found.code == 130
    assert asked == {"names": ["c1"], "trials": 32, "seed": 0}


def test_what_the_other_left_out_is_left_out_again(call, tmp_path, monkeypatch, stored):
    """Its policies were not named one by one: each problem has those that it had there."""
    admitted: dict[str, set[str]] = {}

    def note(arena: Any, problem: Any, _: Any) -> None:
        admitted[problem.name] = set(arena.admitted(problem)[0])
        raise KeyboardInterrupt

    first = stored["problems"]["first"]
    first["policies"]["fedtswi@aggregation=none"] = first["policies"]["fedtswi"]
    stored["problems"] = {"n256": {**first, "name": "n256"}}
    other = tmp_path / "other.json"
    monkeypatch.setattr(arenas.Arena, "run", note)
    for slow in ("lookahead", "fedtswi@aggregation=none"):
        other.write_text(json.dumps(stored))
        assert call("arena", "--out", tmp_path / "new", "--compare", other).code == 130
        assert slow in admitted["n256"]
        del first["policies"][slow]
    other.write_text(json.dumps(stored))
    assert call("arena", "--out", tmp_path / "new", "--compare", other).code == 130
    assert not admitted["n256"] & {"lookahead", "fedtswi@aggregation=none"}


# --------------------------------------------------------------------------------- Ctrl-C, refusals


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done_and_resume_goes_on(call, folder, monkeypatch):
    monkeypatch.chdir(folder)
    run = run_watched
    done: list[str] = []

    def interrupt_second(*given: Any) -> Any:
        done.append("")
        if len(done) == 2:
            raise KeyboardInterrupt
        return run(*given)

    monkeypatch.setattr(arenas, "run_watched", interrupt_second)
    words = ["arena", "first.toml", "second.toml", "--policies", "ucb", "--out", "part"]
    found = call(*words, "--json")
    assert found.code == 130
    assert list(found.json["problems"]) == ["first"]
    assert found.json["interrupted"] is True
    assert "interrupted: 1 problem done; rmab arena first.toml" in found.err
    assert "--resume" in found.err
    assert "Interrupted" in Path("part/arena.html").read_text(encoding="utf-8")
    again = call(*words, "--resume", "--json")
    assert again.code == 0
    assert len(done) == 3  # the second alone
    assert again.json["problems"]["first"] == found.json["problems"]["first"]
    assert list(again.json["problems"]) == ["first", "second"]
    # With other settings nothing of it is taken.
    call(*words, "--resume", "--seed", "1", "--json")
    assert len(done) == 5


def test_ctrl_c_before_anything_is_done_is_one_line(call, folder, tmp_path, monkeypatch):
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(arenas, "run_watched", interrupt)
    first = folder / "first.toml"
    found = call("arena", first, "--policies", "ucb", "--out", tmp_path / "none")
    assert (found.code, found.out, found.err.count("\n")) == (130, "", 1)
    assert not (tmp_path / "none" / "arena.html").exists()


def test_problems_are_listed_with_their_reasons(call):
    found = call("arena", "--list")
    assert found.code == 0
    listed = call("arena", "--list", "--json").json["problems"]
    assert [each["name"] for each in listed] == list(PROBLEMS)
    for each in listed:
        assert re.search(rf"^{each['name']} +{re.escape(each['reason'])} ", found.out, re.M)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nope"], ["unknown problem 'nope'", "paper-k1-m1"]),
        (["nope.toml"], ["nope.toml: no such file"]),
        (["c1", "--policies", "fly"], ["policies: unknown 'fly'", "fedtswi"]),
        (["c1", "--policies", ","], ["--policies must name at least one policy"]),
        (["c1", "--policies", "fedtswi@prior=[1,0]"], ["fedtswi.prior must be", "[1, 0]"]),
        (["--policies", "ucb", "c1"], ["'c1' is a problem"]),
        (["c1", "--trials", "0"], ["--trials must be a whole number", "'0'"]),
        (["c1", "--seed", "-1"], ["--seed must be a whole number"]),
        (["c1", "--policy", "mine"], ["--policy must be like mine:policy, got 'mine'"]),
        (["c1", "--policy", "no_such_module:x"], ["no_such_module:x: cannot be found"]),
        (["c1", "--policy", "json:loads"], ["json:loads: cannot be made: TypeError"]),
        (["c1", "--policies", "ucb@c=" + 3000 * "["], ["ucb.c must be a number"]),
        (["c1", "--policy", "json:nope"], ["json:nope: cannot be found: AttributeError"]),
        (["c1", "--policy", "math:pi"], ["math:pi: must be an rmab.Policy"]),
        (["--compare", "nope.json"], ["nope.json: cannot be read"]),
        (["--page"], ["rmab-arena/arena.json: cannot be read"]),
        (["c1", "--page"], ["--page takes the run that DIR has"]),
        (["c1", "--fast"], ["--fast", "--help"]),
        (["c1", "--out", ""], ["--out must name a folder"]),
    ],
    ids=" ".join,
)
def test_bad_input_is_refused_in_one_line(call, tmp_path, monkeypatch, words, told):
    monkeypatch.chdir(tmp_path)
    call("arena", *words).assert_refused(*told)
    assert list(tmp_path.iterdir()) == []


def test_the_program_refuses_in_one_line_too(tmp_path):
    ran = program("arena", "nope", cwd=tmp_path)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)


def test_the_help_has_examples(call):
    text = call("arena", "--help").out
    assert "rmab arena jt4 c1 --policies fedtswi,ucb --trials 32" in text
    for word in ("--compare", "--policy", "share", "stuck", "arena.json"):
        assert word in text
