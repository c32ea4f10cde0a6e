"""Exit codes, JSON and refusals of every command, and the options that each one has."""

import csv
import re
from pathlib import Path
from typing import Any

import pytest

from tests.golden.commands import call, normal
from tests.golden.recording import compare, digest

STUDY = """\
agents = 2
plays = 1
horizon = 40
trials = 30
seed = 5
policies = ["fedtswi", "feducb-wi", "whittle", "random"]
[[arm]]
p01 = 0.89
p11 = 0.17
reward = 0.9
[[arm]]
p01 = 0.2
p11 = 0.8
reward = 0.4
"""
GENERAL = """\
plays = 1
horizon = 20
trials = 10
policies = ["whittle", "myopic"]
[[arm]]
p01 = 0.2
p11 = 0.8
reward = 0.7
[[arm]]
passive = [[0.8, 0.2, 0.0], [0.3, 0.5, 0.2], [0.1, 0.3, 0.6]]
active = [[0.5, 0.4, 0.1], [0.1, 0.5, 0.4], [0.0, 0.2, 0.8]]
reward = [0.0, 0.4, 0.9]
[[arm]]
passive = [[0.8, 0.2], [0.3, 0.7]]
active = [[0.5, 0.5], [0.1, 0.9]]
reward_active = [0.0, 1.0]
reward_passive = [0.1, 0.2]
observed = "always"
"""
LARGE = "plays = 15\n" + "".join(
    f"[[arm]]\np01 = 0.{n}\np11 = 0.{99 - n}\nreward = 1\n" for n in range(11, 41)
)
FEDERATION = """\
name = "spectrum"
plays = 1
policy = "fedtswi"
[[arm]]
reward = 0.4
[[arm]]
reward = 0.9
"""
FILES = {
    "study.toml": STUDY,
    "general.toml": GENERAL,
    "large.toml": LARGE,
    "spectrum.toml": FEDERATION,
    "broken.toml": "plays = [",
    "plays.toml": STUDY.replace("plays = 1", "plays = 3"),
    "policy.toml": STUDY.replace("feducb-wi", "feducb"),
    "options.toml": STUDY.replace("[[arm]]", "[options.fedtswi]\ngaps = 9\n[[arm]]", 1),
    "key.toml": "horizons = 4\n" + STUDY,
    "arm.toml": STUDY.replace("p11 = 0.8", "p11 = 1.8"),
    "row.toml": GENERAL.replace("[0.8, 0.2, 0.0]", "[0.8, 0.3, 0.0]"),
    "optimal.toml": 'policies = ["optimal"]\n' + LARGE,
    "deadline.toml": "deadline = 0\n" + FEDERATION,
    "learnt.toml": FEDERATION.replace("reward = 0.4", "reward = 0.4\np01 = 0.5"),
    "known.toml": FEDERATION.replace("fedtswi", "whittle"),
    "tight.token": "rmab_0123456789abcdef_" + "A" * 43,
    "bad.token": "no token",
}
COMMANDS = (
    "run",
    "value",
    "index",
    "reproduce",
    "backtest",
    "fit",
    "trace",
    "new",
    "new federation",
    "server",
    "enroll",
    "revoke",
    "agents",
    "backup",
    "demo",
    "agent",
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the files are and commands run."""
    monkeypatch.setenv("COLUMNS", "10000")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name, text in FILES.items():
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o600)
    return tmp_path


def named(words: str) -> str:
    """The entry of a command; / would divide it."""
    return words.replace("/", "|")


ANSWERS = [
    "--version",
    "run study.toml --json",
    "run study.toml --json --trials 1 --seed 3",
    "run study.toml --trials 8",
    "run general.toml --json",
    "value study.toml --json",
    "value study.toml",
    "value general.toml --json",
    "value large.toml --json",
    "value catalogue:machine --json",
    "index study.toml --json --max-age 4",
    "index study.toml --max-age 3",
    "index general.toml --json --max-age 3",
    "index general.toml --json --max-age 3 --discount 0.9",
    "index catalogue:age-of-information --json",
    "index catalogue:adherence --json --max-age 3",
]


@pytest.mark.parametrize("words", ANSWERS)
def test_what_a_command_answers(folder, words):
    compare("commands", named(words), normal(call(*words.split(), folder=folder), folder))


REFUSALS = [
    "fly",
    "run",
    "run study.toml --fast",
    "run none.toml --json",
    "run broken.toml --json",
    "run plays.toml --json",
    "run policy.toml --json",
    "run options.toml --json",
    "run key.toml --json",
    "run arm.toml --json",
    "run row.toml --json",
    "run optimal.toml --json",
    "run study.toml --trials 0",
    "run study.toml --seed -1",
    "run study.toml --out study.toml",
    "run catalogue:none",
    "value none.toml --json",
    "value plays.toml --json",
    "value study.toml --trials 3",
    "index none.toml --json",
    "index study.toml --max-age 0",
    "index study.toml --discount 1",
    "reproduce fig99",
    "reproduce fig13 --trials 0",
    "server none.toml",
    "server deadline.toml",
    "server learnt.toml",
    "server known.toml",
    "server spectrum.toml --port 70000",
    "server spectrum.toml --host 0.0.0.0",
    "server spectrum.toml --tls-cert none.pem",
    "enroll spectrum.toml",
    "enroll spectrum.toml a|b",
    "enroll none.toml radio",
    "enroll spectrum.toml radio --token-file tight.token",
    "enroll http://127.0.0.1:1 radio",
    "enroll http://127.0.0.1:1 radio --token-file bad.token",
    "enroll http://127.0.0.1:1 radio --token-file tight.token --database x.db",
    "revoke spectrum.toml -x",
    "revoke spectrum.toml radio",
    "agents none.toml",
    "agents http://127.0.0.1:1 --token-file none.token",
    "demo --slots 0",
    "demo --port x",
    "agent http://127.0.0.1:1",
    "agent http://127.0.0.1:1 --token-file tight.token",
    "agent http://127.0.0.1:1 --token-file bad.token --simulate study.toml",
    "agent http://127.0.0.1:1 --token-file tight.token --simulate none.toml",
    "agent http://127.0.0.1:1 --token-file tight.token --env nothing",
    "agent http://127.0.0.1:1 --token-file tight.token --env nothing:Here",
    "agent http://127.0.0.1:1 --token-file tight.token --simulate study.toml --slots -1",
    "agent http://127.0.0.1:1 --token-file tight.token --simulate study.toml --patience x",
]


@pytest.mark.parametrize("words", REFUSALS)
def test_what_a_command_refuses(folder, words):
    ran = call(*words.split(), folder=folder)
    assert (ran["exit"], ran["out"], len(ran["err"])) == (2, [], 1), ran
    # Some versions of Python quote the names to choose from.
    compare("commands", named(words), normal(ran["err"][0], folder).replace("'", ""))


def test_an_agent_that_reaches_no_server(folder):
    words = "agent http://127.0.0.1:1 --token-file tight.token --simulate study.toml --patience 0"
    ran = call(*words.split(), folder=folder)
    assert (ran["exit"], ran["out"]) == (1, []), ran
    # An attempt may have been made, and then there is a warning first and its reason at the end.
    told = normal(ran["err"][-1], folder).partition(" before: ")[0]
    compare("commands", "agent without a server", told)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_what_options_a_command_has(folder, command):
    """Its usage; what help says beyond that may change."""
    ran = call(*command.split(), "--help", folder=folder)
    assert (ran["exit"], ran["err"]) == (0, [])
    usage = " ".join("\n".join(ran["out"]).partition("\n\n")[0].split())
    options = sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", usage)))
    found: dict[str, Any] = {"usage": usage, "options": options}
    if not command:
        found["commands"] = re.findall(r"^ {4}([a-z-]+)", "\n".join(ran["out"]), re.MULTILINE)
    compare("commands", f"{command or 'rmab'} --help", found)


def test_the_files_of_a_run(folder):
    ran = call("run", "study.toml", "--out", "out", "--json", folder=folder)
    out = folder / "out"
    found = normal(ran, folder) | {"files": sorted(p.name for p in out.iterdir())}
    for name in ("slots", "episodes"):
        content = (out / f"{name}.csv").read_bytes()
        rows = list(csv.reader(content.decode().splitlines()))
        found[name] = {"header": rows[0], "rows": len(rows), "sha256": digest(content)}
    compare("commands", "run study.toml --out", found)


def test_a_figure_reproduced(folder):
    ran = call("reproduce", "fig13", "--json", "--out", "out", folder=folder)
    found = normal(ran, folder) | {"files": sorted(p.name for p in (folder / "out").iterdir())}
    compare("commands", "reproduce fig13", found)


def test_a_demo(folder):
    """Its rewards are a function of the seed, too, as agents wait for one another."""
    ran = call("demo", "--slots", "6", "--no-browser", "--json", folder=folder)
    compare("commands", "demo", normal(ran, folder))


def test_agents_come_and_go(folder):
    steps = []
    for words in (
        "agents spectrum.toml",
        "enroll spectrum.toml radio-1 --json",
        "enroll spectrum.toml radio-2",
        "enroll spectrum.toml boss --admin --json",
        "enroll spectrum.toml radio-1 --json",
        "agents spectrum.toml --json",
        "revoke spectrum.toml radio-2",
        "revoke spectrum.toml radio-1 --json",
        "revoke spectrum.toml radio-1 --json",
        "revoke spectrum.toml nobody --json",
        "agents spectrum.toml --json",
        "enroll spectrum.toml radio-1 --json",
        "agents spectrum.toml",
    ):
        ran = normal(call(*words.split(), folder=folder), folder)
        if isinstance(ran["out"], list):
            ran["out"] = [re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "TIME", x) for x in ran["out"]]
        steps.append({"command": words} | ran)
    compare("commands", "agents come and go", steps)
