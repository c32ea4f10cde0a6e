"""Uploads in the store, the same on both databases: what is counted, once, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from rmab.errors import ProtocolError
from rmab.protocol.config import KnownArm
from rmab.protocol.growth import CREDIT_SECONDS, Credit
from rmab.protocol.shape import Upload
from rmab.service.http.tokens import make_token
from rmab.service.server.uploads import UploadRules, receive
from rmab.service.store.credentials import Sighting
from rmab.service.store.limits import StoreLimits
from rmab.service.store.store import open_store
from rmab.service.store.uploads import Pace
from tests.service.support.counting import Counting
from tests.service.support.storing import enrolled, given, refused, some_round


def test_new_repeat_conflict_backwards(opened, federation):
    token = enrolled(opened)
    counting = Counting(federation.shape)
    first = counting.upload(1)
    assert given(opened, token, first) == "new"
    assert opened.uploads.totals() == (1, 3)
    third = counting.upload(3)
    assert given(opened, token, third) == "new"
    assert opened.uploads.totals() == (2, 6)
    for known in (first, third):
        assert given(opened, token, known) == "repeat"
        assert opened.uploads.totals() == (2, 6)
        assert np.array_equal(opened.merged().visits, third.visits)
    for known in (first, third):
        error = refused(opened, token, replace(known, length=known.length - 1))
        assert (error.status, error.code) == (409, "conflict")
    error = refused(opened, token, counting.upload(2))
    assert (error.status, error.code) == (409, "backwards")
    assert str(error) == "sequence must be above 3, got 2"
    assert opened.uploads.totals() == (2, 6)
    assert opened.uploads.record("alice", counting.incarnation).sequence == 3
    assert opened.uploads.digest("alice", counting.incarnation, 1) == first.digest
    assert opened.uploads.digest("alice", counting.incarnation, 2) is None


def test_only_the_open_round_takes_uploads_but_a_repeat_is_always_known(opened, federation):
    token = enrolled(opened)
    counting = Counting(federation.shape)
    kept = counting.upload(1, round=4)
    given(opened, token, kept, round=4)
    assert given(opened, token, kept, round=9) == "repeat"
    for sent in (3, 4, 6):
        error = refused(opened, token, counting.upload(2, round=sent), round=5)
        assert (error.status, error.code, error.extra) == (410, "round", {"round": 5})
        assert str(error) == f"round must be the open one, 5, got {sent}"
    late = counting.upload(3, round=5)
    assert given(opened, token, late, round=5) == "new"
    assert opened.uploads.totals() == (2, late.slots)


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
    assert given(opened, token, more) == "new"


def test_agents_do_not_share_incarnations(opened, federation):
    alice, bob = enrolled(opened, "alice"), enrolled(opened, "bob")
    upload = Counting(federation.shape).upload(1)
    assert given(opened, alice, upload) == "new"
    assert given(opened, bob, upload) == "new"
    for name in ("alice", "bob"):
        assert opened.uploads.record(name, upload.incarnation).slots == upload.slots
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
            assert receive(opened, *token, upload, 1, 2, 2.0) == "new"
            assert receive(opened, *token, upload, 1, 2, 2.0) == "repeat"
            assert opened.uploads.record("alice", counting.incarnation).sequence == upload.sequence
            assert (
                opened.uploads.digest("alice", counting.incarnation, upload.sequence)
                == upload.digest
            )
        with pytest.raises(ProtocolError, match="another upload was accepted as sequence 2"):
            receive(opened, *token, replace(uploads[1], slots=99), 1, 2, 2.0)
        assert np.array_equal(opened.merged().counts, uploads[-1].counts)
        assert opened.uploads.totals() == (3, uploads[-1].slots)
        assert opened.awaited(1) == ({"alice"}, {"alice": 3})
    assert opened.uploads.totals() == (3, uploads[-1].slots)


def test_a_rollback_takes_everything_back(opened, federation):
    token = enrolled(opened)
    counting = Counting(federation.shape)
    first = counting.upload(1)
    given(opened, token, first)
    second = counting.upload(2)

    def fail_late():
        with opened.transaction():
            assert opened.uploads.totals() == (1, 3)
            receive(opened, *token, second, 1, 2, 2.0)
            assert opened.uploads.totals() == (2, 6)
            opened.revoke("alice", 3.0)
            assert opened.credentials.credential(token[0]).revoked
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_late()
    assert opened.uploads.totals() == (1, 3)
    with opened.transaction():
        assert not opened.credentials.credential(token[0]).revoked
        assert opened.uploads.record("alice", counting.incarnation).sequence == 1
        assert opened.uploads.digest("alice", counting.incarnation, 2) is None
    assert given(opened, token, second) == "new"


@pytest.mark.parametrize("claimed", [True, False])
def test_the_running_sum_is_the_sum_of_all_incarnations(database_url, federation, claimed):
    """Many agents and incarnations, few of which are remembered, rows written in many pieces."""
    limits = StoreLimits(remembered_bytes=5 * 8 * (33 * 2 + 1) * 2 * 4)
    opened = open_store(database_url, federation, limits=limits)
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
                assert receive(opened, *tokens[agent], upload, 1, 2, 2.0) == "new"
                latest[which] = upload
                total += 1
            running, totals = opened.merged(), opened.uploads.totals()
        for merged in (running, opened.merged()):  # as it runs on, and as the database has it
            assert np.array_equal(merged.counts, sum(u.counts for u in latest.values()))
            assert np.array_equal(merged.visits, sum(u.visits for u in latest.values()))
        assert totals == opened.uploads.totals() == (total, total)
    opened.close()
    again = open_store(database_url, federation)
    assert np.array_equal(again.merged().counts, merged.counts)
    assert again.uploads.totals() == (total, total)
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


def test_a_record_that_is_dropped_is_in_the_database(database_url, federation):
    """Where more incarnations upload in a transaction than are remembered."""
    opened = open_store(database_url, federation, limits=StoreLimits(remembered_bytes=1))
    opened.claim()
    token = enrolled(opened)
    countings = [Counting(federation.shape, f"alice {n}") for n in range(3)]
    uploads = [counting.upload(1) for counting in countings]
    with opened.transaction():
        for upload in uploads:
            assert receive(opened, *token, upload, 1, 2, 2.0) == "new"
        for upload in uploads:
            found = opened.uploads.record("alice", upload.incarnation)
            assert found is not None
            assert (found.sequence, found.slots) == (1, upload.slots)
            assert np.array_equal(found.counts, upload.counts)
            assert receive(opened, *token, upload, 1, 2, 2.0) == "repeat"
    opened.close()


@pytest.mark.parametrize("claimed", [True, False])
def test_the_counts_of_each_agent_are_the_sum_over_its_incarnations(
    database_url, federation, claimed
):
    opened = open_store(database_url, federation)
    if claimed:
        opened.claim()
    shape = federation.shape
    empty = opened.counts_by_lane()  # before anybody is enrolled
    assert empty.counts.shape == (1, *opened.merged().counts.shape)
    assert empty.visits.shape == (1, *opened.merged().visits.shape)
    assert not empty.counts.any()
    enrolled(opened, "root", "admin")
    tokens = [enrolled(opened, f"agent{lane}") for lane in range(4)]
    lives = {(lane, life): Counting(shape, f"{lane} {life}") for lane in (0, 2) for life in "ab"}
    latest: dict[tuple[int, str], Upload] = {}
    for sequence in (1, 2, 3):
        with opened.transaction():
            for (lane, life), counting in lives.items():
                upload = counting.upload(sequence)
                receive(opened, *tokens[lane], upload, 1, 2, 2.0)
                latest[lane, life] = upload
            # What is not written yet counts too, and as of the same moment as the sum.
            found, merged = opened.counts_by_lane(), opened.merged()
        assert np.array_equal(found.counts.sum(0), merged.counts)
        assert np.array_equal(found.visits.sum(0), merged.visits)
        for lane in range(4):
            due = [upload for (of, _), upload in latest.items() if of == lane]
            assert np.array_equal(
                found.counts[lane], sum(u.counts for u in due) + 0 * merged.counts
            )
            assert np.array_equal(
                found.visits[lane], sum(u.visits for u in due) + 0 * merged.visits
            )
    opened.revoke("agent2", 3.0)
    assert np.array_equal(opened.counts_by_lane().counts, found.counts)
    found.counts[:] = -1  # a copy
    assert opened.counts_by_lane().counts.min() == 0
    opened.close()
    again = open_store(database_url, federation)
    assert np.array_equal(again.counts_by_lane().visits, found.visits)
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
    assert idle[5:] == (None, None, 0, 0, 0, None, None, "idle")
    with opened.transaction():
        opened.credentials.sighted([Sighting("alice", 30.0, 4, 2), Sighting("idle", 31.0, None, 1)])
    with opened.transaction():
        opened.credentials.sighted([Sighting("alice", 32.0, None, 1)])
    alice, idle = opened.agents()
    assert alice[5:10] == (32.0, 4, 1, 3, 50)
    assert idle[5:] == (31.0, None, 0, 1, 0, None, None, "idle")


def test_arms_of_different_sizes(database_url, federation):
    arms = (KnownArm(3, (0.0, 0.5, 1.0)), KnownArm(2, (0.0, 1.0)), KnownArm(5, (0.0,) * 4 + (2.0,)))
    federation = replace(federation, arms=arms)
    opened = open_store(database_url, federation)
    token = enrolled(opened)
    upload = Counting(federation.shape).upload(1, slots=40)
    given(opened, token, upload)
    record = opened.uploads.record("alice", upload.incarnation)
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


def test_uploads_need_a_transaction_and_there_is_one_at_a_time(opened, federation):
    with pytest.raises(RuntimeError, match="inside a transaction"):
        opened.accept("alice", Counting(federation.shape).upload(1), 1.0)
    with opened.transaction(), pytest.raises(RuntimeError, match="open already"):
        opened.transaction().__enter__()


LONG = 864.0  # seconds of a slot, of which a day has 100


def paced(store, token, counting, sequence, slots, now, slot_seconds=LONG):
    """Send an upload of so many more slots at a time of the server's clock; a refusal undoes
    nothing, as in the writer."""
    upload = counting.upload(sequence, slots=slots)
    with store.transaction():
        try:
            key_id, secret_hash = token
            return receive(store, key_id, secret_hash, upload, 1, 2, now, UploadRules(slot_seconds))
        except ProtocolError as error:
            refusal = error
    raise refusal


def too_many(store, token, counting, sequence, slots, now, slot_seconds=LONG):
    """How many slots more would have been taken in place of so many."""
    with pytest.raises(ProtocolError) as caught:
        paced(store, token, counting, sequence, slots, now, slot_seconds)
    assert (caught.value.status, caught.value.code) == (429, "slots")
    return caught.value.extra["slots"]


def test_slots_of_all_incarnations_are_held_against_the_time_since_the_first_enrolment(
    opened, federation
):
    token = enrolled(opened, now=1000.0)
    one, other = (Counting(federation.shape, name) for name in ("one", "other"))
    assert paced(opened, token, one, 1, 8, 1000.0, 1.0) == "new"
    with pytest.raises(ProtocolError, match=r"at most 10 so far, .* got 13") as caught:
        paced(opened, token, other, 1, 5, 1000.0, 1.0)
    assert (caught.value.status, caught.value.code) == (429, "slots")
    assert opened.uploads.totals() == (1, 8)
    assert paced(opened, token, other, 2, 0, 1003.0, 1.0) == "new"  # later there is time for it
    # Neither does another credential set the time back, nor does it begin anew.
    opened.revoke("alice", 1011.0)
    again = enrolled(opened, now=1400.0)
    assert paced(opened, again, one, 2, 397, 1400.0, 1.0) == "new"
    with pytest.raises(ProtocolError, match=r"at most 410 so far, .* got 411"):
        paced(opened, again, one, 3, 1, 1400.0, 1.0)


def test_credit_is_a_bucket_of_a_day(database_url, federation):
    """A token that was enrolled a year ago claims a day's slots, and what comes later at its pace;
    so it goes on after a restart."""
    year, day = 365 * 86_400.0, 100
    opened = open_store(database_url, federation)
    opened.claim()
    token = enrolled(opened, now=0.0)
    counting = Counting(federation.shape)
    assert too_many(opened, token, counting, 1, 5000, year) == day
    first = Counting(federation.shape, "first")
    assert paced(opened, token, first, 1, day, year) == "new"
    assert too_many(opened, token, first, 2, 1, year) == 0
    opened.close()
    opened = open_store(database_url, federation)
    opened.claim()
    second = Counting(federation.shape, "second")
    assert too_many(opened, token, second, 1, 20, year + 10 * LONG) == 10
    third = Counting(federation.shape, "third")
    assert paced(opened, token, third, 1, 10, year + 10 * LONG) == "new"
    fourth = Counting(federation.shape, "fourth")
    assert too_many(opened, token, fourth, 1, 1000, 2 * year) == day
    opened.close()


def test_an_agent_that_was_away_for_a_week_is_taken_in_parts(opened, federation):
    day, week = 100, 7 * 86_400.0
    token = enrolled(opened, now=0.0)
    counting, now, told = Counting(federation.shape), week, 0
    for sequence in range(1, 8):
        assert paced(opened, token, counting, sequence, day, now) == "new"
        told, now = told + day, now + day * LONG
    assert opened.uploads.tallies()["alice"].slots == told == 7 * day


def test_agents_of_an_owner_draw_on_one_bucket(opened, federation):
    """It fills for each of them, and holds a day of one."""
    names = [f"radio-{n}" for n in range(10)]
    tokens = {}
    for name in names:
        _, key_id, secret_hash = make_token()
        opened.enroll(name, "agent", key_id, secret_hash, 0.0, "acme")
        tokens[name] = key_id, secret_hash
    other = enrolled(opened, "other", now=0.0)
    week, day = 7 * 86_400.0, 100
    lives = {name: Counting(federation.shape, name) for name in names}
    assert paced(opened, tokens["radio-0"], lives["radio-0"], 1, day - 10, week) == "new"
    assert too_many(opened, tokens["radio-1"], lives["radio-1"], 1, 11, week) == 10
    assert paced(opened, other, Counting(federation.shape, "o"), 1, day, week) == "new"
    # All ten play, as fast as one each.
    for name in names[2:]:
        assert paced(opened, tokens[name], lives[name], 1, 10, week + 8 * LONG) == "new"
    assert too_many(opened, tokens["radio-9"], lives["radio-9"], 2, 11, week + 8 * LONG) == 10
    # Without a credential an agent does not play.
    for name in names[1:]:
        opened.revoke(name, week + 8 * LONG)
    life = Counting(federation.shape, "again")
    assert too_many(opened, tokens["radio-0"], life, 1, 50, week + 18 * LONG) == 20


@pytest.mark.parametrize("claimed", [True, False])
def test_a_clock_that_was_ahead_stops_nobody(database_url, federation, claimed):
    """An agent that was enrolled, or has uploaded, by a clock that was 400 days ahead."""
    days, now = 400 * 86_400.0, 1e9
    opened = open_store(database_url, federation)
    if claimed:
        opened.claim()
    old, new = enrolled(opened, "old", now=now), enrolled(opened, "new", now=now + days)
    life = Counting(federation.shape, "old")
    assert paced(opened, old, life, 1, 100, now + days) == "new"
    assert too_many(opened, old, Counting(federation.shape, "x"), 1, 10, now) == 0
    if not claimed:
        opened.close()
        opened = open_store(database_url, federation)
    other = Counting(federation.shape, "other")
    assert too_many(opened, new, other, 1, 50, now) == 10  # the burst, as ever
    if claimed:  # the server: what was read is remembered, and grows
        assert paced(opened, old, life, 2, 30, now + 30 * LONG) == "new"
        later = Counting(federation.shape, "later")
        assert paced(opened, new, later, 1, 30, now + 30 * LONG) == "new"
    opened.close()


def test_limits_that_are_set_later_do_not_stop_who_was_faster(opened, federation):
    token = enrolled(opened, now=0.0)
    counting = Counting(federation.shape)
    assert paced(opened, token, counting, 1, 1000, 10.0, slot_seconds=0.0) == "new"
    life = Counting(federation.shape, "then")
    assert too_many(opened, token, life, 1, 100, 20.0) == 0
    life = Counting(federation.shape, "then")
    assert paced(opened, token, life, 1, 50, 20.0 + 50 * LONG) == "new"


def test_agents_of_an_owner_share_its_weight(database_url, federation):
    """Ten names weigh as much as the one of them that has counted most; so it is after a restart,
    and with a weight of the owner's."""
    for weights in ({}, {"acme": 3.0}):
        of = replace(federation, weights=weights)
        opened = open_store(database_url, of)
        if not weights:
            alone = enrolled(opened, "alone")
            given(opened, alone, Counting(federation.shape, "alone").upload(1, slots=50))
            assert opened.counts_by_lane().weights is None
            for n, slots in enumerate((40, 20, 20, 0)):
                _, key_id, secret_hash = make_token()
                opened.enroll(f"radio-{n}", "agent", key_id, secret_hash, 1.0, "acme")
                upload = Counting(federation.shape, f"radio {n}").upload(1, slots=slots)
                given(opened, (key_id, secret_hash), upload)
        found = opened.counts_by_lane()
        sizes, weighs = found.counts.sum((1, 2, 3, 4)), found.weights
        assert weighs is not None
        assert weighs[0] == 1.0
        summed = (weighs[1:] * sizes[1:]).sum()
        assert summed == pytest.approx(weights.get("acme", 1.0) * sizes[1:].max())
        assert len(set(weighs[1:])) == 1
        opened.close()


