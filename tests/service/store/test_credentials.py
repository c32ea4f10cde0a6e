"""Credentials in the store, the same on both databases: lanes, owners, what is remembered."""

import pytest

from rmab.errors import FederationError
from rmab.service.store.credentials import Sighting
from rmab.service.store.store import open_store
from tests.service.support.storing import enrolled


def rows_read(monkeypatch, store):
    """Statements that read, from now on."""
    read, rows = [], store.database.rows

    def counted(sql, values=()):
        read.append(sql)
        return rows(sql, values)

    monkeypatch.setattr(store.database, "rows", counted)
    return read


def test_only_agents_have_lanes_and_they_follow_one_another(opened):
    kinds = ("viewer", "agent", "admin", "agent", "viewer", "agent")
    lanes = [
        opened.enroll(f"{role}{n}", role, f"key{n}", b"x" * 32, 1.0) for n, role in enumerate(kinds)
    ]
    assert lanes == [-1, 0, -1, 1, -1, 2]
    opened.revoke("agent5", 2.0)
    assert opened.enroll("agent5", "agent", "again", b"x" * 32, 3.0) == 2
    with pytest.raises(FederationError, match="agent5 is enrolled already; revoke it first"):
        opened.enroll("agent5", "admin", "more", b"x" * 32, 3.0)
    opened.revoke("agent5", 4.0)
    with pytest.raises(FederationError, match="was enrolled as agent; a name keeps its role"):
        opened.enroll("agent5", "admin", "more", b"x" * 32, 5.0)


def test_an_owner_has_its_agents_that_are_not_revoked(opened):
    for n, (role, owner) in enumerate(
        (("agent", "acme"), ("agent", "acme"), ("agent", None), ("admin", "acme"))
    ):
        opened.enroll(f"name{n}", role, f"key{n}", b"x" * 32, 1.0, owner)
    owned = opened.credentials.owned
    assert [owned(owner) for owner in ("acme", "name2", "name0", "nobody")] == [2, 1, 0, 0]
    with opened.transaction():
        assert owned("acme") == 2
        opened.revoke("name1", 2.0)
        assert owned("acme") == 1
        opened.enroll("name4", "agent", "key4", b"x" * 32, 3.0, "acme")
        assert owned("acme") == 2
    assert owned("acme") == 2
    assert opened.credentials.owners() == {
        "name0": "acme",
        "name1": "acme",
        "name2": "name2",
        "name4": "acme",
    }


def test_a_credential_is_read_once_until_any_is_changed(opened, monkeypatch):
    key, _ = enrolled(opened)
    with opened.transaction():
        known = opened.credentials.credential(key)
    assert known is not None
    read = rows_read(monkeypatch, opened)
    with opened.transaction():
        assert opened.credentials.credential(key) is known
        assert opened.credentials.owned("alice") == 1
        before = len(read)
        assert opened.credentials.credential(key) is known
        assert opened.credentials.owned("alice") == 1
        assert len(read) == before  # nothing of it is asked again in a transaction
    assert not any("key_id" in sql for sql in read)
    enrolled(opened, "bob")
    with opened.transaction():
        assert opened.credentials.credential(key) == known
        assert opened.credentials.owned("bob") == 1
    assert any("key_id" in sql for sql in read)


def test_a_revoked_credential_is_not_remembered_within_the_transaction(opened):
    (alice, _), (bob, _) = enrolled(opened), enrolled(opened, "bob")
    with opened.transaction():
        known, other = opened.credentials.credential(alice), opened.credentials.credential(bob)
        assert not known.revoked
        opened.revoke("alice", 2.0)
        assert opened.credentials.credential(alice).revoked
        assert opened.credentials.credential(bob) == other
        assert opened.credentials.credential("nothing") is None


def test_recent_credentials_are_as_old_as_the_counter_that_was_read(opened, monkeypatch):
    now = 100.0
    monkeypatch.setattr("rmab.service.store.credentials.time.monotonic", lambda: now)
    key, _ = enrolled(opened)
    recent = opened.credentials.recent
    opened.credentials.forget()
    assert recent(key, 1e9) is None
    with opened.transaction():
        known = opened.credentials.credential(key)
    now = 105.0
    assert recent(key, 5.0) is known  # up to the very second
    assert recent(key, 4.9) is None
    assert recent("another", 5.0) is None
    with opened.transaction():
        opened.credentials.credential(key)
    now = 110.0
    assert recent(key, 5.0) is known
    with opened.transaction():
        opened.revoke("alice", 2.0)
    assert recent(key, 5.0) is None


def test_others_changes_are_noticed_in_the_next_transaction(opened, database_url, federation):
    key, _ = enrolled(opened)
    with opened.transaction():
        assert not opened.credentials.credential(key).revoked
        assert opened.credentials.owned("alice") == 1  # both are remembered from now on
    other = open_store(database_url, federation, create=False)
    other.revoke("alice", 3.0)
    other.close()
    with opened.transaction():
        assert opened.credentials.owned("alice") == 0
        assert opened.credentials.credential(key).revoked


def test_a_sighting_adds_refusals_and_keeps_the_round_that_it_does_not_tell(opened):
    enrolled(opened, "a")
    enrolled(opened, "b")
    opened.credentials.sighted([Sighting("a", 5.0, 3, 2), Sighting("nobody", 5.0, 3, 2)])
    opened.credentials.sighted([Sighting("a", 6.0, None, 1)])
    a, b = opened.agents()
    assert (a.last_seen, a.last_round, a.refused) == (6.0, 3, 3)
    assert (b.last_seen, b.last_round, b.refused) == (None, None, 0)
