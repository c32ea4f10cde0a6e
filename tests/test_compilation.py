"""Compiled programs that are kept: where, and what becomes of broken ones."""

import os
import subprocess
import sys
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

place = keep_compiled(least_seconds=0.0)  # however fast the machine is


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