# ------------------------------------------------------------------------------------------ credit


def test_an_owner_without_a_row_has_the_credit_that_is_remembered(opened):
    pace = Pace(opened.database)
    assert pace.credit("acme", 10.0, 1.0, 1) is None
    assert pace.keep("acme", Credit(5.0, 10.0), changed=False) == (5.0, 10.0)
    assert pace.credit("acme", 14.0, 1.0, 2) == (13.0, 14.0)
    assert pace.credit("other", 14.0, 1.0, 1) is None
    assert opened.database.rows("SELECT owner FROM pace") == []
    pace.write()  # nothing was kept
    assert opened.database.rows("SELECT owner FROM pace") == []


def test_what_is_kept_is_written_once_and_read_by_the_next(opened):
    pace = Pace(opened.database)
    for owner, seconds in (("acme", 3.0), ("other", 4.0), ("acme", 7.0)):
        pace.keep(owner, Credit(seconds, 20.0))
    assert Pace(opened.database).credit("acme", 20.0, 1.0, 1) is None
    with opened.transaction():
        pace.write()
    rows = "SELECT owner, seconds, at FROM pace ORDER BY owner"
    assert opened.database.rows(rows) == [("acme", 7.0, 20.0), ("other", 4.0, 20.0)]
    again = Pace(opened.database)
    assert again.credit("acme", 25.0, 1.0, 1) == (12.0, 25.0)
    assert again.credit("other", 1e9, 1.0, 1) == (CREDIT_SECONDS, 1e9)
    with opened.transaction():
        again.keep("acme", Credit(2.0, 30.0))
        again.write()
    opened.database.run("UPDATE pace SET seconds = 99 WHERE owner = 'acme'")
    with opened.transaction():
        again.write()  # it was written; nothing has changed since
    assert opened.database.rows(rows) == [("acme", 99.0, 30.0), ("other", 4.0, 20.0)]


