"""Compiled programs that are kept: where, and what becomes of broken ones."""

import json
import os
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest

from rmab import compilation
from rmab.compilation import cache_folder, keep_compiled

PROGRAM = """
import sys
import jax
from jax import monitoring

hits = []
monitoring.register_event_listener(lambda name, **_: hits.append(name.endswith("/cache_hits")))

from rmab.compilation import keep_compiled

place = keep_compiled()


@jax.jit
def found(x):
    for n in range(8):
        x = jax.numpy.sort(jax.numpy.sin(x) @ jax.numpy.cos(x) + n)
    return x


found(jax.numpy.ones((5, 5)))
print(place, sum(hits))
"""


def start(**environment: str) -> subprocess.Popen[str]:
    """A process that compiles something."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "RMAB_"))}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=inherited | {"JAX_PLATFORMS": "cpu"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def told(process: subprocess.Popen[str]) -> list[str]:
    """Where it keeps programs, and how many it found there."""
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    return out.split()


@pytest.mark.slow  # the next has the same of a study
def test_what_one_process_has_compiled_another_finds(tmp_path):
    at_once = [start(RMAB_CACHE=str(tmp_path / "kept")) for _ in range(2)]
    places = {told(process)[0] for process in at_once}
    assert len(places) == 1
    place = Path(places.pop())
    assert tmp_path / "kept" in place.parents
    assert place.stat().st_mode & 0o777 == 0o700
    entries = {entry.name: entry.read_bytes() for entry in place.glob("*-cache")}
    (torn,) = (name for name in entries if name.startswith("jit_found"))
    (place / torn).write_bytes(entries[torn][:-9])  # as of a process that was killed
    assert told(start(RMAB_CACHE=str(tmp_path / "kept")))[0] == str(place)
    assert zlib.decompress((place / torn).read_bytes())  # compiled, and kept, again
    assert int(told(start(RMAB_CACHE=str(tmp_path / "kept")))[1]) >= 1


STUDY = """
agents = 2
plays = 1
horizon = 3
trials = 8
policies = ["whittle"]
[[arm]]
p01 = 0.2
p11 = 0.8
reward = 1.0
"""
RUN = """
import sys
from collections import Counter

import jax
from jax import monitoring

from rmab.cli import main

events = Counter()
monitoring.register_event_listener(lambda name, **_: events.update([name.rpartition("/")[2]]))
assert main(["run", sys.argv[1], "--json"]) == 0
assert jax.config.values["jax_compilation_cache_dir"] is None
print(events["compile_requests_use_cache"], events["cache_hits"])
"""


def test_a_study_that_is_run_again_compiles_nothing(tmp_path):
    (tmp_path / "study.toml").write_text(STUDY)
    command = [sys.executable, "-c", RUN, str(tmp_path / "study.toml")]
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    environment = inherited | {"HOME": str(tmp_path), "RMAB_CACHE": str(tmp_path / "kept")}
    outputs = []
    for _ in range(2):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        outputs.append(done.stdout.splitlines())
    (first, counts), (second, counts_again) = outputs
    assert json.loads(first)["policies"] == json.loads(second)["policies"]
    asked, hits = map(int, counts.split())
    asked_again, hits_again = map(int, counts_again.split())
    assert 0 <= hits < asked == asked_again == hits_again
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "study.toml"]


def test_entries_are_looked_at_once(tmp_path, monkeypatch):
    looks = []

    def is_whole(entry: bytes) -> bool:
        looks.append(entry)
        return True

    monkeypatch.setattr(compilation, "_is_whole", is_whole)
    old, new = tmp_path / "old-cache", tmp_path / "new-cache"
    old.write_bytes(b"old")
    hour_ago = time.time() - 3600
    os.utime(old, (hour_ago, hour_ago))
    compilation._mend(tmp_path)
    new.write_bytes(b"new")
    compilation._mend(tmp_path)
    assert looks == [b"old", b"new"]


def test_it_can_be_switched_off_and_jax_told_otherwise(tmp_path):
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert told(start(RMAB_CACHE="off", **home)) == ["None", "0"]
    assert not (tmp_path / "cache").exists()
    own = str(tmp_path / "own")
    assert told(start(JAX_COMPILATION_CACHE_DIR=own, **home))[0] == own


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({}, "/home/radio/.cache/rmab"),
        ({"XDG_CACHE_HOME": "/var/cache/radio"}, "/var/cache/radio/rmab"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/radio/.cache/rmab"),
        ({"RMAB_CACHE": "/srv/kept", "XDG_CACHE_HOME": "/x"}, "/srv/kept"),
        ({"RMAB_CACHE": "~/kept"}, "/home/radio/kept"),
        ({"RMAB_CACHE": ""}, None),
        ({"RMAB_CACHE": "off"}, None),
    ],
)
def test_where_it_is(monkeypatch, environment, folder):
    for name in ("RMAB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/radio", **environment}.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == (None if folder is None else Path(folder))


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("RMAB_CACHE", str(tmp_path / "file" / "cache"))
    assert keep_compiled() is None


def test_the_oldest_entries_go(tmp_path, monkeypatch):
    monkeypatch.setattr(compilation, "MOST_BYTES", 25)
    for n, kind in enumerate("abacab"):
        (tmp_path / kind).mkdir(exist_ok=True)
        entry = tmp_path / kind / f"{n}-cache"
        entry.write_bytes(10 * b"x")
        os.utime(entry, (n, n))
    compilation._limit(tmp_path)
    assert sorted(entry.name for entry in tmp_path.rglob("*-cache")) == ["4-cache", "5-cache"]
