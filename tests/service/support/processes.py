"""`rmab` as processes of their own: servers that a test starts, restarts and ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

RMAB = (sys.executable, "-c", "from rmab.cli import main; raise SystemExit(main())")
# A planner that needs no JAX: it starts at once.
FLAT = (sys.executable, str(Path(__file__).parent / "flat_server.py"))
SPECTRUM = """\
name = "spectrum"
plays = 2
policy = "fedtswi"
schedule = "linear"
deadline = 3600
seed = 7
[[arm]]
reward = 0.4
[[arm]]
reward = 0.9
[[arm]]
reward = 0.7
[[arm]]
reward = 0.6
"""


def environment(tmp_path_factory) -> dict[str, str]:
    """Of processes: what one has compiled the next one finds."""
    cache = tmp_path_factory.getbasetemp() / "jax-cache"
    return {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }


class Machine:
    """A folder with a federation's file, and the commands there; program: that has them."""

    def __init__(
        self,
        folder: Path,
        environment: dict[str, str],
        program: Sequence[str] = RMAB,
        text: str = SPECTRUM,
    ) -> None:
        self.folder = folder
        self.program = program
        self.environment = environment | {"XDG_STATE_HOME": str(folder / "state")}
        (folder / "spectrum.toml").write_text(text)
        self.log = folder / "server.log"

    def start(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        """`rmab` with these words, not waited for."""
        return subprocess.Popen(
            [*self.program, *words], cwd=self.folder, env=self.environment, text=True, **more
        )

    def rmab(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`rmab` with these words, to its end."""
        return subprocess.run(
            [*RMAB, *words],
            cwd=self.folder,
            env=self.environment,
            text=True,
            capture_output=True,
            timeout=300,
        )

    def enroll(self, name: str, *more: str) -> str:
        """A new token."""
        done = self.rmab("enroll", "spectrum.toml", name, *more)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def token_file(self, name: str, token: str) -> str:
        """A file with a token, that nobody else can read."""
        path = self.folder / f"{name}.token"
        path.touch(0o600)
        path.write_text(token + "\n")
        return path.name

    def serve(self, *options: str, port: int = 0, plain: bool = False) -> ServerProcess:
        """A running server."""
        return ServerProcess(self, *options, port=port, plain=plain)

    def events(self) -> list[dict[str, Any]]:
        """The lines of the servers' log."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]


class ServerProcess:
    """`rmab server`, ready; its log goes on in one file, whichever process writes it.

    said: the line with which it told that it is ready, JSON unless `plain`.
    """

    def __init__(self, machine: Machine, *options: str, port: int = 0, plain: bool = False) -> None:
        self._machine = machine
        form = () if plain else ("--json",)
        with machine.log.open("a") as log:
            self.process = machine.start(
                *("server", "spectrum.toml", "--port", str(port), *form, *options),
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline().strip()
        assert self.said, machine.log.read_text()
        found = self.said.rpartition(" at ")[2] if plain else json.loads(self.said)["url"]
        self.url = str(found)
        self.port = httpx.URL(self.url).port or 0

    def close_pipe(self) -> None:
        """Of a process that has ended otherwise."""
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal; the exit code. What it printed after it was ready must be nothing."""
        self.process.send_signal(number)
        try:
            code = self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        assert self.process.stdout is not None
        rest = self.process.stdout.read()
        self.process.stdout.close()
        assert rest == ""
        return code

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            code = self.end()
            assert code == 0 or error is not None, self._machine.log.read_text()
