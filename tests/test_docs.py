"""What the pages on the served federation say is so: routes, codes, options, metrics, tests."""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rmab.arena.problems import PROBLEMS
from rmab.arena.scores import Standing
from rmab.arena.verdicts import RULES
from rmab.cli.console import BAD_INPUT, DONE, FAILED, INTERRUPTED
from rmab.cli.main import _parser
from rmab.errors import ProtocolError
from rmab.policies.entry import GROUPS
from rmab.policies.registry import OPTIONS, POLICIES
from rmab.privacy.accounting import Budget, cell_noise, noise_multiplier
from rmab.privacy.advice import enough_agents
from rmab.privacy.noise import MOST_RELEASES
from rmab.protocol.config import Federation, load_federation
from rmab.protocol.shape import Shape
from rmab.protocol.uploads import parse_upload
from rmab.service.helper.routes import HelperMetrics
from rmab.service.server.metrics import Metrics
from rmab.service.server.openapi import document
from rmab.service.server.process import PORT
from rmab.service.server.rounds import RELOADED
from rmab.studies.json_tables import keys
from tests.service.pages.blocks import blocks_of

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])
COMMANDS = (
    *("new", "server", "enroll", "revoke", "agents", "backup", "agent", "demo"),
    *("helper", "helper-enroll", "helper-revoke", "helper-agents"),
)
ANYWHERE = {"403", "421"}  # codes that every route may answer, which the page says once


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def fenced(page: str, kind: str) -> list[str]:
    """The blocks of a kind, `toml` say, of a page."""
    return re.findall(rf"^```{kind}\n(.*?)^```", text(page), flags=re.DOTALL | re.MULTILINE)


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, without its head."""
    _, found, rest = text(page).partition(f"\n{heading}\n")
    assert found, f"{page} has no heading {heading!r}"
    rest = re.sub(r"^```.*?^```", "", rest, flags=re.DOTALL | re.MULTILINE)
    lines = re.split(r"^#", rest, flags=re.MULTILINE)[0].splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("|"))
    table = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return table[2:]


def federation_of(page: str, folder: Path) -> Federation:
    """The federation that a page has as its example."""
    (example,) = (block for block in fenced(page, "toml") if re.search(r"^policy =", block, re.M))
    path = folder / "example.toml"
    path.write_text(example, encoding="utf-8")
    return load_federation(path)


# ------------------------------------------------------------------------------------ the protocol


def test_the_routes_of_the_protocol_are_those_of_the_openapi_document(tmp_path):
    described = document(federation_of("README.md", tmp_path))["paths"]
    due = {
        (method.upper(), path): set(operation["responses"]) - ANYWHERE
        for path, operations in described.items()
        for method, operation in operations.items()
    }
    said = {}
    for cells in rows("docs/protocol.md", "## Routes"):
        for method, path in re.findall(r"`([A-Z]+) (/[^`?]*)[^`]*`", cells[0]):
            said[method, path] = set(re.findall(r"\b[2-5]\d\d\b", cells[2])) - ANYWHERE
    assert said == due


def test_every_refusal_has_its_code_and_word_in_the_protocol(tmp_path):
    said = {
        (cells[0], cells[1].strip("`"))
        for cells in rows("docs/protocol.md", "### Status codes and their words")
    }
    sources = "\n".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "src").glob("rmab/**/*.py")
    )
    raised = set(re.findall(r"ProtocolError\(\s*(\d{3}),\s*\"(\w+)\"", sources))
    assert ("410", "round") in raised
    assert raised <= said
    described = document(federation_of("README.md", tmp_path))["components"]["responses"]
    assert {name.removeprefix("Refused") for name in described} <= {code for code, _ in said}


def test_the_upload_of_the_protocol_is_one():
    (example,) = (block for block in fenced("docs/protocol.md", "json") if '"counts"' in block)
    shape = Shape(plays=1, states=(2, 2), gaps=1)
    upload = parse_upload(example.encode(), shape, "spectrum")
    assert (upload.sequence, upload.slots, upload.counts.sum()) == (1, 2, 1)
    told = [cells[0] for cells in rows("docs/protocol.md", "## An upload")]
    for key in json.loads(example):
        assert any(key in cell for cell in told)
    with pytest.raises(ProtocolError, match="unknown key"):
        parse_upload(example.replace('"slots"', '"more": 1, "slots"').encode(), shape, "spectrum")


def test_the_round_of_the_protocol_has_every_key(tmp_path):
    schemas = document(federation_of("README.md", tmp_path))["components"]["schemas"]
    (example,) = (block for block in fenced("docs/protocol.md", "json") if '"plan"' in block)
    assert set(json.loads(example)) == set(schemas["Round"]["required"])
    (status,) = (block for block in fenced("docs/protocol.md", "json") if '"live"' in block)
    assert set(json.loads(status)) == set(schemas["Status"]["required"])


def test_all_that_the_overview_has_is_explained(tmp_path):
    schemas = document(federation_of("README.md", tmp_path))["components"]["schemas"]
    page = text("docs/protocol.md").partition("## Status, overview, agents")[2]
    keys = {*schemas["Overview"]["required"], *schemas["Agent"]["required"]}
    assert {key for key in keys if f"`{key}`" not in page and f'"{key}"' not in page} == set()


# ------------------------------------------------------------------------ commands, files, metrics


def commands() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command."""
    (found,) = (
        action.choices
        for action in _parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    return dict(found)


def test_every_command_and_option_is_in_the_docs():
    told = {
        re.split(r"[ `]", cells[0])[2]: cells[0] + cells[1]
        for cells in rows("docs/operations.md", "## Commands")
    }
    section = text("docs/operations.md").partition("## Commands")[2].partition("\n## ")[0]
    below = section.rpartition("|\n")[2]  # what three commands have in common
    missing = []
    for name in COMMANDS:
        page = told[name] + (below if name in ("enroll", "revoke", "agents") else "")
        for action in commands()[name]._actions:
            longest = max(action.option_strings, key=len, default="--help")
            if longest != "--help" and f"`{longest}" not in page:
                missing.append(f"rmab {name} {longest}")
    assert missing == []


@pytest.mark.parametrize(
    ("command", "heading"), [("trace", "## Reading a recording"), ("backtest", "## Back-test")]
)
def test_every_option_on_measured_data_is_in_its_part_of_the_page(command, heading):
    part = text("docs/traces.md").partition(f"\n{heading}\n")[2].partition("\n## ")[0]
    options = {
        max(action.option_strings, key=len)
        for action in commands()[command]._actions
        if action.option_strings
    } - {"--help"}
    assert {option for option in options if not re.search(rf"{option}\b", part)} == set()


def test_the_page_of_the_arena_has_every_option_problem_key_and_rule():
    page = text("docs/arena.md")
    told = {cells[0] for cells in rows("docs/arena.md", "## Options")}
    for action in commands()["arena"]._actions:
        option = max(action.option_strings, key=len, default="PROBLEM")
        assert option == "--help" or any(option in cell for cell in told), option
    problems = " ".join(cells[0] for cells in rows("docs/arena.md", "## Problems"))
    for name in PROBLEMS:
        first = name.partition("-")[0]
        known = f"`{first}-" in problems if first == "paper" else f"`{name}`" in problems
        assert known, name
    assert all(f"`{key}`" in page for key in keys(Standing))
    assert [tuple(cells) for cells in _table_with(page, "| word | rule |")] == list(RULES)


def _table_with(page: str, head: str) -> list[list[str]]:
    """The rows below a head."""
    lines = page.partition(f"{head}\n")[2].splitlines()[1:]
    table = []
    for line in lines:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.split("|")[1:-1]])
    return table


