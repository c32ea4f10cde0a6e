"""Group commit: what is acknowledged is committed, and one job's failure is its own."""

import resource
import subprocess
import sys
import threading
from concurrent.futures import CancelledError, wait
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from rmab.errors import FederationError, Overloaded, ProtocolError, StorageError, UnavailableError
from rmab.protocol.shape import Upload
from rmab.service.http.tokens import make_token
from rmab.service.server.uploads import receive
from rmab.service.store.limits import StoreLimits
from rmab.service.store.store import open_store
from rmab.service.store.writer import Writer
from tests.service.support.counting import Counting
from tests.service.support.storing import IMPATIENT

ROOT = Path(__file__).parents[3]


class Served:
    """A writer on a claimed store, with agents that upload through it."""

    def __init__(self, url, federation, **limits):
        self.store = open_store(url, federation, limits=StoreLimits(claim_seconds=0.1, **limits))
        self.store.claim()
        self.federation = federation
        self.commits: list[int] = []
        self.writer = Writer(self.store, self.commits.append)
        self.tokens: dict[str, tuple[str, bytes]] = {}

    def agent(self, name):
        """An incarnation of an enrolled agent."""
        _, key_id, secret_hash = make_token()
        self.writer.submit(
            lambda store: store.enroll(name, "agent", key_id, secret_hash, 1.0)
        ).result()
        self.tokens[name] = (key_id, secret_hash)
        return Counting(self.federation.shape, name)

    def send(self, name, upload):
        """The future of an upload."""
        return self.writer.submit(
            lambda store: receive(store, *self.tokens[name], upload, 1, 2, 2.0)
        )

    def ask(self, job):
        """The result of a job."""
        return self.writer.submit(job).result()

    @contextmanager
    def together(self):
        """Jobs that are submitted meanwhile are run as one batch."""
        reached, go = threading.Event(), threading.Event()

        def hold(store):
            reached.set()
            go.wait()

        self.writer.submit(hold)
        reached.wait()
        try:
            yield
        finally:
            go.set()


@pytest.fixture
def served(database_url, federation):
    served = Served(database_url, federation)
    yield served
    served.writer.close()


def test_jobs_that_wait_are_committed_together(served):
    lives = {f"agent{n}": served.agent(f"agent{n}") for n in range(5)}
    with served.together():
        futures = [
            served.send(name, counting.upload(sequence))
            for sequence in (1, 2, 3)
            for name, counting in lives.items()
        ]
    assert [future.result() for future in futures] == ["new"] * 15
    assert served.ask(lambda store: store.uploads.totals()) == (15, 45)
    assert 15 in served.commits


@pytest.fixture
def small(database_url, federation):
    """A writer that takes four jobs at once, and twenty in all."""
    served = Served(database_url, federation, batch_jobs=4, queued_jobs=20)
    yield served
    served.writer.close()


def test_no_batch_is_larger_than_allowed(small):
    served = small
    with served.together():
        futures = [served.writer.submit(lambda store, n=n: n) for n in range(10)]
    assert [future.result() for future in futures] == list(range(10))
    served.ask(lambda store: None)
    assert served.commits[-4:-1] == [4, 4, 2]


def test_what_is_acknowledged_is_committed(served, database_url, federation):
    """When a future resolves, another connection finds the upload."""
    counting = served.agent("alice")
    other = open_store(database_url, federation, create=False)
    found = []

    def look(future):
        upload = future.upload
        found.append(
            other.uploads.digest("alice", upload.incarnation, upload.sequence) == upload.digest
        )

    with served.together():
        for sequence in range(1, 21):
            upload = counting.upload(sequence)
            future = served.send("alice", upload)
            future.upload = upload
            future.add_done_callback(look)
    future.result()
    served.ask(lambda store: None)
    assert found == [True] * 20
    other.close()


def test_a_refused_job_fails_alone(served):
    alice, bob = served.agent("alice"), served.agent("bob")
    late = alice.upload(5, round=9)
    with served.together():
        futures = [
            served.send("bob", bob.upload(1)),
            served.send("alice", late),
            served.send("alice", alice.upload(6)),
            served.send("bob", bob.upload(2)),
        ]
    with pytest.raises(ProtocolError) as caught:
        futures[1].result()
    assert caught.value.status == 410
    assert [future.result() for future in (futures[0], *futures[2:])] == ["new"] * 3
    assert 4 in served.commits


