"""Masked uploads and openings in the store, the same on both databases."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rmab.federation.masks import Header, MaskKey, vector_of, vector_size
from rmab.federation.openings import BEGINNING, chosen
from rmab.federation.privacy import Privacy
from rmab.service.store import schema
from rmab.service.store.limits import StoreLimits
from rmab.service.store.store import open_store
from tests.service.support.counting import Counting
from tests.service.support.storing import enrolled, given, some_round

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
        with store.transaction():
            store.openings.begin_chain("first")

    def upload(self, name, slots=3, now=2.0):
        self.sequences[name] += 1
        clear = self.countings[name].upload(self.sequences[name], slots=slots)
        masked = self.keys[name].masked(
            clear, self.federation.fingerprint(), name, self.federation.shape
        )
        assert given(self.store, self.tokens[name], masked, now=now) == "new"
        return masked

    def clear(self, *names):
        shape = self.federation.shape
        return sum(
            vector_of(self.countings[n]._counts, self.countings[n]._visits, shape) for n in names
        )

    def write(self, group=1, round=1):
        with self.store.transaction():
            waiting = self.store.openings.waiting(GROUPS)
            members = chosen([one for one in waiting if one.group == group], 3)
            return self.store.openings.write(group, members, round, 9.0)

    def answer(self, pending, points):
        """As a helper would; points: the headers that were opened before, by agent."""
        fingerprint, size = self.federation.fingerprint(), vector_size(self.federation.shape)
        vector = pending.difference.copy()
        for member in pending.opening.members:
            key, header = self.keys[member.agent], member.header(fingerprint)
            vector -= key.mask(header, size)
            if member.agent in points:
                vector += key.mask(points[member.agent], size)
            points[member.agent] = header
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


def test_what_is_refused_has_not_happened(store, agents):
    uploads = {name: agents.upload(name) for name in "abc"}
    first = agents.write()
    with store.transaction():
        refused = [["c", uploads["c"].incarnation, "is revoked"]]
        store.openings.take_back(first.opening.number, refused)
    assert store.openings.pending() is None
    waiting = store.openings.waiting(GROUPS)
    assert sorted(one.member.agent for one in waiting) == ["a", "b"]
    found = {row.agent: row.refused for row in store.openings.waiting_rows()}
    assert found == {"a": None, "b": None, "c": "is revoked"}
    agents.upload("c")  # which is tried anew
    again = agents.write()
    assert again.opening.number == 1
    agents.answer(again, {})
    agents.add()
    assert np.array_equal(agents.opened(), agents.clear("a", "b", "c"))


def test_an_impossible_sum_moves_members_on_and_adds_nothing(store, agents):
    for name in "abc":
        agents.upload(name)
    first = agents.write()
    with store.transaction():
        store.openings.answer(first.opening.number, None)
    agents.add()
    assert not agents.opened().any()
    assert store.openings.waiting(GROUPS) == []
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
    # Of "d" nothing was opened, so that it can be; the others need new incarnations.
    assert [one.member.agent for one in store.openings.waiting(GROUPS)] == ["d"]
    refused = {row.agent: row.refused for row in store.openings.waiting_rows()}
    assert "lost" in refused["a"]


def test_an_ended_incarnation_is_kept_until_it_is_opened(store, agents, secure):
    for name in "abc":
        agents.upload(name, now=2.0)
    first = dict(agents.countings)
    told = agents.clear("a", "b", "c")
    for name in "abc":
        agents.countings[name] = Counting(secure.shape, f"{name} again")
        agents.sequences[name] = 0
    store.close_round(1, 3.0, "all", 3, 9, None)
    for number in (2, 3):
        store.open_round(some_round(number, secure))
        if number < 3:
            store.close_round(number, 3.0, "all", 0, 0, None)
    for name in "abc":
        agents.sequences[name] += 1
        clear = agents.countings[name].upload(1, round=3)
        masked = agents.keys[name].masked(clear, secure.fingerprint(), name, secure.shape)
        given(store, agents.tokens[name], masked, round=3, now=100.0)
    store.tidy(list("abc"), 101.0)
    rows = "SELECT COUNT(*) FROM {}"
    assert store.database.rows(rows.format("incarnations")) == [(3,)]
    assert store.database.rows(rows.format("masked")) == [(6,)]
    pending = agents.write(round=3)
    assert len(pending.opening.members) == 6
    fingerprint, size = secure.fingerprint(), vector_size(secure.shape)
    vector = pending.difference.copy()
    for member in pending.opening.members:
        vector -= agents.keys[member.agent].mask(member.header(fingerprint), size)
    with store.transaction():
        store.openings.answer(1, vector.view(np.int64))
    agents.add()
    assert np.array_equal(agents.opened(), told + agents.clear("a", "b", "c"))
    assert set(first) == set(GROUPS)
    store.tidy(list("abc"), 102.0)
    assert store.database.rows(rows.format("masked")) == [(3,)]


def test_the_version_before_becomes_this_one(database_url, federation, monkeypatch):
    with monkeypatch.context() as older:
        older.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:5])
        opened = open_store(database_url, federation)
        token = enrolled(opened)
        upload = Counting(federation.shape).upload(1)
        given(opened, token, upload)
        before = opened.merged()
        opened.close()
    opened = open_store(database_url, federation)
    assert schema.version_of(opened.database) == len(schema.MIGRATIONS)
    assert {"masked", "openings", "sums"} <= opened.database.tables()
    assert np.array_equal(opened.merged().counts, before.counts)
    assert given(opened, token, upload) == "repeat"
    opened.close()
