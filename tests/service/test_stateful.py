"""Server and agents through crashes, repeats, reorderings and losses, in any order.

After every step: what was acknowledged is there, the merged counts are the sum of what incarnations
truly saw up to their last accepted upload, the round never falls, uploads are answered as the
protocol says. And whatever happened, once nothing more is lost everything that was seen arrives,
once. The server folds incarnations that have ended, and drops what it need not know of them, as it
goes: what these had not sent by then is refused, and is all that may be missing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rmab.errors import StorageError
from rmab.service.agent import agent as agent_module
from rmab.service.agent import outbox
from rmab.service.server import uploads
from rmab.service.store.retention import Retention
from rmab.service.store.store import OpenRound, open_store
from rmab.service.store.uploads import UploadLedger
from rmab.service.store.writer import Writer
from tests.service.support.simulation import (
    FEDERATION,
    LONG,
    Letter,
    Peer,
    World,
    conflicting,
    from_a_backup,
)

NAMES = ("one", "two", "three")
which = st.integers(0, 59)  # of several, by the remainder
often = st.sampled_from([True, True, True, False])


def has_server(machine: Any) -> bool:
    return machine.world.server is not None


def running(machine: Any) -> list[Peer]:
    return [peer for peer in machine.world.peers.values() if peer.agent is not None]


def has_agents(machine: Any) -> bool:
    return bool(running(machine))


class Federated(RuleBasedStateMachine):
    """What may happen."""

    def __init__(self, database: Callable[[Path], str] = lambda folder: str(folder / "f.db")):
        super().__init__()
        # In memory where there is such a folder: it is not the disk that is tested.
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="rmab-stateful-", dir=memory))
        self.world = World(self.folder, database(self.folder))
        self.seeds = count()
        self.world.start_server()
        for name in NAMES[:2]:
            self.world.enroll(name, elsewhere=False)
            self.world.start_agent(self.world.peers[name])

    @invariant()
    def everything_is_as_it_was_seen(self) -> None:
        self.world.look()

    def teardown(self) -> None:
        try:
            self.world.finish()
        finally:
            self.world.close()
            shutil.rmtree(self.folder)

    # ------------------------------------------------------------------------------------- playing

    @precondition(has_agents)
    @rule(one=which, slots=st.integers(1, 6))
    def play(self, one: int, slots: int) -> None:
        peers = running(self)
        self.world.play(peers[one % len(peers)], slots, np.random.default_rng(next(self.seeds)))

    @initialize(turns=st.integers(0, 3))
    def some_rounds_have_passed(self, turns: int) -> None:
        self.play_episodes_on_a_good_network(turns)

    @precondition(has_agents)
    @rule(turns=st.integers(1, 3))
    def play_episodes_on_a_good_network(self, turns: int) -> None:
        for _ in range(turns):
            for peer in running(self):
                self._play_the_episode(peer)
            self.world.calm(2)

    def _play_the_episode(self, peer: Peer) -> None:
        assert peer.agent is not None
        peer.agent.choose()  # takes up what has come
        left = peer.agent._player.message.slots - peer.agent._player.length
        self.world.play(peer, min(max(1, left), 8), np.random.default_rng(next(self.seeds)))

    # ------------------------------------------------------------------------------------- letters

    def _sent(self, one: int) -> Letter:
        return self.world.sent[one % len(self.world.sent)]

    def _past(self, one: int) -> Letter:
        """An upload of the past, with its agent's credential of now."""
        letter = self.world.past[one % len(self.world.past)].copy()
        token = self.world.peers[letter.sender].token
        kept = [(key, value) for key, value in letter.headers if key != b"authorization"]
        headers = [*kept, (b"authorization", f"Bearer {token}".encode())]
        return replace(letter, headers=headers)

    @precondition(lambda self: self.world.sent)
    @rule(one=which)
    def deliver(self, one: int) -> None:
        self.world.deliver(self._sent(one))

    @precondition(lambda self: len(self.world.sent) > 1)
    @rule(one=which, many=st.integers(2, 5))
    def deliver_together(self, one: int, many: int) -> None:
        sent = self.world.sent
        start = one % len(sent)
        self.world.deliver(*[*sent[start:], *sent[:start]][:many])

    @precondition(lambda self: self.world.sent)
    @rule(one=which)
    def deliver_twice(self, one: int) -> None:
        letter = self._sent(one)
        self.world.deliver(letter.copy())
        self.world.look()
        self.world.deliver(letter)

    @precondition(lambda self: self.world.sent)
    @rule(one=which)
    def deliver_twice_at_once(self, one: int) -> None:
        letter = self._sent(one)
        self.world.deliver(letter, letter.copy())

    @precondition(lambda self: self.world.sent)
    @rule(one=which)
    def lose(self, one: int) -> None:
        self.world.lose(self._sent(one))

    @precondition(lambda self: self.world.sent)
    @rule(one=which)
    def delay(self, one: int) -> None:
        self.world.delay(self._sent(one))

    @precondition(lambda self: self.world.answered)
    @rule(one=which)
    def answer(self, one: int) -> None:
        answered = self.world.answered
        self.world.hand_answer(answered[one % len(answered)])

    @precondition(lambda self: self.world.answered)
    @rule(one=which)
    def lose_answer(self, one: int) -> None:
        answered = self.world.answered
        self.world.lose_answer(answered[one % len(answered)])

    @precondition(lambda self: self.world.past and has_server(self))
    @rule(one=which)
    def an_old_upload_comes_again(self, one: int) -> None:
        self.world.deliver(self._past(one))

    @precondition(lambda self: self.world.past and has_server(self))
    @rule(one=which)
    def another_upload_under_the_same_key(self, one: int) -> None:
        letter, kept = self._past(one), self.world.kept
        assert kept is not None
        upload = letter.upload
        if (letter.sender, upload.incarnation, upload.sequence) in kept.digests and upload.slots:
            self.world.deliver(conflicting(letter))

    @precondition(lambda self: self.world.past and has_server(self))
    @rule(one=which)
    def old_counts_under_the_next_key(self, one: int) -> None:
        kept = self.world.kept
        assert kept is not None
        found = []
        for number, letter in enumerate(self.world.past):
            last = kept.records.get((letter.sender, letter.upload.incarnation))
            if last is not None and letter.upload.slots < last[2]:
                found.append((number, last[0]))
        if found:
            number, last_sequence = found[one % len(found)]
            self.world.deliver(from_a_backup(self._past(number), last_sequence, kept.round))

    @precondition(lambda self: self.world.past and has_server(self))
    @rule(one=which, elsewhere=st.booleans())
    def who_was_just_known_is_revoked(self, one: int, elsewhere: bool) -> None:
        """The server has met the agent a moment ago, and its credential is not good any more."""
        letter = self._past(one)
        peer = self.world.peers[letter.sender]
        if peer.enrolled:
            self.world.deliver(letter.copy())
            self.world.revoke(peer, elsewhere=elsewhere)
            self.world.deliver(letter)
            self._enroll_again(peer, elsewhere)

    @rule(seconds=st.sampled_from([0.5, 5.0, 31.0, LONG]))
    def time_passes(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @precondition(lambda self: has_server(self) and has_agents(self))
    @rule(one=which, turns=st.integers(1, 4))
    def an_agent_lives_on_in_another_process(self, one: int, turns: int) -> None:
        """So that what it was before ends, and is folded."""
        peers = running(self)
        peer = peers[one % len(peers)]
        self.world.kill_agent(peer, loses_file=False)
        self.world.start_agent(peer)
        for _ in range(turns):
            self.world.pass_time(LONG)
            self.play_episodes_on_a_good_network(1)

    # -------------------------------------------------------------------------------------- server

    def _some_sent(self, many: int) -> list[Letter]:
        """Uploads before others, as there is more to go wrong."""
        return sorted(self.world.sent, key=lambda letter: letter.path != "/v1/uploads")[:many]

    @precondition(has_server)
    @rule(committed=st.booleans(), many=st.integers(0, 3), back=often)
    def the_server_crashes(self, committed: bool, many: int, back: bool) -> None:
        """In the midst of some requests: before they are committed, or before they are answered."""
        world = self.world
        if many and world.sent:
            assert world.server is not None
            world.server.refusing = not committed
            before = len(world.answered)
            world.deliver(*self._some_sent(many))
            while len(world.answered) > before:
                world.lose_answer(world.answered[-1])
        world.crash_server()
        if back:
            world.start_server()

    @precondition(has_server)
    @rule(back=often)
    def the_server_ends(self, back: bool) -> None:
        self.world.stop_server()
        if back:
            self.world.start_server()

    @precondition(lambda self: not has_server(self))
    @rule()
    def the_server_starts(self) -> None:
        self.world.start_server()

    @precondition(lambda self: has_server(self) and has_agents(self))
    @rule(many=st.integers(1, 3))
    def the_disk_refuses(self, many: int) -> None:
        world = self.world
        assert world.server is not None
        for peer in running(self):  # so that there is something to upload
            self._play_the_episode(peer)
        world.server.refusing = True
        world.deliver(*self._some_sent(many))
        world.server_recovers()

    @precondition(has_server)
    @rule()
    def plans_take_long(self) -> None:
        self.world.planner.gate.clear()

    @precondition(lambda self: has_server(self) and not self.world.planner.gate.is_set())
    @rule(disk_refuses=st.booleans())
    def plans_are_made(self, disk_refuses: bool) -> None:
        world = self.world
        assert world.server is not None
        world.server.refusing = disk_refuses
        world.planner.gate.set()
        world.settle()
        world.server_recovers()

    # -------------------------------------------------------------------------------------- agents

    @precondition(lambda self: has_server(self) and len(self.world.peers) < len(NAMES))
    @rule(elsewhere=st.booleans())
    def an_agent_joins(self, elsewhere: bool) -> None:
        name = NAMES[len(self.world.peers)]
        self.world.enroll(name, elsewhere=elsewhere)
        self.world.start_agent(self.world.peers[name])

    @precondition(has_agents)
    @rule(one=which, keeps_file=often, back=often)
    def an_agent_is_killed(self, one: int, keeps_file: bool, back: bool) -> None:
        peers = running(self)
        peer = peers[one % len(peers)]
        self.world.kill_agent(peer, loses_file=not keeps_file)
        if back:
            self.world.start_agent(peer)

    @precondition(has_agents)
    @rule(one=which)
    def an_agent_leaves(self, one: int) -> None:
        peers = running(self)
        self.world.end_agent(peers[one % len(peers)])

    @precondition(lambda self: len(running(self)) < len(self.world.peers))
    @rule(one=which)
    def an_agent_starts_again(self, one: int) -> None:
        gone = [peer for peer in self.world.peers.values() if peer.agent is None]
        self.world.start_agent(gone[one % len(gone)])

    @rule(one=which, elsewhere=st.booleans(), back=st.booleans())
    def an_agent_is_revoked(self, one: int, elsewhere: bool, back: bool) -> None:
        peers = [peer for peer in self.world.peers.values() if peer.enrolled]
        if peers:
            peer = peers[one % len(peers)]
            self.world.revoke(peer, elsewhere=elsewhere)
            if back:
                self._enroll_again(peer, elsewhere)

    @precondition(lambda self: not all(peer.enrolled for peer in self.world.peers.values()))
    @rule(one=which, elsewhere=st.booleans())
    def an_agent_is_enrolled_again(self, one: int, elsewhere: bool) -> None:
        peers = [peer for peer in self.world.peers.values() if not peer.enrolled]
        self._enroll_again(peers[one % len(peers)], elsewhere)

    def _enroll_again(self, peer: Peer, elsewhere: bool) -> None:
        self.world.enroll(peer.name, elsewhere=elsewhere)
        if peer.agent is not None:  # it needs the new credential
            self.world.kill_agent(peer, loses_file=False)
            self.world.start_agent(peer)


def run(machine: Any, examples: int, **more: Any) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            **more,
        ),
    )


