"""What an agent's process leaves is found by the next, however it ended: no look is lost or counted
twice."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmab.errors import FederationError, StorageError, UnreachableError
from rmab.policies.own_index import Observations
from rmab.policies.plans import OwnPlan
from rmab.protocol.growth import Record
from rmab.service.agent.agent import Agent
from rmab.service.agent.state_file import AgentFile
from tests.service.support.fake_server import (
    QUICK,
    SHAPE,
    TOKEN,
    URL,
    Playing,
    PretendServer,
    answers,
    assert_file_empty,
    assert_told,
    index_message,
    lost_answer,
    server_is_away,
    tally,
)
from tests.service.support.serving import until

# ---------------------------------------------------------------------------------------- restarts


def killed(agent):
    """As good as a kill: the exchange stops where it is, and nothing more is sent."""
    agent._exchange.stop()
    agent._file.close()
    agent._closed = True


def left_by(path):
    """What a file has of earlier incarnations."""
    file = AgentFile(path)
    found = [kept for kept in file.earlier() if kept.has_more or kept.upload]
    file.close()
    return found


def test_what_a_process_left_unsent_is_sent_by_the_next(server, start, path):
    agent = start()
    first = Playing(agent).slots(4, wait=False)
    assert agent.flush(20)
    server.always = server_is_away
    first.slots(7)
    agent.close()
    assert server.slots_in_all == 4
    server.always = None
    agent = start()
    second = Playing(agent, seed=1).slots(5)
    assert agent.flush(20)
    assert_told(server, first.looks, second.looks)
    agent.close()
    assert_file_empty(path)
    assert start().flush(20)
    assert_told(server, first.looks, second.looks)


def test_several_processes_may_leave_something(server, start, path):
    start().close()
    server.always = server_is_away
    books = []
    for seed in range(4):
        agent = start()
        books.append(Playing(agent, seed).slots(5 + seed).looks)
        assert agent.unsent
        agent.close()
    server.always = None
    server.number = 30
    agent = start()
    assert agent.flush(20)
    assert agent.uploads == 4
    assert_told(server, *books)
    assert all(upload.length == 0 for upload in server.uploads)
    agent.close()
    assert_file_empty(path)


@pytest.mark.parametrize("fault", [lost_answer, server_is_away])
def test_an_upload_whose_answer_was_lost_is_not_counted_twice(server, start, fault):
    start().close()
    server.always = fault
    agent = start()
    first = Playing(agent).slots(3)
    agent.close()
    server.always = None
    agent = start()
    second = Playing(agent, seed=1).slots(2)
    assert agent.flush(20)
    assert_told(server, first.looks, second.looks)


def test_what_an_old_file_has_is_not_counted_again(server, start, path, caplog):
    agent = start()
    server.always = server_is_away
    first = Playing(agent).slots(3)
    agent.close()
    backup = path.read_bytes()
    server.always = None
    agent = start()
    second = Playing(agent, seed=1).slots(5)
    assert agent.flush(20)
    agent.close()
    path.write_bytes(backup)  # restored: it takes the first incarnation's counts for unsent
    agent = start()
    third = Playing(agent, seed=2).slots(5)
    assert agent.flush(20)
    assert_told(server, first.looks, second.looks, third.looks)


def test_an_old_file_that_fell_behind_is_given_up(server, start, path, caplog):
    start().close()
    server.always = server_is_away
    agent = start()
    Playing(agent).slots(5)
    agent.close()
    server.always = None
    # The server has more of that incarnation than this copy of the file knows.
    rng = np.random.default_rng(0)
    looks = [([0, 3], rng.integers(2, size=2).tolist()) for _ in range(20)]
    counts, visits = tally(looks)
    incarnation = agent._player.incarnation
    server.records = {incarnation: Record(9, 1, 20, counts, visits)}
    server.ledger = {(incarnation, sequence): b"another body" for sequence in range(1, 10)}
    agent = start()
    assert agent.flush(20)
    assert_told(server, looks)
    assert "given up" in caplog.text
    agent.close()
    assert_file_empty(path)


def test_the_slots_of_a_long_time_alone_are_folded(server, start, path):
    start().close()
    server.always = server_is_away
    agent = start(limits=replace(QUICK, fold_slots=16))
    first = Playing(agent).slots(200)
    killed(agent)
    (kept,) = left_by(path)
    assert kept.slots >= 180
    assert len(kept.observations) < 32
    server.always = None
    agent = start()
    second = Playing(agent, seed=1).slots(20)
    assert agent.flush(20)
    assert_told(server, first.looks, second.looks)


def test_an_upload_that_the_server_chokes_on_is_not_in_the_way_of_others(server, start):
    start().close()
    server.always = server_is_away
    books = []
    for seed in range(3):
        agent = start()
        books.append(Playing(agent, seed).slots(5).looks)
        agent.close()
    chokes_on = [kept.incarnation for kept in left_by(agent.file)][1]
    good = server.receive

    def receive(upload):
        return (500, b"", {}) if upload.incarnation == chokes_on else good(upload)

    server.receive = receive
    server.always = None
    agent = start()
    books.append(Playing(agent, 9).slots(5).looks)
    assert not agent.flush(0.5)
    assert_told(server, books[0], books[2], books[3])
    server.receive = good
    assert agent.flush(20)
    assert_told(server, *books)


def test_slots_folded_after_what_was_told_are_not_forgotten(server, start):
    server.slots = 10**6
    agent = start(limits=replace(QUICK, fold_slots=10))
    first = Playing(agent).slots(3)
    assert agent.flush(20)
    first.slots(10)
    assert agent._folded == 13
    killed(agent)
    agent = start()
    assert agent.flush(20)
    assert_told(server, first.looks)


def test_a_file_of_another_agent_is_not_sent_as_this_ones(server, start, path):
    start().close()
    server.always = server_is_away
    agent = start()
    playing = Playing(agent).slots(5)
    agent.close()
    mine = left_by(path)
    server.always = None
    server.message = lambda number, slots: index_message(number, slots, agent="two")
    server.token = TOKEN.replace("0" * 16, "2" * 16)
    whose = r"agent\.db is of agent one in federation spectrum, but .* agent two in spectrum"
    with pytest.raises(FederationError, match=whose):
        start(token=server.token)
    assert server.uploads == []
    assert left_by(path) == mine
    server.always = server_is_away  # it must know before it plays
    with pytest.raises(UnreachableError, match="last used with another credential"):
        start(token=server.token, patience=0.1)
    server.always = None
    # A new credential of the same agent may go on with its file.
    server.message = index_message
    agent = start(token=server.token)
    assert agent.flush(20)
    assert_told(server, playing.looks)


def test_a_file_of_an_earlier_version_that_is_anothers(server, start, path):
    """It does not tell whose credential it was used with: that is found in the background."""
    start().close()
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute("DELETE FROM slots WHERE life = 0 AND slot = 1")
    server.message = lambda number, slots: index_message(number, slots, agent="two")
    server.always = server_is_away
    agent = start()
    Playing(agent).slots(5)
    server.always = None
    assert not agent.flush(20)  # as soon as that is known
    with pytest.raises(FederationError, match="is of agent one in federation spectrum"):
        agent.choose()
    agent.close()
    assert server.uploads == []
    assert left_by(path) == []


def test_a_file_of_other_arms_is_refused(server, start, path):
    start().close()
    other = SHAPE._replace(gaps=SHAPE.gaps + 1)
    server.message = lambda number, slots: index_message(number, slots, shape=other)
    agent = start()
    assert agent.wait(20)
    with pytest.raises(FederationError, match="but the server's arms are others"):
        agent.choose()


def test_a_file_with_a_round_that_is_none_is_set_aside(server, start, path):
    file = AgentFile(path)
    file.keep_message(b'{"protocol": 0}')
    file.close()
    agent = start()
    assert agent.round == 1
    assert path.with_name("agent.db.broken").exists()


def test_a_file_that_is_lost_means_a_new_incarnation(server, start, path):
    agent = start()
    first = Playing(agent).slots(5)
    agent.close()
    path.unlink()
    agent = start()
    second = Playing(agent, seed=1).slots(5)
    assert agent.flush(20)
    assert_told(server, first.looks, second.looks)
    assert len(server.records) == 2


def test_a_full_disk_does_not_stop_the_agent(server, start, path, monkeypatch, caplog):
    agent = start()
    playing = Playing(agent).slots(5)
    full = {"now": True}
    good = AgentFile.keep_slot

    def refuses(self, *args):
        if full["now"]:
            raise StorageError("disk full")
        good(self, *args)

    monkeypatch.setattr(AgentFile, "keep_slot", refuses)
    playing.slots(20)
    assert "disk full" in caplog.text
    server.always = server_is_away
    full["now"] = False
    playing.slots(9)
    killed(agent)
    server.always = None
    assert start().flush(20)
    assert_told(server, playing.looks)


@settings(max_examples=25)
@given(
    plan=st.lists(st.tuples(st.integers(1, 12), st.sampled_from("fku")), min_size=1, max_size=6),
    seed=st.integers(0, 99),
)
def test_whatever_is_kept_and_when_the_next_process_finds_it_all(tmp_path_factory, plan, seed):
    """Slots, folds, uploads that are lost and kills in any order, without a server."""
    path = tmp_path_factory.mktemp("agent") / "agent.db"
    server = PretendServer(slots=10**6)
    options = {"token": TOKEN, "file": path, "transport": server.transport(), "limits": QUICK}
    Agent(URL, **options).close()
    server.always = server_is_away
    agent = Agent(URL, **options)
    books = [Playing(agent, seed)]
    try:
        for number, (slots, action) in enumerate(plan):
            books[-1].slots(slots)
            if action == "f":
                agent._hand_over(send=False)
            elif action == "u":
                agent._hand_over(send=True)
            else:
                killed(agent)
                agent = Agent(URL, **options)
                books.append(Playing(agent, seed + number))
        server.always = None
        assert agent.flush(20)
        assert_told(server, *(book.looks for book in books))
    finally:
        server.always = server_is_away
        agent.close()


FAULTS = {
    "away": server_is_away,
    "lost": lost_answer,
    "overload": answers(503, {"error": "overload", "detail": "later"}),
    "nonsense": answers(200, b"<html>"),
}
STEPS = st.one_of(
    st.tuples(st.just("play"), st.integers(1, 8)),
    st.tuples(st.sampled_from(sorted(FAULTS)), st.integers(1, 4)),
    st.tuples(st.sampled_from(["kill", "end", "close round", "flush", "wait"]), st.just(0)),
)


@settings(max_examples=40)
@given(steps=st.lists(STEPS, max_size=14))
def test_whatever_goes_wrong_in_whatever_order_all_arrives_once(tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("agent") / "agent.db"
    server = PretendServer()
    limits = replace(QUICK, fold_slots=5)
    options = {
        "token": TOKEN,
        "file": path,
        "transport": server.transport(),
        "timeout": 5.0,
        "limits": limits,
    }
    agent = Agent(URL, **options)
    books = [Playing(agent)]
    try:
        for number, (step, size) in enumerate(steps):
            if step == "play":
                books[-1].slots(size)
            elif step in FAULTS:
                server.faults.extend([FAULTS[step]] * size)
            elif step == "close round":
                server.number += 1
            elif step == "flush":
                agent.flush(0.01)
            elif step == "wait":
                agent.wait(0.01)
            else:
                killed(agent) if step == "kill" else agent.close()
                agent = Agent(URL, **options)
                books.append(Playing(agent, seed=number))
        server.faults.clear()
        assert agent.flush(20)
        assert_told(server, *(book.looks for book in books))
    finally:
        server.always = server_is_away
        agent.close()


KILLED = """
import json, sys
import numpy as np
from rmab.policies.own_index import Observations
from rmab.policies.plans import OwnPlan
from rmab.service.agent.agent import Agent
url, token, file, book, seed = sys.argv[1:]
rng = np.random.default_rng(int(seed))
sizes = (2, 2, 2, 3)
with Agent(url, token=token, file=file) as agent, open(book, "ab", buffering=0) as written:
    print("playing", flush=True)
    while True:
        arms = agent.choose()
        states = [int(rng.integers(sizes[arm])) for arm in arms]
        incarnation = agent._player.incarnation
        line = {"incarnation": incarnation, "arms": arms, "states": states}
        written.write(json.dumps(line).encode() + b"\\n")
        agent.observe(states)
        written.write(b'"ok"\\n')
