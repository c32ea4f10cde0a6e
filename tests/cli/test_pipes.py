"""What concerns the process: a reader that leaves, a full disk, a missing extra."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import PROGRAM, toml


def test_a_reader_that_leaves_early_is_no_error(study):
    command = [*PROGRAM, "index", str(study(toml())), "--max-age", "100000", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(8) == b'{"arms":'
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_one_line(study):
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [*PROGRAM, "index", str(study(toml()))],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert "disk full: No space left" in ended.stderr


def test_without_the_extra_it_says_what_to_install(call, study, monkeypatch):
    """The base install has NumPy alone: `index` works on it, `run` says what is missing."""
    path = study(toml())
    monkeypatch.setitem(sys.modules, "tqdm", None)
    ran = call("run", path)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert "pip install '.[sim]' in a checkout of rmab installs it" in ran.err
    assert call("index", path, "--json").code == 0