def test_nothing_is_lost_or_counted_twice():
    run(Federated, 40)


@pytest.mark.slow
def test_nothing_is_lost_or_counted_twice_in_many_runs():
    run(Federated, 1200)


@pytest.fixture
def on_postgres(postgres_server):
    """Machines that have a schema of their own each."""
    numbers = count()

    def schema(folder: Path) -> str:
        name = f"stateful{next(numbers)}"
        with psycopg.connect(postgres_server, autocommit=True) as admin:
            admin.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE".encode())
            admin.execute(f"CREATE SCHEMA {name}".encode())
        return f"{postgres_server}&options=-csearch_path%3D{name}"

    return lambda: Federated(schema)


@pytest.mark.postgres
def test_nothing_is_lost_or_counted_twice_on_postgresql(on_postgres):
    run(on_postgres, 8)


@pytest.mark.slow
@pytest.mark.postgres
def test_nothing_is_lost_or_counted_twice_in_many_runs_on_postgresql(on_postgres):
    run(on_postgres, 160)


def test_a_round_that_was_not_committed_is_not_the_open_one(database_url):
    store = open_store(database_url, FEDERATION)
    try:
        store.claim()
        first = OpenRound(1, 0.0, 2, None, store.merged(), b"{}")
        store.open_round(first)
        with contextlib.suppress(StorageError), store.transaction():
            assert store.open_number() == 1
            store.close_round(1, 1.0, "all", 1, 2, None)
            store.open_round(first._replace(number=2))
            assert store.open_number() == 2
            raise StorageError("the disk refuses")
        with store.transaction():
            assert store.open_number() == 1
    finally:
        store.close()


