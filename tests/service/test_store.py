"""The store, the same on both databases: what is kept, what is refused, what outlives a restart."""

import os
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from rmab.errors import FederationError, ProtocolError, StorageError
from rmab.federation.charter import KnownArm
from rmab.federation.messages import Merged, Upload
from rmab.service import ledger, schema
from rmab.service.credentials import make_token
from rmab.service.database import connect
from rmab.service.receiving import Received, authenticate, receive
from rmab.service.store import Credential, OpenRound, Sighting, Store, default_database, open_store
from tests.service.counting import Counting


@pytest.fixture
def opened(database_url, federation):
    """A claimed store on an empty database."""
    opened = open_store(database_url, federation)
    opened.claim()
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr("rmab.service.postgres.CLAIM_SECONDS", 0.1)


def enrolled(
    store: Store, name: str = "alice", role: str = "agent", now: float = 1.0
) -> tuple[str, bytes]:
    """Enroll a name; its key id and the digest of its secret."""
    _, key_id, secret_hash = make_token()
    store.enroll(name, role, key_id, secret_hash, now)
    return key_id, secret_hash


def given(
    store: Store, token: tuple[str, bytes], upload: Upload, round: int = 1, now: float = 2.0
) -> Received:
    """Receive an upload in a transaction of its own."""
    with store.transaction():
        return receive(store, *token, upload, round, 2, now)


def refused(store, token, upload, round=1):
    """The error with which an upload is refused."""
    with pytest.raises(ProtocolError) as caught:
        given(store, token, upload, round)
    return caught.value


def some_round(number, federation, **changes):
    """An open round with recognisable content."""
    shape = federation.shape
    counts = np.arange(shape.kinds * 4 * shape.n_arms).reshape(shape.kinds, 2, 2, shape.n_arms)
    merged = Merged(counts + number, np.full((2, shape.n_arms), 2**40), 3)
    values = {"opened": 10.5, "limit": 7, "visit_factor": 2, "merged": merged, "plan_json": b"{}"}
    return OpenRound(number, **{**values, **changes})


# ------------------------------------------------------------------------------------- credentials


def test_lanes_follow_the_order_of_enrolment_and_admins_have_none(opened):
    for name, role, lane in (
        ("a", "agent", 0),
        ("root", "admin", -1),
        ("b", "agent", 1),
        ("c", "agent", 2),
    ):
        assert opened.enroll(name, role, name * 4, b"x" * 32, 1.0) == lane
    assert [(row.name, row.lane) for row in opened.agents()] == [
        ("root", -1),
        ("a", 0),
        ("b", 1),
        ("c", 2),
    ]


def test_enrol_revoke_enrol_again(opened):
    first = enrolled(opened, "alice")
    enrolled(opened, "bob")
    with pytest.raises(FederationError, match="alice is enrolled already"):
        enrolled(opened, "alice")
    assert opened.credential(first[0]) == ("alice", "agent", 0, first[1], False)
    assert opened.revoke("alice", 5.0)
    assert not opened.revoke("alice", 6.0)
    assert not opened.revoke("carol", 6.0)
    assert opened.credential(first[0]).revoked
    second = enrolled(opened, "alice", now=7.0)
    assert opened.credential(second[0]) == ("alice", "agent", 0, second[1], False)
    assert opened.credential(first[0]).revoked
    alice = next(row for row in opened.agents() if row.name == "alice")
    assert (alice.enrolled, alice.revoked) == (7.0, None)


def test_a_name_keeps_its_role(opened):
    enrolled(opened, "alice", "admin")
    opened.revoke("alice", 2.0)
    with pytest.raises(FederationError, match="alice was enrolled as admin"):
        enrolled(opened, "alice", "agent")
    with pytest.raises(FederationError, match="role must be agent or admin, got 'root'"):
        enrolled(opened, "bob", "root")
    assert len(opened.agents()) == 1


def test_failed_enrolment_leaves_nothing(opened):
    key_id, _ = enrolled(opened, "alice")
    with pytest.raises(Exception, match=r"UNIQUE|unique"):  # the driver's own
        opened.enroll("bob", "agent", key_id, b"x" * 32, 1.0)
    assert [row.name for row in opened.agents()] == ["alice"]
    assert opened.enroll("carol", "agent", "other", b"x" * 32, 1.0) == 1