def test_what_is_forgotten_is_read_again(opened):
    pace = Pace(opened.database)
    pace.keep("acme", Credit(3.0, 5.0))
    pace.forget()
    with opened.transaction():
        pace.write()
    assert pace.credit("acme", 5.0, 1.0, 1) is None


# ------------------------------------------------------------------------------------------- edges


def watched(monkeypatch, store):
    """Statements that read or write uploads and incarnations, from now on."""
    seen = []
    for name in ("rows", "run"):
        known = getattr(store.database, name)

        def counted(sql, values=(), known=known):
            seen.append(sql)
            return known(sql, values)

        monkeypatch.setattr(store.database, name, counted)
    return seen


@pytest.mark.parametrize("remembered", [1, 2])
def test_the_last_records_are_remembered_and_no_more(
    database_url, federation, monkeypatch, remembered
):
    """As many as fit into their bytes: the oldest is read again, the others are not."""
    size = 8 * (33 * 2 + 1) * 2 * 4
    assert federation.shape.kinds == 33
    limits = StoreLimits(remembered_bytes=remembered * size + size - 1)
    opened = open_store(database_url, federation, limits=limits)
    opened.claim()
    token = enrolled(opened)
    lives = [Counting(federation.shape, str(n)) for n in range(remembered + 1)]
    with opened.transaction():
        for life in lives:
            assert receive(opened, *token, life.upload(1), 1, 2, 2.0) == "new"
        seen = watched(monkeypatch, opened)
        for life in lives[1:]:
            found = opened.uploads.record("alice", life.incarnation)
            assert found is not None
            assert found.slots == 3
        assert seen == []
        for _ in range(2):  # once, and then it is remembered
            found = opened.uploads.record("alice", lives[0].incarnation)
            assert found is not None
            assert found.slots == 3
            assert len(seen) == 1
        assert opened.uploads.record("alice", "f" * 32) is None
        assert len(seen) == 2
    opened.close()


