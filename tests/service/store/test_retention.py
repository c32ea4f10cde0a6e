"""What the database drops of uploads, the same on both databases: nothing that still matters."""

import contextlib
from dataclasses import replace

import numpy as np
import pytest

from rmab.errors import StorageError
from rmab.service.store import schema
from rmab.service.store.limits import StoreLimits
from rmab.service.store.store import open_store
from tests.service.support.counting import Counting
from tests.service.support.storing import enrolled, enrolled_before, given, refused, some_round

DAY = 86_400.0


@pytest.fixture
def playing(opened, federation):
    """A store with an agent, and rounds that can be moved on to."""

    class Playing:
        store = opened
        token = enrolled(opened)
        number = 0

        def round(self, number):
            """Go on to a round."""
            with opened.transaction():
                while self.number < number:
                    if self.number:
                        opened.close_round(self.number, 1.0, "all", 1, 3, None)
                    self.number += 1
                    opened.open_round(some_round(self.number, federation))

        def upload(self, counting, sequence, day, **more):
            """An upload of the open round, on some day; as it was sent."""
            upload = counting.upload(sequence, round=self.number, **more)
            assert given(opened, self.token, upload, self.number, day * DAY) == "new"
            return upload

        def life(self, name):
            return Counting(federation.shape, name)

        def refused(self, upload):
            error = refused(opened, self.token, upload, self.number)
            return error.status, error.code

        def count(self, table):
            return opened.database.rows(f"SELECT COUNT(*) FROM {table}")[0][0]

    made = Playing()
    made.round(1)
    return made


def state(store):
    """All that counts tell, as it is remembered and as a new store reads it."""
    return store.uploads.totals(), store.agents(), [part.tolist() for part in store.merged()[:2]]


def test_an_ended_incarnation_is_folded_and_nothing_that_is_told_changes(
    playing, database_url, federation
):
    store, old, new = playing.store, playing.life("old"), playing.life("new")
    for sequence in (1, 2):
        last = playing.upload(old, sequence, 1.0)
    playing.upload(new, 1, 1.5)
    playing.round(5)
    assert not store.tidy(["alice"], 9 * DAY)
    assert playing.count("incarnations") == 2  # half a day is no end
    playing.upload(new, 2, 2.0)
    before = state(store)
    assert store.tidy(["alice"], 9 * DAY) == []
    assert playing.count("incarnations") == playing.count("folded") == playing.count("ended") == 1
    assert state(store) == before
    assert store.uploads.record("alice", old.incarnation) is None
    store.close()
    again = open_store(database_url, federation)
    assert state(again) == before
    kept = again.uploads.record("alice", new.incarnation)
    assert kept is not None
    assert np.array_equal(again.merged().counts, last.counts + kept.counts)
    again.close()


def test_what_comes_of_an_ended_incarnation_gets_the_answers_of_the_protocol(playing):
    store, old, new = playing.store, playing.life("old"), playing.life("new")
    first, last = playing.upload(old, 1, 1.0), playing.upload(old, 3, 1.0)
    unsent = old.upload(4, round=1)
    playing.round(4)
    playing.upload(new, 1, 3.0)
    store.tidy(["alice"], 3 * DAY)
    before = state(store)
    assert given(store, playing.token, last, 4) == "repeat"  # its answer was lost long ago
    assert playing.refused(replace(last, length=0)) == (409, "conflict")
    assert playing.refused(first) == (409, "backwards")
    for sent in (unsent, replace(unsent, round=4, length=0)):
        assert playing.refused(sent) == (409, "ended")
    assert state(store) == before
    assert playing.refused(playing.life("other").upload(1, round=3)) == (410, "round")
    playing.upload(playing.life("other"), 1, 3.0)  # a new one is welcome


def test_an_incarnation_that_ended_long_ago_is_not_taken_for_a_new_one(playing):
    store, old, new = playing.store, playing.life("old"), playing.life("new")
    last = playing.upload(old, 1, 0.0)
    playing.round(4)
    playing.upload(new, 1, 2.0)
    store.tidy(["alice"], 3 * DAY)
    playing.upload(new, 2, 32.9)
    store.tidy(["alice"], 40 * DAY)
    playing.upload(new, 3, 33.1)
    store.tidy(["alice"], 40 * DAY)
    assert playing.count("ended") == 1  # the round that was open then still is
    playing.round(5)
    playing.upload(new, 4, 33.2)
    before = state(store)
    store.tidy(["alice"], 40 * DAY)
    assert playing.count("ended") == 0
    assert store.uploads.floor("alice") == 4
    # It was told of no round after 4, and were it told of one now it would be counted twice.
    for sent in (last, replace(last, sequence=2, round=4, length=0)):
        assert playing.refused(sent) == (409, "ended")
    assert state(store) == before
    playing.upload(playing.life("other"), 1, 33.3)
    assert playing.refused(playing.life("late").upload(1, round=6)) == (410, "round")