@pytest.mark.parametrize("inside", [False, True])
def test_credentials_by_role(opened, inside):
    agent, admin = enrolled(opened, "alice"), enrolled(opened, "root", "admin")

    def check(token: tuple[str, bytes], role: str) -> Credential:
        if not inside:
            return authenticate(opened, *token, role)
        with opened.transaction():
            return authenticate(opened, *token, role)

    assert check(agent, "agent").name == "alice"
    assert check(admin, "admin").name == "root"
    opened.revoke("alice", 2.0)
    for key_id, secret_hash, role in (
        (*agent, "agent"),  # revoked
        (*admin, "agent"),
        (agent[0], agent[1], "admin"),
        (admin[0], agent[1], "admin"),  # another's secret
        ("0" * 16, admin[1], "admin"),
    ):
        with pytest.raises(ProtocolError) as caught:
            check((key_id, secret_hash), role)
        assert (caught.value.status, caught.value.code) == (401, "credential")
        assert caught.value.args == (f"a valid credential of role {role} is needed",)


def test_another_process_s_changes_are_seen_at_once(opened, database_url, federation):
    token = enrolled(opened)
    counting = Counting(federation.shape)
    assert given(opened, token, counting.upload(1)).status == "new"
    other = open_store(database_url, federation, create=False)
    try:
        assert other.revoke("alice", 3.0)
        assert refused(opened, token, counting.upload(2)).status == 401
        _, key_id, secret_hash = make_token()
        other.enroll("alice", "agent", key_id, secret_hash, 4.0)
        assert given(opened, (key_id, secret_hash), counting.upload(3)).status == "new"
        assert other.agents()[0].uploads == 2  # one that has no claim reads what was committed
        assert given(opened, (key_id, secret_hash), counting.upload(4)).status == "new"
        assert other.agents()[0].uploads == 3
        assert np.array_equal(other.merged().counts, opened.merged().counts)
    finally:
        other.close()


def test_enrolments_at_once_get_lanes_of_their_own(opened, database_url, federation):
    def enrol(number):
        other = open_store(database_url, federation, create=False)
        try:
            return other.enroll(f"agent{number}", "agent", f"key{number}", b"x" * 32, 1.0)
        finally:
            other.close()

    with ThreadPoolExecutor(8) as pool:
        lanes = list(pool.map(enrol, range(16)))
    assert sorted(lanes) == list(range(16))


# ----------------------------------------------------------------------------------------- uploads


def test_new_repeat_conflict_backwards(opened, federation):
    token = enrolled(opened)
    counting = Counting(federation.shape)
    first = counting.upload(1)
    assert given(opened, token, first)[:4] == ("new", "alice", 0, 3)
    third = counting.upload(3)
    received = given(opened, token, third)
    assert received[:4] == ("new", "alice", 0, 3)
    assert np.array_equal(received.visits, third.visits - first.visits)
    for known in (first, third):
        received = given(opened, token, known)
        assert received[:4] == ("repeat", "alice", 0, 0)
        assert not received.visits.any()
    for known in (first, third):
        error = refused(opened, token, replace(known, length=known.length - 1))
        assert (error.status, error.code) == (409, "conflict")
    error = refused(opened, token, counting.upload(2))
    assert (error.status, error.code) == (409, "backwards")
    assert str(error) == "sequence must be above 3, got 2"
    assert opened.totals() == (2, 6)
    assert opened.record("alice", counting.incarnation).sequence == 3
    assert opened.digest("alice", counting.incarnation, 1) == first.digest
    assert opened.digest("alice", counting.incarnation, 2) is None


def test_only_the_open_round_takes_uploads_but_a_repeat_is_always_known(opened, federation):
    token = enrolled(opened)
    counting = Counting(federation.shape)
    kept = counting.upload(1, round=4)
    given(opened, token, kept, round=4)
    assert given(opened, token, kept, round=9).status == "repeat"
    for sent in (3, 4, 6):
        error = refused(opened, token, counting.upload(2, round=sent), round=5)
        assert (error.status, error.code, error.extra) == (410, "round", {"round": 5})
        assert str(error) == f"round must be the open one, 5, got {sent}"
    late = counting.upload(3, round=5)
    assert given(opened, token, late, round=5).slots == late.slots - kept.slots


