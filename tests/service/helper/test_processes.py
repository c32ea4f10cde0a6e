"""Helper, server and agents as processes that are killed: sums equal the agents' own ledgers."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from pathlib import Path

import httpx
import numpy as np
import pytest

from rmab.federation.config import load_federation
from rmab.service.store.store import open_store
from tests.service.support.processes import RMAB, SPECTRUM, Machine, environment
from tests.service.support.securing import Securing
from tests.service.support.serving import until

ENV = """\
import os, random

class Radio:
    # Notes each slot, with what it showed, before the agent is told: its own ledger.
    def __init__(self):
        self.name = os.environ["RADIO"]
        self.random = random.Random()

    def sense(self, arms):
        states = [int(self.random.random() < 0.5) for _ in arms]
        with open(self.name + ".ledger", "a") as ledger:
            ledger.write(" ".join(f"{a}:{s}" for a, s in zip(arms, states)) + "\\n")
        return states
"""


class HelperProcess:
    """`rmab helper`, ready."""

    def __init__(self, folder: Path, port: int = 0, database: str | None = None) -> None:
        words = ["helper", "spectrum.toml", "--port", str(port), "--json"]
        words += [] if database is None else ["--database", database]
        with (folder / "helper.log").open("a") as log:
            self.process = subprocess.Popen(
                [*RMAB, *words], cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert said, (folder / "helper.log").read_text()
        self.url = json.loads(said)["url"]
        self.port = httpx.URL(self.url).port or 0

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def test_a_helper_that_is_killed_goes_on_where_it_was(tmp_path):
    """kill -9 between and in the midst of openings; the server asks again."""
    both = Securing(tmp_path)
    (tmp_path / "spectrum.toml").write_text(SPECTRUM + '[privacy]\nhelper = "http://127.0.0.1:9"\n')
    helper = HelperProcess(tmp_path, database=both.helper_database)
    chance = random.Random(4)
    try:
        both.use_helper(helper.url)
        both.start_server()
        agents = [both.agent(name) for name in "abc"]
        for number in (1, 2):
            for agent in agents:
                agent.fetch(number - 1)
            for agent in agents:
                assert agent.send(agent.play()).status_code == 201
            time.sleep(chance.random() * 0.01)
            helper.end(signal.SIGKILL)
            helper = HelperProcess(tmp_path, helper.port, both.helper_database)
            until(lambda n=number: both.served.server.rounds.number == n + 1)
            store = open_store(both.server_database, both.federation)
            try:
                assert np.array_equal(store.merged().visits, both.ledger())
            finally:
                store.close()
        assert helper.end() == 0
    finally:
        both.close()
        if helper.process.poll() is None:
            helper.end(signal.SIGKILL)


@pytest.mark.slow
def test_sums_are_the_agents_ledgers_whoever_is_killed(tmp_path, tmp_path_factory):
    """Server, helper and 8 agents, each killed on the way and started again."""
    machine = Machine(tmp_path, environment(tmp_path_factory))
    text = SPECTRUM.replace("deadline = 3600", "deadline = 1")
    (tmp_path / "spectrum.toml").write_text(text + '[privacy]\nhelper = "http://127.0.0.1:9"\n')
    (tmp_path / "radio.py").write_text(ENV)
    helper = HelperProcess(tmp_path)
    (tmp_path / "spectrum.toml").write_text(text + f'[privacy]\nhelper = "{helper.url}"\n')
    names = [f"radio-{n}" for n in range(8)]
    for name in names:
        machine.token_file(name, machine.enroll(name))
        key = machine.rmab("helper-enroll", "spectrum.toml", name).stdout
        (tmp_path / f"{name}.key").write_text(key)
    token = machine.rmab("helper-enroll", "spectrum.toml", "--server").stdout
    access = ("--helper-token-file", machine.token_file("helper", token.strip()), "--open")
    server = machine.serve(*access)

    def start(name: str, *more: str) -> subprocess.Popen[str]:
        words = ["agent", server.url, "--token-file", f"{name}.token", "--env", "radio:Radio"]
        words += ["--mask-key-file", f"{name}.key", "--state", f"{name}.db"]
        with (tmp_path / "agents.log").open("a") as log:
            return subprocess.Popen(
                [*RMAB, *words, "--slot-seconds", "0.02", *more],
                cwd=tmp_path,
                env=machine.environment | {"RADIO": name},
                stdout=log,
                stderr=log,
                text=True,
            )

    running = {name: start(name) for name in names}
    chance = random.Random(1)
    try:
        for turn in range(12):
            time.sleep(0.5 + chance.random())
            if turn % 3 == 0:
                port = helper.port
                helper.end(signal.SIGKILL)
                time.sleep(chance.random())
                helper = HelperProcess(tmp_path, port)
            elif turn % 3 == 1:
                server.process.kill()
                server.process.wait()
                assert server.process.stdout is not None
                server.process.stdout.close()
                server = machine.serve(*access, port=server.port)
            else:
                for name in chance.sample(names, 3):
                    running[name].kill()
                    running[name].wait()
                    running[name] = start(name)
        for process in running.values():
            process.send_signal(signal.SIGTERM)
        for process in running.values():
            process.wait(60)
        # All that is unsent goes out, and then, together, into sums.
        running = {name: start(name, "--slots", "40") for name in names}
        for process in running.values():
            assert process.wait(120) == 0, (tmp_path / "agents.log").read_text()[-2000:]
        running = {name: start(name, "--slots", "60") for name in names}
        for process in running.values():
            assert process.wait(120) == 0

        def privacy():
            return httpx.get(f"{server.url}/v1/status").json()["privacy"]

        until(lambda: privacy()["waiting_slots"] < 8 * 60, 120)
        found = privacy()
        assert found["impossible"] == 0
        federation = load_federation(tmp_path / "spectrum.toml")
        store = open_store(str(tmp_path / "spectrum.db"), federation)
        try:
            visits = store.merged().visits
            assert store.openings is not None
            waiting = sum(row.slots for row in store.openings.waiting_rows())
        finally:
            store.close()
        plays = sum(
            line.count(":")
            for name in names
            for line in (tmp_path / f"{name}.ledger").read_text().splitlines()
        )
        # A slot may be noted and its process killed before the agent was told: one for each kill.
        kills = 3 * 4 + 8
        opened = int(visits.sum())
        assert plays - 2 * waiting - 2 * kills <= opened <= plays - 2 * waiting
        assert opened > plays / 2
    finally:
        for process in running.values():
            process.kill()
            process.wait()
        server.process.kill()
        server.process.wait()
        assert server.process.stdout is not None
        server.process.stdout.close()
        helper.end(signal.SIGKILL)