def test_the_last_incarnation_of_an_agent_stays_however_long_it_is_away(playing):
    store, one = playing.store, playing.life("one")
    first, last = playing.upload(one, 1, 1.0), playing.upload(one, 2, 1.0)
    playing.round(9)
    store.tidy(["alice"], 4000 * DAY)
    assert given(store, playing.token, last, 9) == "repeat"
    assert playing.refused(first) == (409, "backwards")
    late = playing.upload(one, 3, 4000.0)
    assert store.uploads.totals() == (3, late.slots)


def test_who_plays_a_long_episode_is_not_ended_by_what_its_last_process_left(playing):
    """The rest of an earlier incarnation may arrive after the first upload of the new one."""
    store, old, new = playing.store, playing.life("old"), playing.life("new")
    playing.upload(old, 1, 0.0)
    playing.upload(new, 1, 2.0)
    playing.upload(old, 2, 2.1)
    playing.round(4)
    store.tidy(["alice"], 9 * DAY)
    assert playing.count("ended") == 0
    playing.upload(new, 2, 9.0)
    store.tidy(["alice"], 9 * DAY)
    assert playing.refused(old.upload(3, round=4)) == (409, "ended")
    playing.upload(new, 3, 9.1)


def test_a_clock_that_was_ahead_ends_nothing(playing):
    store, odd, live = playing.store, playing.life("odd"), playing.life("live")
    playing.upload(odd, 1, 900.0)
    playing.upload(live, 1, 1.0)
    playing.round(4)
    store.tidy(["alice"], 30 * DAY)
    assert playing.count("incarnations") == 2
    playing.upload(live, 2, 31.0)


def test_the_ledger_keeps_what_may_come_again(playing):
    store, one = playing.store, playing.life("one")
    hour = 1 / 24
    uploads = [playing.upload(one, sequence, sequence * hour) for sequence in (1, 2, 3)]
    playing.round(2)
    store.tidy(["alice"], 9 * DAY)
    assert playing.count("uploads") == 3  # a restart in round 2 asks who reported in round 1
    assert store.awaited(2)[0] == {"alice"}
    playing.round(3)
    store.tidy(["alice"], 2.5 * hour * DAY)
    assert playing.count("uploads") == 2  # those of the last hour, and the last one
    assert [given(store, playing.token, known, 3) for known in uploads[1:]] == ["repeat"] * 2
    assert playing.refused(uploads[0]) == (409, "backwards")
    store.tidy(["alice"], 9 * DAY)
    assert playing.count("uploads") == 1
    assert given(store, playing.token, uploads[2], 3) == "repeat"
    assert store.uploads.totals() == (3, uploads[2].slots)


def test_many_are_folded_bit_by_bit(database_url, federation, playing):
    store = playing.store
    names = [f"life {n}" for n in range(20)]
    for n, name in enumerate(names):
        playing.upload(playing.life(name), 1, float(n))
    playing.round(4)
    before = state(store)
    store.close()
    few = open_store(database_url, federation, limits=StoreLimits(fold_rows=6))
    few.claim()
    turns = 0
    while few.tidy(few.retention.agents(), 99 * DAY):
        turns += 1
        assert state(few) == before
    assert turns == 3
    ((left, folded, uploads),) = few.database.rows(
        "SELECT (SELECT COUNT(*) FROM incarnations), incarnations, uploads FROM folded"
    )
    assert (left, folded, uploads) == (1, 19, 19)
    assert state(few) == before
    few.close()


def test_a_rollback_unfolds(playing):
    store, old, new = playing.store, playing.life("old"), playing.life("new")
    playing.upload(old, 1, 1.0)
    playing.upload(new, 1, 3.0)
    playing.round(4)
    before = state(store)
    with contextlib.suppress(StorageError), store.transaction():
        store.tidy(["alice"], 9 * DAY)
        assert playing.count("incarnations") == 1
        raise StorageError("not today")
    assert playing.count("incarnations") == 2
    assert state(store) == before
    assert store.uploads.record("alice", old.incarnation) is not None


def test_rounds_closed_long_ago_are_dropped_and_their_slots_stay(database_url, federation):
    store = open_store(database_url, federation, limits=StoreLimits(kept_rounds=3))
    for number in range(1, 9):
        if number > 1:
            store.close_round(number - 1, 1.0, "all", 1, 10 + number, None)
        store.open_round(some_round(number, federation))
    before = store.closed_slots()
    store.drop_rounds()
    assert [row.number for row in store.rounds(99)] == [8, 7, 6, 5]
    assert store.closed_slots() == before == sum(range(12, 19))
    store.drop_rounds()
    assert store.closed_slots() == before
    store.close()