def test_counts_never_fall(opened, federation):
    token = enrolled(opened)
    counting = Counting(federation.shape)
    given(opened, token, counting.upload(1, slots=9))
    fewer = Counting(federation.shape).upload(2, slots=5)
    error = refused(opened, token, fewer)
    assert (error.status, error.code) == (409, "backwards")
    more = counting.upload(2)
    error = refused(opened, token, replace(more, slots=9, length=1))
    assert (error.status, error.code) == (422, "malformed")
    assert given(opened, token, more).status == "new"


def test_agents_do_not_share_incarnations(opened, federation):
    alice, bob = enrolled(opened, "alice"), enrolled(opened, "bob")
    upload = Counting(federation.shape).upload(1)
    assert given(opened, alice, upload).agent == "alice"
    assert given(opened, bob, upload)[:2] == ("new", "bob")
    assert opened.merged().agents == 2
    assert np.array_equal(opened.merged().counts, 2 * upload.counts)


def test_a_new_incarnation_adds_to_the_old(opened, federation):
    token = enrolled(opened)
    old, new = (Counting(federation.shape, name) for name in ("old", "new"))
    parts = [old.upload(1), old.upload(2)]
    for upload in parts:
        given(opened, token, upload)
    parts.append(new.upload(1))
    given(opened, token, parts[-1])
    merged = opened.merged()
    assert np.array_equal(merged.counts, parts[1].counts + parts[2].counts)
    assert np.array_equal(merged.visits, parts[1].visits + parts[2].visits)
    assert merged.agents == 1
    opened.revoke("alice", 9.0)
    assert np.array_equal(opened.merged().counts, merged.counts)


def test_a_transaction_sees_what_it_has_accepted(opened, federation):
    token = enrolled(opened)
    counting = Counting(federation.shape)
    uploads = [counting.upload(sequence) for sequence in (1, 2, 3)]
    with opened.transaction():
        for upload in uploads:
            assert receive(opened, *token, upload, 1, 2, 2.0).status == "new"
            assert receive(opened, *token, upload, 1, 2, 2.0).status == "repeat"
            assert opened.record("alice", counting.incarnation).sequence == upload.sequence
            assert opened.digest("alice", counting.incarnation, upload.sequence) == upload.digest
        with pytest.raises(ProtocolError, match="another upload was accepted as sequence 2"):
            receive(opened, *token, replace(uploads[1], slots=99), 1, 2, 2.0)
        assert np.array_equal(opened.merged().counts, uploads[-1].counts)
        assert opened.totals() == (3, uploads[-1].slots)
        assert opened.awaited(1) == ({"alice"}, {"alice": 3})
    assert opened.totals() == (3, uploads[-1].slots)


def test_a_rollback_takes_everything_back(opened, federation):
    token = enrolled(opened)
    counting = Counting(federation.shape)
    first = counting.upload(1)
    given(opened, token, first)
    second = counting.upload(2)

    def fail_late():
        with opened.transaction():
            assert opened.totals() == (1, 3)
            receive(opened, *token, second, 1, 2, 2.0)
            assert opened.totals() == (2, 6)
            opened.revoke("alice", 3.0)
            assert opened.credential(token[0]).revoked
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_late()
    assert opened.totals() == (1, 3)
    with opened.transaction():
        assert not opened.credential(token[0]).revoked
        assert opened.record("alice", counting.incarnation).sequence == 1
        assert opened.digest("alice", counting.incarnation, 2) is None
    assert given(opened, token, second).status == "new"