# ------------------------------------------------------------------------------------------- faults


def repeats_count_again(monkeypatch):
    good = uploads.receive

    def receive(store, key_id, secret_hash, upload, *rest, **more):
        status = good(store, key_id, secret_hash, upload, *rest, **more)
        if status == "repeat":
            store.uploads._running().add(
                store.credentials.credential(key_id).name,
                uploads=1,
                slots=upload.slots,
                counts=upload.counts,
                visits=upload.visits,
                at=0.0,
                round=upload.round,
            )
        return status

    monkeypatch.setattr(uploads, "receive", receive)


def repeats_are_not_compared(monkeypatch):
    good = uploads.receive

    def receive(store, key_id, secret_hash, upload, *rest, **more):
        agent = uploads.authenticate(store, key_id, secret_hash, "agent").name
        if store.uploads.digest(agent, upload.incarnation, upload.sequence) is not None:
            return "repeat"
        return good(store, key_id, secret_hash, upload, *rest, **more)

    monkeypatch.setattr(uploads, "receive", receive)


def closed_rounds_are_accepted(monkeypatch):
    good = uploads.receive

    def receive(store, key_id, secret_hash, upload, current, *rest, **more):
        return good(store, key_id, secret_hash, upload, upload.round, *rest, **more)

    monkeypatch.setattr(uploads, "receive", receive)


