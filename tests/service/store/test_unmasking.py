"""Masked uploads and openings in the store, the same on both databases."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rmab.privacy.batches import choose_batch
from rmab.privacy.masks import Header, MaskKey, vector_of, vector_size
from rmab.privacy.settings import Privacy
from rmab.privacy.unmasking import BEGINNING, AggregationJob, Report
from rmab.service.store import schema
from rmab.service.store.limits import StoreLimits
from rmab.service.store.store import open_store
from rmab.service.store.unmasking import Enrolment
from tests.service.support.counting import Counting
from tests.service.support.storing import (
    enrolled,
    enrolled_before,
    given,
    given_before,
    refused,
    some_round,
)

GROUPS = {"a": 1, "b": 1, "c": 1, "d": 2}


@pytest.fixture
def secure(federation):
    return replace(federation, privacy=Privacy("http://127.0.0.1:9", groups=2))


@pytest.fixture
def store(database_url, secure):
    made = open_store(database_url, secure, limits=StoreLimits(ended_seconds=5.0))
    made.claim()
    made.open_round(some_round(1, secure))
    yield made
    made.close()


class Agents:
    """Agents that upload into a store, and a helper that knows all of their masks."""

    def __init__(self, store, federation):
        self.store, self.federation = store, federation
        self.tokens = {name: enrolled(store, name) for name in GROUPS}
        self.keys = {name: MaskKey(name.encode() * 32) for name in GROUPS}
        self.countings = {name: Counting(federation.shape, name) for name in GROUPS}
        self.sequences = dict.fromkeys(GROUPS, 0)
        self.since = dict.fromkeys(GROUPS, 0)
        self.cohorts = {}
        with store.transaction():
            store.openings.begin_chain("first")

    def masked(self, name, slots=3, round=1):
        self.sequences[name] += 1
        clear = self.countings[name].upload(self.sequences[name], round, slots)
        shape = self.federation.shape
        return self.keys[name].masked(
            clear, self.federation.fingerprint(), name, shape, self.since[name]
        )

    def upload(self, name, slots=3, now=2.0, round=1):
        masked = self.masked(name, slots, round)
        assert given(self.store, self.tokens[name], masked, round, now) == "new"
        return masked

    def begin_anew(self, name):
        """Another incarnation."""
        self.since[name] = self.store.openings.position(name)
        self.sequences[name] = 0
        self.countings[name] = Counting(self.federation.shape, f"{name} {self.since[name]}")

    def enrolled(self):
        return {name: Enrolment(GROUPS[name], self.cohorts.get(name)) for name in GROUPS}

    def waiting(self, group=1):
        return [one for one in self.store.openings.waiting(self.enrolled()) if one.group == group]

    def clear(self, *names):
        shape = self.federation.shape
        return sum(
            vector_of(self.countings[n]._counts, self.countings[n]._visits, shape) for n in names
        )

    def write(self, group=1, round=1):
        with self.store.transaction():
            members = choose_batch(self.waiting(group), 3).reports
            assert members
            return self.store.openings.write(group, members, round, 9.0)

    def answer(self, pending, points):
        """As a helper would; points: the headers that were opened before, by incarnation."""
        fingerprint, size = self.federation.fingerprint(), vector_size(self.federation.shape)
        vector = pending.difference.copy()
        for member in pending.opening.reports:
            key, header = self.keys[member.agent], member.header(fingerprint)
            vector -= key.mask(header, size)
            if member.incarnation in points:
                vector += key.mask(points[member.incarnation], size)
            points[member.incarnation] = header
            self.cohorts[member.agent] = "a"
        with self.store.transaction():
            self.store.openings.answer(pending.opening.number, vector.view(np.int64))

    def add(self):
        with self.store.transaction():
            self.store.openings.add()

    def opened(self):
        merged = self.store.merged()
        return vector_of(merged.counts, merged.visits, self.federation.shape)


@pytest.fixture
def agents(store, secure):
    return Agents(store, secure)


def test_each_slot_is_added_once(store, agents):
    points: dict[str, Header] = {}
    for name in "abcd":
        agents.upload(name)
    first = agents.write()
    assert (first.opening.number, first.opening.before, first.slots) == (1, BEGINNING, 9)
    again = store.openings.pending()
    assert again.opening == first.opening
    assert np.array_equal(again.difference, first.difference)
    told = agents.clear("a", "b", "c")
    agents.upload("a")  # while the helper is asked
    assert [one.agent for one in agents.waiting() if one.busy] == ["a", "b", "c"]
    agents.answer(first, points)
    assert store.openings.pending() is None
    assert np.array_equal(agents.opened(), told)  # for the next plan, though not added yet
    assert store.openings.answered_slots() == 9
    agents.add()
    agents.add()
    assert np.array_equal(agents.opened(), told)
    assert store.openings.answered_slots() == 0
    assert {row.agent: row.slots for row in store.openings.waiting_rows()} == {"a": 3, "d": 3}
    for name in "bc":
        agents.upload(name)
    second = agents.write()
    assert second.opening.before == first.opening.digest
    agents.answer(second, points)
    agents.add()
    assert np.array_equal(agents.opened(), agents.clear("a", "b", "c"))
    (group,) = store.openings.groups()
    assert (group.opening, group.agents, group.slots, group.result) == (2, 3, 9, "added")
    assert group.opened_slots == 18


def test_an_upload_that_is_not_at_a_mark_is_not_opened(store, agents):
    for name in "abc":
        agents.upload(name, 16)
        agents.upload(name, 1)  # 17 is no mark
        agents.upload(name, 1)
    assert [position for position, _ in agents.waiting()[0].marks] == [16, 18]
    assert agents.waiting()[0].reach == 18
    agents.upload("a", 1)
    assert [position for position, _ in agents.waiting()[0].marks] == [16, 18]
    assert agents.waiting()[0].reach == 19


def test_the_first_upload_at_a_mark_stands(store, agents):
    """A report at the same slots, or the same counts under another round, is not another mark."""
    first = agents.upload("a")
    agents.upload("a", 0)
    ((position, member),) = agents.waiting()[0].marks
    assert (position, member.nonce) == (3, first.nonce)


def test_what_is_refused_has_not_happened(store, agents):
    uploads = {name: agents.upload(name) for name in "abc"}
    first = agents.write()
    with store.transaction():
        reasons = [["c", uploads["c"].incarnation, "is revoked"]]
        store.openings.take_back(first.opening.number, reasons)
    assert store.openings.pending() is None
    assert {one.agent: len(one.marks) for one in agents.waiting()} == {"a": 1, "b": 1, "c": 0}
    assert not any(one.busy for one in agents.waiting())
    found = {row.agent: row.refused for row in store.openings.waiting_rows()}
    assert found == {"a": None, "b": None, "c": "is revoked"}
    answer = refused_with(agents, "c")
    assert answer.code == "ended"
    agents.begin_anew("c")
    assert agents.since["c"] == 0
    agents.upload("c")
    again = agents.write()
    assert again.opening.number == 1
    agents.answer(again, {})
    agents.add()
    assert np.array_equal(agents.opened(), agents.clear("a", "b", "c"))


def refused_with(agents, name, since=None):
    """The error with which the agent's next upload is refused."""
    if since is not None:
        agents.since[name] = since
    return refused(agents.store, agents.tokens[name], agents.masked(name))


