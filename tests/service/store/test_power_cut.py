"""A power cut at any moment loses nothing that was acknowledged, and counts nothing twice.

A process with the real store and writer runs while every write and sync of it is recorded. Then,
200 times, the record is cut somewhere, a disk is made that a power cut there may leave, and the
store is opened on it. With a planted bug the same check must fail.
"""

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from rmab.service.store.store import open_store
from tests.service.conftest import left_out
from tests.service.store.power import uploader
from tests.service.store.power.disk import Disk, read_trace

HERE = Path(__file__).parent
CUTS = 200


@pytest.fixture(scope="module")
def tracing(tmp_path_factory):
    """The library that records."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        left_out("no C compiler found")
    library = tmp_path_factory.mktemp("tracing") / "tracing.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-U_FORTIFY_SOURCE", "-o", library]
    subprocess.run([*command, HERE / "power" / "tracing.c", "-pthread"], check=True)
    return library


def traced(tracing, folder, bug=""):
    """The records of one run."""
    (folder / "disk").mkdir(parents=True)
    subprocess.run(
        [
            *(sys.executable, "-m", "tests.service.store.power.uploader"),
            *(folder / "disk" / "x.db", folder / "disk" / "acknowledged", bug),
        ],
        cwd=HERE.parents[2],
        env={
            **os.environ,
            "LD_PRELOAD": str(tracing),
            "RMAB_TRACE_FOLDER": str(folder / "disk"),
            "RMAB_TRACE_FILE": str(folder / "trace"),
        },
        check=True,
        timeout=300,
    )
    return read_trace(folder / "trace")


@pytest.fixture(scope="module")
def honest(tracing, tmp_path_factory):
    """The records of the product as it is."""
    return traced(tracing, tmp_path_factory.mktemp("honest"))


@pytest.fixture(scope="module")
def sent():
    """Every upload, by agent and life."""
    return {
        (agent, life): uploader.uploads(agent, life)
        for agent in range(uploader.AGENTS)
        for life in range(uploader.LIVES)
    }


def files_by_number(trace):
    return {record.file: record.data.decode() for record in trace if record.what == "C"}


def acknowledgements(trace):
    """Lines of acknowledgements so far."""
    (number,) = (file for file, name in files_by_number(trace).items() if name == "acknowledged")
    lines = b"".join(r.data for r in trace if r.what == "W" and r.file == number)
    return lines.decode().split("\n")[:-1]


def cuts(trace, folder, seed):
    """Disks as a power cut may leave them: the lines acknowledged by then, the database's path."""
    rng = np.random.default_rng(seed)
    disk, done, lines = Disk(), 0, []
    names = files_by_number(trace)
    for number, cut in enumerate(np.sort(rng.integers(1, len(trace) + 1, CUTS))):
        for record in trace[done:cut]:
            disk.do(record)
            if record.what == "W" and names[record.file] == "acknowledged":
                lines += record.data.decode().splitlines()
        done = cut
        place = folder / str(number)
        place.mkdir()
        for name, content in disk.after_power_cut(rng).items():
            if not name.endswith("-shm"):  # memory that processes share: SQLite makes it anew
                (place / name).write_bytes(content)
        yield lines, place / "x.db"
        shutil.rmtree(place)


def check(path, lines, sent):
    """That the database opens, is sound and has all that was acknowledged, once."""
    store = open_store(str(path), uploader.federation())
    try:
        assert store.database.rows("PRAGMA integrity_check") == [("ok",)]
        assert store.database.rows("PRAGMA foreign_key_check") == []
        agents = {row.name for row in store.agents()}
        current = store.current_round()
        ledger: dict[tuple[str, str], list[tuple[int, bytes]]] = {}
        for agent, life, sequence, digest in store.database.rows(
            "SELECT agent, incarnation, sequence, digest FROM uploads ORDER BY sequence"
        ):
            ledger.setdefault((agent, life), []).append((sequence, digest))
        for line in lines:
            what, *numbers = line.split()
            numbers = [int(number) for number in numbers]
            if what == "enrolled":
                assert f"agent{numbers[0]}" in agents, line
            elif what == "round":
                assert current is not None, line
                assert current.number >= numbers[0], line
            else:
                agent, life, sequence = numbers
                upload = sent[agent, life][sequence - 1]
                key = (f"agent{agent}", upload.incarnation)
                assert (sequence, upload.digest) in ledger.get(key, []), line
        assert current is None or current.plan_json == b"plan " * 2000
        total = 0
        for (agent, life), uploads in sent.items():
            entries = ledger.pop((f"agent{agent}", uploads[0].incarnation), [])
            # What is there is what was sent, in order, from the first on: nothing twice.
            assert entries == [(u.sequence, u.digest) for u in uploads[: len(entries)]]
            record = store.uploads.record(f"agent{agent}", uploads[0].incarnation)
            assert (record is None) == (not entries)
            if record is not None:
                last = uploads[len(entries) - 1]
                assert record.sequence == last.sequence, (agent, life)
                assert np.array_equal(record.counts, last.counts)
                total = total + last.counts
        assert not ledger
        assert np.array_equal(store.merged().counts, total + np.zeros_like(store.merged().counts))
    finally:
        store.close()


def test_sqlite_goes_through_the_records(honest):
    """The log and the file are written and synced where we see it, checkpoints included."""
    names = files_by_number(honest)
    seen = Counter((record.what, names.get(record.file, "folder")) for record in honest)
    assert seen["W", "x.db"] > 50
    assert seen["W", "x.db-wal"] > 200
    assert seen["S", "x.db"] > uploader.LIVES
    assert seen["S", "x.db-wal"] > uploader.LIVES * uploader.UPLOADS / 2
    assert seen["U", "x.db-wal"] == uploader.LIVES
    assert seen["D", "folder"] > uploader.LIVES
    lines = acknowledgements(honest)
    uploads = uploader.AGENTS * uploader.LIVES * uploader.UPLOADS
    assert len(lines) == len(set(lines)) == uploads + uploader.AGENTS + uploader.LIVES


def test_the_records_make_the_disk_that_there_is(tracing, tmp_path):
    """If nothing is lost, the imagined disk is the real one."""
    trace = traced(tracing, tmp_path)
    disk = Disk()
    for record in trace:
        disk.do(record)
    found = disk.now()
    for name in ("x.db", "acknowledged"):
        assert found[name] == (tmp_path / "disk" / name).read_bytes()


def test_nothing_acknowledged_is_lost(honest, sent, tmp_path):
    acknowledged = []
    for lines, path in cuts(honest, tmp_path, seed=1):
        check(path, lines, sent)
        acknowledged.append(len(lines))
    assert max(acknowledged) > 150 > 20 > min(acknowledged)


@pytest.mark.parametrize("bug", ["early", "unsynced", "seldom"])
def test_a_planted_bug_is_found(tracing, sent, tmp_path, bug):
    trace = traced(tracing, tmp_path, bug)
    failed = 0
    for lines, path in cuts(trace, tmp_path, seed=2):
        try:
            check(path, lines, sent)
        except Exception:  # lost, torn, or no database any more
            failed += 1
        if failed == 3:
            return
    pytest.fail(f"{failed} of {CUTS} power cuts found the bug")
