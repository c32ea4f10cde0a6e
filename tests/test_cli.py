"""The command line as a user meets it: answers, exit codes, refusals, interruptions.

Most tests call `main` in this process; what concerns the process itself (imports, signals, pipes)
starts a new one.
"""

import csv
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import rmab
from rmab.cli import main
from rmab.federation.rounds import DRAWS, SCHEDULES
from rmab.planning.expansion import expand
from rmab.studies import reproduce
from rmab.studies.reproduce import FIGURES
from rmab.studies.results import Results
from rmab.studies.study import KNOWN, LEARNERS, OPTIONS, REALISATIONS

PROGRAM = [sys.executable, "-c", "import sys; from rmab.cli import main; sys.exit(main())"]
PATIENCE = 120.0  # seconds without a sign of life from a command
PROMPTLY = 60.0  # seconds to end after Ctrl-C, report written; it takes some three
Changes = Mapping[str, str | None]

HEAD = {
    "agents": "2",
    "plays": "1",
    "horizon": "40",
    "trials": "30",
    "policies": '["fedtswi", "whittle"]',
}
ARM = {"p01": "0.2", "p11": "0.8", "reward": "0.4"}
OTHER_ARM = "[[arm]]\np01 = 0.89\np11 = 0.17\nreward = 0.9\n"
GENERAL = {
    "passive": "[[0.9, 0.1], [0.2, 0.8]]",
    "active": "[[0.7, 0.3], [0.1, 0.9]]",
    "reward": "[0.0, 1.0]",
    "observed": '"when_played"',
}
VALUES = [
    "optimum",
    "upper_bound",
    "whittle",
    "myopic",
    "lookahead",
    "random",
    "fixed",
    "fixed-best",
]


def toml(
    head: Changes | None = None, arm: Changes | None = None, general: Changes | None = None
) -> str:
    """A study of two arms, the second general if `general` is given, with some of its values
    replaced; None leaves one out."""

    def lines(table: Changes, changes: Changes | None) -> str:
        merged = {**table, **(changes or {})}
        return "".join(f"{key} = {value}\n" for key, value in merged.items() if value is not None)

    second = lines(ARM, arm) if general is None else lines(GENERAL, general)
    return lines(HEAD, head) + OTHER_ARM + "[[arm]]\n" + second


