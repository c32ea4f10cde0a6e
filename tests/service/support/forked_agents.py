"""Agents as processes, forked from one that has loaded all they need; they play at random.

python tests/service/support/forked_agents.py

A line `NAME URL TOKEN MASK_KEY` on standard input starts an agent, whose process id is printed. Its
own ledger is the file INCARNATION.ledger: a line for each slot, `SLOT ARM:STATE ARM:STATE ...`,
written before the agent is told, and one with the slot where a process begins. SIGTERM ends it,
with all that it has sent; the end of the input nothing.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

from rmab.service.agent.agent import Agent
from rmab.service.agent.limits import AgentLimits

SLOT_SECONDS = 0.01
QUICK = AgentLimits(first_pause=0.02, longest_pause=0.1, between_requests=0.02)


def play(name: str, url: str, token: str, mask_key: str) -> None:
    """Until SIGTERM."""
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    chance = random.Random(f"{name} {os.getpid()}")
    file = f"{name}.db"
    with Agent(url, token=token, file=file, mask_key=mask_key, limits=QUICK) as agent:
        note(agent)
        while not ended:
            arms = agent.choose()
            states = [int(chance.random() < 0.5) for _ in arms]
            note(agent, *(f"{a}:{s}" for a, s in zip(arms, states, strict=True)))
            agent.observe(states)
            time.sleep(SLOT_SECONDS)


def note(agent: Agent, *looks: str) -> None:
    """A line of the ledger."""
    player = agent._player
    with Path(f"{player.incarnation}.ledger").open("a") as ledger:
        ledger.write(" ".join((str(player.slots), *looks)) + "\n")


if __name__ == "__main__":  # not where this file is only read
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who has ended is waited for by nobody
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                play(*line.split())
            finally:
                os._exit(0)
        print(pid, flush=True)
