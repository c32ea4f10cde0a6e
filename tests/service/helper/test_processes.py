"""Helper, server and agents as processes that are killed: sums equal the agents' own ledgers."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import tests.service.support
from rmab.privacy.masks import vector_of
from rmab.protocol.config import load_federation
from rmab.protocol.shape import Shape
from rmab.service.admin import DatabaseAdmin
from rmab.service.helper.store import default_database, open_helper_store
from rmab.service.store.store import open_store
from rmab.service.terms import terms_of
from tests.service.support.processes import FLAT, RMAB, SPECTRUM, Machine, environment
from tests.service.support.serving import until

FORKED = str(Path(tests.service.support.__file__).parent / "forked_agents.py")

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


class Agents:
    """Processes of agents by name (tests/service/support/forked_agents.py)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, int] = {}
        with (folder / "agents.log").open("a") as log:
            self._parent = subprocess.Popen(
                [sys.executable, FORKED],
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def start(self, name: str, url: str, *secrets: str) -> None:
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(" ".join((name, url, *secrets)) + "\n")
        self._parent.stdin.flush()
        self._running[name] = int(self._parent.stdout.readline())

    def end(self, name: str, number: signal.Signals) -> None:
        """Send a signal, and wait until the process is gone."""
        pid = self._running.pop(name)
        os.kill(pid, number)
        until(lambda: not Path(f"/proc/{pid}").exists())

    def close(self) -> None:
        for name in list(self._running):
            self.end(name, signal.SIGKILL)
        self._parent.kill()
        self._parent.communicate()

    def counted(self, incarnation: str, slots: int, shape: Shape) -> Any:
        """What an incarnation counted in its first slots, by its own ledger: a vector as uploads
        have it."""
        counts = np.zeros((shape.kinds, 2, 2, shape.n_arms), np.int64)
        visits = np.zeros((2, shape.n_arms), np.int64)
        last: dict[int, tuple[int, int]] = {}
        lines = (self._folder / f"{incarnation}.ledger").read_text().splitlines()
        noted = {}  # what a killed agent was not told of is noted again by the next process
        begun = set()
        for line in lines:
            number, *looks = line.split()
            if looks:
                noted[int(number)] = looks
            else:
                begun.add(int(number))
        for slot in range(slots):
            if slot in begun:
                last.clear()
            for arm, state in (map(int, look.split(":")) for look in noted[slot]):
                if arm in last:
                    then, before = last[arm]
                    counts[min(slot - then, shape.kinds) - 1, before, state, arm] += 1
                visits[state, arm] += 1
                last[arm] = (slot, state)
        return vector_of(counts, visits, shape).view(np.int64)


def test_sums_with_noise_are_the_agents_ledgers_whoever_is_killed(tmp_path):
    """Server, helper and 8 agents, each killed on the way and started again: what was released is
    what the agents noted themselves, with the noise that the helper has kept."""
    file, database = tmp_path / "spectrum.toml", str(tmp_path / "spectrum.db")
    text = SPECTRUM.replace("deadline = 3600", "deadline = 0.5")
    noise = '[privacy]\nhelper = "{}"\nepsilon = 2\n'
    file.write_text(text + noise.format("http://127.0.0.1:9"))
    helper = HelperProcess(tmp_path)
    file.write_text(text + noise.format(helper.url))
    federation = load_federation(file)
    machine = Machine(tmp_path, dict(os.environ), program=FLAT, text=file.read_text())
    names = [f"radio-{n}" for n in range(8)]
    keys = open_helper_store(default_database(file), terms_of(federation))
    with closing(keys), DatabaseAdmin(federation, database) as admin:
        token = machine.token_file("helper", keys.enroll_server(1.0))
        secrets = {
            name: (admin.enroll(name, "agent"), keys.enroll(name, 1, 1.0)[0]) for name in names
        }
    access = ("--helper-token-file", token, "--open")
    agents, server = Agents(tmp_path), machine.serve(*access)

    def released() -> int:
        with closing(open_helper_store(default_database(file), terms_of(federation))) as store:
            return 40 - store.releases_left()[1]

    try:
        for name in names:
            agents.start(name, server.url, *secrets[name])
        until(lambda: released() >= 1)
        before = released()
        helper.end(signal.SIGKILL)
        server.process.kill()
        server.process.wait()
        for name in names:
            agents.end(name, signal.SIGKILL)
        helper = HelperProcess(tmp_path, helper.port)
        server.close_pipe()
        server = machine.serve(*access, port=server.port)
        for name in names:
            agents.start(name, server.url, *secrets[name])
        until(lambda: released() > before)
        helper.end(signal.SIGKILL)  # once more, while the last answer may be on its way
        helper = HelperProcess(tmp_path, helper.port)
        for name in names:
            agents.end(name, signal.SIGTERM)

        def is_settled() -> bool:
            with closing(open_store(database, federation)) as store:
                assert store.openings is not None
                (group,) = store.openings.groups()
                return bool(group.opening == released() and group.result == "added")

        until(is_settled)
        assert server.end() == 0
        assert helper.end() == 0
        with closing(open_store(database, federation)) as store:
            rows = store.database.rows(
                "SELECT agent, incarnation, opened_slots FROM masked WHERE opened_slots > 0"
            )
            assert store.openings is not None
            sums = store.openings.sums()[1]
        with closing(open_helper_store(default_database(file), terms_of(federation))) as keys:
            points = [keys.watermark(agent, incarnation) for agent, incarnation, _ in rows]
            ledger = keys.ledger(1)
        assert [point.slots for point in points if point] == [slots for *_, slots in rows]
        told = sum(agents.counted(name, slots, federation.shape) for _, name, slots in rows)
        told[: ledger.size] += ledger.noise(ledger.releases[-1].name)
        told[ledger.size :] = 0  # of visits nothing is released
        found = vector_of(sums.counts, sums.visits, federation.shape).view(np.int64)
        np.testing.assert_array_equal(found, told)
        assert sums.slots == sum(slots for *_, slots in rows) == ledger.slots
        assert {agent for agent, *_ in rows} == set(names)
        assert len(rows) == len(names)  # each was killed, and went on
        assert len({slots for *_, slots in rows}) == 1
    finally:
        agents.close()
        server.process.kill()
        server.close_pipe()
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