@pytest.mark.parametrize("error", [ZeroDivisionError, FederationError, SystemExit])
def test_only_the_culprit_fails(served, error):
    counting = served.agent("alice")
    runs = []

    def broken(store):
        runs.append(store.uploads.totals().uploads)
        store.enroll("ghost", "agent", "ghost", b"x" * 32, 1.0)
        raise error("ours")

    with served.together():
        first = served.send("alice", counting.upload(1))
        culprit = served.writer.submit(broken)
        second = served.send("alice", counting.upload(2))
    with pytest.raises(error, match="ours"):
        culprit.result()
    assert first.result() == "new"
    assert second.result() == "new"
    assert served.ask(lambda store: store.uploads.totals()) == (2, 6)
    assert [row.name for row in served.ask(lambda store: store.agents())] == ["alice"]
    assert runs == [1, 1]


def test_a_statement_that_breaks_a_rule_fails_alone(served):
    """A constraint of the database is the job's fault, not the disk's."""
    counting = served.agent("alice")

    def broken(store):
        store.database.run(
            "INSERT INTO credentials (key_id, agent, secret_hash, created) "
            "VALUES ('x', 'nobody', ?, 1.0)",
            (b"x",),
        )

    with served.together():
        culprit = served.writer.submit(broken)
        upload = served.send("alice", counting.upload(1))
    assert upload.result() == "new"
    assert "foreign key" in str(culprit.exception()).lower()


def test_after_a_failed_commit_nothing_is_acknowledged_and_all_can_be_sent_again(
    served, monkeypatch
):
    counting = served.agent("alice")
    first, second, third = (counting.upload(sequence) for sequence in (1, 2, 3))
    served.send("alice", first).result()
    served.ask(lambda store: store.merged())
    database = served.store.database

    def full():
        raise StorageError("database: disk full")

    monkeypatch.setattr(database, "commit", full)
    with served.together():
        futures = [served.send("alice", upload) for upload in (first, second, third, second)]
    for future in futures:
        with pytest.raises(StorageError, match="disk full"):
            future.result()
    monkeypatch.undo()
    assert served.ask(lambda store: store.uploads.totals()) == (1, 3)
    assert served.send("alice", second).result() == "new"
    assert served.send("alice", third).result() == "new"
    merged = served.ask(lambda store: store.merged())
    assert np.array_equal(merged.counts, third.counts)


def test_a_disk_that_takes_no_more(tmp_path, federation):
    """A limit on the size of files makes SQLite's commit itself fail."""
    served = Served(str(tmp_path / "x.db"), federation)
    counting = served.agent("alice")
    assert served.send("alice", counting.upload(1)).result() == "new"
    size = (tmp_path / "x.db-wal").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    uploads = [counting.upload(sequence) for sequence in (2, 3, 4)]
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 4096, before[1]))
    try:
        futures = [served.send("alice", upload) for upload in uploads]
        wait(futures)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    for future in futures:
        with pytest.raises(StorageError, match=r"did not commit: (disk I/O error|.*full)"):
            future.result()
    assert served.ask(lambda store: store.uploads.totals()) == (1, 3)
    assert [served.send("alice", upload).result() for upload in uploads] == ["new"] * 3
    assert served.ask(lambda store: store.database.rows("PRAGMA integrity_check")) == [("ok",)]
    served.writer.close()


def test_more_jobs_than_may_wait_are_not_taken(small):
    served = small
    with served.together():
        futures = [served.writer.submit(lambda store: 1) for _ in range(20)]
        assert served.writer.waiting == 20
        with pytest.raises(Overloaded, match="20 jobs wait for the database, the most that may"):
            served.writer.submit(lambda store: 1)
    assert [future.result() for future in futures] == [1] * 20
    assert served.ask(lambda store: 2) == 2


