"""One server and four simulated agents of the paper's scenario, on this machine, to watch.

Everything is real but the arms: the server listens on loopback, the agents exchange with it over
HTTP. All of it lives in one process and one temporary folder, and is gone when the demo ends. The
four agents play slot by slot together and, as Algorithm 1 has it, wait for the next round at the
end of an episode. It is apart from the command, which imports no server until it is asked for.
"""

from __future__ import annotations

import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Self

from rmab.model.arms import channels
from rmab.model.realisation import SimulatedArms
from rmab.protocol.config import Federation, KnownArm
from rmab.service.admin import DatabaseAdmin
from rmab.service.agent.agent import Agent
from rmab.service.http.listener import in_thread
from rmab.service.http.telemetry import Log
from rmab.service.server.planning import Planning
from rmab.service.server.process import Server, Settings
from rmab.studies.run import value
from rmab.studies.study import Study

__all__ = ["Demo", "Progress"]

P01, P11 = (0.20, 0.89, 0.10, 0.90), (0.80, 0.17, 0.90, 0.16)
REWARD = (0.4, 0.9, 0.7, 0.6)
PLAYS, AGENTS = 2, 4
POLICY = "fedtswi"
SLOT_SECONDS = 0.05
RECENT = 200  # slots that a recent reward is the mean of
COMPILING = 600.0  # seconds that an agent waits for the first round
PATIENCE = 30.0  # seconds that an agent waits for the next round before it plays on


class Progress(NamedTuple):
    """How far the demo is; rewards are means per agent and slot."""

    slot: int
    round: int
    reward: float
    recent: float


class Demo:
    """The server and the agents, from `with` to its end."""

    def __init__(
        self,
        port: int = 0,
        slot_seconds: float = SLOT_SECONDS,
        seed: int = 0,
        planner: Planning | None = None,
    ) -> None:
        self.arms = channels(p01=P01, p11=P11, reward=REWARD)
        study = Study(arms=self.arms, agents=AGENTS, plays=PLAYS, policies=["whittle"])
        known = value(study)["whittle"]
        assert known is not None  # four channels are never too many
        self.reference = known
        self.url = ""
        self._port = port
        self._slot_seconds = slot_seconds
        self._seed = seed
        self._planner = planner
        self._stack = ExitStack()
        self._agents: list[tuple[Agent, SimulatedArms]] = []

    def __enter__(self) -> Self:
        with self._stack as stack:  # undone if any of it fails
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rmab-demo-")))
            federation = Federation(
                "demo",
                PLAYS,
                tuple(KnownArm(2, (0.0, reward)) for reward in REWARD),
                policy=POLICY,
                deadline=5.0,
                seed=self._seed,
                reference=self.reference,
            )
            settings = Settings(federation, str(folder / "demo.db"), port=self._port, open=True)
            server = Server(settings, planner=self._planner, log=Log(level="error"))
            stack.enter_context(in_thread(server))
            self.url = server.url
            with DatabaseAdmin(federation, settings.database) as admin:
                tokens = [admin.enroll(f"agent-{n}", "agent") for n in range(1, AGENTS + 1)]
            for n, token in enumerate(tokens):
                file = folder / f"agent-{n + 1}.db"
                agent = stack.enter_context(
                    Agent(self.url, token=token, file=file, patience=COMPILING)
                )
                self._agents.append((agent, SimulatedArms(self.arms, (self._seed, n))))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def play(self, slots: int) -> Iterator[Progress]:
        """Play that many slots at the demo's pace, and report progress after each."""
        total = 0.0
        recent: deque[float] = deque(maxlen=RECENT)
        due = time.monotonic()
        for slot in range(1, slots + 1):
            paid = 0.0
            for agent, arms in self._agents:
                if agent.over:
                    agent.wait(PATIENCE)
                before = agent.reward
                agent.observe(arms.sense(agent.choose()))
                paid += agent.reward - before
            total += paid / AGENTS
            recent.append(paid / AGENTS)
            yield Progress(slot, self._agents[0][0].round, total / slot, sum(recent) / len(recent))
            due = max(due + self._slot_seconds, time.monotonic() - self._slot_seconds)
            time.sleep(max(0.0, due - time.monotonic()))