"""


def test_a_process_that_is_killed_loses_nothing_and_nothing_counts_twice(
    server, real, path, tmp_path
):
    rng = np.random.default_rng(11)

    def unsteady(method, good):
        """Now and then an answer is lost, or none comes."""
        chance = rng.random()
        if chance < 0.2:
            (lost_answer if chance < 0.1 else server_is_away)(method, good)
        return good()

    server.always = unsteady
    told, books = [], []
    for seed in range(4):
        book = tmp_path / f"book{seed}"
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, real.url, TOKEN, path, book, str(seed)],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.readline()
        until(lambda: book.read_bytes().count(b'"ok"') > 25)  # noqa: B023 - called here
        time.sleep(float(rng.uniform(0.01, 0.25)))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        books.append(book)
    server.always = None
    with Agent(real.url, token=TOKEN, file=path) as agent:
        assert agent.flush(20)
        assert agent.slots == 0
    for book in books:
        lines = [json.loads(line) for line in book.read_text().splitlines()]
        begun = [line for line in lines if line != "ok"]
        slots = server.records[begun[0]["incarnation"]].slots
        # Every slot that was observed, and perhaps the one that was cut short.
        assert lines.count("ok") <= slots <= len(begun)
        told.append([(line["arms"], line["states"]) for line in begun[:slots]])
    assert len(server.records) == 4
    assert_told(server, *told)
    assert sum(map(len, told)) > 100


# ------------------------------------------------------------------- a learner's own state


def ucb_message(number, slots):
    """A round in which agents play by a learner of their own."""
    return replace(index_message(number, slots), plan=OwnPlan("ucb", {"c": 0.5}))


class PlainUcb:
    """What the learner of one agent would do that is never interrupted."""

    def __init__(self, message):
        self.own, self.rewards = message.plan.own, message.rewards
        self.state = self.own.init(max(message.shape.states), (message.shape.n_arms,))
        self.slot = 0

    def goes_on(self, book, plays):
        """The arms and states of a book are those that it chooses, slot after slot."""
        for arms, states in book:
            index = self.own.index(self.state, self.slot)
            assert arms == np.sort(np.argsort(-index, kind="stable")[:plays]).tolist()
            played = np.isin(np.arange(len(index)), arms)
            reward = np.zeros(len(index))
            reward[arms] = [self.rewards[arm][s] for arm, s in zip(arms, states, strict=True)]
            seen = Observations(played, played, played, reward, self.slot)
            self.state, self.slot = self.own.update(self.state, seen), self.slot + 1


def test_a_learners_own_state_outlives_the_process_and_the_incarnation(server, start, path):
    server.message = ucb_message
    plain = PlainUcb(ucb_message(1, 3))
    agent = start()
    first = Playing(agent).slots(17)
    killed(agent)
    again = start()
    second = Playing(again, seed=1).slots(20)
    assert len({tuple(arms) for arms, _ in second.looks}) > 1
    again._renew()  # as where the server refuses the incarnation
    third = Playing(again, seed=2).slots(9)
    for book in (first, second, third):
        plain.goes_on(book.looks, again.plays)


def test_a_state_that_is_not_this_learners_is_not_taken_up(server, start, path):
    server.message = ucb_message
    file = AgentFile(path)
    file.begin("0" * 32)
    file.keep_slot(1, [0], [0], np.arange(3.0))
    file.close()
    agent = start()
    plain = PlainUcb(ucb_message(1, 3))
    plain.goes_on(Playing(agent).slots(8).looks, agent.plays)


def test_skipped_slots_leave_the_counts_exact(server, start, path):
    """Slots without a reading, of one arm or of all, by chance: gaps are those of true slots, also
    in what a killed process left."""
    server.slots = 10**6
    rng = np.random.default_rng(4)
    books = []
    for limits in (QUICK, replace(QUICK, fold_slots=7)):
        agent = start(limits=limits, max_bad_readings=10**6)
        looks: list[tuple[list[int], list[int]]] = []
        for _ in range(120):
            arms = agent.choose()
            states = rng.integers(2, size=2).tolist()
            kind = rng.integers(4)
            if kind == 0:
                agent.skip("no antenna")
                looks.append(([], []))
            elif kind == 1:
                dead = int(rng.integers(2))
                agent.observe([np.nan if i == dead else s for i, s in enumerate(states)])
                looks.append(([arms[1 - dead]], [states[1 - dead]]))
            else:
                agent.observe(states)
                looks.append((arms, states))
        books.append(looks)
        killed(agent)
    agent = start()
    assert agent.flush(20)
    assert_told(server, *books)
    assert server.slots_in_all == 240


def test_a_learner_of_its_own_passes_over_what_was_not_read(server, start):
    server.message = ucb_message
    agent = start()
    before = agent._player.learner_state
    agent.choose()
    agent.skip("no antenna")
    after = agent._player.learner_state
    assert after[0] == before[0] + 1  # a slot
    assert after[1:].tolist() == before[1:].tolist()