def test_a_job_that_is_called_off_is_not_run(served):
    ran = []
    with served.together():
        kept = served.writer.submit(lambda store: ran.append("kept"))
        called_off = served.writer.submit(lambda store: ran.append("called off"))
        assert called_off.cancel()
    kept.result()
    with pytest.raises(CancelledError):
        called_off.result()
    assert ran == ["kept"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_waits_for_a_writer_that_has_failed(database_url, federation):
    def fail(jobs):
        raise ZeroDivisionError  # ends the thread

    writer = Writer(open_store(database_url, federation), fail)
    reached, go = threading.Event(), threading.Event()

    def hold(store):
        reached.set()
        return go.wait()

    first = writer.submit(hold)
    reached.wait()
    second = writer.submit(lambda store: 2)
    go.set()
    assert first.result()
    with pytest.raises(StorageError, match="the writer has ended"):
        second.result()
    writer.close()
    with pytest.raises(Overloaded, match="the writer has ended"):
        writer.submit(lambda store: 1)


def test_closing_finishes_what_waits(served, database_url, federation):
    counting = served.agent("alice")
    with served.together():
        futures = [served.send("alice", counting.upload(sequence)) for sequence in range(1, 11)]
        closing = threading.Thread(target=served.writer.close)
        closing.start()
    closing.join()
    assert all(future.result() == "new" for future in futures)
    with pytest.raises(Overloaded, match="the writer has ended"):
        served.writer.submit(lambda store: 1)
    again = open_store(database_url, federation)
    again.claim()  # was given back
    assert again.uploads.totals() == (10, 30)
    again.close()
    served.writer.close()


_ENROLLING = """
import sys
from rmab.protocol.config import Federation, KnownArm
from rmab.service.store.store import open_store
arms = tuple(KnownArm(2, (0.0, reward)) for reward in (0.4, 0.9, 0.7, 0.6))
federation = Federation("spectrum", 2, arms, policy="fedtswi-gap")
for n in range(10):
    store = open_store(sys.argv[1], federation, create=False)
    store.enroll(f"new{n}", "agent", f"key{n}", b"x" * 32, 3.0)
    store.revoke(f"new{n}", 4.0)
    store.close()
"""


def test_admin_commands_work_while_the_server_writes(served, database_url):
    lives = {f"agent{n}": served.agent(f"agent{n}") for n in range(8)}
    admin = subprocess.Popen([sys.executable, "-c", _ENROLLING, database_url], cwd=ROOT)
    sequence = 0
    while admin.poll() is None:
        sequence += 1
        futures = [
            served.send(name, counting.upload(sequence, slots=1))
            for name, counting in lives.items()
        ]
        assert [future.result() for future in futures] == ["new"] * 8
    assert admin.returncode == 0
    rows = served.ask(lambda store: store.agents())
    assert [row.lane for row in rows] == list(range(18))
    assert sum(row.revoked is not None for row in rows) == 10
    assert served.ask(lambda store: store.uploads.totals()) == (8 * sequence, 8 * sequence)


@pytest.mark.parametrize("seed", range(3))
def test_random_jobs_against_a_model(served, database_url, federation, monkeypatch, seed):
    """Batches of new, repeated, changed and late uploads, broken jobs and failed commits."""
    rng = np.random.default_rng(seed)
    lives = [(f"agent{n}", served.agent(f"agent{n}")) for n in range(4)]
    accepted: dict[str, dict[int, Upload]] = {name: {} for name, _ in lives}
    commit = served.store.database.commit

    def full():
        raise StorageError("disk full")

    def broken(store):
        raise ZeroDivisionError

    for _ in range(25):
        fails = rng.random() < 0.2
        expected: list[Any] = []
        futures = []
        model = {name: dict(known) for name, known in accepted.items()}
        with served.together():
            monkeypatch.setattr(served.store.database, "commit", full if fails else commit)
            for _ in range(rng.integers(1, 12)):
                name, counting = lives[rng.integers(4)]
                known = model[name]
                last = max(known, default=0)
                kind = rng.choice(["new", "repeat", "conflict", "backwards", "broken"])
                if kind == "broken":
                    expected.append(ZeroDivisionError)
                    futures.append(served.writer.submit(broken))
                    continue
                if kind in ("repeat", "conflict") and known:
                    upload = known[int(rng.choice(list(known)))]
                    if kind == "conflict":
                        upload = replace(upload, length=upload.length + 1)
                    expected.append("repeat" if kind == "repeat" else 409)
                elif kind == "backwards" and set(range(1, last)) - set(known):
                    gap = min(set(range(1, last)) - set(known))
                    upload = counting.upload(gap, slots=1)
                    expected.append(409)
                else:
                    upload = counting.upload(last + int(rng.integers(1, 3)), slots=1)
                    known[upload.sequence] = upload
                    expected.append("new")
                futures.append(served.send(name, upload))
        for future, outcome in zip(futures, expected, strict=True):
            error = future.exception()
            if outcome is ZeroDivisionError and not isinstance(error, StorageError):
                assert isinstance(error, ZeroDivisionError)
            elif fails:
                assert isinstance(error, StorageError)
            elif outcome == 409:
                assert error.status == 409
            else:
                assert future.result() == outcome
        monkeypatch.setattr(served.store.database, "commit", commit)
        accepted = accepted if fails else model
        latest = [known[max(known)] for known in accepted.values() if known]
        merged = served.ask(lambda store: store.merged())
        assert merged.agents == len(latest)
        for part in ("counts", "visits"):
            total = sum((getattr(u, part) for u in latest), np.zeros_like(getattr(merged, part)))
            assert np.array_equal(getattr(merged, part), total)
    other = open_store(database_url, federation, create=False)
    rows = other.database.rows("SELECT agent, sequence, digest FROM uploads")
    assert {(agent, sequence): digest for agent, sequence, digest in rows} == {
        (name, sequence): upload.digest
        for name, known in accepted.items()
        for sequence, upload in known.items()
    }
    other.close()


# -------------------------------------------------------------------------------------- PostgreSQL


@pytest.fixture
def on_postgres(postgres_url, federation):
    served = Served(postgres_url, federation)
    yield served
    served.writer.close()


def end_session(served, url):
    """End the server's session from outside, as a network or a restart would."""
    ((pid,),) = served.ask(lambda store: store.database.rows("SELECT pg_backend_pid()"))
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))


