"""Ctrl-C and SIGTERM: what was done is kept, and it ends promptly.

Some tests raise the interruption in this process; others send the signal to a new one.
"""

import gc
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from rmab.cli import console
from rmab.cli.main import _interruptible as interruptible
from rmab.studies.results import Results
from tests.cli.commands import PROGRAM, Ran, toml

PATIENCE = 600.0  # seconds without a sign of life from a command
PROMPTLY = 60.0  # seconds to end after Ctrl-C, report written; it takes some three


def test_an_interruption_amid_an_import_waits_for_its_end(tmp_path, monkeypatch):
    strike = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(0.1)\n"
    (tmp_path / "interrupted_module.py").write_text(strike + "whole = True\n")
    monkeypatch.syspath_prepend(tmp_path)

    def work() -> None:
        with interruptible():
            import_module("interrupted_module")
            time.sleep(PROMPTLY)

    begun = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        work()
    assert time.perf_counter() - begun < PROMPTLY
    assert sys.modules["interrupted_module"].whole
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interruption_that_python_drops_comes_again():
    def strike(*_: object) -> None:
        gc.callbacks.remove(strike)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)

    def work() -> None:
        with interruptible():
            gc.collect()
            time.sleep(PROMPTLY)

    gc.callbacks.append(strike)
    begun = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        work()
    assert time.perf_counter() - begun < PROMPTLY