def test_every_metric_is_in_the_docs_and_no_other():
    exported = set()
    for metrics in (Metrics(), HelperMetrics()):
        for metric in metrics.registry.collect():
            exported.add(f"{metric.name}_total" if metric.type == "counter" else metric.name)
    said = set(re.findall(r"`(rmab_[a-z_]+)", text("docs/operations.md")))
    assert said == exported


def test_every_event_of_the_log_is_in_the_docs():
    call = r"log\(\s*\"(?:debug|info|warning|error)\",\s*\"([^\"]+)\""
    written = {
        event
        for path in (ROOT / "src/rmab/service").glob("**/*.py")
        for event in re.findall(call, path.read_text(encoding="utf-8"))
    }
    assert {"ready", "round closed"} <= written
    page = text("docs/operations.md")
    assert {event for event in written if f"`{event}`" not in page} == set()


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_the_federation_of_a_page_loads(page, tmp_path):
    federation = federation_of(page, tmp_path)
    assert federation.name == "spectrum"
    assert len(federation.arms) > federation.plays


def test_every_key_of_a_federation_is_in_the_tutorial():
    said = {cells[0].strip("`[]") for cells in rows("docs/tutorial.md", "## 2. Say what is known")}
    fields = {"arm" if name == "arms" else name for name in Federation.__dataclass_fields__}
    assert said == fields


def units() -> dict[str, str]:
    """The units of the tutorial and of the page on operations, with drop-ins, by file."""
    found = {}
    for page in ("docs/tutorial.md", "docs/operations.md"):
        for block in blocks_of(page):
            if block.kind == "ini":
                assert block.file is not None, f"{page}:{block.line} names no file"
                found[block.file.removeprefix("/etc/systemd/system/")] = block.text
    return found


