"""The agent's file: what is kept, who may use it, what happens where it is broken."""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rmab.errors import FederationError, StorageError, UnavailableError
from rmab.protocol.shape import Shape
from rmab.service.agent.limits import AgentLimits
from rmab.service.agent.outbox import pack, unpack
from rmab.service.agent.state_file import AgentFile, Observation, default_file
from tests.service.support.disks import small_disk

ONE, TWO = "1" * 32, "2" * 32


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "agent.db"


def reopened(path):
    file = AgentFile(path)
    earlier = file.earlier()
    file.close()
    return earlier


def test_a_new_file_is_empty_and_for_its_owner_alone(path):
    file = AgentFile(path)
    assert file.message() is None
    assert file.earlier() == []
    file.begin(ONE)
    file.keep_slot(1, [0, 1], [1, 0])
    for each in path.parent.iterdir():
        assert stat.S_IMODE(each.stat().st_mode) == 0o600, each
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    file.close()


def test_a_file_that_others_could_read_is_closed_to_them(path):
    AgentFile(path).close()
    path.chmod(0o644)
    AgentFile(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_slots_are_kept_until_a_snapshot_takes_their_place(path):
    file = AgentFile(path)
    file.begin(ONE)
    for slot in range(1, 6):
        file.keep_slot(slot, [slot, 300], [0, 63])
    file.keep_snapshot(ONE, 3, b"three slots")
    file.close()
    (kept,) = reopened(path)
    assert (kept.incarnation, kept.sequence, kept.upload) == (ONE, 0, None)
    assert (kept.slots, kept.snapshot) == (3, b"three slots")
    assert kept.observations == (Observation((4, 300), (0, 63)), Observation((5, 300), (0, 63)))


def test_slots_after_a_hole_do_not_join_on(path):
    file = AgentFile(path)
    file.begin(ONE)
    for slot in (1, 2, 4, 5):
        file.keep_slot(slot, [0], [1])
    file.close()
    assert len(reopened(path)[0].observations) == 2


def test_an_upload_is_kept_until_it_is_acknowledged(path):
    file = AgentFile(path)
    file.begin(ONE)
    file.keep_slot(1, [0], [1])
    file.keep_slot(2, [0], [1])
    file.keep_upload(ONE, 1, b"first", 1, b"after one slot")
    file.keep_upload(ONE, 2, b"second", 1, None)
    file.acknowledge(ONE, 1)  # late: the second is what counts
    file.close()
    file = AgentFile(path)
    (kept,) = file.earlier()
    assert (kept.sequence, kept.upload, kept.snapshot) == (2, b"second", b"after one slot")
    assert len(kept.observations) == 1
    file.acknowledge(ONE, 2)
    assert file.earlier() == []
    file.close()


def test_an_acknowledged_incarnation_that_still_runs_stays(path):
    file = AgentFile(path)
    file.begin(ONE)
    file.keep_upload(ONE, 1, b"first", 0, None)
    file.acknowledge(ONE, 1)
    file.keep_slot(1, [0], [1])
    file.close()
    (kept,) = reopened(path)
    assert (kept.sequence, kept.upload, len(kept.observations)) == (1, None, 1)
    assert kept.has_more


def test_a_snapshot_may_have_more_than_what_was_told(path):
    file = AgentFile(path)
    file.begin(ONE)
    file.keep_slot(1, [0], [1])
    file.keep_upload(ONE, 1, b"first", 1, b"after one slot")
    file.acknowledge(ONE, 1)
    assert not kept_of(file).has_more
    file.keep_slot(2, [0], [1])
    assert kept_of(file).has_more
    file.keep_snapshot(ONE, 2, b"after two slots")
    assert kept_of(file).observations == ()
    assert kept_of(file).has_more
    file.close()


def kept_of(file):
    """What a process that starts now would find."""
    running, file._life = file._life, 0
    (kept,) = file.earlier()
    file._life = running
    return kept


def test_incarnations_come_oldest_first_and_go_one_by_one(path):
    for incarnation in (TWO, ONE):
        file = AgentFile(path)
        file.begin(incarnation)
        file.keep_slot(1, [0], [1])
        file.close()
    file = AgentFile(path)
    file.begin("3" * 32)
    file.keep_slot(1, [2], [0])
    assert [kept.incarnation for kept in file.earlier()] == [TWO, ONE]
    file.forget([TWO])
    assert [kept.incarnation for kept in file.earlier()] == [ONE]
    assert len(file.earlier()[0].observations) == 1
    file.close()


def test_an_incarnation_may_take_the_place_of_another(path):
    file = AgentFile(path)
    file.begin(ONE)
    file.keep_slot(1, [0], [1])
    file.begin(TWO, instead_of=ONE)
    file.keep_slot(1, [0], [0])
    file.close()
    (kept,) = reopened(path)
    assert kept.incarnation == TWO
    assert kept.observations == (Observation((0,), (0,)),)


def test_the_last_round_is_kept(path):
    file = AgentFile(path)
    file.keep_message(b"round 1")
    file.keep_message(b"round 2")
    file.close()
    file = AgentFile(path)
    assert file.message() == b"round 2"
    file.close()


def test_two_agents_cannot_share_a_file(path):
    file = AgentFile(path)
    with pytest.raises(UnavailableError, match=r"agent\.db: another agent uses this file"):
        AgentFile(path)
    file.close()
    AgentFile(path).close()


def test_a_file_that_is_no_database_is_set_aside(path, caplog):
    path.parent.mkdir()
    path.write_bytes(b"not a database at all, but long enough to be looked at " * 40)
    file = AgentFile(path)
    assert file.earlier() == []
    file.close()
    assert path.with_name("agent.db.broken").read_bytes().startswith(b"not a database")
    assert "set aside as agent.db.broken" in caplog.text


def test_a_damaged_file_is_set_aside(path, caplog):
    file = AgentFile(path)
    file.begin(ONE)
    for slot in range(1, 2001):
        file.keep_slot(slot, [0, 1], [0, 1])
    file.close()
    content = bytearray(path.read_bytes())
    content[2048:-512] = os.urandom(len(content) - 2560)
    path.write_bytes(content)
    assert reopened(path) == []
    assert "set aside" in caplog.text


def test_another_programs_database_is_set_aside(path):
    path.parent.mkdir()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE photographs (name TEXT)")
    other.close()
    assert reopened(path) == []
    other = sqlite3.connect(path.with_name("agent.db.broken"))
    assert other.execute("SELECT count(*) FROM photographs").fetchone() == (0,)
    other.close()


def test_a_newer_file_is_refused_and_left_alone(path):
    AgentFile(path).close()
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version = 9")
    newer.close()
    with pytest.raises(FederationError, match="is of version 9, and this rmab knows"):
        AgentFile(path)
    assert path.exists()
    assert not path.with_name("agent.db.broken").exists()


def test_a_place_that_cannot_be_written_is_refused_in_one_line(tmp_path):
    (tmp_path / "file").write_text("in the way")
    for bad in (tmp_path / "file" / "agent.db", Path("/proc/agent.db"), tmp_path):
        with pytest.raises(FederationError) as refused:
            AgentFile(bad)
        assert str(bad) in str(refused.value)
        assert "\n" not in str(refused.value)


def test_a_disk_that_refuses_is_told_and_the_file_stays_good(path):
    file = AgentFile(path)
    file.begin(ONE)
    file.keep_slot(1, [0], [1])
    own = file
    (pages,) = own._adder.execute("PRAGMA page_count").fetchone()
    for connection in (own._adder, own._keeper):
        connection.execute(f"PRAGMA max_page_count = {pages}")  # full
    with pytest.raises(StorageError, match="not kept: disk full"):
        file.keep_message(b"x" * 100_000)
    file.keep_slot(2, [0], [1])
    file.keep_slot(3, [0], [1])
    with pytest.raises(StorageError, match="slot 3 is not kept"):
        file.keep_slot(3, [0], [1])
    file.close()
    assert len(reopened(path)[0].observations) == 3


def test_a_small_disk_that_was_full_is_written_again_when_there_is_room(tmp_path):
    """Its log has all of the room, and is moved into the file once there is some."""
    with small_disk(tmp_path / "disk") as disk:
        other = disk / "other"
        other.write_bytes(bytes(200_000))
        file = AgentFile(disk / "agent.db")
        file.begin(ONE)
        kept = 0

        def keep(slots):
            nonlocal kept
            for _ in range(slots):
                file.keep_slot(kept + 1, [0, 1], [0, 1])
                kept += 1

        with pytest.raises(StorageError, match="disk full"):
            keep(10_000)
        full = kept
        other.unlink()
        while kept < 5 * full:
            file.tidy()  # as the exchange does, again and again
            keep(20)
            file.keep_snapshot(ONE, kept, b"x")
        file.close()


def test_the_log_does_not_grow_without_bound(path):
    file = AgentFile(path, AgentLimits(tidy_bytes=2**15, log_bytes=2**16))
    file.begin(ONE)
    log = Path(f"{path}-wal")
    largest = 0
    for slot in range(1, 5001):
        file.keep_slot(slot, [0, 1], [0, 1])
        if slot % 100 == 0:
            file.tidy()
            file.keep_snapshot(ONE, slot, b"x")
            largest = max(largest, log.stat().st_size)
    assert largest < 2**18
    assert path.stat().st_size < 2**17
    file.close()


def test_slots_outlive_a_process_that_is_killed(path):
    program = (
        "import os, signal, sys; from pathlib import Path;"
        "from rmab.service.agent.state_file import AgentFile;"
        "file = AgentFile(Path(sys.argv[1])); file.begin('1' * 32);"
        "[file.keep_slot(slot, [0, 1], [1, slot % 2]) for slot in range(1, 501)];"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = subprocess.run([sys.executable, "-c", program, path], check=False)
    assert ended.returncode == -9
    (kept,) = reopened(path)
    assert [seen.states[1] for seen in kept.observations] == [slot % 2 for slot in range(1, 501)]


def test_a_learners_state_is_kept_with_the_slot_that_changed_it(path):
    file = AgentFile(path)
    assert file.learner_state() is None
    file.begin(ONE)
    file.keep_slot(1, [0, 1], [1, 0], np.array([0.5, -1.0]))
    file.keep_slot(2, [0, 1], [1, 0])  # leaves it as it was
    np.testing.assert_array_equal(file.learner_state(), [0.5, -1.0])
    file.keep_slot(3, [0, 1], [1, 1], np.array([np.pi, np.inf, 1e-300]))
    file.keep_snapshot(ONE, 3, b"three slots")
    file.close()
    file = AgentFile(path)
    np.testing.assert_array_equal(file.learner_state(), [np.pi, np.inf, 1e-300])
    (kept,) = file.earlier()
    assert (kept.slots, kept.observations) == (3, ())
    file.begin(TWO, instead_of=ONE)  # a new incarnation, and the file of the old one gone
    file.forget([ONE])
    state = file.learner_state()
    np.testing.assert_array_equal(state, [np.pi, np.inf, 1e-300])
    assert state is not None
    assert state.flags.writeable
    file.quarantine("a test")
    assert file.learner_state() is None
    file.close()


def test_a_disk_that_refuses_a_slot_refuses_the_learners_state_with_it(path):
    file = AgentFile(path)
    file.begin(ONE)
    file.keep_slot(1, [0], [1], np.array([1.0]))
    (pages,) = file._adder.execute("PRAGMA page_count").fetchone()
    file._adder.execute(f"PRAGMA max_page_count = {pages}")  # full
    with pytest.raises(StorageError, match="slot 2 is not kept"):
        file.keep_slot(2, [0], [1], np.full(10_000, 2.0))
    np.testing.assert_array_equal(file.learner_state(), [1.0])
    file.close()
    assert len(reopened(path)[0].observations) == 1


def test_a_process_that_is_killed_leaves_the_state_of_its_last_slot(path):
    """Killed from outside, at any moment: state and slots are always of the same slot."""
    program = (
        "import sys; from pathlib import Path; import numpy as np;"
        "from rmab.service.agent.state_file import AgentFile;"
        "file = AgentFile(Path(sys.argv[1])); file.begin('1' * 32); print('begun', flush=True);"
        "[file.keep_slot(slot, [0], [1], np.full(50, float(slot))) for slot in range(1, 10**6)]"
    )
    for pause in (0.0, 0.03, 0.07):
        path.unlink(missing_ok=True)
        process = subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(pause)
        process.kill()
        process.wait()
        process.stdout.close()
        file = AgentFile(path)
        (kept,), state = file.earlier(), file.learner_state()
        file.close()
        slots = len(kept.observations)
        assert (0.0 if state is None else state[0]) == slots
        assert state is None or (state == slots).all()
    assert slots > 10


def test_a_snapshot_comes_back_as_it_was():
    rng = np.random.default_rng(0)
    shape = Shape(2, (2, 3, 2, 4), 8)
    parts = [rng.integers(0, 2**40, size) for size in ((9, 4, 4, 4), (4, 4), (4,), (4,))]
    for before, after in zip(parts, unpack(pack(*parts), shape), strict=True):
        np.testing.assert_array_equal(before, after)
        assert after.flags.writeable
    with pytest.raises(StorageError, match="must have"):
        unpack(pack(*parts), Shape(2, (2, 2), 1))
    with pytest.raises(StorageError, match="cannot be read"):
        unpack(b"nonsense", shape)


def test_the_usual_place_is_by_server_and_credential(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    one = default_file("https://a:1", "0" * 16)
    assert one.parent == tmp_path / "rmab"
    others = {default_file("https://b:1", "0" * 16), default_file("https://a:1", "1" * 16)}
    assert one not in others
    assert len(others) == 2
    monkeypatch.setenv("XDG_STATE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_file("https://a:1", "0" * 16) == tmp_path / ".local/state/rmab" / one.name


def test_nothing_is_said_of_a_file_in_order(path, caplog):
    caplog.set_level(logging.DEBUG)
    AgentFile(path).close()
    AgentFile(path).close()
    assert caplog.text == ""


# ---------------------------------------------------------- looks, counts, mask keys, marks, owners


def test_an_observation_comes_back_with_its_looks():
    for seen in (
        Observation((3, 0), (1, None), (None, 2, 0)),
        Observation((), (), (1, 0)),
        Observation((7,), (0,)),
        Observation((), ()),
        Observation((2**31 - 1,), (2**32 - 2,), (5,)),
    ):
        assert Observation.unpack(seen.pack()) == seen
    assert len(Observation((1,), (2,), (0, 1)).pack()) == 4 * 6


def test_looks_are_kept_with_the_slot(path):
    file = AgentFile(path)
    file.begin(ONE)
    file.keep_slot(1, [2], [None], looks=[0, None, 1])
    file.close()
    (kept,) = reopened(path)
    assert kept.observations == (Observation((2,), (None,), (0, None, 1)),)


def test_own_counts_are_those_kept_last_and_of_their_size(path):
    file = AgentFile(path)
    assert file.own_counts(3) is None
    file.keep_own_counts(np.array([9, 9, 9]))
    file.keep_own_counts(np.array([1, -2, 2**40]))
    file.close()
    file = AgentFile(path)
    found = file.own_counts(3)
    assert found is not None
    assert found.dtype == np.int64
    assert found.tolist() == [1, -2, 2**40]
    assert file.own_counts(2) is file.own_counts(4) is None
    file.close()


def test_whose_round_it_was_is_known(path):
    for key, other in (("one", None), ("one", False), ("two", True), ("two", False)):
        file = AgentFile(path, key_id=key)
        assert file.of_another_key() == bool(other)
        file.keep_message(key.encode())
        assert not file.of_another_key()
        file.close()
    file = AgentFile(path)  # without a credential that is known
    assert file.of_another_key()
    file.keep_message(b"third")
    assert (file.message(), file.of_another_key()) == (b"third", True)
    file.close()


def test_a_masked_incarnation_goes_on_where_it_began(path):
    file = AgentFile(path)
    assert file.masked() is None
    assert file.masked_by() is None
    file.begin(ONE)
    file.keep_slot(1, [0], [1])
    file.begin_masked(TWO, 40, b"key", 5, b"player")
    file.keep_slot(6, [0], [1])
    file.close()
    file = AgentFile(path)
    found = file.masked()
    assert found is not None
    kept, since = found
    assert (kept.incarnation, since, file.masked_by()) == (TWO, 40, b"key")
    assert (kept.slots, kept.snapshot, len(kept.observations)) == (5, b"player", 1)
    assert len(file.earlier()) == 1  # nothing is left of the other
    file.forget([TWO])
    assert file.masked() is None
    file.begin_masked(ONE, 0, b"other")
    file.close()
    file = AgentFile(path)
    found = file.masked()
    assert found is not None
    kept, since = found
    assert (kept.incarnation, since, kept.slots, kept.snapshot) == (ONE, 0, 0, None)
    assert file.masked_by() == b"other"
    file.close()


def test_another_incarnation_is_not_taken_for_the_masked_one(path):
    file = AgentFile(path)
    file.begin_masked(ONE, 7, b"key")
    file.begin(TWO)
    file.keep_slot(1, [0], [1])
    file.close()
    file = AgentFile(path)
    found = file.masked()
    assert found is not None
    kept, since = found
    assert (kept.incarnation, since) == (ONE, 7)
    file.close()


def test_uploads_at_marks_are_kept_in_order_until_they_are_acknowledged(path):
    file = AgentFile(path)
    file.begin_masked(ONE, 0, b"key")
    for slot in (1, 2, 3):
        file.keep_slot(slot, [0], [1])
    three = [(4, b"four", b"4 slots"), (5, b"", b"5 slots"), (12, b"twelve", b"")]
    file.keep_marks(ONE, three[:2], None)
    file.keep_marks(ONE, three, (2, b"two slots"))
    assert file.marks(ONE) == [(body, snapshot) for _, body, snapshot in three]
    assert file.marks(TWO) == []
    file.close()
    (kept,) = reopened(path)
    assert (kept.sequence, kept.slots, kept.snapshot) == (12, 2, b"two slots")
    assert len(kept.observations) == 1
    file = AgentFile(path)
    file.go_on(ONE, 3, b"three slots")
    file.acknowledge(ONE, 5)
    assert file.marks(ONE) == [(b"twelve", b"")]
    file.keep_marks(ONE, [(6, b"six", b"6 slots")], None)  # in place of those that are not named
    assert file.marks(ONE) == [(b"six", b"6 slots")]
    file.keep_marks(ONE, [], None)
    assert file.marks(ONE) == []
    file.close()
    (kept,) = reopened(path)
    assert (kept.sequence, kept.slots, kept.snapshot) == (12, 3, b"three slots")
    assert kept.observations == ()


def test_an_incarnation_that_goes_on_is_this_process_s(path):
    file = AgentFile(path)
    file.begin(ONE)
    file.keep_slot(1, [0], [1])
    file.keep_slot(2, [0], [0])
    file.close()
    file = AgentFile(path)
    file.go_on(ONE, 1, b"one slot")
    assert file.earlier() == []  # it is no earlier one now
    file.keep_slot(3, [0], [1])
    file.acknowledge(ONE, 1)  # which leaves what still runs
    file.close()
    (kept,) = reopened(path)
    assert (kept.slots, kept.snapshot) == (1, b"one slot")
    assert [seen.states for seen in kept.observations] == [(0,), (1,)]


def test_a_file_in_use_is_told_by_its_owner(path):
    """To another credential it is no passing trouble."""
    file = AgentFile(path, key_id="one")
    with pytest.raises(UnavailableError):  # nobody's yet
        AgentFile(path, key_id="two")
    file.keep_message(b"round")
    with pytest.raises(UnavailableError):
        AgentFile(path, key_id="one")
    with pytest.raises(FederationError):
        AgentFile(path, key_id="two")
    file.close()


def test_a_learners_state_is_of_whole_numbers_of_eight_bytes(path):
    file = AgentFile(path)
    assert file.learner_state() is None
    file.begin(ONE)
    file.keep_slot(1, [0], [1], np.array([0.5, -1.0]))
    found = file.learner_state()
    assert found is not None
    assert found.tolist() == [0.5, -1.0]
    with file.transaction() as keeper:
        keeper.execute("REPLACE INTO slots VALUES (0, 0, ?)", (b"123456789",))
    assert file.learner_state() is None
    file.close()