@pytest.mark.parametrize("claimed", [True, False])
def test_the_running_sum_is_the_sum_of_all_incarnations(
    database_url, federation, claimed, monkeypatch
):
    """Many agents and incarnations, few of which are remembered, rows written in many pieces."""
    monkeypatch.setattr(ledger, "MOST_REMEMBERED_BYTES", 5 * 8 * (33 * 2 + 1) * 2 * 4)
    opened = open_store(database_url, federation)
    if claimed:
        opened.claim()
    rng = np.random.default_rng(1)
    tokens = {number: enrolled(opened, f"agent{number}") for number in range(3)}
    lives = [
        (agent, Counting(federation.shape, f"{agent} {life}"))
        for agent in range(3)
        for life in range(4)
    ]
    sequences = np.zeros(len(lives), int)
    latest: dict[int, Upload] = {}
    total = 0
    for _ in range(6):
        with opened.transaction():
            for which in rng.integers(len(lives), size=rng.integers(1, 80)).tolist():
                agent, counting = lives[which]
                sequences[which] += 1
                upload = counting.upload(int(sequences[which]), slots=1)
                assert receive(opened, *tokens[agent], upload, 1, 2, 2.0).slots == 1
                latest[which] = upload
                total += 1
        merged = opened.merged()
        assert np.array_equal(merged.counts, sum(u.counts for u in latest.values()))
        assert np.array_equal(merged.visits, sum(u.visits for u in latest.values()))
        assert opened.totals() == (total, total)
    opened.close()
    again = open_store(database_url, federation)
    assert np.array_equal(again.merged().counts, merged.counts)
    assert again.totals() == (total, total)
    rows = again.database.rows(
        "SELECT agent, incarnation, COUNT(*), MAX(sequence) FROM uploads "
        "GROUP BY agent, incarnation"
    )
    assert {(agent, life): (n, last) for agent, life, n, last in rows} == {
        (f"agent{agent}", counting.incarnation): (sequences[which], sequences[which])
        for which, (agent, counting) in enumerate(lives)
        if sequences[which]
    }
    again.close()


def test_what_agents_have_given(opened, federation):
    token = enrolled(opened)
    enrolled(opened, "idle")
    upload = Counting(federation.shape).upload(1, round=3, slots=50)
    given(opened, token, upload, round=3, now=20.0)
    alice, idle = opened.agents()
    pays = [arm.reward[1] for arm in federation.arms]
    assert alice[5:10] == (20.0, 3, 1, 0, 50)
    assert alice.reward == pytest.approx(upload.visits[1] @ pays / 50, rel=1e-12)
    assert idle[5:] == (None, None, 0, 0, 0, None)
    opened.sighted([Sighting("alice", 30.0, 4, 2), Sighting("idle", 31.0, None, 1)])
    opened.sighted([Sighting("alice", 32.0, None, 1)])
    alice, idle = opened.agents()
    assert alice[5:10] == (32.0, 4, 1, 3, 50)
    assert idle[5:] == (31.0, None, 0, 1, 0, None)


def test_arms_of_different_sizes(database_url, federation):
    arms = (KnownArm(3, (0.0, 0.5, 1.0)), KnownArm(2, (0.0, 1.0)), KnownArm(5, (0.0,) * 4 + (2.0,)))
    federation = replace(federation, arms=arms)
    opened = open_store(database_url, federation)
    token = enrolled(opened)
    upload = Counting(federation.shape).upload(1, slots=40)
    given(opened, token, upload)
    record = opened.record("alice", upload.incarnation)
    assert record is not None
    assert np.array_equal(record.counts, upload.counts)
    assert np.array_equal(record.visits, upload.visits)
    paid = sum(
        upload.visits[state, n] * pay
        for n, arm in enumerate(arms)
        for state, pay in enumerate(arm.reward)
    )
    assert opened.agents()[0].reward == pytest.approx(paid / 40, rel=1e-12)
    opened.close()


# ------------------------------------------------------------------------------------------ rounds


def test_rounds_open_and_close(opened, federation):
    assert opened.current_round() is None
    opened.open_round(some_round(1, federation))
    with pytest.raises(RuntimeError, match="round 2 cannot open: another one is open"):
        opened.open_round(some_round(2, federation))
    with opened.transaction():
        opened.close_round(1, 20.0, "all", 3, 21, 0.75)
        opened.open_round(some_round(2, federation, plan_json=None))
    current = opened.current_round()
    expected = some_round(2, federation, plan_json=None)
    assert current._replace(merged=None) == expected._replace(merged=None)
    assert np.array_equal(current.merged.counts, expected.merged.counts)
    assert np.array_equal(current.merged.visits, expected.merged.visits)
    assert current.merged.agents == 3
    with pytest.raises(RuntimeError, match="round 1 cannot close: it is not open"):
        opened.close_round(1, 30.0, "all", 3, 21, 0.75)
    assert opened.rounds(5) == [
        (2, 10.5, 7, None, None, None, None, None),
        (1, 10.5, 7, 20.0, "all", 3, 21, 0.75),
    ]
    assert [row.number for row in opened.rounds(1)] == [2]
    assert opened.rewards(5) == [(1, 21, 0.75)]