def test_an_interruption_before_the_first_trial(call, study, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rmab.studies.run.simulate", interrupt)
    ran = call("run", study(toml()), "--json")
    assert (ran.code, ran.out) == (130, "")
    assert ran.err.count("\n") == 1
    assert "interrupted" in ran.err


def test_an_interrupted_study_is_written_with_the_trials_done(call, study, tmp_path, monkeypatch):
    from rmab.engine import montecarlo, tally

    batches = []
    reduce = tally.reduce_batch

    def interrupt_third(*arguments: Any) -> Any:
        batches.append(arguments)
        if len(batches) == 3:
            raise KeyboardInterrupt
        return reduce(*arguments)

    monkeypatch.setattr(montecarlo, "reduce_batch", interrupt_third)
    monkeypatch.setattr(montecarlo, "batch_size", lambda _: 32)
    monkeypatch.setattr(montecarlo, "default_threads", lambda: 1)
    path = study(toml({"policies": '["whittle", "random"]', "trials": "960"}))
    ran = call("run", path, "--json", "--out", tmp_path / "out")
    assert ran.code == 130
    assert ran.json["trials"] == 64
    assert ran.json["interrupted"] is True
    assert "interrupted: 64 of 960 trials" in ran.err
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == ran.json
    assert "64" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    monkeypatch.undo()
    # They are the first 64 trials, and nothing of the others.
    whole = call("run", path, "--json", "--trials", "64").json
    assert whole["policies"] == ran.json["policies"]


def test_an_interrupted_reproduction_reports_what_was_done(call, tmp_path, monkeypatch):
    def interrupt(*_: object) -> Results:
        raise KeyboardInterrupt

    monkeypatch.setattr("rmab.experiments.figure.run", interrupt)
    out = tmp_path / "part"
    ran = call("reproduce", "fig13", "theory", "--out", out, "--json")
    assert ran.code == 130
    assert list(ran.json) == ["fig13"]
    assert "interrupted" in ran.err
    assert (out / "report.html").exists()
    assert not (out / "theory.png").exists()

    ran = call("reproduce", "theory", "--out", tmp_path / "none", "--json")
    assert (ran.code, ran.out) == (130, "")
    assert ran.err.count("\n") == 1
    assert not (tmp_path / "none" / "report.html").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_an_arena_keeps_the_problems_done(call, tmp_path, monkeypatch, number, code):
    from rmab.arena.run import Arena

    run = Arena.run

    def strike_second(arena: Arena, problem: Any, *arguments: Any) -> Any:
        if problem.name == "jt4":
            os.kill(os.getpid(), number)
            time.sleep(PROMPTLY)
        return run(arena, problem, *arguments)

    monkeypatch.setattr(Arena, "run", strike_second)
    out = tmp_path / "out"
    ran = call("arena", "c1", "jt4", "--policies", "ucb", "--trials", "8", "--out", out, "--json")
    assert ran.code == code
    assert list(ran.json["problems"]) == ["c1"]
    assert (out / "arena.html").exists()
    assert "interrupted: 1 problem" in ran.err
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_sigterm_to_a_reproduction_writes_its_report(call, tmp_path, monkeypatch):
    def strike(*_: object) -> Results:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(PROMPTLY)
        raise AssertionError

    monkeypatch.setattr("rmab.experiments.figure.run", strike)
    ran = call("reproduce", "fig13", "theory", "--out", tmp_path, "--json")
    assert ran.code == 143
    assert list(ran.json) == ["fig13"]
    assert (tmp_path / "report.html").exists()


def test_without_a_terminal_progress_is_a_line_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr(console, "_LINE_SECONDS", 0.01)
    with console.progress(40, "fig06") as advance:
        advance(10)
        shown = ""
        while "10 of 40" not in shown:
            time.sleep(0.01)
            shown += capsys.readouterr().err
    assert re.search(
        r"^fig06: 10 of 40 trials, 25 %, \d\d:\d\d passed, \d\d:\d\d left$", shown, re.M
    )
    capsys.readouterr()
    time.sleep(0.1)
    assert capsys.readouterr().err == ""  # nothing more after its end


class Watched:
    """A command in a process of its own whose standard error is a terminal."""

    def __init__(self, *arguments: str | Path) -> None:
        self.screen, terminal = pty.openpty()
        termios.tcsetwinsize(self.screen, (24, 100))  # else it has no columns to write in
        self.process = subprocess.Popen(
            [*PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, stderr=terminal
        )
        os.close(terminal)
        self.seen = ""

    def __enter__(self) -> "Watched":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
        os.close(self.screen)

    def _read(self) -> bool:
        assert select.select([self.screen], [], [], PATIENCE)[0], self.seen
        try:
            text = os.read(self.screen, 65536).decode()
        except OSError:  # the other side is closed
            return False
        self.seen += text
        return bool(text)

    def wait_for(self, pattern: str) -> None:
        """Until the terminal shows it."""
        while not re.search(pattern, self.seen):
            assert self._read(), self.seen

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> tuple[Ran, list[str]]:
        """Ctrl-C or another signal; what it gave, and what it said beside the progress bar."""
        begun = time.perf_counter()
        before = len(self.seen)
        self.process.send_signal(number)
        while self._read():
            pass
        out, _ = self.process.communicate(timeout=PROMPTLY)
        assert time.perf_counter() - begun < PROMPTLY
        said = re.split(r"[\r\n]+", self.seen[before:])
        lines = [
            line for line in said if line.strip() and "trial/s" not in line and "?" not in line
        ]
        return Ran(self.process.returncode, out.decode(), self.seen), lines


ENDLESS = {"policies": '["whittle"]', "horizon": "200", "trials": "4000000000"}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_writes_the_trials_done(study, tmp_path, number, code):
    out = tmp_path / "out"
    with Watched("run", study(toml(ENDLESS)), "--out", out) as command:
        command.wait_for(r"[1-9]\d*/4000000000")
        ran, lines = command.interrupt(number)
    assert ran.code == code
    assert "Traceback" not in ran.err
    results = json.loads((out / "results.json").read_text())
    assert results["interrupted"] is True
    assert 0 < results["trials"] < 4000000000
    assert ran.out.startswith(f"{results['trials']} trials")
    assert any(f"interrupted: {results['trials']} of 4000000000 trials" in line for line in lines)
    names = {path.name for path in out.iterdir()}
    assert {"results.json", "slots.csv", "episodes.csv", "report.html"} <= names


def test_ctrl_c_before_the_first_trial_is_one_line(study):
    text = toml({**ENDLESS, "horizon": "1000000", "policies": '["fedtswi"]'})
    with Watched("run", study(text)) as command:
        command.wait_for("0/4000000000")
        ran, lines = command.interrupt()
    assert (ran.code, ran.out) == (130, "")
    assert len(lines) == 1, lines
    assert "interrupted" in lines[0]


def test_ctrl_c_ends_a_reproduction_with_its_report(tmp_path):
    out = tmp_path / "out"
    with Watched("reproduce", "fig07", "--trials", "4000000000", "--out", out) as command:
        command.wait_for(r"[1-9]\d*/4000000000")
        ran, lines = command.interrupt()
    assert ran.code == 130
    assert "Traceback" not in ran.err
    assert any("interrupted" in line for line in lines)
    assert (out / "report.html").exists()