def test_an_incarnation_begins_at_the_agents_last_mark(store, agents, secure):
    points: dict[str, Header] = {}
    for name in "abc":
        agents.upload(name, 10)
    agents.answer(agents.write(), points)
    agents.add()
    agents.upload("a", 10)  # a mark that is not opened yet
    agents.upload("a", 1)  # what comes after it is lost with the incarnation
    old = agents.countings["a"], agents.sequences["a"]
    told = Counting(secure.shape, "a")
    told.play(20)
    agents.begin_anew("a")
    assert agents.since["a"] == 20
    assert refused_with(agents, "a", 0).code == "since"
    assert refused_with(agents, "a", 21).code == "since"
    agents.begin_anew("a")
    agents.upload("a", 4)
    agents.countings["a"], agents.sequences["a"], agents.since["a"] = *old, 0
    assert refused_with(agents, "a").code == "ended"  # the one before goes no further
    agents.begin_anew("a")
    agents.since["a"] = 20
    for name in "bc":
        agents.upload(name, 14)
    agents.answer(agents.write(), points)
    agents.add()
    assert {row.agent: row.slots for row in store.openings.waiting_rows()} == {"a": 1}
    assert store.openings.position("a") == 24
    new = Counting(secure.shape, "a 20")
    new.play(4)
    due = agents.clear("b", "c") + sum(
        vector_of(each._counts, each._visits, secure.shape) for each in (told, new)
    )
    assert np.array_equal(agents.opened(), due)


def test_an_impossible_sum_moves_members_on_and_adds_nothing(store, agents):
    for name in "abc":
        agents.upload(name)
    first = agents.write()
    with store.transaction():
        store.openings.answer(first.opening.number, None)
    agents.add()
    assert not agents.opened().any()
    assert not any(one.marks for one in agents.waiting())
    assert [one.unmasked for one in agents.waiting()] == [3, 3, 3]
    assert store.openings.impossible() == 1
    with pytest.raises(RuntimeError, match="was not asked for"), store.transaction():
        store.openings.answer(first.opening.number, None)


