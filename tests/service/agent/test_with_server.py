"""Agents and the real server: rounds, a server that restarts, TLS with a private CA."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from functools import partial
from itertools import count

import numpy as np

import rmab
from rmab.policies.plans import IndexPlan
from rmab.protocol.growth import Merged
from rmab.protocol.planner import Planner
from rmab.service.agent.limits import AgentLimits
from rmab.service.server.limits import ServerLimits
from tests.service.support.fake_server import tally
from tests.service.support.serving import PATIENCE, gives_up, served, spectrum

Book = list[tuple[list[int], list[int]]]
FEDERATION = spectrum(policy="fedtswi-gap", deadline=600.0)
Agent = partial(rmab.Agent, limits=AgentLimits(first_pause=0.01, longest_pause=0.05))


def play(agents, books, slots, seed=0):
    """All agents slot by slot; each waits for the next round when its episode is over."""
    rng = np.random.default_rng(seed)
    for _ in range(slots):
        for agent, book in zip(agents, books, strict=True):
            if agent.over:
                assert agent.wait(PATIENCE)
            arms = agent.choose()
            states = rng.integers(2, size=len(arms)).tolist()
            agent.observe(states)
            book.append((arms, states))


def totals(made):
    """Counts and visits of all agents, from the database."""
    from rmab.service.store.store import open_store

    store = open_store(made.database, FEDERATION)
    try:
        with store.transaction():
            return store.merged()
    finally:
        store.close()


def assert_all_there(made, books):
    parts = [tally(book, FEDERATION.shape) for book in books]
    found = totals(made)
    np.testing.assert_array_equal(found.counts, sum(counts for counts, _ in parts))
    np.testing.assert_array_equal(found.visits, sum(visits for _, visits in parts))


def test_agents_play_round_after_round_together(tmp_path):
    with served(tmp_path, FEDERATION) as made:
        agents = [
            Agent(made.url, token=made.enroll(name), file=tmp_path / name)
            for name in ("one", "two", "three")
        ]
        books: list[Book] = [[] for _ in agents]
        try:
            play(agents, books, 60)
            assert len({agent.round for agent in agents}) == 1
            assert agents[0].round >= 9  # episodes of 2, 3, 4, ... slots
            for agent in agents:
                assert agent.flush(PATIENCE)
        finally:
            for agent in agents:
                agent.close()
        assert_all_there(made, books)


def test_a_server_that_restarts_is_found_again_and_misses_nothing(tmp_path):
    books: list[Book] = [[]]
    rounds, seeds = [], count()
    with served(tmp_path, FEDERATION) as made:
        port = int(made.url.rsplit(":", 1)[1])
        agent = Agent(made.url, token=made.enroll("one"), file=tmp_path / "one")
        play([agent], books, 20, next(seeds))
    try:
        for _ in range(3):
            for _ in range(50):  # alone
                arms = agent.choose()
                agent.observe([0] * len(arms))
                books[0].append((arms, [0] * len(arms)))
            with served(tmp_path, FEDERATION, port=port) as made:
                play([agent], books, 10, next(seeds))
                assert agent.flush(PATIENCE)
                assert_all_there(made, books)
                rounds.append(agent.round)
    finally:
        agent.close()
    assert rounds == sorted(rounds)
    assert len(set(rounds)) == 3


def test_agents_whose_connections_make_room_for_others_miss_nothing(tmp_path):
    books: list[Book] = [[], []]
    limits = ServerLimits(connections=4)
    with served(tmp_path, FEDERATION, limits=limits) as made, ExitStack() as stack:
        agents = [
            stack.enter_context(Agent(made.url, token=made.enroll(name), file=tmp_path / name))
            for name in ("one", "two")
        ]
        for seed in range(10):
            for _ in range(8):  # strangers who ask for nothing
                stranger = socket.create_connection(("127.0.0.1", made.port))
                stack.enter_context(stranger)
            play(agents, books, 4, seed)
        for agent in agents:
            assert agent.flush(PATIENCE)
        assert_all_there(made, books)


def test_tls_with_a_private_ca(tmp_path, authority):
    tls = {"tls_cert": authority.cert, "tls_key": authority.key}
    with served(tmp_path, FEDERATION, **tls) as made:
        assert made.url.startswith("https://")
        token = made.enroll("one")
        books: list[Book] = [[]]
        with Agent(made.url, token=token, file=tmp_path / "one", ca=authority.ca) as agent:
            play([agent], books, 10)
            assert agent.flush(PATIENCE)
        assert_all_there(made, books)
        gives_up(
            lambda patience: Agent(made.url, token=token, file=tmp_path / "two", patience=patience),
            "CERTIFICATE_VERIFY_FAILED",
        )


def test_a_certificate_for_another_name_is_not_trusted(tmp_path, authority):
    tls = {"tls_cert": authority.other_cert, "tls_key": authority.other_key}
    with served(tmp_path, FEDERATION, **tls) as made:
        who = {"token": made.enroll("one"), "file": tmp_path / "one", "ca": authority.ca}
        gives_up(
            lambda patience: Agent(made.url, patience=patience, **who),
            r"CERTIFICATE_VERIFY_FAILED.*127",
        )


def test_agents_that_share_nothing_are_each_sent_a_plan_of_their_own_counts(tmp_path):
    """Also by a server that was restarted: a plan is a function of seed, counts, round and lane."""
    federation = spectrum(policy="fedtswi", aggregation="none", deadline=600.0)
    names = ("one", "two")
    books: list[Book] = [[], []]
    with served(tmp_path, federation, Planner(federation)) as made:
        tokens = {name: made.enroll(name) for name in names}
        agents = [Agent(made.url, token=tokens[n], file=tmp_path / n) for n in names]
        play(agents, books, 20)
        for agent in agents:
            assert agent.flush(PATIENCE)
        for agent in agents:
            agent.close()
    with served(tmp_path, federation, Planner(federation)) as made:
        fresh = [Agent(made.url, token=tokens[n], file=tmp_path / f"{n}-new") for n in names]
        found = [agent._player.message for agent in fresh]
        for agent in fresh:
            agent.close()
    number = found[0].round
    assert number == found[1].round
    assert number > 4
    # The open round was planned when the one before it closed: from whole episodes.
    slots = sum(range(2, number + 1))
    planner, plans = Planner(federation), []
    for lane, (message, book) in enumerate(zip(found, books, strict=True)):
        counts, visits = tally(book[:slots], federation.shape)
        due = planner.plan(Merged(counts, visits, 1), number, lane).plan
        assert isinstance(due, IndexPlan)
        assert isinstance(message.plan, IndexPlan)
        np.testing.assert_array_equal(message.plan.index, due.index)
        plans.append(due.index)
    assert not np.array_equal(plans[0], plans[1])
