"""What tests of the command line share: a study file to change, what a command gave."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

PROGRAM = [sys.executable, "-c", "import sys; from rmab.cli import main; sys.exit(main())"]
Changes = Mapping[str, str | None]

HEAD = {
    "agents": "2",
    "plays": "1",
    "horizon": "40",
    "trials": "30",
    "policies": '["fedtswi", "whittle"]',
}
ARM = {"p01": "0.2", "p11": "0.8", "reward": "0.4"}
OTHER_ARM = "[[arm]]\np01 = 0.89\np11 = 0.17\nreward = 0.9\n"
GENERAL = {
    "passive": "[[0.9, 0.1], [0.2, 0.8]]",
    "active": "[[0.7, 0.3], [0.1, 0.9]]",
    "reward": "[0.0, 1.0]",
    "observed": '"when_played"',
}
VALUES = [
    "optimum",
    "upper_bound",
    "whittle",
    "myopic",
    "lookahead",
    "random",
    "fixed",
    "fixed-best",
]


def toml(
    head: Changes | None = None, arm: Changes | None = None, general: Changes | None = None
) -> str:
    """A study of two arms, the second general if `general` is given, with some of its values
    replaced; None leaves one out."""

    def lines(table: Changes, changes: Changes | None) -> str:
        merged = {**table, **(changes or {})}
        return "".join(f"{key} = {value}\n" for key, value in merged.items() if value is not None)

    second = lines(ARM, arm) if general is None else lines(GENERAL, general)
    return lines(HEAD, head) + OTHER_ARM + "[[arm]]\n" + second


class Ran(NamedTuple):
    """What a command gave."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON object on standard output: one line, no NaN, nothing else."""
        assert self.out.count("\n") == 1, self.out
        assert self.out.endswith("\n")
        return json.loads(self.out, parse_constant=_no_constant)

    def assert_refused(self, *words: str) -> None:
        """Bad input: exit 2, one line on standard error with these words, nothing else."""
        assert self.code == 2, self
        assert self.out == ""
        assert self.err.count("\n") == 1, self.err
        assert self.err.endswith("\n")
        assert "Traceback" not in self.err
        for word in words:
            assert word in self.err, (word, self.err)
        assert len(self.err) < 10_000


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def program(*arguments: str | Path, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    command = [*PROGRAM, *map(str, arguments)]
    return subprocess.run(command, text=True, capture_output=True, timeout=300, **settings)


def interrupt(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    """Ctrl-C in the batch of that place."""
    from rmab.engine import tally

    done = 0

    def reduce(*arguments: Any) -> Any:
        nonlocal done
        done += 1
        if done == place:
            raise KeyboardInterrupt
        return tally.reduce_batch(*arguments)

    monkeypatch.setattr("rmab.engine.montecarlo.reduce_batch", reduce)