UNITS = ("rmab-server.service", "rmab-agent.service", "rmab-helper.service")
DROP_INS = ("rmab-server.service.d/helper.conf", "rmab-agent.service.d/helper.conf")


def test_there_is_a_unit_for_each_that_runs_and_a_drop_in_with_a_helper():
    assert sorted(units()) == sorted((*UNITS, *DROP_INS))


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_restarts_what_may_pass_and_nothing_else(name):
    unit = units()[name]
    assert re.search(r"^Restart=(on-failure|always)$", unit, re.M)
    assert re.search(r"^RestartPreventExitStatus=2$", unit, re.M)
    # Otherwise five quick failures, a database that starts slowly say, end it for good.
    head = unit.partition("[Service]")[0]
    assert re.search(r"^StartLimitIntervalSec=0$", head, re.M)


@pytest.mark.parametrize("name", [*UNITS, *DROP_INS])
def test_a_unit_s_command_is_one_whose_user_can_read_its_keys_and_write_its_folder(name):
    text = units()[name].replace("\\\n", " ")
    whole = units()[name.partition(".d/")[0]].replace("\\\n", " ") + text
    assert "User=rmab\n" in whole
    assert "StateDirectory=rmab\nStateDirectoryMode=0700\n" in whole
    assert "ProtectSystem=strict\n" in whole
    *_, line = re.findall(r"^ExecStart=(.+)$", text, re.M)
    program, *words = shlex.split(line)
    assert program == "/opt/rmab/bin/rmab"
    options = vars(_parser().parse_args(words))
    handed_over = dict(re.findall(r"^LoadCredential=(\S+?):(\S+)$", whole, re.M))
    for secret in ("tls_key", "helper_token_file"):  # root's, so that systemd hands them over
        if options.get(secret) is not None:
            folder, _, file = options[secret].rpartition("/")
            assert folder == "${CREDENTIALS_DIRECTORY}", secret
            assert handed_over[file] == f"/etc/rmab/{file}"
    written = options["state"] if options["command"] == "agent" else options["database"]
    assert written.startswith("/var/lib/rmab/")


def test_systemd_finds_no_fault_in_the_units(tmp_path):
    """Where there is one; it looks for the program, too."""
    program = shutil.which("systemd-analyze")
    if program is None:
        return
    for name, text in units().items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text.replace("/opt/rmab/bin/rmab", sys.executable), encoding="utf-8")
    done = subprocess.run(
        [program, "verify", "--man=no", *(str(tmp_path / name) for name in UNITS)],
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


RUN = ("docs/tutorial.md", "docs/operations.md")  # by tests/service/pages


def test_few_blocks_are_only_shown_and_each_says_why():
    shown = [block for page in RUN for block in blocks_of(page) if block.shown is not None]
    assert len(shown) <= 5
    assert all(len(str(block.shown).split()) >= 2 for block in shown)
    assert not any(
        re.match(r"rmab [a-z]", command.text) for block in shown for command in block.commands
    )


def commands_of(page: str) -> list[str]:
    """What a page has of `rmab`, in blocks of commands."""
    typed = []
    for block in blocks_of(page):
        if block.kind == "shell":
            typed += [command.text for command in block.commands]
        elif block.kind == "text":
            typed += [line for line in block.text.splitlines() if line.startswith("rmab ")]
    return [line for text in typed for line in text.replace("\\\n", " ").split("\n")]


@pytest.mark.parametrize("page", [str(path.relative_to(ROOT)) for path in PAGES])
def test_every_command_of_a_page_is_accepted(page):
    for line in commands_of(page):
        for part in re.split(r"&&|;|\|", re.sub(r"\s#\s.*$", "", line)):
            typed = re.sub(r"\$[HR]\b|runuser -u rmab -- rmab", "rmab", part).partition(">")[0]
            words = shlex.split(typed)
            if words[:1] == ["rmab"]:
                _parser().parse_args(words[1:])


def test_every_exit_code_is_in_the_docs():
    codes = {cells[0] for cells in rows("docs/operations.md", "## Exit codes")}
    assert codes == {str(code) for code in (DONE, FAILED, BAD_INPUT, INTERRUPTED)}


def test_the_python_of_the_tutorial_is_python():
    blocks = fenced("docs/tutorial.md", "python")
    for block in blocks:
        compile(block, "docs/tutorial.md", "exec")
    space: dict[str, object] = {}
    exec(next(block for block in blocks if "class Radio" in block), space)
    radio: object = space["Radio"]
    assert callable(radio)
    states = radio().sense([2, 0, 1])
    assert len(states) == 3
    assert set(states) <= {0, 1}


def test_the_extras_of_the_readme_exist():
    project = tomllib.loads(text("pyproject.toml"))["project"]
    said = {
        extra
        for names in re.findall(r"pip install \S*?\[([a-z,]+)\]", text("README.md"))
        for extra in names.split(",")
    }
    assert {"sim", "server", "postgres"} <= said <= set(project["optional-dependencies"])


@pytest.mark.parametrize("page", ["docs/security.md", "docs/tutorial.md"])
def test_a_page_shows_both_proxies_and_the_option_that_trusts_them(page):
    (nginx,), (caddy,) = fenced(page, "nginx"), fenced(page, "caddy")
    for block in (nginx, caddy):
        assert f"127.0.0.1:{PORT}" in block
        assert block.count("{") == block.count("}") > 0
    for header in ("Host", "X-Forwarded-For", "X-Forwarded-Proto"):
        assert f"proxy_set_header {header} $" in nginx
    assert "--trusted-proxy 127.0.0.1" in text(page)


def test_the_docs_tell_what_a_hangup_reloads():
    section = text("docs/operations.md").partition("## Reload")[2].partition("\n## ")[0]
    assert {key for key in RELOADED if f"`{key}`" not in section} == set()


# ------------------------------------------------------------------------------ promises and links


def test_every_test_that_is_named_exists():
    named = re.findall(r"`([\w/]+\.py)::([\w:]+)`", text("docs/security.md"))
    assert len(named) > 30
    missing = []
    for file, name in named:
        path = ROOT / "tests" / file
        body: list[ast.stmt] = []
        if path.exists():
            body = ast.parse(path.read_text(encoding="utf-8")).body
        for part in name.split("::"):
            kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
            found = [node for node in body if isinstance(node, kinds) and node.name == part]
            body = found[0].body if found else []
        if not body:
            missing.append(f"{file}::{name}")
    assert missing == []


def test_every_promise_names_a_test():
    page = text("docs/security.md").partition("\n## Promises\n")[2].partition("\n## ")[0]
    promises = [line for line in page.splitlines() if re.match(r"\| [A-Z.]", line)]
    assert len(promises) > 20
    assert [line for line in promises if "::test_" not in line] == []


@pytest.mark.parametrize("page", [str(path.relative_to(ROOT)) for path in PAGES])
def test_links_lead_to_files(page):
    folder = (ROOT / page).parent
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text(page))
    assert [link for link in links if not (folder / link).exists()] == []


