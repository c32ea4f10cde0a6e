"""The tutorial from its first block to its last, as written, and what its blocks promise."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from rmab.cli.main import _parser
from rmab.protocol.config import load_federation
from tests.service.conftest import left_out
from tests.service.pages.blocks import Block, Command, blocks_of
from tests.service.pages.machine import NEEDED, Machine

TUTORIAL = blocks_of("docs/tutorial.md")
PATIENCE = 120.0  # seconds; a machine may be slow, and only what fails takes so long
Status = dict[str, Any]


@pytest.fixture
def machine(tmp_path, tmp_path_factory):
    """A machine on which nothing was done yet."""
    for name in NEEDED:
        if shutil.which(name) is None:
            left_out(f"{name} not found")
    made = Machine(tmp_path, tmp_path_factory.getbasetemp() / "compiled")
    yield made
    made.close()


def section(number: int) -> Iterator[Block]:
    """The blocks of a section that are not only shown."""
    within = False
    for block in TUTORIAL:
        if re.match(r"\d+\. ", block.section):
            within = block.section.startswith(f"{number}. ")
        if within and block.shown is None:
            yield block


def do(machine: Machine, block: Block) -> None:
    """Run a block, whatever it is."""
    if block.kind == "text":  # options of the server
        machine.did.add((block.page, block.line))
        _parser().parse_args(["server", "spectrum.toml", *shlex.split(block.text)])
    elif block.kind == "python" and block.file is None:
        machine.did.add((block.page, block.line))
        space: dict[str, Any] = {}
        exec(block.text, space)
        machines = space["Machines"]()
        machines.gauge = lambda arm: arm % 2
        assert machines.look([3, 0, 2]) == [1, 0, 0]
    else:
        machine.do(block)


def status_once(machine: Machine, command: Command, holds: Callable[[Status], bool]) -> Status:
    """What the page's command for the status says, once something holds of it."""
    end = time.monotonic() + PATIENCE
    while True:
        status: Status = json.loads(machine.type(command))
        if holds(status):
            return status
        machine.check_started()
        assert time.monotonic() < end, status
        time.sleep(0.5)


def test_every_block_of_the_tutorial_does_what_the_page_says(machine):
    _a_federation_is_written_and_tried(machine)
    _a_server_and_an_agent_with_tls_and_units(machine)
    _a_helper_that_somebody_else_runs(machine)
    due = {(block.page, block.line) for block in TUTORIAL if block.shown is None}
    assert due <= machine.did


def _a_federation_is_written_and_tried(machine: Machine) -> None:
    for block in section(1):
        machine.do(block)
    file = machine.folder / "etc/rmab/spectrum.toml"
    for block in section(2):
        if block.kind == "toml":
            machine.did.add((block.page, block.line))
            assert block.text == file.read_text()
        else:
            machine.do(block)
    assert load_federation(file).slot_seconds == 1
    for block in section(3):
        for command, printed in zip(block.commands, machine.do(block), strict=False):
            if "--simulate" in command.text:
                assert "rmab agent:" not in printed  # it keeps to the pace: nothing is refused
        if "--viewer" in block.text:
            assert [code for code, _ in machine.stop_started()] == [0]
    assert {path.name for path in machine.home.iterdir()} == {".local"}  # the agent's own file


def _a_server_and_an_agent_with_tls_and_units(machine: Machine) -> None:
    for number in (4, 5, 6, 7):
        machine.new_terminal()
        for block in section(number):
            do(machine, block)
    (ask,) = (command for block in section(9) for command in block.commands)
    status = status_once(machine, ask, lambda status: status["uploads"] > 0)
    assert status["live"] == 1
    machine.new_terminal()
    for block in section(8):
        do(machine, block)
    before = status["uploads"]
    status = status_once(machine, ask, lambda status: status["uploads"] > before)
    assert status["round"] > 1
    machine.did |= {(block.page, block.line) for block in section(9)}
    ((_, said),) = machine.stop_started()
    assert "429" not in said
    log = (machine.run / "rmab-server.log").read_text()
    refused = [json.loads(line) for line in log.splitlines() if '"refused"' in line]
    assert [each for each in refused if each["status"] != 503] == []


def _a_helper_that_somebody_else_runs(machine: Machine) -> None:
    machine.new_terminal()
    for block in section(4):  # again, for the helper's certificate
        for command in block.commands:
            if "CA:TRUE" not in command.text:
                text = command.text.replace("server", "helper").replace("helperAuth", "serverAuth")
                machine.type(replace(command, text=text, prints=[]))
    for block in blocks_of("docs/operations.md"):
        if block.kind == "ini":
            machine.do(block)
    for block in section(10):
        machine.new_terminal()
        if block.commands and "/v1/status" in block.text:
            break
        machine.do(block)
    agent = (
        "cd /etc/rmab && rmab agent https://server.example:8443 --ca ca.pem --env radio:Radio "
        "--token-file ~/radio-{0}.token --mask-key-file ~/radio-{0}.key --state ~/{0}.db "
        "--slot-seconds 1.1"
    )
    for n in (2, 3):  # on machines of their own
        machine.type(Command(True, agent.format(n)))

    def is_opened(status: Status) -> bool:
        return any(group["agents"] for group in status["privacy"]["groups"])

    status = status_once(machine, block.commands[0], is_opened)
    machine.did.add((block.page, block.line))
    assert status["live"] == 3
    assert status["privacy"]["helper"]["up"] is True
    assert [group["agents"] for group in status["privacy"]["groups"]] == [3]