@pytest.mark.postgres
def test_a_session_lost_while_idle_is_not_noticed(on_postgres, postgres_url, federation):
    counting = on_postgres.agent("alice")
    on_postgres.send("alice", counting.upload(1)).result()
    end_session(on_postgres, postgres_url)
    assert on_postgres.send("alice", counting.upload(2)).result() == "new"
    assert on_postgres.ask(lambda store: store.uploads.totals()) == (2, 6)
    other = open_store(postgres_url, federation, limits=IMPATIENT)
    with pytest.raises(UnavailableError, match="is served by another process already"):
        other.claim()  # the new session has the claim again
    other.close()


@pytest.mark.postgres
def test_a_session_lost_in_a_transaction_fails_its_jobs(on_postgres, postgres_url):
    counting = on_postgres.agent("alice")
    ((pid,),) = on_postgres.ask(lambda store: store.database.rows("SELECT pg_backend_pid()"))
    second = counting.upload(1)

    def cut(store):
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            admin.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))

    with on_postgres.together():
        futures = [
            on_postgres.send("alice", second),
            on_postgres.writer.submit(cut),
            on_postgres.writer.submit(lambda store: 1),
        ]
    for future in futures:
        with pytest.raises(StorageError):
            future.result()
    assert on_postgres.ask(lambda store: store.uploads.totals()) == (0, 0)
    assert on_postgres.send("alice", second).result() == "new"


@pytest.mark.postgres
def test_a_claim_that_another_took_meanwhile_stops_the_writer(
    on_postgres, postgres_url, federation
):
    counting = on_postgres.agent("alice")
    end_session(on_postgres, postgres_url)
    other = open_store(postgres_url, federation)
    other.claim()
    for _ in range(2):
        with pytest.raises(StorageError, match="is served by another process already"):
            on_postgres.send("alice", counting.upload(1)).result()
    assert other.uploads.totals() == (0, 0)
    other.close()
    # Also when the other one has gone: what this server has in mind may be out of date.
    for _ in range(2):
        with pytest.raises(StorageError, match="this server must be started again"):
            on_postgres.send("alice", counting.upload(2)).result()


@pytest.mark.postgres
def test_an_error_that_a_job_swallows_does_not_pass_for_a_commit(on_postgres):
    """PostgreSQL answers COMMIT with ROLLBACK then, and with no error."""
    counting = on_postgres.agent("alice")

    def careless(store):
        with pytest.raises(psycopg.errors.UndefinedTable):
            store.database.rows("SELECT * FROM nothing")

    with pytest.raises(StorageError, match="did not commit: it answered ROLLBACK"):
        on_postgres.ask(careless)
    assert on_postgres.send("alice", counting.upload(1)).result() == "new"


@pytest.mark.postgres
def test_postgres_commits_are_synchronous(on_postgres):
    asked = on_postgres.ask(lambda store: store.database.rows("SHOW synchronous_commit"))
    assert asked == [("on",)]