@pytest.mark.parametrize(("rows", "size"), [(3, 10**9), (64, 3)])
def test_rows_are_written_when_as_many_wait_as_may(
    database_url, federation, monkeypatch, rows, size
):
    """As many as a statement has, or as the bytes that may wait."""
    waiting = size if size > 64 else size * 8 * (33 * 2 + 1) * 2 * 4
    limits = StoreLimits(statement_rows=rows, waiting_bytes=waiting)
    opened = open_store(database_url, federation, limits=limits)
    opened.claim()
    token = enrolled(opened)
    lives = [Counting(federation.shape, str(n)) for n in range(5)]
    with opened.transaction():
        opened.uploads.totals()
        for n, life in enumerate(lives, start=1):
            assert receive(opened, *token, life.upload(1), 1, 2, 2.0) == "new"
            ((written,),) = opened.database.rows("SELECT COUNT(*) FROM uploads")
            assert written == (0 if n < 3 else 3)
        seen = watched(monkeypatch, opened)
    # Two rows are left: a statement for the incarnations, and one for the ledger.
    assert len([sql for sql in seen if sql.startswith("INSERT")]) == 2
    assert opened.database.rows("SELECT COUNT(*) FROM incarnations") == [(5,)]
    opened.close()


def test_counts_and_sums_that_are_handed_out_are_copies(opened, federation):
    token = enrolled(opened)
    upload = Counting(federation.shape).upload(1)
    with opened.transaction():
        opened.counts_by_lane()
        assert receive(opened, *token, upload, 1, 2, 2.0) == "new"
        first, lanes, visits = opened.merged(), opened.counts_by_lane(), opened.visits_by_agent()
        for part in (first.counts, first.visits, lanes.counts, lanes.visits, visits["alice"]):
            part += 7
        assert np.array_equal(opened.merged().counts, upload.counts)
        assert np.array_equal(opened.merged().visits, upload.visits)
        assert np.array_equal(opened.counts_by_lane().counts[0], upload.counts)
        assert np.array_equal(opened.counts_by_lane().visits[0], upload.visits)
        assert np.array_equal(opened.visits_by_agent()["alice"], upload.visits)