def test_rewards_are_the_last_ones_in_order(opened, federation):
    for number in range(1, 6):
        opened.open_round(some_round(number, federation))
        opened.close_round(number, 20.0 + number, "deadline", 1, 10 * number, None)
    assert opened.rewards(3) == [(3, 30, None), (4, 40, None), (5, 50, None)]
    assert opened.current_round() is None


def test_closing_and_opening_are_one(opened, federation):
    opened.open_round(some_round(1, federation))

    def fail_late():
        with opened.transaction():
            opened.close_round(1, 20.0, "all", 3, 21, 0.75)
            opened.open_round(some_round(2, federation))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_late()
    assert opened.current_round().number == 1
    assert opened.rounds(5)[0].closed is None


def test_plans_of_lanes_last_as_long_as_the_round(opened, federation):
    opened.open_round(some_round(1, federation))
    opened.save_plan(1, 0, b"zero")
    opened.save_plan(1, 3, b"three")
    opened.save_plan(1, 3, b"another")
    assert (opened.plan(1, 0), opened.plan(1, 3), opened.plan(1, 1)) == (b"zero", b"three", None)
    opened.close_round(1, 20.0, "all", 3, 21, 0.75)
    assert opened.plan(1, 3) is None


def test_who_is_awaited(opened, federation):
    tokens = {name: enrolled(opened, name) for name in ("old", "last", "now", "both", "gone")}
    lives = {name: Counting(federation.shape, name) for name in tokens}
    for name, number, slots in (
        ("old", 5, 3),
        ("last", 6, 4),
        ("both", 6, 5),
        ("gone", 6, 6),
        ("now", 7, 8),
        ("both", 7, 7),
        ("both", 7, 2),
        ("gone", 7, 9),
    ):
        upload = lives[name].upload(number * 10 - slots, round=number, slots=slots)
        given(opened, tokens[name], upload, round=number)
    opened.revoke("gone", 9.0)
    assert opened.awaited(7) == ({"last", "now", "both"}, {"now": 8, "both": 7, "gone": 9})
    assert opened.awaited(9) == (set(), {})


# ----------------------------------------------------------------------- opening, claims, versions


def test_a_restart_finds_everything(database_url, federation):
    opened = open_store(database_url, federation)
    token = enrolled(opened)
    counting = Counting(federation.shape)
    upload = counting.upload(1)
    given(opened, token, upload)
    opened.open_round(some_round(1, federation))
    before = (opened.agents(), opened.totals(), opened.awaited(1))
    opened.close()
    again = open_store(database_url, federation, create=False)
    assert (again.agents(), again.totals(), again.awaited(1)) == before
    assert [row.number for row in again.rounds(5)] == [1]
    assert given(again, token, upload).status == "repeat"
    assert given(again, token, counting.upload(2)).status == "new"
    again.close()


def test_one_server_at_a_time(opened, database_url, federation):
    opened.claim()  # twice is once
    second = open_store(database_url, federation)
    with pytest.raises(FederationError, match="is served by another process already"):
        second.claim()
    opened.close()
    second.claim()
    second.close()