def test_another_chain_begins_at_1_and_leaves_what_was_opened_before(store, agents):
    points: dict[str, Header] = {}
    for name in "abc":
        agents.upload(name)
    agents.answer(agents.write(), points)
    agents.add()
    for name in "abcd":
        agents.upload(name)
    agents.write()
    with store.transaction():
        store.openings.begin_chain("second")
    assert store.openings.pending() is None
    # All have other keys from now on, and begin anew.
    assert not any(one.marks or one.unmasked for group in (1, 2) for one in agents.waiting(group))
    rows = store.openings.waiting_rows()
    assert {row.agent for row in rows} == set("abcd")
    assert all("lost" in row.refused for row in rows)
    assert refused_with(agents, "a").code == "ended"
    agents.cohorts.clear()
    for name in "abc":
        agents.begin_anew(name)
        assert agents.since[name] == 0
        agents.upload(name)
    before = agents.opened()
    agents.answer(agents.write(), {})
    agents.add()
    assert np.array_equal(agents.opened(), before + agents.clear("a", "b", "c"))


def test_an_ended_incarnation_is_kept_until_it_is_opened(store, agents, secure):
    for name in "abc":
        agents.upload(name, now=2.0)
    told = agents.clear("a", "b", "c")
    store.close_round(1, 3.0, "all", 3, 9, None)
    for number in (2, 3):
        store.open_round(some_round(number, secure))
        if number < 3:
            store.close_round(number, 3.0, "all", 0, 0, None)
    for name in "abc":
        agents.begin_anew(name)
        agents.upload(name, now=100.0, round=3)
    store.tidy(list("abc"), 101.0)
    rows = "SELECT COUNT(*) FROM {}"
    assert store.database.rows(rows.format("incarnations")) == [(3,)]
    assert store.database.rows(rows.format("masked")) == [(6,)]
    pending = agents.write(round=3)
    assert len(pending.opening.reports) == 6
    agents.answer(pending, {})
    agents.add()
    assert np.array_equal(agents.opened(), told + agents.clear("a", "b", "c"))
    store.tidy(list("abc"), 102.0)
    assert store.database.rows(rows.format("masked")) == [(3,)]
    assert store.database.rows(rows.format("marks")) == [(0,)]


def test_the_version_before_becomes_this_one(database_url, federation, monkeypatch):
    with monkeypatch.context() as older:
        older.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:5])
        opened = open_store(database_url, federation)
        token = enrolled_before(opened)
        upload = Counting(federation.shape).upload(1)
        given_before(opened, upload)
        before = opened.merged()
        opened.close()
    opened = open_store(database_url, federation)
    assert schema.version_of(opened.database) == len(schema.MIGRATIONS)
    assert {"masked", "marks", "openings", "sums"} <= opened.database.tables()
    assert np.array_equal(opened.merged().counts, before.counts)
    assert given(opened, token, upload) == "repeat"
    opened.close()


def test_openings_of_the_version_before_are_added_once(database_url, secure, monkeypatch):
    """What was answered is added, and what was opened stays; agents begin anew at 0."""
    words = np.arange(vector_size(secure.shape), dtype="<u8")
    with monkeypatch.context() as older:
        older.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:8])
        before = open_store(database_url, secure)
        enrolled(before, "a")
        with before.transaction():
            before.database.run(
                "INSERT INTO masked (agent, incarnation, sequence, slots, opened_sequence, "
                "opened_slots, refused_sequence, nonce, tag, masked) "
                "VALUES ('a', ?, 2, 9, 1, 4, 0, ?, ?, ?)",
                ("ab" * 16, b"n" * 16, b"t" * 32, b"m"),
            )
            member = Report("a", "ab" * 16, 1, 4, b"n" * 16, b"t" * 32)
            opening = AggregationJob(1, BEGINNING, 1, (member,))
            before.database.run(
                "INSERT INTO openings (chain, number, of_group, round, at, agents, members, slots, "
                "result, digest, request, words) "
                "VALUES ('first', 1, 1, 1, 1.0, 1, 1, 4, 'answered', ?, ?, ?)",
                (opening.digest, opening.to_json(), words.tobytes()),
            )
        before.close()
    after = open_store(database_url, secure)
    assert after.openings is not None
    for _ in range(2):
        with after.transaction():
            after.openings.add()
        merged = after.merged()
        assert np.array_equal(vector_of(merged.counts, merged.visits, secure.shape), words)
    assert merged.agents == 1
    (one,) = after.openings.waiting({"a": Enrolment(1)})
    assert (one.unmasked, one.marks, after.openings.position("a")) == (0, (), 0)
    after.close()
