"""Counts of an agent that are taken out, the same on both databases: all of them, for good."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from rmab.protocol.config import Federation
from rmab.service.server.uploads import receive
from rmab.service.store import schema
from rmab.service.store.store import Store, open_store
from tests.service.support.counting import Counting
from tests.service.support.storing import (
    enrolled,
    enrolled_before,
    given,
    given_before,
    refused,
    some_round,
)

DAY = 86_400.0


def counted(store: Store) -> tuple[Any, ...]:
    """All that plans are made from, as plain values."""
    merged, by_lane = store.merged(), store.counts_by_lane()
    return (
        merged.counts.tolist(),
        merged.visits.tolist(),
        merged.agents,
        store.uploads.totals(),
        by_lane.counts.tolist(),
        by_lane.visits.tolist(),
    )


def played(store: Store, federation: Federation, names: str) -> dict[str, tuple[str, bytes]]:
    """Three agents, of which those of these names have given something, in two incarnations."""
    tokens = {name: enrolled(store, name) for name in "abc"}
    for name in names:
        for life in ("one", "two"):
            counting = Counting(federation.shape, f"{name} {life}")
            for sequence in (1, 2):
                given(store, tokens[name], counting.upload(sequence))
    return tokens


def test_it_is_as_if_the_agent_had_never_reported(opened, database_url, federation, tmp_path):
    without = open_store(str(tmp_path / "without.db"), federation)
    played(without, federation, "ac")
    played(opened, federation, "abc")
    assert counted(opened) != counted(without)
    erasure = opened.erase("b", 50.0)
    assert (erasure.incarnations, erasure.uploads, erasure.slots) == (2, 4, 12)
    assert counted(opened) == counted(without)
    assert "b" not in opened.uploads.tallies()
    for table in ("incarnations", "uploads"):
        assert opened.database.rows(f"SELECT agent FROM {table} WHERE agent = 'b'") == []
    rows = {row.name: row for row in opened.agents()}
    assert (rows["b"].uploads, rows["b"].slots, rows["b"].forgotten) == (0, 0, 50.0)
    assert (rows["a"].uploads, rows["a"].forgotten) == (4, None)
    again = open_store(database_url, federation, create=False)
    assert counted(again) == counted(without)
    again.close()
    without.close()


def test_forgotten_counts_do_not_come_back_but_new_ones_may(opened, federation):
    token = enrolled(opened)
    old = Counting(federation.shape, "old")
    first = old.upload(1)
    given(opened, token, first)
    opened.erase("alice", 5.0)
    for upload in (first, old.upload(2)):
        error = refused(opened, token, upload)
        assert (error.status, error.code) == (409, "forgotten")
    assert opened.uploads.totals() == (0, 0)
    new = Counting(federation.shape, "new").upload(1)
    assert given(opened, token, new) == "new"
    np.testing.assert_array_equal(opened.merged().counts, new.counts)
    # Another agent's incarnation of the same name is another one.
    assert given(opened, enrolled(opened, "bob"), first) == "new"


def test_incarnations_that_have_ended_are_forgotten_too(opened, federation, tmp_path):
    """Their counts are in a sum, their names and digests elsewhere."""
    token = enrolled(opened)
    old, new = (Counting(federation.shape, name) for name in ("old", "new"))
    opened.open_round(some_round(1, federation))
    last = old.upload(1, round=1)
    given(opened, token, last, round=1, now=10.0)
    opened.close_round(1, 11.0, "all", 1, 3, 0.5)
    opened.open_round(some_round(9, federation))
    given(opened, token, new.upload(1, round=9), round=9, now=10.0 + 2 * DAY)
    assert opened.tidy(["alice"], 10.0 + 2 * DAY) == []
    assert given(opened, token, last, round=9) == "repeat"
    assert len(opened.database.rows("SELECT agent FROM folded")) == 1
    erasure = opened.erase("alice", 10.0 + 3 * DAY)
    assert (erasure.incarnations, erasure.uploads, erasure.slots) == (2, 2, 6)
    assert opened.uploads.totals() == (0, 0)
    merged = opened.merged()
    assert (merged.agents, int(merged.counts.sum())) == (0, 0)
    assert opened.counts_by_agent() == {}
    for table in ("ended", "incarnations", "uploads"):
        assert opened.database.rows(f"SELECT agent FROM {table}") == []
    for upload in (last, old.upload(2, round=9), new.upload(2, round=9)):
        assert refused(opened, token, upload, round=9).code == "forgotten"


def test_another_process_takes_counts_out_under_a_server(opened, database_url, federation):
    """The server remembers sums and last uploads; both must go."""
    tokens = played(opened, federation, "ab")
    with opened.transaction():
        opened.merged()  # remembered from now on
    other = open_store(database_url, federation, create=False)
    other.erase("b", 9.0)
    other.close()
    with opened.transaction():
        assert opened.uploads.totals() == (4, 12)
        assert opened.merged().agents == 1
    late = Counting(federation.shape, "b one")
    late.upload(1)
    late.upload(2)
    assert refused(opened, tokens["b"], late.upload(3)).code == "forgotten"
    assert opened.uploads.totals() == (4, 12)


def test_nothing_is_taken_out_while_an_upload_is_decided(opened, database_url, federation):
    """What was read before would be written after, and bring the counts back."""
    token = enrolled(opened)
    counting = Counting(federation.shape)
    given(opened, token, counting.upload(1))

    def erase():
        other = open_store(database_url, federation, create=False)
        try:
            return other.erase("alice", 9.0)
        finally:
            other.close()

    with ThreadPoolExecutor(1) as pool:
        with opened.transaction():
            assert opened.uploads.record("alice", counting.incarnation).sequence == 1
            erasing = pool.submit(erase)
            with pytest.raises(TimeoutError):
                erasing.result(0.2)
            assert receive(opened, *token, counting.upload(2), 1, 2, 3.0) == "new"
        assert erasing.result(30)[4:7] == (1, 2, 6)
    assert opened.database.rows("SELECT agent FROM incarnations") == []
    with opened.transaction():
        assert opened.uploads.totals() == (0, 0)


def test_what_was_forgotten_is_audited_once(opened, federation):
    played(opened, federation, "ab")
    opened.open_round(some_round(3, federation))
    assert opened.erased() == (0, 0, 0.0)
    paid = float((opened.counts_by_lane().visits[1] * federation.rewards).sum())
    assert paid > 0
    opened.erase("b", 7.0, "boss")
    (row,) = opened.audit()
    assert row == (1, "b", 7.0, 3, 2, 4, 12, pytest.approx(paid), "boss")
    assert opened.audit() == []
    assert opened.erased() == (1, 12, pytest.approx(paid))
    opened.close_round(3, 8.0, "all", 2, 24, 0.5)
    opened.open_round(some_round(4, federation))
    assert opened.erased() == (1, 12, 0.0)  # what was paid was of round 3
    # Who has given nothing is forgotten already; who is unknown, or no agent, cannot be.
    assert opened.erase("b", 9.0)[4:] == (0, 0, 0, 0.0, None)
    assert opened.audit() == []
    enrolled(opened, "boss", "admin")
    assert opened.erase("boss", 9.0) is None
    assert opened.erase("nobody", 9.0) is None


def test_a_database_from_before_can_forget(database_url, federation, monkeypatch):
    monkeypatch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:1])
    old = open_store(database_url, federation)
    assert schema.version_of(old.database) == 1
    token = enrolled_before(old)
    upload = Counting(federation.shape).upload(1)
    given_before(old, upload)
    old.close()
    monkeypatch.undo()
    opened = open_store(database_url, federation)
    assert schema.version_of(opened.database) == len(schema.MIGRATIONS)
    assert given(opened, token, upload) == "repeat"
    credential = opened.credentials.credential(token[0])
    assert credential is not None
    assert credential.since == 1.0
    assert opened.agents()[0].forgotten is None
    opened.erase("alice", 3.0)
    assert opened.uploads.totals() == (0, 0)
    assert refused(opened, token, upload).code == "forgotten"
    opened.close()