def growth_is_not_checked(monkeypatch):
    monkeypatch.setattr(uploads, "check_growth", lambda *_: None)


def ended_incarnations_are_taken_for_new(monkeypatch):
    monkeypatch.setattr(uploads, "_is_last_of_ended", lambda *_: False)


def forgotten_incarnations_are_taken_for_new(monkeypatch):
    monkeypatch.setattr(UploadLedger, "floor", lambda *_: 0)


def what_is_folded_is_not_added(monkeypatch):
    good = UploadLedger.folded

    def nothing(self, agent):
        return tuple(np.zeros_like(part) for part in good(self, agent))

    monkeypatch.setattr(UploadLedger, "folded", nothing)


def the_ledger_forgets_the_last_upload(monkeypatch):
    good = Retention._prune

    def all_of_them(self, agent, rows, *rest):
        good(self, agent, [row._replace(sequence=row.sequence + 1) for row in rows], *rest)

    monkeypatch.setattr(Retention, "_prune", all_of_them)


def acknowledged_before_it_is_committed(monkeypatch):
    together = Writer._together

    def tells_the_best(self, batch):
        together(self, batch)
        for entry in batch:
            if entry.result is not None:
                entry.error = None

    monkeypatch.setattr(Writer, "_together", tells_the_best)


def revoked_credentials_are_good(monkeypatch):
    authenticate = uploads.authenticate

    def trusting(store, key_id, secret_hash, role):
        found = store.credentials.credential(key_id)
        return found or authenticate(store, key_id, secret_hash, role)

    monkeypatch.setattr(uploads, "authenticate", trusting)


def what_is_left_is_sent_as_a_new_incarnations(monkeypatch):
    good = outbox._recovered

    def renamed(kept, *more):
        return good(replace(kept, incarnation=kept.incarnation[::-1]), *more)

    monkeypatch.setattr(outbox, "_recovered", renamed)


def what_is_left_is_forgotten(monkeypatch):
    monkeypatch.setattr(agent_module, "recovered", lambda *_: [])


FAULTS = [
    repeats_count_again,
    repeats_are_not_compared,
    closed_rounds_are_accepted,
    growth_is_not_checked,
    pytest.param(ended_incarnations_are_taken_for_new, marks=pytest.mark.slow),
    pytest.param(forgotten_incarnations_are_taken_for_new, marks=pytest.mark.slow),
    pytest.param(what_is_folded_is_not_added, marks=pytest.mark.slow),
    the_ledger_forgets_the_last_upload,
    acknowledged_before_it_is_committed,
    revoked_credentials_are_good,
    what_is_left_is_sent_as_a_new_incarnations,
    what_is_left_is_forgotten,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_faults_are_found(monkeypatch, fault):
    fault(monkeypatch)
    # A failure that does not come again in the same steps, on a busy machine, is found as well.
    with pytest.raises((AssertionError, Flaky)):
        run(Federated, 1500, phases=[Phase.generate], report_multiple_bugs=False)
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("rmab-")]
    assert left == []  # which would end in the midst of another test