def test_a_tally_is_of_the_latest_time_and_round(opened, federation):
    token = enrolled(opened)
    with opened.transaction():
        opened.uploads.totals()
        for round, now in ((3, 20.0), (2, 30.0), (1, 10.0)):
            upload = Counting(federation.shape, str(round)).upload(1, round=round)
            assert receive(opened, *token, upload, round, 2, now) == "new"
    (row,) = opened.agents()
    assert (row.last_seen, row.last_round, row.uploads, row.slots) == (30.0, 3, 3, 9)


def test_counts_of_agents_are_compared_up_to_their_bytes(database_url, federation):
    size = 8 * 33 * 2 * 2 * 4
    for room, shown in ((2 * size, {"a", "b"}), (2 * size - 1, set())):
        opened = open_store(database_url, federation, limits=StoreLimits(compared_bytes=room))
        opened.claim()
        if room == 2 * size:
            uploads = {}
            for name in ("a", "b"):
                token = enrolled(opened, name)
                uploads[name] = Counting(federation.shape, name).upload(1)
                with opened.transaction():
                    receive(opened, *token, uploads[name], 1, 2, 2.0)
                    waiting = opened.counts_by_agent()
                    assert np.array_equal(waiting[name], uploads[name].counts)
        found = opened.counts_by_agent()
        assert set(found) == shown
        for name, counts in found.items():
            assert np.array_equal(counts, uploads[name].counts)
        opened.close()


