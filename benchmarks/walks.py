"""Walks through the code: modules and functions that a plain study and a plain federation enter.

    walk_run      `rmab run study.toml --out DIR`: three channels, FedTSWI, a few trials
    walk_service  a server and four agents, 40 slots, several rounds, uploads in clear

Functions have a name or are lambdas; comprehensions are left out, as is what runs while a module is
imported, and the agents' enrolment.

    python -m benchmarks.walks run       prints both as JSON, {"modules": [...], "functions": [...]}
    python -m benchmarks.walks service
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import rmab

__all__ = ["Walk", "walk_run", "walk_service"]

_SOURCE = str(Path(rmab.__file__).parent)
_STUDY = """\
agents = 2
plays = 1
horizon = 60
trials = 4
policies = ["fedtswi"]
[[arm]]
p01 = 0.20
p11 = 0.80
reward = 0.4
[[arm]]
p01 = 0.89
p11 = 0.17
reward = 0.9
[[arm]]
p01 = 0.10
p11 = 0.90
reward = 0.7
"""
_FEDERATION = """\
name = "walk"
plays = 1
policy = "fedtswi"
[[arm]]
reward = 0.4
[[arm]]
reward = 0.9
[[arm]]
reward = 0.7
"""
_AGENTS, _SLOTS = 4, 40
_PARTS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}  # of a function
_PATIENCE = 120.0  # seconds, for a first plan that is compiled on a busy machine


class Walk(NamedTuple):
    """Modules entered, and functions as `module:qualified.name`."""

    modules: set[str]
    functions: set[str]


@contextmanager
def _recorded() -> Iterator[Walk]:
    """Record what this thread and threads that it starts enter."""
    walk = Walk(set(), set())
    entered: set[CodeType] = set()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code in entered or not code.co_filename.startswith(_SOURCE):
            return
        if code.co_name in _PARTS:
            return
        above: FrameType | None = frame
        while above is not None:
            if above.f_code.co_name == "<module>" and above.f_globals["__name__"] != "__main__":
                return
            above = above.f_back
        entered.add(code)
        module = frame.f_globals["__name__"]
        walk.modules.add(module)
        walk.functions.add(f"{module}:{code.co_qualname}")

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield walk
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def walk_run() -> Walk:
    """Run a study in this process, with its results, page and figure."""
    from rmab.cli import main

    with tempfile.TemporaryDirectory() as folder, _recorded() as walk:
        study = Path(folder, "study.toml")
        study.write_text(_STUDY)
        assert main(["run", str(study), "--out", str(Path(folder, "out"))]) == 0
    return walk


def walk_service() -> Walk:
    """Serve a federation in this process and play it with four agents."""
    from rmab.protocol.config import load_federation
    from rmab.service.admin import DatabaseAdmin
    from rmab.service.http.listener import in_thread
    from rmab.service.server.process import Server, Settings

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        file = Path(folder, "walk.toml")
        file.write_text(_FEDERATION)
        database = str(Path(folder, "walk.db"))
        with DatabaseAdmin(load_federation(file), database) as admin:
            tokens = [admin.enroll(f"agent-{n}", "agent") for n in range(_AGENTS)]
        walk = stack.enter_context(_recorded())
        server = Server(Settings(load_federation(file), database, port=0))
        stack.enter_context(in_thread(server))
        agents = [
            stack.enter_context(
                rmab.Agent(
                    server.url, token=token, file=Path(folder, f"{n}.db"), patience=_PATIENCE
                )
            )
            for n, token in enumerate(tokens)
        ]
        for slot in range(_SLOTS):
            for agent in agents:
                arms = agent.choose()
                agent.observe([(slot + arm) % 2 for arm in arms])
            for agent in agents:
                if agent.over:
                    agent.wait(_PATIENCE)
    return walk


def main(words: list[str]) -> None:
    """Print a walk as one JSON object on the last line."""
    walk = {"run": walk_run, "service": walk_service}[words[0]]()
    print(json.dumps({"modules": sorted(walk.modules), "functions": sorted(walk.functions)}))


if __name__ == "__main__":
    main(sys.argv[1:])