def test_a_claim_ends_with_its_process(database_url, federation, monkeypatch):
    open_store(database_url, federation).close()
    program = (
        "import os, sys\n"
        "from rmab.service.database import connect\n"
        "database = connect(sys.argv[1], create=False)\n"
        "database.claim()\n"
        "print('claimed', flush=True)\n"
        "sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, database_url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "claimed\n"
        opened = open_store(database_url, federation)
        with pytest.raises(FederationError, match="is served by another process already"):
            opened.claim()
        holder.kill()
        holder.wait()
    monkeypatch.undo()
    opened.claim()
    opened.close()


def test_another_federation_s_database_is_refused(database_url, federation):
    open_store(database_url, federation).close()
    open_store(database_url, replace(federation, deadline=5.0, seed=9)).close()
    for other in (
        replace(federation, name="other"),
        replace(federation, plays=1),
        replace(federation, arms=federation.arms[:3]),
        replace(federation, policy="fedtswi"),
    ):
        with pytest.raises(FederationError, match="has the counts of federation 'spectrum'"):
            open_store(database_url, other)


def test_no_federation_yet(database_url, federation):
    with pytest.raises(FederationError, match=r"rmab server` makes one"):
        open_store(database_url, federation, create=False)


def test_a_newer_schema_is_refused(database_url, federation):
    opened = open_store(database_url, federation)
    opened.database.run("UPDATE meta SET value = '7' WHERE name = 'schema'")
    opened.close()
    with pytest.raises(
        FederationError, match=r"has schema version 7, but this rmab knows versions up to 1"
    ):
        open_store(database_url, federation)


def test_foreign_tables_are_refused(database_url, federation):
    database = connect(database_url, create=True)
    database.run("CREATE TABLE recipes (name TEXT)")
    database.close()
    with pytest.raises(FederationError, match="has tables that are no federation's"):
        open_store(database_url, federation)


def test_a_foreign_table_of_the_same_name_is_refused(database_url, federation):
    database = connect(database_url, create=True)
    database.run("CREATE TABLE meta (title TEXT)")
    database.close()
    with pytest.raises(FederationError, match="cannot be prepared"):
        open_store(database_url, federation)


def with_version_2(monkeypatch, step):
    """A program that knows one version more."""
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, step))


def add_site(database):
    """A migration as there may be one."""
    database.run("ALTER TABLE agents ADD COLUMN site TEXT")
    database.run("UPDATE agents SET site = 'old'")


def test_migration_of_version_1(database_url, federation, monkeypatch):
    opened = open_store(database_url, federation)
    token = enrolled(opened)
    upload = Counting(federation.shape).upload(1)
    given(opened, token, upload)
    opened.close()
    with_version_2(monkeypatch, add_site)
    again = open_store(database_url, federation)
    assert schema.version_of(again.database) == 2
    assert again.database.rows("SELECT name, site FROM agents") == [("alice", "old")]
    assert given(again, token, upload).status == "repeat"
    again.claim()  # the migration's own claim was given back and can be taken
    again.close()
    open_store(database_url, federation).close()
    monkeypatch.undo()
    with pytest.raises(FederationError, match="has schema version 2, but this rmab knows"):
        open_store(database_url, federation)


def test_a_new_database_has_the_newest_version(database_url, federation, monkeypatch):
    with_version_2(monkeypatch, add_site)
    opened = open_store(database_url, federation)
    assert schema.version_of(opened.database) == 2
    enrolled(opened)
    assert opened.database.rows("SELECT site FROM agents") == [(None,)]
    opened.close()


def test_a_failed_migration_changes_nothing(database_url, federation, monkeypatch):
    opened = open_store(database_url, federation)
    enrolled(opened)
    opened.close()

    def broken(database):
        add_site(database)
        raise ZeroDivisionError

    with_version_2(monkeypatch, broken)
    with pytest.raises(FederationError, match="cannot be prepared: ZeroDivisionError"):
        open_store(database_url, federation)
    monkeypatch.undo()
    opened = open_store(database_url, federation)
    assert schema.version_of(opened.database) == 1
    assert [row.name for row in opened.agents()] == ["alice"]
    opened.claim()
    opened.close()


def test_no_migration_under_a_running_server(opened, database_url, federation, monkeypatch):
    with_version_2(monkeypatch, add_site)
    with pytest.raises(FederationError, match="is served by another process already"):
        open_store(database_url, federation)
    assert schema.version_of(opened.database) == 1


def test_servers_that_start_at_once_make_one_database(database_url, federation):
    def start(_):
        open_store(database_url, federation).close()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(start, range(6)))