def test_what_is_taken_out_is_told_by_incarnations_uploads_and_slots(opened, federation):
    token, other = enrolled(opened), enrolled(opened, "bob")
    lives = [Counting(federation.shape, name) for name in ("one", "two")]
    kept = Counting(federation.shape, "kept").upload(1, slots=9)
    given(opened, other, kept)
    for sequence in (1, 2):
        for life in lives:
            last = life.upload(sequence, slots=4)
            given(opened, token, last)
    visits = opened.visits_by_agent()["alice"]
    with opened.transaction():
        late = Counting(federation.shape, "late").upload(1, slots=5)
        assert receive(opened, *token, late, 1, 2, 2.0) == "new"  # and is not written yet
        erasure = opened.erase("alice", 9.0)
        assert (erasure.incarnations, erasure.uploads, erasure.slots) == (3, 5, 21)
        paid = ((visits + late.visits) * federation.rewards).sum()
        assert erasure.paid == pytest.approx(paid)
        assert opened.uploads.totals() == (1, 9)
    for incarnation in (*(life.incarnation for life in lives), late.incarnation):
        assert opened.uploads.is_gone("alice", incarnation)
        assert not opened.uploads.is_gone("bob", incarnation)
    assert not opened.uploads.is_gone("alice", kept.incarnation)
    assert np.array_equal(opened.merged().counts, kept.counts)
    assert opened.erase("alice", 9.0)[4:7] == (0, 0, 0)


