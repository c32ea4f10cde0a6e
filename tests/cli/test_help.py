"""Help: examples, every key and policy, nothing heavy imported."""

import re
import subprocess
import sys
from dataclasses import fields
from importlib import import_module
from importlib.metadata import entry_points

import pytest

import rmab
from rmab.cli import main
from rmab.cli.options import commands
from rmab.policies.episodes import DRAWS, SCHEDULES
from rmab.policies.registry import KNOWN, LEARNERS, OPTIONS
from rmab.studies.study import KEYS
from rmab.studies.sweep import load_sweep


@pytest.mark.parametrize(
    "command", ["", "run", "value", "index", "reproduce", "trace", "backtest", "new"]
)
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
    words = set(re.findall(r"[A-Za-z0-9][A-Za-z0-9_-]*", text))
    options = set(OPTIONS)
    keys = [field.name for field in fields(rmab.Study) if field.name != "arms"]
    for known in (LEARNERS, KNOWN, options, keys, KEYS["realisations"].choices, SCHEDULES, DRAWS):
        assert set(known) <= words


def test_the_example_study_of_the_help_is_one(call, study):
    text = call("run", "--help").out.partition("a study file:\n")[2]
    lines = [line.strip() for line in text.splitlines()]
    example = "\n".join(lines[: lines.index(next(x for x in lines if x.startswith("(one")))])
    assert example.count("[[arm]]") == 2
    ran = call("index", study(example), "--json", "--max-age", "2")
    assert ran.code == 0, ran.err
    assert [len(arm["index"]) for arm in ran.json["arms"]] == [2, 3]


def test_the_example_sweep_of_the_help_is_one(call, study):
    text = call("run", "--help").out
    lines = [line.strip() for line in text.partition("a study file:\n")[2].splitlines()]
    example = lines[: lines.index(next(x for x in lines if x.startswith("(one")))]
    sweep = lines[lines.index("[sweep]") :]
    sweep = sweep[: sweep.index(next(x for x in sweep if x.startswith("(")))]
    path = study("\n".join([*example, *sweep]))
    assert len(load_sweep(path).points) == 12


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


def test_only_the_command_that_is_asked_for_is_loaded():
    script = (
        "import sys\nfrom rmab.cli import main\nmain(['new', 'federation', 'a/b'])\n"
        "print(*(name for name in sys.modules if name.startswith('rmab.cli.')))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    loaded = {name.rpartition(".")[2] for name in ended.stdout.decode().split()}
    assert loaded == {"console", "main", "new", "options"}


def test_every_command_of_the_table_has_a_function():
    for name, command in commands().items():
        module = import_module(f"rmab.cli.{command.module}")
        assert callable(getattr(module, name.replace("-", "_")))


def test_the_installed_program_is_this_one():
    (entry,) = (e for e in entry_points(group="console_scripts") if e.name == "rmab")
    assert entry.load() is main