class Ran(NamedTuple):
    """What a command gave."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON object on standard output: one line, no NaN, nothing else."""
        assert self.out.count("\n") == 1, self.out
        assert self.out.endswith("\n")
        return json.loads(self.out, parse_constant=_no_constant)

    def assert_refused(self, *words: str) -> None:
        """Bad input: exit 2, one line on standard error with these words, nothing else."""
        assert self.code == 2, self
        assert self.out == ""
        assert self.err.count("\n") == 1, self.err
        assert self.err.endswith("\n")
        assert "Traceback" not in self.err
        for word in words:
            assert word in self.err, (word, self.err)
        assert len(self.err) < 10_000


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run a command in this process."""

    def run(*arguments: str | Path) -> Ran:
        capsys.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as ended:  # argparse ends so
            code = ended.code if isinstance(ended.code, int) else 1
        return Ran(code, *capsys.readouterr())

    return run


@pytest.fixture
def study(tmp_path: Path) -> Callable[[str], Path]:
    """Write a study file."""

    def write(text: str) -> Path:
        path = tmp_path / "study.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def program(*arguments: str | Path, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    command = [*PROGRAM, *map(str, arguments)]
    return subprocess.run(command, text=True, capture_output=True, timeout=300, **settings)


# ------------------------------------------------------------------------------------------- help


@pytest.mark.parametrize("command", ["", "run", "value", "index", "reproduce"])
def test_help_carries_an_example(call, command):
    ran = call(*[command] * bool(command), "--help")
    assert (ran.code, ran.err) == (0, "")
    assert "example:" in ran.out
    assert f"  rmab {command or 'reproduce'}" in ran.out.partition("example:")[2]


def test_help_lists_the_commands_and_a_study_file(call):
    ran = call("--help")
    for word in ("run", "value", "index", "reproduce", "[[arm]]", "p01", "policies"):
        assert word in ran.out


def test_help_has_every_policy_option_and_key_of_a_study(call):
    text = call("run", "--help").out
    words = set(re.findall(r"[a-z0-9][a-z0-9_-]*", text))
    options = {option for taken in OPTIONS.values() for option in taken}
    keys = [field.name for field in fields(rmab.Study) if field.name != "arms"]
    for known in (LEARNERS, KNOWN, options, keys, REALISATIONS, SCHEDULES, DRAWS):
        assert set(known) <= words


def test_the_example_study_of_the_help_is_one(call, study):
    text = call("run", "--help").out.partition("a study file:\n")[2]
    lines = [line.strip() for line in text.splitlines()]
    example = "\n".join(lines[: lines.index(next(x for x in lines if x.startswith("(one")))])
    assert example.count("[[arm]]") == 2
    ran = call("index", study(example), "--json", "--max-age", "2")
    assert ran.code == 0, ran.err
    assert [len(arm["index"]) for arm in ran.json["arms"]] == [2, 3]


def test_without_a_command_there_is_help(call):
    assert call() == call("--help")


def test_version(call):
    ran = call("--version")
    assert ran.code == 0
    assert re.fullmatch(r"rmab \d+\.\d+\.\d+\n", ran.out)


def test_help_imports_neither_numpy_nor_jax():
    """What makes it quick; `make bench` has the time."""
    script = (
        "import sys\nfrom rmab.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "sys.exit(any(name in sys.modules for name in ('numpy', 'jax', 'scipy', 'tqdm')))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert ended.returncode == 0


def test_the_installed_program_is_this_one():
    (entry,) = (e for e in entry_points(group="console_scripts") if e.name == "rmab")
    assert entry.load() is main


# ---------------------------------------------------------------------------------------- refusals

HUGE = "9" * 400  # more than a float can hold
VAST = "0x" + "F" * 5000  # more digits than Python prints
NOT_NUMBERS = ["nan", "inf", "-inf", "+nan", '"x"', "true", "[0.5]", "{}", "1979-05-27", HUGE, VAST]
NOT_WHOLE = ["1.5", "2.0", '"10"', "true", "nan", "inf", "[1]", "{}", "-1", VAST]


def _shown(value: str) -> str:
    """How a message shows a TOML literal, as far as that is simple."""
    simple = {"true": "True", "+nan": "nan", '"x"': "'x'", '"10"': "'10'"}
    plain = re.fullmatch(r"-?(\d+(\.\d+)?|nan|inf)", value) and len(value) < 40
    return simple.get(value, value if plain else "")


def bad_general_arms(bad: Callable[..., Any]) -> Iterator[Any]:
    """Arms of matrices that break a rule: the second of the study, so the message says arm 2."""

    def general(changes: Changes, *words: str) -> Any:
        text = toml(general=changes)
        name = ", ".join(f"{key} = {value}"[:40] for key, value in changes.items())
        return bad(name, text, "arm 2: ", *words)

    for key in ("passive", "active"):

        def rows(value: str, *words: str, key: str = key) -> Any:
            return general({key: value}, key, *words)

        yield rows("[[0.9, 0.1], [0.2, 0.7]]", "row 1 must sum to 1, got 0.9", "[0.2, 0.7]")
        yield rows("[[0.9, 0.2], [0.2, 0.8]]", "row 0 must sum to 1, got 1.1", "[0.9, 0.2]")
        yield rows("[[0.9, 0.1], [0.0, 0.0]]", "row 1 must sum to 1, got 0")
        yield rows("[[0.9, 0.1], [-0.2, 1.2]]", "row 1: column 0 must be a probability, got -0.2")
        yield rows("[[1.5, -0.5], [0, 1]]", "row 0: column 1 must be a probability, got -0.5")
        for value in NOT_NUMBERS:
            words = "row 1: column 0 must be a finite number", _shown(value)
            yield rows(f"[[0.9, 0.1], [{value}, 0.8]]", *words)
        yield rows('[["0.5", "0.5"], [0, 1]]', "row 0: column 0", "finite number, got '0.5'")
        yield rows("[[0.9, 0.1], [1.0]]", "row 1 must have 2 numbers", "1 numbers")
        yield rows("[[0.9, 0.1], [0.2, 0.8, 0.0]]", "row 1 must have 2 numbers", "3 numbers")
        yield rows("[[0.9, 0.1], []]", "row 1 must have 2 numbers", "0 numbers")
        yield rows("[[], []]", "row 0 must have 2 numbers", "0 numbers")
        yield rows("[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]", "row 0 must have 2 numbers", "3 numbers")
        yield rows("[[1.0]]", "at least 2 rows", "got 1")
        yield rows("[]", "at least 2 rows", "got 0")
        yield rows("[0.5, 0.5]", "row 0 must be a list of numbers, got 0.5")
        yield rows("[[0.9, 0.1], 3]", "row 1 must be a list of numbers, got 3")
        yield rows('"rows"', "must be a list of rows of numbers, got 'rows'")
        yield rows("{}", "must be a list of rows of numbers, got {}")
        yield rows("0.5", "must be a list of rows of numbers, got 0.5")
        yield rows(f"[[0.9, 0.1], [{'[' * 100}{']' * 100}, 1]]", "row 1: column 0", "[[[[")
    eye = [[float(i == j) for j in range(3)] for i in range(3)]
    yield general({"active": str(eye)}, "active must have 2 rows", "got 3")
    yield general({"passive": str(eye)}, "active must have 3 rows", "got 2")
    large = [[float(i == j) for j in range(65)] for i in range(65)]
    text = toml(general={"passive": str(large), "active": None, "reward": str([1] * 65)})
    yield bad("65 states", text, "arm 2 must have at most 64 states", "got 65")

    for key in ("reward", "reward_active", "reward_passive"):

        def pays(value: str, *words: str, key: str = key) -> Any:
            left_out = {} if key == "reward" else {"reward": None}
            return general({**left_out, key: value}, key, *words)

        yield pays("[0.0, 1.0, 2.0]", "2 numbers, one for each state, got 3 numbers")
        yield pays("[0.0]", "2 numbers, one for each state, got 1 numbers")
        yield pays("[]", "2 numbers, one for each state, got 0 numbers")
        yield pays("1.0", "must be a list of numbers, got 1.0")
        yield pays('"x"', "must be a list of numbers, got 'x'")
        yield pays("[[0.0, 1.0]]", "state 0 must be a finite number, got [0.0, 1.0]")
        for value in NOT_NUMBERS:
            yield pays(f"[0.0, {value}]", "state 1 must be a finite number", _shown(value))
        size = "must be 0 or from 1e-30 to 1e30"
        yield pays("[0.0, 1e300]", f"of state 1 {size}", "got 1e+300")
        yield pays("[-1e-300, 1]", f"of state 0 {size}", "got -1e-300")
    yield general({"reward": None}, "reward is missing: 2 numbers")
    yield general({"reward_active": "[0.0, 1.0]"}, "reward and reward_active are the same")
    for value in ('"never"', '"Always"', '""', "true", "1", '["always"]', "{}"):
        yield general({"observed": value}, "observed: unknown", "when_played, always")
    kinds = "a channel has p01, p11, reward; any other arm passive, active, reward, reward_active"
    yield general({"passive": None}, "p01 or passive is missing", kinds)
    yield general({"p01": "0.5"}, "p01 and passive must not be in one table", kinds)
    yield general({"p11": "0.5"}, "p11 and passive must not be in one table", kinds)
    yield general({"rewards": "[0.0, 1.0]"}, "unknown key 'rewards'", kinds)
    yield general({'"two\\nlines"': "1"}, r"unknown key 'two\nlines'", kinds)
    for key, value in (("observed", '"always"'), ("active", "[[1, 0], [0, 1]]")):
        text = toml(arm={key: value})
        yield bad(f"{key} of a channel", text, f"arm 2: p01 and {key} must not be in one table")
    yield bad(
        "list reward", toml(arm={"reward": "[0, 1]"}), "arm 2: reward must be a finite number"
    )
    yield bad("no keys", toml() + "[[arm]]\n", "arm 3: p01 or passive is missing")

    shared = toml({"realisations": '"shared"'}, general={})
    yield bad("shared", shared, "realisations must be 'independent', as arm 2 moves otherwise")
    unclipped = toml({"options.feducb-wi.clip": "false"}, general={"active": None})
    yield bad("unclipped", unclipped.replace("[0.0, 1.0]", "[0.1, 1.0]"), "feducb-wi.clip must be")
    text = toml(
        {"options.fedtswi.prior": "[1, 1]"},
        general={"passive": str(eye), "active": None, "reward": "[0, 1, 2]"},
    )
    yield bad(
        "two priors of three", text, "fedtswi.prior must be one number, as arm 2 has 3 states"
    )


def bad_studies() -> Iterator[Any]:
    """Study files that break a rule, with words that the message must have."""

    def bad(name: str, text: str, *words: str) -> Any:
        return pytest.param(text, words, id=name)

    def short(value: str) -> str:
        return value if len(value) < 40 else f"{value[:20]}..."

    def head(key: str, value: str, *words: str) -> Any:
        expected = (key.split(".")[0].strip('"'), _shown(value), *words)
        return bad(short(f"{key} = {value}"), toml({key: value}), *expected)

    def unknown(key: str, *words: str) -> Any:
        last = key.split(".")[0 if key.startswith("a.") else -1].strip('"')
        return bad(short(f"unknown {key}"), toml({key: "3"}), f"unknown key '{last}'", *words)

    def arm(key: str, value: str, *words: str) -> Any:
        expected = ("arm 2", key, _shown(value), *words)
        return bad(short(f"{key} = {value}"), toml(arm={key: value}), *expected)

    for key in ("p01", "p11"):
        yield from (arm(key, value, "must be") for value in NOT_NUMBERS)
        yield from (arm(key, value, "[0, 1]") for value in ("-0.1", "1.1", "2", "-1", "1e300"))
    yield from (arm("reward", value, "must be") for value in NOT_NUMBERS)
    yield from (arm("reward", value, "must be", "negative") for value in ("-1", "-0.5"))
    yield from (arm("reward", value, "1e30") for value in ("1e300", "1e-300"))
    for key in ("p01", "p11", "reward"):
        text = toml(arm={key: None})
        yield pytest.param(text, ("arm 2", key, "missing"), id=f"no {key}")
    text = toml(arm={"p10": "0.5"})
    yield bad("unknown p10", text, "arm 2", "unknown key 'p10'", "p01, p11, reward")

    yield from bad_general_arms(bad)

    for key in ("agents", "plays", "horizon", "trials", "seed"):
        yield from (head(key, value, "whole number") for value in NOT_WHOLE)
    yield from (head(key, "0", "whole number") for key in ("agents", "plays", "horizon", "trials"))
    yield head("plays", "3", "between 1 and 2, the number of arms")
    yield head("agents", "65537", "65536")
    yield head("horizon", "1000000001", "at most")
    yield head("trials", str(2**32 + 1), "2^32")
    yield head("seed", str(2**64), "2^64 - 1")

    for value in ('"whittle"', "3", "true", "{}", "[]", "[1]", "[true]", '[["whittle"]]', '[""]'):
        yield head("policies", value)
    yield head("policies", '["fedtswi", "nope"]', "unknown 'nope'", "fedtswi, fedts-myopic")
    yield head("policies", '["Whittle"]', "unknown 'Whittle'")
    yield head("policies", '["whittle", "myopic", "whittle"]', "'whittle' twice")
    yield head("policies", '["two\\nlines"]', r"'two\nlines'")
    for value in ('"both"', "1", "true", '["shared"]', "{}", '"Shared"'):
        yield head("realisations", value, "independent, shared")
        yield head("schedule", value, "paper, linear, doubling")
        yield head("draws", value, "shared, per-agent")

    for value in ("3", "[1]", '"x"', "true"):
        yield head("options", value, "table")
        yield head("options.fedtswi", value, "fedtswi", "table")
    yield head("options.nope", "{}", "options: unknown 'nope'")
    yield unknown("options.fedtswi.clip", "options.fedtswi", "prior")
    yield unknown("options.fed1-ucb.prior", "options.fed1-ucb", "sigma")
    yield unknown("options.whittle.prior", "options.whittle", "takes no options")
    for value in ("1", "0", '"yes"', "1.0", "[true]", "{}", "nan"):
        yield head("options.feducb-wi.clip", value, "feducb-wi.clip", "true or false")
    priors = ["[0, 1]", "[1]", "[]", '"x"', '"ab"', "0", "true", "{}", "[1, 2, 3]", "[-1, 1]"]
    priors += ["-1", "nan", "inf", "1e300", HUGE]
    priors += ["[nan, 1]", "[1, inf]", "[true, 1]", '["1", 1]', "[1e300, 1]", "[1e-300, 1]"]
    priors += [f"[1, {HUGE}]", f"[1, {VAST}]", "[[1, 1], 1]"]
    for value in priors:
        yield head("options.fedtswi.prior", value, "fedtswi.prior", "two numbers")
        yield head("options.feducb-myopic.prior", value, "feducb-myopic.prior", "two numbers")
    for value in ("0", "-1", "nan", "inf", '"x"', "true", "[1]", "1e300", HUGE, VAST):
        yield head("options.fed1-ucb.sigma", value, "fed1-ucb.sigma", "positive")

    for value in ("[1]", "[1, 2, 3]", "[]", "1", '"ab"', "true", "{}"):
        yield head("weights", value, "2 agents")
    for value in ("-1", "nan", "inf", "true", '"1"', "[1]", "1e300", HUGE, VAST):
        yield head("weights", f"[1, {value}]", "agent 2", "number")

    for key in ("trails", "name", "arms", "Trials", '"two\\nlines"', "a." * 1200 + "a"):
        yield unknown(key, "known are agents, plays")
    deep = toml({"weights." + "a." * 1200 + "a": "1"})
    yield bad("weights too deep to show", deep, "weights", "too large to show")

    rest = 'agents = 2\npolicies = ["whittle"]\n'
    yield bad("no arms", rest, "arm", "[[arm]]")
    yield bad("empty file", "", "arm", "[[arm]]")
    for value in (
        "3",
        "[]",
        "[3]",
        "true",
        '"x"',
        "nan",
        "{}",
        "{p01 = 0.2, p11 = 0.8, reward = 1}",
    ):
        yield bad("arm", f"arm = {value}\n", "arm", "[[arm]]")
    yield bad("a table for all arms", "[arm]\np01 = 0.2\np11 = 0.8\nreward = 1\n", "[[arm]]")

    for text in ("agents =", "= 3", "just words", "agents = 1\nagents = 2", "[[arm]", "a = 'x\n"):
        yield bad("not TOML", text, "not valid TOML", "(at ")
    yield bad("digits", f"trials = {'9' * 5000}\n", "not valid TOML", "digits")
    yield bad("lists in lists", "x = " + "[" * 20000 + "]" * 20000, "not valid TOML", "nested")
    yield bad("tables in tables", "x = " + "{a = " * 20000 + "1" + "}" * 20000, "not valid TOML")
    yield bad(
        "a long text", f'realisations = "{"x" * 10**5}"\n{OTHER_ARM}', "realisations", "xxx..."
    )
    yield bad("a long list", f"trials = [{'1, ' * 10**4}]\n{OTHER_ARM}", "trials", "[1, 1, ")


@pytest.mark.parametrize(("text", "words"), list(bad_studies()))
def test_a_bad_study_is_refused_in_one_line(call, study, text, words):
    path = study(text)
    for command in ("run", "value", "index"):
        ran = call(command, path, "--json")
        ran.assert_refused()
        place, rest = f"rmab {command}: {path}: ", ran.err
        assert rest.startswith(place)
        for word in words:  # not in the path, which has digits of its own
            assert word in rest.removeprefix(place), (word, rest)


def test_a_bad_study_is_refused_by_the_program_too(study, tmp_path):
    ran = program("run", study(toml({"plays": "3"})), "--out", tmp_path / "out")
    Ran(ran.returncode, ran.stdout, ran.stderr).assert_refused("study.toml: plays must", "got 3")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["run", "value", "index"])
def test_a_file_that_cannot_be_read_is_refused(call, tmp_path, command):
    call(command, tmp_path / "none.toml").assert_refused("none.toml: no such file")
    call(command, tmp_path).assert_refused(f"{tmp_path}: cannot be read", "directory")
    call(command, tmp_path / "none" / "x.toml").assert_refused("no such file")
    call(command, "").assert_refused("cannot be read")
    (tmp_path / "latin.toml").write_bytes("# größer\n".encode("latin-1") + toml().encode())
    call(command, tmp_path / "latin.toml").assert_refused("latin.toml: not valid TOML", "utf-8")
    (tmp_path / "picture.toml").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    call(command, tmp_path / "picture.toml").assert_refused("picture.toml: not valid TOML")
    call(command, tmp_path / "latin.toml" / "x").assert_refused("cannot be read", "directory")
    call(command, "nul\0byte").assert_refused()
    call(command, tmp_path / "two\nlines.toml").assert_refused("two lines.toml: no such file")


@pytest.mark.parametrize("value", ["0", "-3", "abc", "1.5", "1e3", "", "nan", "0x10", "9" * 5000])
def test_trials_must_be_a_whole_number_from_1(call, study, value):
    call("run", study(toml()), "--trials", value, "--json").assert_refused("trials")
    call("run", study(toml()), f"--trials={value}").assert_refused("trials", "whole number")


def test_trials_and_seeds_have_a_largest(call, study):
    call("run", study(toml()), "--trials", 2**32 + 1).assert_refused("trials", "2^32")
    call("run", study(toml()), "--seed", 2**64).assert_refused("seed", "2^64 - 1", str(2**64))
    call("reproduce", "fig13", "--trials", 2**32 + 1).assert_refused("trials", "2^32")


@pytest.mark.parametrize("value", ["-1", "abc", "1.5", "", "inf"])
def test_seed_must_be_a_whole_number_from_0(call, study, value):
    call("run", study(toml()), "--seed", value).assert_refused("--seed", "whole number", value)


@pytest.mark.parametrize("value", ["0", "-1", "abc", "2.5", "", "1000000000", "9" * 100])
def test_max_age_must_be_a_whole_number_from_1(call, study, value):
    call("index", study(toml()), "--max-age", value).assert_refused("--max-age", "whole", value)


@pytest.mark.parametrize("value", ["0", "1", "-0.5", "1.5", "abc", "", "nan", "inf", "1e400"])
def test_discount_must_lie_between_0_and_1(call, study, value):
    for text in (toml(), toml(general={})):
        ran = call("index", study(text), f"--discount={value}", "--json")
        ran.assert_refused("--discount must be a number above 0 and below 1, got", repr(value))


@pytest.mark.parametrize("command", ["run", "value", "index"])
@pytest.mark.parametrize("name", ["", "none", "fading.toml", "../figures/fig06", "two\nlines"])
def test_an_unknown_study_of_the_catalogue_is_refused(call, command, name):
    known = "adherence, age-of-information, fading, gilbert-elliott, machine"
    call(command, f"catalogue:{name}").assert_refused("catalogue: unknown", f"known are {known}")


@pytest.mark.parametrize("value", ["0", "-3", "abc", "1.5", ""])
def test_reproduce_refuses_bad_trials_before_it_begins(call, tmp_path, value):
    out = tmp_path / "out"
    call("reproduce", "fig07", "--trials", value, "--out", out).assert_refused("--trials", value)
    assert not out.exists()


@pytest.mark.parametrize("names", [["fig99"], ["fig13", "Fig07"], [""], ["fig6"], ["../fig06"]])
def test_an_unknown_figure_is_refused(call, tmp_path, names):
    ran = call("reproduce", *names, "--out", tmp_path / "out")
    ran.assert_refused("unknown figure", repr(names[-1]), ", ".join(FIGURES))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["fly"], "'fly'"),
        (["run"], "STUDY.toml"),
        (["value"], "STUDY.toml"),
        (["index"], "STUDY.toml"),
        (["run", "a.toml", "b.toml"], "b.toml"),
        (["run", "a.toml", "--fast"], "--fast"),
        (["run", "a.toml", "--max-age", "3"], "--max-age"),
        (["value", "a.toml", "--trials", "3"], "--trials"),
        (["value", "a.toml", "--discount", "0.9"], "--discount"),
        (["index", "a.toml", "--discount"], "--discount"),
        (["run", "a.toml", "--trials"], "--trials"),
        (["run", "a.toml", "--out"], "--out"),
        (["--fast"], "--fast"),
        (["run", "a.toml", "--two\nlines"], "--two lines"),
    ],
    ids=" ".join,
)
def test_a_bad_command_line_is_refused(call, arguments, word):
    call(*arguments).assert_refused("rmab", word, "--help")


@pytest.mark.parametrize("command", ["run", "reproduce"])
def test_an_unusable_folder_is_refused_before_the_work(call, study, tmp_path, command):
    first = [study(toml({"trials": "1000000"}))] if command == "run" else ["fig06"]
    (tmp_path / "file").write_text("x")
    for out in ("file", "file/under", "file/under/deep"):
        path = tmp_path / out
        call(command, *first, "--out", path).assert_refused(f"--out {path}", "folder")
    for out in ("", "nul\0byte", "x" * 5000):
        call(command, *first, "--out", out).assert_refused("--out", "folder")


def test_a_folder_that_takes_no_files_is_refused(call, study, tmp_path, monkeypatch):
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)  # who runs the tests may write anywhere
    ran = call("run", study(toml()), "--out", tmp_path)
    ran.assert_refused(f"--out {tmp_path}", "Permission denied")


def test_an_optimum_that_is_too_large_is_refused_by_run(call, study):
    path = study('plays = 15\npolicies = ["whittle", "optimal"]\n' + OTHER_ARM * 30)
    ran = call("run", path, "--json", "--trials", "1")
    ran.assert_refused(f"{path}: policies", "'optimal'", "30 arms", "states")


# --------------------------------------------------------------------------------- what is allowed


@pytest.mark.parametrize(
    "text",
    [
        toml(arm={"p01": "1", "p11": "0", "reward": "1"}),
        toml(arm={"p01": "0", "p11": "1", "reward": "0"}),
        toml(arm={"p01": "0.0", "p11": "1.0", "reward": "3"}),
        toml({"weights": "[0, 2.5]"}),
        toml({"seed": str(2**64 - 1)}),
        toml({"options.fedtswi.prior": "[1, 0.5]", "options.feducb-wi.clip": "false"}),
        toml({"options.fed1-ucb.sigma": "1", "options.whittle": "{}"}),
        toml({"options.fedtswi.prior": "1"}),
        toml(general={}),
        toml(general={"active": None, "observed": None}),
        toml(general={"observed": '"always"', "reward_passive": "[-1, -2.5]"}),
        toml(general={"reward": None, "reward_passive": "[1, 0]"}),
        toml({"realisations": '"shared"'}, general={"active": None, "reward": "[1, 2]"}),
        toml({"options.feducb-wi.clip": "false"}, general={"active": None}),
        toml(
            {"options.fedtswi.prior": "0.5"},
            general={"passive": "[[1, 0, 0], [1, 0, 0], [1, 0, 0]]", "active": None}
            | {"reward": "[3, 0, -4]", "observed": '"always"'},
        ),
        toml({"agents": None, "plays": None, "horizon": None, "trials": None, "policies": None}),
        toml().replace("\n", "\r\n"),
        "# Übertragungskanäle\n" + toml(),
        toml() + '\n[figure]\ntitle = "of its own"\n',
    ],
)
def test_a_good_study_is_accepted(call, study, text):
    ran = call("index", study(text), "--json", "--max-age", "2")
    assert (ran.code, ran.err) == (0, "")
    assert len(ran.json["arms"]) == 2


# ------------------------------------------------------------------------------------------- index


@pytest.mark.parametrize(
    ("p01", "p11", "expected"),
    [
        (0.2, 0.8, {(0, 2): 0.392857, (0, 3): 0.518987, (1, 2): 0.772727, (1, 3): 0.752475}),
        (0.89, 0.17, {(0, 2): 0.270634, (0, 3): 0.792944, (1, 2): 0.792944, (1, 3): 0.405115}),
    ],
)
@pytest.mark.parametrize("reward", [1, 0.4])
def test_index_gives_the_closed_form_times_the_reward(call, study, p01, p11, expected, reward):
    path = study(toml(arm={"p01": str(p01), "p11": str(p11), "reward": str(reward)}))
    ran = call("index", path, "--max-age", "3", "--json")
    assert (ran.code, ran.err) == (0, "")
    first, second = ran.json["arms"]
    assert list(second) == ["indexable", "never_seen", "index"]
    assert second["indexable"] is True
    assert [len(ages) for ages in second["index"]] == [3, 3]
    for (state, age), value in expected.items():
        assert second["index"][state][age - 1] == pytest.approx(reward * value, abs=5e-7)
    # One slot after a look the index is the belief.
    assert second["index"][0][0] == pytest.approx(reward * p01)
    assert second["index"][1][0] == pytest.approx(reward * p11)
    assert first["index"][1][1] == pytest.approx(0.9 * 0.792944, abs=5e-7)
    # Long unseen is like never seen.
    far = call("index", path, "--max-age", "400", "--json").json["arms"][1]
    assert far["index"][1][-1] == pytest.approx(second["never_seen"], abs=1e-9)
    assert far["index"][0][:3] == second["index"][0]


def test_index_has_twenty_ages_unless_told(call, study):
    arms = call("index", study(toml()), "--json").json["arms"]
    assert [len(ages) for arm in arms for ages in arm["index"]] == [20] * 4
    arms = call("index", study(toml()), "--json", "--max-age", "1").json["arms"]
    assert [len(ages) for arm in arms for ages in arm["index"]] == [1] * 4


def test_index_prints_the_same_numbers_as_a_table(call, study):
    path = study(toml())
    table = call("index", path, "--max-age", "4").out.splitlines()
    arms = call("index", path, "--max-age", "4", "--json").json["arms"]
    assert table[0].startswith("Whittle index, average reward, ")
    assert table[1].split() == ["arm", "seen", "1", "2", "3", "4"]
    for number, arm in enumerate(arms, start=1):
        never, *seen = table[3 * number - 1 : 3 * number + 2]
        assert never.split()[:2] == [str(number), "never"]
        assert float(never.split()[2]) == pytest.approx(arm["never_seen"], abs=1e-6)
        for state, line in enumerate(seen):
            label, *numbers = line.split()
            assert label == str(state)
            assert [float(x) for x in numbers] == pytest.approx(arm["index"][state], abs=1e-6)
    assert table[8:] == ["arm 1: indexable", "arm 2: indexable"]


TWO = {  # whose indices are known: 1.5 and 1, with discount .9 1.5 and .909091
    "passive": "[[0.5, 0.5], [0.25, 0.75]]",
    "active": "[[1, 0], [0.5, 0.5]]",
    "reward": "[2, 1]",
    "reward_passive": "[0.5, 0.5]",
    "observed": '"always"',
}


def test_index_of_an_arm_that_is_always_seen(call, study):
    path = study(toml(general=TWO))
    channel, arm = call("index", path, "--max-age", "2", "--json").json["arms"]
    assert [len(ages) for ages in channel["index"]] == [2, 2]
    assert list(arm) == ["indexable", "index"]
    assert arm["indexable"] is True
    assert arm["index"] == pytest.approx([1.5, 1.0], abs=1e-9)
    table = call("index", path, "--max-age", "2").out.splitlines()
    assert table[5].split() == ["2", "now", "0", "1.500000"]
    assert table[6].split() == ["now", "1", "1.000000"]
    assert table[7:] == ["arm 1: indexable", "arm 2: indexable"]


def test_index_with_a_discount(call, study):
    path = study(toml(general=TWO))
    channel, arm = call("index", path, "--discount", "0.9", "--max-age", "3", "--json").json["arms"]
    assert arm["index"] == pytest.approx([1.5, 0.909091], abs=5e-7)
    assert (channel["indexable"], arm["indexable"]) == (True, True)
    # One slot after a look a channel's index is its belief, whatever the discount (Liu and Zhao).
    assert channel["index"][0][0] == pytest.approx(0.9 * 0.89)
    assert channel["index"][1][0] == pytest.approx(0.9 * 0.17)
    assert call("index", path, "--discount", "0.9").out.startswith("Whittle index, discount 0.9, ")


def test_index_of_an_arm_that_moves_otherwise_when_played(call, study):
    """Played on and on it pays .75 a slot, so that is what idling must be worth, seen or not."""
    general = {"passive": "[[0.5, 0.5], [0.5, 0.5]]", "active": "[[0.25, 0.75], [0.25, 0.75]]"}
    arm = call("index", study(toml(general=general)), "--max-age", "3", "--json").json["arms"][1]
    assert list(arm) == ["indexable", "never_seen", "index"]
    assert arm["indexable"] is True
    assert arm["never_seen"] == pytest.approx(0.75)
    assert np.array(arm["index"]) == pytest.approx(np.full((2, 3), 0.75))


NOT_INDEXABLE = {
    "passive": "[[0.005, 0.793, 0.202], [0.027, 0.558, 0.415], [0.736, 0.249, 0.015]]",
    "active": "[[0.718, 0.254, 0.028], [0.347, 0.097, 0.556], [0.015, 0.956, 0.029]]",
    "reward": "[0.699, 0.362, 0.715]",
    "observed": '"always"',
}


def test_index_gives_a_witness_where_an_arm_is_not_indexable(call, study):
    """At the subsidy `low` passive is better in that state, at the higher `high` active is."""
    path = study(toml(general=NOT_INDEXABLE))
    arm = call("index", path, "--json").json["arms"][1]
    assert list(arm) == ["indexable", "index", "reason", "witness"]
    assert arm["indexable"] is False
    assert len(arm["index"]) == 3
    witness = arm["witness"]
    assert list(witness) == ["state", "low", "high"]
    given = rmab.load(path).arms[1]
    low, high = (_advantage(given, witness[key])[witness["state"]] for key in ("low", "high"))
    assert witness["low"] < witness["high"]
    assert low < -1e-9 < 1e-9 < high
    assert call("index", path).out.splitlines()[-1] == f"arm 2: not indexable: {arm['reason']}"


WANING = {  # rmab.catalogue.adherence(wane=0.15, lift=0.5, regain=0.05, slip=0.05)
    "passive": "[[0.95, 0.05, 0], [0.15, 0.8, 0.05], [0, 0.15, 0.85]]",
    "active": "[[0.5, 0.5, 0], [0.05, 0.45, 0.5], [0, 0.05, 0.95]]",
    "reward": "[0, 0, 1]",
    "reward_passive": "[0, 0, 1]",
}


@pytest.mark.parametrize("max_age", ["2", "30"])
def test_a_witness_may_be_what_was_seen_and_when(call, study, max_age):
    path = study(toml(general=WANING))
    arm = call("index", path, "--max-age", max_age, "--json").json["arms"][1]
    assert list(arm) == ["indexable", "never_seen", "index", "reason", "witness"]
    assert arm["indexable"] is False
    witness = arm["witness"]
    assert list(witness) == ["last_seen", "age", "low", "high"]
    given = expand(rmab.load(path).arms[1], 150)
    row = 150 * witness["last_seen"] + witness["age"]
    low, high = (_advantage(given, witness[key])[row] for key in ("low", "high"))
    assert witness["low"] < witness["high"]
    assert low < 0 < high


def _advantage(arm: rmab.Arm, subsidy: float) -> np.ndarray:
    """Of playing over leaving alone in each state, discount near 1: plain policy iteration."""
    S, discount, active = arm.states, 1 - 1e-6, np.zeros(arm.states, bool)
    for _ in range(50):
        moves = np.where(active[:, None], arm.active, arm.passive)
        pays = np.where(active, arm.reward_active, arm.reward_passive + subsidy)
        value = np.linalg.solve(np.eye(S) - discount * moves, pays)
        played = arm.reward_active + discount * arm.active @ value
        advantage = played - (arm.reward_passive + subsidy + discount * arm.passive @ value)
        if (active == (advantage > 0)).all():
            break
        active = advantage > 0
    return np.asarray(advantage)


def test_index_where_the_start_decides(call, study):
    frozen = toml(arm={"p01": "0", "p11": "1", "reward": "0.7"})
    arm = call("index", study(frozen), "--max-age", "2", "--json").json["arms"][1]
    assert list(arm) == ["indexable", "never_seen", "index", "reason"]
    assert arm["indexable"] is None
    assert arm["reason"].startswith("depends on the starting class")
    assert arm["index"] == [[0, 0], [0.7, 0.7]]
    verdict = call("index", study(frozen)).out.splitlines()[-1]
    assert verdict.startswith("arm 2: undecided: depends on the starting class")
    worthless = toml(arm={"p01": "0", "p11": "1", "reward": "0"})
    assert call("index", study(worthless), "--json").json["arms"][1]["indexable"] is True
    apart = {"passive": "[[1, 0], [0, 1]]", "active": "[[1, 0], [0, 1]]", "observed": '"always"'}
    arm = call("index", study(toml(general=apart)), "--json").json["arms"][1]
    assert arm["indexable"] is None
    assert arm["reason"].startswith("depends on the starting class")


def test_an_infinite_index_is_a_word(call, study):
    """State 1 leads to one of two others for good: to the better unless it is played."""
    fork = {
        "passive": "[[1, 0, 0], [0, 0, 1], [0, 0, 1]]",
        "active": "[[1, 0, 0], [1, 0, 0], [0, 0, 1]]",
        "reward": "[0, 0, 1]",
        "observed": '"always"',
    }
    path = study(toml(general=fork))
    arm = call("index", path, "--json").json["arms"][1]
    assert arm["index"] == [0, "-inf", 1]
    assert arm["indexable"] is None
    line = call("index", path).out.splitlines()[6]
    assert line.split() == ["now", "1", "-inf"]


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("machine", [5] * 4), ("age-of-information", [8] * 3), ("fading", [4] * 4)],
)
def test_index_of_a_study_of_the_catalogue(call, name, sizes):
    ran = call("index", f"catalogue:{name}", "--max-age", "3", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert [len(arm["index"]) for arm in ran.json["arms"]] == sizes
    assert all(arm["indexable"] for arm in ran.json["arms"])


@pytest.mark.parametrize("p01", ["0", "1e-12", "0.5", "0.999999999999", "1"])
@pytest.mark.parametrize("p11", ["0", "1e-300", "0.5", "0.999999999999", "1"])
def test_index_at_the_corners_is_a_number(call, study, p01, p11):
    path = study(toml(arm={"p01": p01, "p11": p11, "reward": "0.7"}))
    arm = call("index", path, "--max-age", "100", "--json").json["arms"][1]
    values = np.array([arm["never_seen"], *arm["index"][0], *arm["index"][1]])
    assert np.all((values >= -1e-15) & (values <= 0.7 + 1e-15))
    assert "-" not in call("index", path, "--max-age", "100").out


# ------------------------------------------------------------------------------------------- value


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


def test_what_is_too_large_is_null_with_the_reason_beside_it(call, study):
    arms = "".join(f"[[arm]]\np01 = 0.{n}\np11 = 0.{99 - n}\nreward = 1\n" for n in range(11, 41))
    path = study("plays = 15\n" + arms)
    ran = call("value", path, "--json")
    assert ran.code == 0
    assert list(ran.json) == VALUES
    missing = [name for name, value in ran.json.items() if value is None]
    assert missing == ["optimum", "whittle", "myopic", "lookahead"]
    assert [line.split(":")[0] for line in ran.err.splitlines()] == missing
    for line in ran.err.splitlines():
        assert "30 arms, 15 plays" in line
        assert "limit" in line
    table = call("value", path)
    assert table.code == 0
    assert "optimum             -" in table.out


def test_value_where_nothing_pays_or_all_is_played(call, study):
    nothing = call("value", study("[[arm]]\np01 = 0.3\np11 = 0.6\nreward = 0\n" * 2), "--json")
    assert nothing.json == dict.fromkeys(VALUES, 0)
    assert call("value", study("[[arm]]\np01 = 0.3\np11 = 0.6\nreward = 0\n" * 2)).code == 0
    everything = call("value", study(toml({"plays": "2"})), "--json").json
    level = 0.4 * 0.5 + 0.9 * 0.89 / 1.72
    assert list(everything.values()) == pytest.approx([level] * len(VALUES))


# --------------------------------------------------------------------------------------------- run

EVERY_POLICY = [*LEARNERS, *KNOWN]


@pytest.fixture(scope="session")
def ran_all(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran]:
    """A study of every policy, run once with --json and --out."""
    from contextlib import redirect_stderr, redirect_stdout
    from io import StringIO

    folder = tmp_path_factory.mktemp("every")
    path = folder / "every policy.toml"
    few = "".join(f"[options.{n}]\ngaps = 8\n" for n in LEARNERS if n.endswith("-gap"))  # quicker
    path.write_text(toml({"policies": json.dumps(EVERY_POLICY)}) + "\n" + few)
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(["run", str(path), "--json", "--out", str(folder / "new" / "out")])
    return folder / "new" / "out", Ran(code, out.getvalue(), err.getvalue())


def test_run_prints_one_json_object(ran_all):
    folder, ran = ran_all
    assert ran.code == 0
    assert ran.json["trials"] == 30
    assert list(ran.json["policies"]) == EVERY_POLICY
    for name, numbers in ran.json["policies"].items():
        assert {"mean", "se", "final", "episodes"} <= set(numbers)
        assert 0 < numbers["mean"] < 0.9
        assert 0 < numbers["se"] < 0.1
        assert 0 <= numbers["final"] <= 0.9
        assert numbers["episodes"] >= 1
        assert (numbers["episodes"] > 1) == (name in LEARNERS[:-1])
    assert ran.err.count("\n") == 1
    assert str(folder) in ran.err


def test_run_writes_what_it_promises(ran_all):
    folder, ran = ran_all
    names = {path.name for path in folder.iterdir()}
    assert {"results.json", "slots.csv", "episodes.csv", "report.html"} <= names
    assert {".png", ".svg"} <= {Path(name).suffix for name in names}
    assert json.loads((folder / "results.json").read_text()) == ran.json
    (png,) = folder.glob("*.png")
    assert png.read_bytes().startswith(b"\x89PNG")
    (svg,) = folder.glob("*.svg")
    assert "<svg" in svg.read_text(encoding="utf-8")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "every policy" in page
    assert all(name in page for name in EVERY_POLICY)


def test_slots_and_episodes_agree_with_the_summary(ran_all):
    folder, ran = ran_all

    def read(name: str) -> list[dict[str, str]]:
        with (folder / name).open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    slots, episodes = read("slots.csv"), read("episodes.csv")
    assert len(slots) == 40 * len(EVERY_POLICY)
    for name, numbers in ran.json["policies"].items():
        mine = [row for row in slots if row["policy"] == name]
        assert [int(row["slot"]) for row in mine] == list(range(1, 41))
        rewards = np.array([float(row["reward"]) for row in mine])
        assert rewards.mean() == pytest.approx(numbers["mean"])
        assert rewards[-4:].mean() == pytest.approx(numbers["final"])
        behind = float(mine[-1]["regret"]) / 40
        assert behind == pytest.approx(numbers["behind_whittle"], abs=1e-9)
        played = [row for row in episodes if row["policy"] == name]
        assert int(played[0]["trials"]) == 30
        count = sum(int(row["trials"]) for row in played) / 30
        assert count == pytest.approx(numbers["episodes"])
        slots_in_all = sum(int(row["trials"]) * float(row["length"]) for row in played) / 30
        assert slots_in_all == pytest.approx(40)


def test_run_prints_a_table(call, study):
    path = study(toml({"policies": '["whittle", "random"]'}))
    ran = call("run", path)
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0].startswith("30 trials")
    assert lines[1].split()[:5] == ["policy", "mean", "se", "final", "episodes"]
    numbers = call("run", path, "--json").json["policies"]
    for line in lines[2:]:
        name, *cells = line.split()
        for cell, key in zip(cells, ("mean", "se", "final"), strict=False):
            assert float(cell) == pytest.approx(numbers[name][key], abs=1e-5)
    assert len(lines) == 4


def test_run_takes_arms_of_several_kinds(call, study):
    """A channel beside an arm that pays .5 whatever happens: it adds just that."""
    head = {"policies": '["whittle"]', "plays": "2"}
    sure = {"observed": '"always"', "reward": "[0.5, 0.5]"}
    both = call("run", study(toml(head, general=sure)), "--json").json["policies"]["whittle"]
    alone = call("run", study(toml(head, arm={"reward": "0"})), "--json").json["policies"][
        "whittle"
    ]
    assert both["mean"] == pytest.approx(0.5 + alone["mean"], abs=5 * alone["se"])


def test_trials_and_seed_replace_those_of_the_study(call, study):
    policies = '["whittle", "random"]'
    path = study(toml({"policies": policies}))
    asked = call("run", path, "--json", "--trials", "20", "--seed", "7").json
    assert asked["trials"] == 20
    path = study(toml({"policies": policies, "trials": "20", "seed": "7"}))
    assert call("run", path, "--json").json == asked
    assert call("run", path, "--json", "--seed", "8").json != asked


def test_one_trial_has_no_error_and_no_nan(call, study, tmp_path):
    path = study(toml({"policies": '["whittle", "random"]'}))
    ran = call("run", path, "--trials", "1", "--json", "--out", tmp_path / "one")
    for numbers in ran.json["policies"].values():
        assert numbers["se"] is None
        assert isinstance(numbers["mean"], float)
    assert (tmp_path / "one" / "report.html").exists()
    assert "nan" not in (tmp_path / "one" / "slots.csv").read_text()
    assert call("run", path, "--trials", "1").code == 0


def test_a_horizon_of_one_slot_runs(call, study, tmp_path):
    path = study(toml({"policies": '["whittle"]', "horizon": "1"}))
    ran = call("run", path, "--json", "--out", tmp_path / "short")
    numbers = ran.json["policies"]["whittle"]
    assert numbers["final"] == pytest.approx(numbers["mean"])
    assert (tmp_path / "short" / "slots.csv").read_text().count("\n") == 2


def test_a_folder_is_written_over(call, study, tmp_path):
    path = study(toml({"policies": '["whittle", "random"]'}))
    out = tmp_path / "again"
    out.mkdir()
    (out / "results.json").write_text("old")
    (out / "mine.txt").write_text("kept")
    assert call("run", path, "--out", out).code == 0
    assert json.loads((out / "results.json").read_text())["trials"] == 30
    assert (out / "mine.txt").read_text() == "kept"


def test_a_file_that_cannot_be_written_is_one_line(call, study, tmp_path):
    (tmp_path / "out" / "results.json").mkdir(parents=True)
    path = study(toml({"policies": '["whittle", "random"]'}))
    ran = call("run", path, "--out", tmp_path / "out")
    assert ran.code == 1
    assert ran.err.count("\n") == 1
    assert "results.json" in ran.err


# --------------------------------------------------------------------------------------- reproduce


def test_reproduce_writes_one_report(call, tmp_path):
    out = tmp_path / "paper"
    ran = call("reproduce", "fig13", "--out", out)
    assert ran.code == 0
    assert ran.out.startswith("fig13  ")
    assert "held: The best policy for one arm" in ran.out
    assert "b* = 0.3800" in ran.out
    assert ran.err == f"report: {out / 'report.html'}\n"
    names = {path.name for path in out.iterdir()}
    assert {"report.html", "fig13.png", "fig13.svg"} <= names


def test_reproduce_runs_a_figure_with_fewer_trials(call, tmp_path):
    out = tmp_path / "paper"
    ran = call("reproduce", "fig13", "fig07", "--trials", "32", "--out", out, "--json")
    assert ran.code == 0
    assert list(ran.json) == ["fig07", "fig13"]  # in the paper's order
    figure = ran.json["fig07"]
    assert figure["variants"][""]["trials"] == 32
    assert {type(claim["held"]) for claim in figure["claims"]} <= {bool, type(None)}
    assert len(figure["claims"]) == 2
    names = {path.name for path in out.iterdir()}
    assert {"report.html", "fig07.png", "fig07.svg", "fig13.png", "fig13.svg"} <= names


# ----------------------------------------------------------------------------------- interruptions


def test_an_interruption_before_the_first_trial(call, study, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rmab.studies.running.simulate", interrupt)
    ran = call("run", study(toml()), "--json")
    assert (ran.code, ran.out) == (130, "")
    assert ran.err.count("\n") == 1
    assert "interrupted" in ran.err


def test_an_interrupted_study_is_written_with_the_trials_done(call, study, tmp_path, monkeypatch):
    from rmab.engine import montecarlo

    batches = []
    reduce = montecarlo._reduce

    def interrupt_third(*arguments: Any) -> Any:
        batches.append(arguments)
        if len(batches) == 3:
            raise KeyboardInterrupt
        return reduce(*arguments)

    monkeypatch.setattr(montecarlo, "_reduce", interrupt_third)
    monkeypatch.setattr(montecarlo, "batch_size", lambda _: 32)
    monkeypatch.setattr(montecarlo, "default_threads", lambda: 1)
    path = study(toml({"policies": '["whittle", "random"]', "trials": "1000"}))
    ran = call("run", path, "--json", "--out", tmp_path / "out")
    assert ran.code == 130
    assert ran.json["trials"] == 64
    assert ran.json["interrupted"] is True
    assert "interrupted: 64 of 1000 trials" in ran.err
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == ran.json
    assert "64" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    monkeypatch.undo()
    # They are the first 64 trials, and nothing of the others.
    whole = call("run", path, "--json", "--trials", "64").json
    assert whole["policies"] == ran.json["policies"]


def test_an_interrupted_reproduction_reports_what_was_done(call, tmp_path, monkeypatch):
    def interrupt(*_: object) -> Results:
        raise KeyboardInterrupt

    monkeypatch.setattr(reproduce, "run", interrupt)
    out = tmp_path / "part"
    ran = call("reproduce", "fig13", "theory", "--out", out, "--json")
    assert ran.code == 130
    assert list(ran.json) == ["fig13"]
    assert "interrupted" in ran.err
    assert (out / "report.html").exists()
    assert not (out / "theory.png").exists()

    ran = call("reproduce", "theory", "--out", tmp_path / "none", "--json")
    assert (ran.code, ran.out) == (130, "")
    assert ran.err.count("\n") == 1
    assert not (tmp_path / "none" / "report.html").exists()


class Watched:
    """A command in a process of its own whose standard error is a terminal."""

    def __init__(self, *arguments: str | Path) -> None:
        self.screen, terminal = pty.openpty()
        termios.tcsetwinsize(self.screen, (24, 100))  # else it has no columns to write in
        self.process = subprocess.Popen(
            [*PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, stderr=terminal
        )
        os.close(terminal)
        self.seen = ""

    def __enter__(self) -> "Watched":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
        os.close(self.screen)

    def _read(self) -> bool:
        assert select.select([self.screen], [], [], PATIENCE)[0], self.seen
        try:
            text = os.read(self.screen, 65536).decode()
        except OSError:  # the other side is closed
            return False
        self.seen += text
        return bool(text)

    def wait_for(self, pattern: str) -> None:
        """Until the terminal shows it."""
        while not re.search(pattern, self.seen):
            assert self._read(), self.seen

    def interrupt(self) -> tuple[Ran, list[str]]:
        """Ctrl-C; what it gave, and what it said beside the progress bar."""
        begun = time.perf_counter()
        before = len(self.seen)
        self.process.send_signal(signal.SIGINT)
        while self._read():
            pass
        out, _ = self.process.communicate(timeout=PROMPTLY)
        assert time.perf_counter() - begun < PROMPTLY
        said = re.split(r"[\r\n]+", self.seen[before:])
        lines = [
            line for line in said if line.strip() and "trial/s" not in line and "?" not in line
        ]
        return Ran(self.process.returncode, out.decode(), self.seen), lines


ENDLESS = {"policies": '["whittle"]', "horizon": "200", "trials": "4000000000"}


def test_ctrl_c_writes_the_trials_done(study, tmp_path):
    out = tmp_path / "out"
    with Watched("run", study(toml(ENDLESS)), "--out", out) as command:
        command.wait_for(r"[1-9]\d*/4000000000")
        ran, lines = command.interrupt()
    assert ran.code == 130
    assert "Traceback" not in ran.err
    results = json.loads((out / "results.json").read_text())
    assert results["interrupted"] is True
    assert 0 < results["trials"] < 4000000000
    assert ran.out.startswith(f"{results['trials']} trials")
    assert any(f"interrupted: {results['trials']} of 4000000000 trials" in line for line in lines)
    names = {path.name for path in out.iterdir()}
    assert {"results.json", "slots.csv", "episodes.csv", "report.html"} <= names


def test_ctrl_c_before_the_first_trial_is_one_line(study):
    text = toml({**ENDLESS, "horizon": "1000000", "policies": '["fedtswi"]'})
    with Watched("run", study(text)) as command:
        command.wait_for("0/4000000000")
        ran, lines = command.interrupt()
    assert (ran.code, ran.out) == (130, "")
    assert len(lines) == 1, lines
    assert "interrupted" in lines[0]


def test_ctrl_c_ends_a_reproduction_with_its_report(tmp_path):
    out = tmp_path / "out"
    with Watched("reproduce", "fig07", "--trials", "4000000000", "--out", out) as command:
        command.wait_for(r"[1-9]\d*/4000000000")
        ran, lines = command.interrupt()
    assert ran.code == 130
    assert "Traceback" not in ran.err
    assert any("interrupted" in line for line in lines)
    assert (out / "report.html").exists()


# -------------------------------------------------------------------------------------------- pipes


def test_a_reader_that_leaves_early_is_no_error(study):
    command = [*PROGRAM, "index", str(study(toml())), "--max-age", "100000", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(8) == b'{"arms":'
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_one_line(study):
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [*PROGRAM, "index", str(study(toml()))],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert "No space left" in ended.stderr


def test_without_the_extra_it_says_what_to_install(call, study, monkeypatch):
    """The base install has NumPy alone: `index` works on it, `run` says what is missing."""
    path = study(toml())
    monkeypatch.setitem(sys.modules, "tqdm", None)
    ran = call("run", path)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.count("\n") == 1
    assert "pip install 'rmab[sim]'" in ran.err
    assert call("index", path, "--json").code == 0
