"""Commands as the golden tests run them, and answers with what varies taken out."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

__all__ = ["call", "normal", "rows", "server", "wait_for"]

PROGRAM = (sys.executable, "-c", "import sys; from rmab.cli import main; sys.exit(main())")

_TIMES = ("now", "opened", "closed", "enrolled", "revoked", "last_seen", "created", "received")
_OF_THE_MACHINE = ("versions", "device", "threads", "workers", "xla_flags", "begun")
_VARYING = [
    (re.compile(r"rmab_[0-9a-f]+_[A-Za-z0-9_-]+"), "TOKEN"),
    (re.compile(r"(?<=127\.0\.0\.1:)[0-9]{2,}"), "PORT"),
]


def call(*words: str | Path, folder: Path) -> dict[str, Any]:
    """Run a command in this process, in that folder; its exit code and what it wrote.

    Standard output is parsed where it is JSON.
    """
    from rmab.cli import main

    out, err = io.StringIO(), io.StringIO()
    before = Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code: Any = main([str(word) for word in words])
            except SystemExit as ended:  # argparse ends so
                code = ended.code
    finally:
        os.chdir(before)
    return {"exit": code, "out": _parsed(out.getvalue()), "err": err.getvalue().splitlines()}


def _parsed(text: str) -> Any:
    if text.startswith("{") and text.count("\n") == 1:
        return json.loads(text)
    return text.splitlines()


def normal(value: Any, folder: Path | None = None, **words: str) -> Any:
    """The value with times, tokens, ports and the folder's path replaced by words.

    words: further texts, by the word that stands for them.
    """
    if isinstance(value, dict):
        return {
            key: "TIME"
            if key in _TIMES and isinstance(found, float)
            else key.upper()
            if key in ("pid", "seconds", *_OF_THE_MACHINE)
            else normal(found, folder, **words)
            for key, found in value.items()
        }
    if isinstance(value, list | tuple):
        return [normal(one, folder, **words) for one in value]
    if not isinstance(value, str):
        return value
    for word, text in words.items():
        value = value.replace(text, word)
    for pattern, word in _VARYING:
        value = pattern.sub(word, value)
    return value if folder is None else value.replace(str(folder), "FOLDER")


@contextmanager
def server(folder: Path, federation: str, *more: str) -> Iterator[dict[str, Any]]:
    """A server of that file in the folder, as a process; gives what it says when it answers, once
    it is ready."""
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            [*PROGRAM, "server", federation, "--port", "0", "--json", *more],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (folder / "server.log").read_text()
        said = json.loads(line)
        wait_for(lambda: httpx.get(f"{said['url']}/readyz", timeout=60).status_code == 200)
        yield said
    finally:
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=60)
    assert (process.returncode, rest) == (0, "")


def wait_for(condition: Callable[[], bool]) -> None:
    """Until it holds, which compiling may put off."""
    until = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.05)


def rows(file: Path, query: str) -> list[list[Any]]:
    """What a query finds."""
    connection = sqlite3.connect(file)
    try:
        return [list(row) for row in connection.execute(query)]
    finally:
        connection.close()