# ------------------------------------------------------------------------------- addresses, SQLite


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://root:hunter2@host/db", "must be a path, sqlite:///PATH or postgresql://"),
        ("sqlite://relative.db", "with three slashes"),
        ("sqlite:///", "must be a file on a disk, got ''"),
        ("sqlite:///:memory:", "must be a file on a disk"),
        (":memory:", "must be a file on a disk"),
        ("file:x?mode=memory", "must be a file on a disk"),
        ("", "must be a file on a disk, got ''"),
        ("postgresql://alice:hunt@er2@:x:/db?nonsense=1", "cannot be read as one"),
        ("postgresql://alice:hunter2@127.0.0.1:1/db", "cannot be reached"),
    ],
)
def test_addresses_that_cannot_be_used(url, message, federation):
    with pytest.raises(FederationError, match=message) as caught:
        open_store(url, federation)
    assert "hunt" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_both_forms_of_a_path(tmp_path, federation):
    open_store(f"sqlite:///{tmp_path}/a b%20?.db", federation).close()
    assert (tmp_path / "a b%20?.db").exists()
    open_store(f"{tmp_path}/a b%20?.db", federation, create=False).close()
    assert default_database(tmp_path / "spectrum.toml") == str(tmp_path / "spectrum.db")


def test_files_that_cannot_be_databases(tmp_path, federation):
    for path, message in (
        (tmp_path / "no" / "x.db", "No such file or directory"),
        (tmp_path, "cannot be opened"),
    ):
        with pytest.raises(FederationError, match=message):
            open_store(str(path), federation)
    (tmp_path / "text.db").write_text("not a database " * 100)
    with pytest.raises(FederationError, match="cannot be opened: file is not a database"):
        open_store(str(tmp_path / "text.db"), federation)


def test_only_the_owner_can_read_the_files(tmp_path, federation):
    before = os.umask(0)
    try:
        opened = open_store(str(tmp_path / "x.db"), federation)
        opened.claim()
        enrolled(opened)
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(("x.db", "x.db-wal", "x.db-shm", "x.db.lock"), 0o600)
    opened.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.db", "x.db.lock"]


def test_sqlite_is_set_to_keep_what_it_commits(tmp_path, federation):
    opened = open_store(str(tmp_path / "x.db"), federation)
    asked = {
        name: opened.database.rows(f"PRAGMA {name}")[0][0]
        for name in ("journal_mode", "synchronous", "foreign_keys")
    }
    assert asked == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
    opened.close()


def test_secrets_are_not_in_the_file(tmp_path, federation):
    opened = open_store(str(tmp_path / "x.db"), federation)
    token, key_id, secret_hash = make_token()
    opened.enroll("alice", "agent", key_id, secret_hash, 1.0)
    opened.close()
    content = (tmp_path / "x.db").read_bytes()
    assert key_id.encode() in content
    assert token.split("_", 2)[2].encode() not in content


def test_a_full_disk_loses_only_what_was_not_committed(tmp_path, federation):
    opened = open_store(str(tmp_path / "x.db"), federation)
    opened.claim()
    token = enrolled(opened)
    counting = Counting(federation.shape)
    given(opened, token, counting.upload(1))
    ((pages,),) = opened.database.rows("PRAGMA page_count")
    opened.database.rows(f"PRAGMA max_page_count = {pages}")
    filling = [Counting(federation.shape, f"life {n}").upload(1) for n in range(50)]

    def fill():
        for upload in filling:
            given(opened, token, upload)

    with pytest.raises(StorageError, match="database or disk is full"):
        fill()
    kept = opened.totals()
    opened.database.rows("PRAGMA max_page_count = 1000000")
    fill()
    assert opened.totals() == (51, 51 * 3)
    assert 1 <= kept.uploads < 51
    opened.close()


def test_a_lock_that_is_not_granted_is_a_storage_error(tmp_path, federation, monkeypatch):
    monkeypatch.setattr("rmab.service.database.BUSY_SECONDS", 0.05)
    opened = open_store(str(tmp_path / "x.db"), federation)
    other = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError, match="database is locked"):
        enrolled(opened)
    other.execute("ROLLBACK")
    other.close()
    enrolled(opened)
    opened.close()


def test_uploads_need_a_transaction_and_there_is_one_at_a_time(opened, federation):
    with pytest.raises(RuntimeError, match="inside a transaction"):
        opened.accept("alice", Counting(federation.shape).upload(1), 1.0)
    with opened.transaction(), pytest.raises(RuntimeError, match="open already"):
        opened.transaction().__enter__()