def test_sums_of_many_ended_incarnations_are_read_in_pieces(database_url, federation):
    """Agents by agents, two rows of a table at a time."""
    opened = open_store(database_url, federation, limits=StoreLimits(statement_rows=2))
    opened.claim()
    opened.open_round(some_round(1, federation))
    uploads, tokens = [], {}
    for name in ("a", "b", "c", "d", "e"):
        tokens[name] = enrolled(opened, name)
        uploads.append(Counting(federation.shape, name).upload(1))
        given(opened, tokens[name], uploads[-1], now=10.0)
    opened.close_round(1, 11.0, "all", 5, 15, None)
    opened.open_round(some_round(9, federation))
    for name, token in tokens.items():
        uploads.append(Counting(federation.shape, f"new {name}").upload(1, round=9))
        given(opened, token, uploads[-1], round=9, now=10.0 + 2 * 86_400.0)
    with opened.transaction():
        assert opened.tidy(list(tokens), 10.0 + 2 * 86_400.0) == []
    assert opened.database.rows("SELECT COUNT(*) FROM folded") == [(5,)]
    opened.close()
    again = open_store(database_url, federation, limits=StoreLimits(statement_rows=2))
    assert again.uploads.totals() == (10, 30)
    assert np.array_equal(again.merged().counts, sum(each.counts for each in uploads))
    assert np.array_equal(again.merged().visits, sum(each.visits for each in uploads))
    assert [row.last_seen for row in again.agents()] == [10.0 + 2 * 86_400.0] * 5
    again.close()


def test_a_round_keeps_counts_of_lanes_beside_their_sum(opened, federation):
    tokens = [enrolled(opened, name) for name in ("a", "b")]
    for lane, token in enumerate(tokens):
        given(opened, token, Counting(federation.shape, str(lane)).upload(1, slots=4 + lane))
    merged, by_lane = opened.merged(), opened.counts_by_lane()
    opened.open_round(some_round(1, federation, merged=merged, by_lane=by_lane))
    found = opened.current_round()
    assert np.array_equal(found.merged.counts, merged.counts)
    assert np.array_equal(found.merged.visits, merged.visits)
    assert np.array_equal(found.by_lane.counts, by_lane.counts)
    assert np.array_equal(found.by_lane.visits, by_lane.visits)
    assert found.by_lane.visits[1].sum() == 2 * 5
    opened.close_round(1, 2.0, "all", 2, 9, None)
    opened.open_round(some_round(2, federation, merged=merged))
    assert opened.current_round().by_lane is None
