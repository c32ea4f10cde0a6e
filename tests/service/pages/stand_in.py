"""What commands of root stand for where a page is tried: no user is made, and no unit is installed.

`systemctl` starts what a unit says, in the folder that stands for the machine, and refuses what
systemd or the system would: a key that the unit's user cannot read, a database where it cannot
write. `runuser` refuses the same. Files that are the user's are written down in `run/owned`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

MACHINE = Path(os.environ.get("PAGES_MACHINE", "."))
RUN = MACHINE / "run"
SECONDS = 240.0  # that a service may take to answer, on a busy machine
USER = "rmab"


# ------------------------------------------------------------------------------ what a user may do


def own(path: Path) -> None:
    with (RUN / "owned").open("a") as file:
        file.write(f"{path.resolve()}\n")


def owned() -> set[Path]:
    return {Path(line) for line in (RUN / "owned").read_text().splitlines()}


def check_user(words: list[str], folder: Path) -> None:
    """Refuse files that the user cannot read, and databases in folders where it cannot write."""
    theirs = owned()
    for word in words:
        path = (folder / word).resolve()
        if path.is_file() and MACHINE / "etc" in path.parents:
            readable = path.stat().st_mode & 0o004 or path in theirs
            assert readable, f"{USER} cannot read {path}"
    program = Path(words[0]).name
    if program == "rmab" and words[1] != "agents":
        given = [words[n + 1] for n, word in enumerate(words) if word in ("--database", "--state")]
        written = [*given, *(word for word in words if word.endswith(".toml") and not given)]
        for name in written:
            parent = (folder / name).resolve().parent
            assert parent in theirs, f"{USER} cannot write to {parent}, for {name}"


# ------------------------------------------------------------------------------------- the commands


def runuser(words: list[str]) -> None:
    assert words[:3] == ["-u", USER, "--"], words
    check_user(words[3:], Path.cwd())
    os.execvp(words[3], words[3:])


def install(words: list[str]) -> None:
    kept, to_user, rest = [], False, list(words)
    while rest:
        word = rest.pop(0)
        if word in ("-o", "-g"):
            to_user = rest.pop(0) == USER
        else:
            kept.append(word)
    subprocess.run(["/usr/bin/install", *kept], check=True)
    last = Path(kept[-1])
    if to_user:
        own(last / Path(kept[-2]).name if last.is_dir() and "-d" not in kept else last)


def journalctl(words: list[str]) -> None:
    name = words[words.index("-u") + 1]
    due = "listening" if "helper" in name else "ready"
    wait_for(lambda: f'"event": "{due}"' in log_of(name).read_text(), name)
    sys.stdout.write(log_of(name).read_text())


def systemctl(words: list[str]) -> None:
    verb, name = words[0], words[-1]
    if verb == "daemon-reload":
        return
    if verb in ("stop", "restart"):
        stop(name)
    if verb == "restart" or words[:2] == ["enable", "--now"]:
        start(name)
    elif verb == "reload":
        before = log_of(name).read_text().count('"event": "reloaded"')
        os.kill(int((RUN / f"{name}.pid").read_text()), signal.SIGHUP)
        wait_for(lambda: log_of(name).read_text().count('"event": "reloaded"') > before, name)
    else:
        assert verb == "stop", words


# ----------------------------------------------------------------------------------------- services


def log_of(name: str) -> Path:
    return RUN / f"{name}.log"


def wait_for(condition, name: str) -> None:
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until, f"{name}: {log_of(name).read_text()}"
        assert is_running(name), f"{name} has ended: {log_of(name).read_text()}"
        time.sleep(0.05)


def is_running(name: str) -> bool:
    try:
        pid = int((RUN / f"{name}.pid").read_text())
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def stop(name: str) -> None:
    if is_running(name):
        os.kill(int((RUN / f"{name}.pid").read_text()), signal.SIGTERM)
        until = time.monotonic() + SECONDS
        while is_running(name):
            assert time.monotonic() < until
            time.sleep(0.02)


def unit(name: str) -> dict[str, list[str]]:
    """The keys of a unit and its drop-ins; an empty value takes back what was said before."""
    folder = MACHINE / "etc/systemd/system"
    files = [folder / f"{name}.service", *sorted((folder / f"{name}.service.d").glob("*.conf"))]
    found: dict[str, list[str]] = {}
    for file in files:
        for line in file.read_text().replace("\\\n", " ").splitlines():
            key, is_key, value = line.partition("=")
            if is_key and not line.startswith("#"):
                found[key] = [*found.get(key, []), value] if value else []
    return found


def start(name: str) -> None:
    keys = unit(name)
    assert keys["User"] == [USER]
    folders = {}
    for key, parent in (("StateDirectory", "var/lib"), ("CacheDirectory", "var/cache")):
        for each in keys.get(key, []):
            folders[key] = MACHINE / parent / each
            folders[key].mkdir(parents=True, exist_ok=True)
            own(folders[key])
    credentials = RUN / "credentials" / name
    credentials.mkdir(parents=True, exist_ok=True)
    for each in keys.get("LoadCredential", []):
        kept, _, source = each.partition(":")
        (credentials / kept).write_bytes(Path(source).read_bytes())
    addresses = json.loads((RUN / "addresses.json").read_text())
    (line,) = keys["ExecStart"]
    for said, real in addresses.items():
        line = line.replace(said, real)
    line = re.sub(r"--port \d+", "--port 0", line)
    words = shlex.split(line.replace("${CREDENTIALS_DIRECTORY}", str(credentials)))
    folder = Path(keys["WorkingDirectory"][0])
    check_user(words, folder)
    variables = dict(
        each.split("=", 1) for part in keys.get("Environment", []) for each in part.split()
    )
    variables.pop("RMAB_CACHE", None)  # one for all that the test starts
    with log_of(name).open("w") as log, (RUN / f"{name}.out").open("w") as out:
        process = subprocess.Popen(
            words,
            cwd=folder,
            env={**os.environ, **variables},
            umask=int(keys["UMask"][0], 8),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=log,
            start_new_session=True,
        )
    (RUN / f"{name}.pid").write_text(str(process.pid))
    announced = re.search(r"rmab (server|helper)\b", line)
    if announced is None:
        return
    said = RUN / f"{name}.out"
    wait_for(lambda: re.search(r":\d+\n", said.read_text()), name)
    port = said.read_text().strip().rpartition(":")[2]
    usual = {"server": "server.example:8443", "helper": "helper.example:9443"}[announced[1]]
    addresses[usual] = f"localhost:{port}"
    (RUN / "addresses.json").write_text(json.dumps(addresses))
    for file in (MACHINE / "etc/rmab").glob("*.toml"):
        file.write_text(file.read_text().replace(usual, f"localhost:{port}"))


if __name__ == "__main__":
    COMMANDS = {each.__name__: each for each in (runuser, install, journalctl, systemctl)}
    COMMANDS[Path(sys.argv[1]).name](sys.argv[2:])
