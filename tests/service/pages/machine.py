"""A folder that stands for a machine, on which the blocks of a page are run as written.

What differs from the page is here: folders of the system are below that folder, addresses lead to
ports that were free, and `systemctl`, `journalctl`, `runuser` and `install` are stand-ins
(`stand_in`). All machines of the tutorial are this one.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

from tests.service.pages.blocks import Block, Command

__all__ = ["NEEDED", "Machine"]

SECONDS = 300
FOLDERS = ("/opt/rmab", "/etc/rmab", "/etc/systemd/system", "/var/lib/rmab", "/var/cache/rmab")
STAND_INS = ("systemctl", "journalctl", "runuser", "install")
NEEDED = ("bash", "openssl", "curl", "sqlite3")  # of the system, as they are
_SERVED = re.compile(r"rmab (server|helper) (?!.*--help)")
_LASTS = re.compile(r"rmab (?:server|helper) |rmab agent (?!.*--slots)|python play\.py")


class Machine:
    """The folder, with a shell of root and one of a user."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder = folder
        self.home, self.run = folder / "home", folder / "run"
        self.did: set[tuple[str, int]] = set()  # blocks, by page and line
        self._started: list[subprocess.Popen[bytes]] = []
        for each in ("etc/systemd/system", "opt/rmab/bin", "bin", "run", "home", "var/lib"):
            (folder / each).mkdir(parents=True)
        (self.run / "owned").touch()
        self._keep_addresses({})
        program = "from rmab.cli import main; raise SystemExit(main())"
        self._program("opt/rmab/bin/rmab", sys.executable, "-c", program)
        self._program("opt/rmab/bin/python", sys.executable)
        self._program("bin/rmab", str(folder / "opt/rmab/bin/rmab"))  # as /usr/local/bin
        for name in STAND_INS:
            script = str(Path(__file__).with_name("stand_in.py"))
            self._program(f"bin/{name}", sys.executable, script, name)
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("XDG_")},
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "PAGES_MACHINE": str(folder),
            "RMAB_CACHE": str(cache),
            "JAX_PLATFORMS": "cpu",
            "OPENBLAS_NUM_THREADS": "1",
        }
        self._state = {True: "umask 022\ncd ~\n", False: "cd ~\n"}

    def _program(self, name: str, *words: str) -> None:
        path = self.folder / name
        path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        path.chmod(0o755)

    @property
    def addresses(self) -> dict[str, str]:
        """Where the names of the page lead."""
        found: dict[str, str] = json.loads((self.run / "addresses.json").read_text())
        return found

    def keep_address(self, said: str, real: str) -> None:
        """Where a name of the page leads from now on."""
        self._keep_addresses({**self.addresses, said: real})

    def _keep_addresses(self, found: dict[str, str]) -> None:
        (self.run / "addresses.json").write_text(json.dumps(found))

    def real(self, text: str) -> str:
        """The text, with folders and addresses of this machine."""
        for path in FOLDERS:
            text = re.sub(rf"(?<![\w.]){path}\b", f"{self.folder}{path}", text)
        for said, address in self.addresses.items():
            text = text.replace(said, address)
        return text

    # ---------------------------------------------------------------------------------- blocks

    def do(self, block: Block) -> list[str]:
        """Run or write a block; gives what each command printed, which is what the page shows."""
        self.did.add((block.page, block.line))
        if block.kind == "shell":
            return [self.type(command) for command in block.commands]
        assert block.file is not None, f"{block.page}:{block.line}: no file has this text"
        path = self.home / self.real(block.file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.real(block.text) if block.kind == "python" else self._file(block.text))
        return []

    def _file(self, text: str) -> str:
        """Of a unit or settings: addresses are known when it is read."""
        for path in FOLDERS:
            text = re.sub(rf"(?<![\w.]){path}\b", f"{self.folder}{path}", text)
        return text

    def type(self, command: Command) -> str:
        """Run a command to its end, or start one that lasts; gives what it printed."""
        text = self.real(command.text)
        if _LASTS.search(command.text):
            return self._start(command, text)
        state = self._state[command.as_root]
        kept = self.run / "state"
        names = " ".join(re.findall(r"^(\w+)=", command.text, re.M))
        keep = f"{{ umask -p; printf 'cd %q\\n' \"$PWD\"; declare -p {names or 'HOME'}; }}"
        script = f"{state}\n{text}\ncode=$?\n{keep} > {kept}\nexit $code\n"
        done = subprocess.run(
            ["bash", "-c", script],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        told = f"{command.text}\n{done.stdout}{done.stderr}"
        assert done.returncode == 0, told
        earlier = "".join(line for line in state.splitlines(True) if line.startswith("declare"))
        self._state[command.as_root] = earlier + kept.read_text()
        for line in command.prints:
            assert re.search(_pattern(line), done.stdout), f"{line!r} is not in: {told}"
        return done.stdout + done.stderr

    def _start(self, command: Command, text: str) -> str:
        served = _SERVED.search(text)
        if served:
            text = re.sub(r" --port \d+", "", text) + " --port 0"
        first, also, last = text.rpartition("&& ")
        text = f"{first}{also}exec {last}"
        out = self.run / f"started-{len(self._started)}"
        with out.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", f"{self._state[command.as_root]}\n{text}"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if command.prints else file,
                stderr=file,
            )
        self._started.append(process)
        if not command.prints:
            return ""
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        assert re.search(_pattern(command.prints[0]), line), line + out.read_text()
        if served:
            said, real = (each.rpartition("//")[2].strip() for each in (command.prints[0], line))
            self.keep_address(said, real)
        for due in command.prints[1:]:  # lines of its log
            self.wait_for_log(_pattern(due))
        return line

    def new_terminal(self) -> None:
        """A new shell of root, as on another machine."""
        self._state[True] = "umask 022\ncd ~\n"

    def wait_for_log(self, pattern: str) -> None:
        """Wait until what was started last has written this in its log."""
        log = self.run / f"started-{len(self._started) - 1}"
        until = time.monotonic() + SECONDS
        while not re.search(pattern, log.read_text()):
            self.check_started()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.05)

    def check_started(self) -> None:
        """What was started in a terminal must run."""
        for n, process in enumerate(self._started):
            told = (self.run / f"started-{n}").read_text()
            assert process.poll() is None, f"it ended with {process.returncode}: {told}"

    # ------------------------------------------------------------------------------------ the end

    def stop_started(self) -> list[tuple[int, str]]:
        """End what was started in a terminal; gives exit codes and what was written as errors."""
        ended = []
        for n, process in enumerate(self._started):
            if process.poll() is None:
                process.terminate()
            code = process.wait(SECONDS)
            if process.stdout is not None:
                process.stdout.close()
            ended.append((code, (self.run / f"started-{n}").read_text()))
        self._started.clear()
        return ended

    def close(self) -> None:
        """End all that runs."""
        self.stop_started()
        for file in self.run.glob("*.pid"):
            subprocess.run(
                [self.folder / "bin/systemctl", "stop", file.stem], env=self.environment, check=True
            )


def _pattern(line: str) -> str:
    """What a line that is shown stands for: any numbers, any text for "...", any blanks."""
    pattern = re.escape(re.sub(r"\s+", " ", line.strip()))
    pattern = pattern.replace(re.escape("..."), ".*").replace("\\ ", r"\s+")
    return re.sub(r"\d+", r"\\d+", pattern)