def test_a_database_of_version_1_is_brought_on(database_url, federation, monkeypatch):
    known = schema.MIGRATIONS
    monkeypatch.setattr(schema, "MIGRATIONS", known[:1])
    old = open_store(database_url, federation)
    assert "folded" not in old.database.tables()
    token = enrolled_before(old)
    old.database.run(
        "INSERT INTO incarnations (agent, incarnation, sequence, round, slots, uploads, updated, "
        "visits, counts) VALUES ('alice', ?, 1, 1, 3, 1, 5.0, ?, ?)",
        (32 * "a", *(np.ones(n, "<i8").tobytes() for n in (8, 16 * federation.shape.kinds))),
    )
    old.database.run(
        "INSERT INTO uploads (agent, incarnation, sequence, digest, round, length, received) "
        "VALUES ('alice', ?, 1, ?, 1, 3, 5.0)",
        (32 * "a", 32 * b"d"),
    )
    old.close()
    monkeypatch.undo()
    store = open_store(database_url, federation)
    assert schema.version_of(store.database) == len(known)
    assert store.uploads.totals() == (1, 3)
    store.open_round(some_round(4, federation))
    upload = Counting(federation.shape).upload(1, round=4)
    assert given(store, token, upload, 4, 3 * DAY) == "new"
    before = state(store)
    store.tidy(["alice"], 9 * DAY)
    assert store.uploads.ended("alice", 32 * "a") == (1, 32 * b"d")
    assert state(store) == before
    store.close()


def test_an_incarnation_ends_after_exactly_a_day_and_two_rounds(playing):
    store, old, new = playing.store, playing.life("old"), playing.life("new")
    playing.upload(old, 1, 1.0)
    playing.upload(new, 1, 2.0 - 1e-9)
    playing.round(2)
    now = 2 * DAY
    playing.upload(playing.life("newest"), 1, 2.0)
    assert store.tidy(["alice"], now) == []
    assert playing.count("ended") == 0  # its round is the last but one
    playing.round(3)
    assert store.tidy(["alice"], now - 1.0) == []
    assert playing.count("ended") == 0  # the upload of the day after is one of the future
    assert store.tidy(["alice"], now) == []
    assert playing.count("ended") == 1
    assert store.ended("alice", old.incarnation) is not None
    assert store.ended("alice", new.incarnation) is None


def test_an_ended_incarnation_is_known_for_exactly_thirty_days(playing):
    store, new = playing.store, playing.life("new")
    playing.upload(playing.life("old"), 1, 0.0)
    playing.round(3)
    playing.upload(new, 1, 1.0)
    store.tidy(["alice"], 3 * DAY)
    assert (playing.count("ended"), store.floor("alice")) == (1, 0)
    playing.round(4)
    playing.upload(new, 2, 33.0 - 1e-9)
    store.tidy(["alice"], 33 * DAY)
    assert (playing.count("ended"), store.floor("alice")) == (1, 0)
    playing.upload(new, 3, 33.0)
    store.tidy(["alice"], 33 * DAY)
    assert (playing.count("ended"), store.floor("alice")) == (0, 3)
    assert (store.floor("bob"), store.ended("bob", new.incarnation)) == (0, None)


def test_an_upload_is_known_for_an_hour_not_longer(playing):
    store, one = playing.store, playing.life("one")
    first = playing.upload(one, 1, 1.0)
    playing.upload(one, 2, 1.0)
    playing.round(3)
    store.tidy(["alice"], DAY + 3599.0)
    assert given(store, playing.token, first, 3) == "repeat"
    store.tidy(["alice"], DAY + 3600.0)
    assert playing.refused(first) == (409, "backwards")


def test_nothing_is_left_where_as_many_end_as_are_folded_in_one_go(database_url, federation):
    store = open_store(database_url, federation, limits=StoreLimits(fold_rows=2))
    store.claim()
    token = enrolled(store)
    store.open_round(some_round(9, federation))
    lives = [Counting(federation.shape, str(n)) for n in range(4)]
    for day, life in enumerate(lives):
        store.database.run("DELETE FROM rounds")
        store.open_round(some_round(1 if day < 3 else 9, federation))
        number = store.open_number()
        upload = life.upload(1, round=number)
        assert given(store, token, upload, number, 3 * day * DAY) == "new"
    assert store.tidy(["alice", "bob"], 9 * DAY) == ["alice"]
    ((incarnations, last, at),) = store.database.rows(
        "SELECT incarnations, round, updated FROM folded"
    )
    assert (incarnations, last, at) == (2, 1, 3 * DAY)
    assert store.tidy(["alice"], 9 * DAY) == []
    assert store.database.rows("SELECT incarnations, updated FROM folded") == [(3, 6 * DAY)]
    (row,) = store.agents()
    assert (row.last_seen, row.uploads, row.slots) == (9 * DAY, 4, 12)
    store.close()
