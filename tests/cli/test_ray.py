"""`rmab run --ray`: the same numbers; tests of lost nodes and workers are in tests/engine."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rmab import UnreachableError
from tests.cli.commands import PROGRAM, toml

STUDY = {"policies": '["whittle"]', "trials": "200"}
ENDLESS = {**STUDY, "trials": "400000"}


def numbers(folder: Path) -> list[bytes | str]:
    """Every number that was written."""
    table = json.loads((folder / "results.json").read_text())
    curves = [(folder / f"{name}.csv").read_bytes() for name in ("slots", "episodes")]
    return [json.dumps([table["policies"], table["trials"], table["study"]]), *curves]


@pytest.mark.slow
def test_a_ray_of_its_own_is_ended_by_ctrl_c_and_the_run_goes_on_without(call, study, tmp_path):
    """Standard output is the result's alone; nothing of Ray is left behind."""
    path, out = study(toml(ENDLESS)), tmp_path / "out"
    process = subprocess.Popen(
        [*PROGRAM, "run", str(path), "--ray", "local", "--out", str(out), "--json"],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # a group of its own, which gets the signal as from a terminal
    )
    until = time.monotonic() + 240
    while not (out / "checkpoint" / "point-1.npz").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    said, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert said.count("\n") == 1
    assert json.loads(said)["workers"] >= 1
    lines = err.splitlines()
    assert lines[0].startswith(f"written to {out}/"), err
    assert f"rmab run --resume {out} goes on" in lines[1]
    assert len(lines) == 2, err
    assert _of_group(process.pid) == []
    assert call("run", "--resume", out).code == 0
    assert call("run", path, "--out", tmp_path / "whole").code == 0
    assert numbers(out) == numbers(tmp_path / "whole")


def _of_group(group: int) -> list[str]:
    """The commands of processes that still run in a session."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            stat = (folder / "stat").read_text() if folder.name.isdigit() else ""
            fields = stat.rpartition(")")[2].split()
            if fields and int(fields[3]) == group and fields[0] != "Z":
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:  # it has just ended
            continue
    return found


def test_a_cluster_that_is_gone_is_a_failure_that_may_pass(call, study, tmp_path, monkeypatch):
    def gone(*_: object, **__: object) -> None:
        raise UnreachableError("--ray 10.0.0.1:6379: the cluster is gone")

    monkeypatch.setattr("rmab.studies.run.run_job", gone)
    ran = call("run", study(toml(STUDY)), "--out", tmp_path / "out")
    assert (ran.code, ran.out) == (1, "")
    again = f"rmab run --resume {tmp_path / 'out'} goes on"
    assert ran.err == f"rmab run: --ray 10.0.0.1:6379: the cluster is gone; {again}\n"
    assert call("run", study(toml(STUDY))).err.endswith("the cluster is gone\n")


def test_addresses_are_checked_first(call, study, tmp_path):
    path = study(toml(STUDY))
    call("run", path, "--ray", "nowhere").assert_refused("--ray must be auto, local or HOST:PORT")
    begun = time.monotonic()
    ran = call("run", path, "--ray", "127.0.0.1:1", "--out", tmp_path / "out")
    assert time.monotonic() - begun < 10
    assert (ran.code, ran.out) == (1, "")
    assert re.fullmatch(r"rmab run: --ray 127.0.0.1:1: no Ray can be reached: .*\n", ran.err)
    assert not (tmp_path / "out" / "checkpoint").exists()


def test_without_ray_there_is_a_line_that_says_how_to_get_it(call, study, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    ran = call("run", study(toml(STUDY)), "--ray", "local")
    ran.assert_refused("needs ray; pip install '.[ray]' in a checkout")


def test_ray_is_not_loaded_unless_it_is_asked_for(study):
    words = ["run", str(study(toml(STUDY)))]
    script = f"import sys; from rmab.cli import main; main({words!r})"
    script += "; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], stdout=subprocess.DEVNULL).returncode == 0