# ------------------------------------------------------------------------------------ the policies


def test_the_tables_of_noise_are_what_is_computed():
    """z(epsilon, delta), and how many agents are enough, for the same epsilon."""
    heads = [row for row in text("docs/privacy.md").splitlines() if row.startswith("| ε at δ")]
    assert len(heads) == 2
    budgets = [Budget(float(cell)) for cell in heads[0].split("|")[2:-1]]
    z = [f"{noise_multiplier(one.epsilon, one.delta):.2f}" for one in budgets]
    page = text("docs/privacy.md")
    assert f"| z(ε, δ) | {' | '.join(each.removeprefix('0') for each in z)} |" in page
    assert heads[1] == heads[0]
    for draws, first in (("own", '`draws = "own"`'), ("shared", '`"shared"`')):
        cells = " | ".join(str(enough_agents(one, draws)) for one in budgets)
        assert re.search(rf"^\| .*{first}.* \| {re.escape(cells)} \|$", page, re.MULTILINE)
    s = [cell_noise(Budget(1.0), 2, releases) for releases in (1, MOST_RELEASES)]
    assert f"at K = 2 and ε = 1 from {s[0]:.0f} to {s[1]:.0f} counts" in page


def test_the_page_of_policies_is_the_registry():
    page = text("docs/policies.md")
    for group, title in GROUPS.items():
        found = {
            cells[0].strip("`"): (cells[1], re.findall(r"`([^`]+)`", cells[2]))
            for cells in rows("docs/policies.md", f"## {title[0].upper()}{title[1:]}")
        }
        assert found == {
            name: (entry.summary, list(entry.options))
            for name, entry in POLICIES.items()
            if entry.group == group
        }
    said = {
        cells[0].strip("`"): tuple(cells[1:]) for cells in rows("docs/policies.md", "## Options")
    }
    assert said == {
        name: (option.default, option.rule, option.meaning) for name, option in OPTIONS.items()
    }
    assert page.count("\n| `") == len(POLICIES) + len(OPTIONS)


def test_the_readme_names_every_policy_in_its_group():
    table = {cells[0]: re.findall(r"`([^`]+)`", cells[1]) for cells in _policies_of_the_readme()}
    assert table == {
        title: [name for name, entry in POLICIES.items() if entry.group == group]
        for group, title in GROUPS.items()
    }


def _policies_of_the_readme() -> list[list[str]]:
    lines = text("README.md").partition("| policies | |\n")[2].splitlines()[1:]
    found = []
    for line in lines:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.split("|")[1:-1]])
    return found
