"""What people see of a federation: numbers, agents, arms, and scores that are made now and then."""

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rmab.policies.plans import IndexPlan, TurnsPlan
from rmab.privacy.settings import Privacy
from rmab.protocol.config import KnownArm
from rmab.protocol.outliers import OutlierScores
from rmab.service.server import status as module
from rmab.service.server.limits import ServerLimits
from rmab.service.server.status import Status
from rmab.service.store.store import Store, open_store
from tests.service.support.counting import Counting
from tests.service.support.serving import served, spectrum
from tests.service.support.storing import enrolled, given, some_round


class Rounds:
    """A stand-in for the rounds of a server that does not run, on a store in a file."""

    def __init__(self, store, federation):
        self.store, self.federation = store, federation
        self.limits = replace(ServerLimits(), outlier_seconds=1.0, page_seconds=1.0)
        self.now, self.changes, self.number, self.reports = 50.0, 1, 3, 2
        self.current = SimpleNamespace(opened=40.0, limit=7)
        self.together = SimpleNamespace(correlation=None, correlated=False)
        self.opening = None
        self.jobs = SimpleNamespace(run=self._run, running=True, waiting=4)
        self.estimates = None
        self.planning = SimpleNamespace(estimated=self._estimated, shown_plan=None)
        self.presence = SimpleNamespace(updated=lambda row: row)
        self.polls = SimpleNamespace(count=5, names=set())

    async def _run(self, job):
        return job(self.store)

    async def _estimated(self, opened, seconds):
        assert opened is self.current
        assert seconds == self.limits.page_estimate_seconds
        return self.estimates

    def clock(self):
        return self.now

    def live(self, rows):
        return {row.name for row in rows if row.is_live(self.now, 30.0)}

    def warnings(self):
        return ["it rains"]


@pytest.fixture
def make(tmp_path):
    """Makes a status of some federation, and the rounds that it is of."""
    opened: list[Store] = []

    def made(**changes):
        federation = replace(spectrum(), **changes)
        store = open_store(str(tmp_path / f"{len(opened)}.db"), federation)
        store.claim()
        opened.append(store)
        rounds: Any = Rounds(store, federation)
        rounds.ask = runner.run
        return Status(rounds), rounds

    with asyncio.Runner() as runner:
        yield made
    for store in opened:
        store.close()


def page_of(status):
    return json.loads(status._rounds.ask(status.page()))


def test_numbers_before_anything_was_played(make):
    status, rounds = make()
    found = rounds.ask(status.numbers())
    assert found == {
        "federation": "spectrum",
        "policy": rounds.federation.policy,
        "round": 3,
        "limit": 7,
        "uploads": 0,
        "slots": 0,
        "agents": 0,
        "live": 0,
        "arms": [None] * 4,
    }
    rounds.current = None
    rounds.estimates = [{"p01": 1}] * 4
    found = rounds.ask(status.numbers())
    assert (found["limit"], found["arms"]) == (None, rounds.estimates)


def test_numbers_of_agents_that_are_enrolled_and_live(make):
    status, rounds = make()
    tokens = {name: enrolled(rounds.store, name) for name in ("a", "b", "c", "gone")}
    enrolled(rounds.store, "boss", "admin")
    for name, now in (("a", 45.0), ("b", 10.0), ("gone", 49.0)):
        upload = Counting(rounds.federation.shape, name).upload(1, slots=4)
        given(rounds.store, tokens[name], upload, now=now)
    rounds.store.revoke("gone", 50.0)
    found = rounds.ask(status.numbers())
    assert (found["agents"], found["live"], found["uploads"], found["slots"]) == (3, 1, 3, 12)
    rows = {row["name"]: row for row in rounds.ask(status.agents())}
    assert set(rows) == {*tokens, "boss"}
    assert {name: row["live"] for name, row in rows.items()} == {
        **dict.fromkeys(rows, False),
        "a": True,
    }
    assert {row["name"] for row in page_of(status)["agents"]} == set(tokens)


def test_arms_that_are_not_as_most_are_say_so(make):
    arms = (
        KnownArm(2, (0.0, 0.5)),
        KnownArm(2, (0.0, 1.0), observed="always", reward_passive=(0.0, 0.25)),
        KnownArm(3, (0.0, 0.5, 1.0), action_dependent=True),
    )
    status, rounds = make(arms=arms)
    table = np.arange(21, dtype=np.float32).reshape(3, 7)
    rounds.planning.shown_plan = IndexPlan(2, 2, table, rounds.federation.shape.states)
    plain, shown, moved = page_of(status)["arms"]
    told = {"reward_passive", "observed", "action_dependent"}
    assert not told & set(plain)
    assert {key: shown.get(key) for key in told} == {
        "reward_passive": [0.0, 0.25],
        "observed": "always",
        "action_dependent": None,
    }
    assert told & set(moved) == {"action_dependent"}
    assert (moved["states"], moved["reward"]) == (3, [0.0, 0.5, 1.0])
    assert shown["index"] == {"never": None, "by_state": [[8.0], [10.0]]}  # of age 1 only
    assert moved["index"]["by_state"] == [[15.0, 16.0], [17.0, 18.0], [19.0, 20.0]]


def test_shares_of_plays_are_of_all_plays(make):
    status, rounds = make()
    arms = page_of(status)["arms"]
    assert [(arm["plays"], arm["share"]) for arm in arms] == [(0, 0.0)] * 4
    upload = Counting(rounds.federation.shape).upload(1, slots=25)
    given(rounds.store, enrolled(rounds.store), upload)
    rounds.changes += 1
    page = page_of(status)
    plays = upload.visits.sum(0)
    assert [arm["plays"] for arm in page["arms"]] == plays.tolist()
    assert [arm["share"] for arm in page["arms"]] == pytest.approx(plays / 50)
    assert [arm["reward"] for arm in page["arms"]] == [[0.0, r] for r in (0.4, 0.9, 0.7, 0.6)]
    assert (page["opened"], page["now"], page["plays"]) == (40.0, 50.0, 2)
    assert (page["warnings"], page["correlation"]) == (["it rains"], None)
    assert "privacy" not in page
    rounds.store.open_round(some_round(1, rounds.federation))
    rounds.store.close_round(1, 20.0, "all", 9, 21, 0.75)
    rounds.store.open_round(some_round(2, rounds.federation))
    rounds.changes += 1
    page = page_of(status)
    assert page["rewards"] == [{"round": 1, "slots": 21, "reward": 0.75}]
    assert [(row["round"], row["reports"], row["closed"]) for row in page["rounds"]] == [
        (2, 2, None),  # of the open one, those until now
        (1, 9, 20.0),
    ]


def test_a_page_is_made_again_after_a_while_or_a_change(make, monkeypatch):
    status, rounds = make()
    now = 10.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    first = rounds.ask(status.page())
    rounds.now = 51.0
    assert rounds.ask(status.page()) is first
    now = 11.0  # page_seconds later, to the very moment
    assert rounds.ask(status.page()) is first
    now = 11.001
    second = rounds.ask(status.page())
    assert b'"now":51.0' in second
    assert rounds.ask(status.page()) is second
    rounds.changes += 1
    assert rounds.ask(status.page()) is not second


def test_indices_are_those_of_the_plan_by_state_and_age(make):
    status, rounds = make()
    assert [arm["index"] for arm in page_of(status)["arms"]] == [None] * 4
    table = np.arange(20, dtype=np.float32).reshape(4, 5)
    states = rounds.federation.shape.states
    rounds.planning.shown_plan = IndexPlan(2, 2, table, states)
    rounds.changes += 1
    found = [arm["index"] for arm in page_of(status)["arms"]]
    assert found[0] == {"never": 0.0, "by_state": [[1.0, 2.0], [3.0, 4.0]]}
    assert found[3] == {"never": 15.0, "by_state": [[16.0, 17.0], [18.0, 19.0]]}
    rounds.planning.shown_plan = TurnsPlan(np.ones(4, bool))
    rounds.changes += 1
    assert [arm["index"] for arm in page_of(status)["arms"]] == [None] * 4


def test_how_rounds_turn_out_together_is_told_with_advice(make):
    for draws, advised in (("shared", True), ("own", False)):
        status, rounds = make(draws=draws, policy="fedtswi")
        for rho, correlated in ((0.123456, True), (0.5, False)):
            rounds.together = SimpleNamespace(correlation=rho, correlated=correlated)
            rounds.changes += 1
            found = page_of(status)["correlation"]
            assert found == {
                "value": round(rho, 4),
                "correlated": correlated,
                "advised": advised and correlated,
            }


def test_noise_and_what_is_left_of_it_is_told(make):
    status, rounds = make(privacy=Privacy(epsilon=2.0), policy="fedtswi", schedule="linear")
    found = rounds.ask(status.numbers())["privacy"]
    nothing = {"epsilon": 2.0, "delta": 1e-6, "mode": "noise", "least": None, "helper": None}
    assert {key: found[key] for key in nothing} == nothing
    assert (found["releases_left"], found["waiting"], found["waiting_slots"]) == (40, [], 0)
    (group,) = found["groups"]
    assert (group["group"], group["releases_left"], group["slots"]) == (1, 40, None)
    upload = Counting(rounds.federation.shape).upload(1, slots=9)
    given(rounds.store, enrolled(rounds.store), upload)
    assert rounds.ask(status.numbers())["privacy"]["waiting_slots"] == 9
    with rounds.store.transaction():
        size = rounds.federation.shape.size
        assert rounds.store.releases.release([0] * size, 1, 5.0) is not None
    found = rounds.ask(status.numbers())["privacy"]
    assert (found["releases_left"], found["waiting_slots"], found["impossible"]) == (39, 0, 0)
    assert found["groups"][0]["slots"] == 9
    page = page_of(status)
    assert page["privacy"] == found
    assert [(arm["plays"], arm["share"]) for arm in page["arms"]] == [(None, None)] * 4


# ------------------------------------------------------------------------------------------ scores


def scores(monkeypatch, divided=()):
    """Scores that count how often they were made."""
    made = []

    def compared(counts, shape, owners):
        made.append(owners)
        return OutlierScores({"a": float(len(made))}, divided)

    monkeypatch.setattr(module, "compared", compared)
    return made


def test_who_asks_for_agents_has_scores_of_this_moment(make, monkeypatch):
    status, rounds = make()
    enrolled(rounds.store, "a")
    made = scores(monkeypatch)
    for n in (1, 2):
        assert [row["outlier"] for row in rounds.ask(status.agents())] == [float(n)]
    assert made == [{"a": "a"}] * 2

    async def three_at_once():
        return await asyncio.gather(*(status.agents() for _ in range(3)))

    # The first may have begun before the others asked; those share the next.
    found = [rows[0]["outlier"] for rows in rounds.ask(three_at_once())]
    assert (found, len(made)) == ([3.0, 4.0, 4.0], 4)


def test_pages_have_scores_that_rest_for_a_while(make, monkeypatch):
    status, rounds = make()
    enrolled(rounds.store, "a")
    made, now = scores(monkeypatch), 10.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))

    def lately():
        return rounds.ask(status._outliers.lately(30.0)).scores

    assert lately() == {"a": 1.0}
    now = 1000.0
    assert lately() == {"a": 1.0}  # nothing has changed
    rounds.changes += 1
    assert lately() == {"a": 2.0}
    rounds.changes += 1
    now = 1000.9
    assert lately() == {"a": 2.0}
    now = 1001.0
    assert lately() == {"a": 3.0}
    assert len(made) == 3


def test_scores_that_take_long_are_not_waited_for(make, monkeypatch):
    status, rounds = make()
    gate = asyncio.Event()
    run = rounds.jobs.run

    async def later(job):
        await gate.wait()
        return await run(job)

    rounds.jobs.run = later
    made = scores(monkeypatch)

    async def asked():
        outliers = status._outliers
        before = [(await outliers.lately(0.0)).scores for _ in range(2)]
        gate.set()
        return before, (await outliers.lately(30.0)).scores

    assert rounds.ask(asked()) == ([{}, {}], {"a": 1.0})
    assert len(made) == 1


def test_scores_that_failed_are_made_again(make, monkeypatch):
    status, rounds = make()
    made = scores(monkeypatch)
    run, rounds.jobs.run = rounds.jobs.run, None

    async def failing(job):
        raise OSError("not now")

    async def asked():
        rounds.jobs.run = failing
        with pytest.raises(OSError, match="not now"):
            await status._outliers.now()
        assert (await status._outliers.lately(1.0)).scores == {}
        rounds.jobs.run = run
        return (await status._outliers.now()).scores

    assert rounds.ask(asked()) == {"a": 1.0}
    assert len(made) == 1


@pytest.mark.parametrize(
    ("divided", "words"), [((), None), ((2,), "about arm 3, and"), ((0, 3), "about arms 1, 4, and")]
)
def test_two_camps_are_warned_of(make, monkeypatch, divided, words):
    status, _ = make()
    scores(monkeypatch, divided)
    told = page_of(status)["warnings"]
    assert told[0] == "it rains"
    assert len(told) == (1 if words is None else 2)
    if words:
        assert words in told[1]


def test_gauges_are_brought_up_to_date(tmp_path):
    with served(tmp_path, spectrum(deadline=3600.0)) as live:
        a, _ = live.agent("a"), live.agent("b")
        assert a.episode().status_code == 201
        text = live.client().get("/metrics").text
        assert 'rmab_agents{state="enrolled"} 2.0' in text
        assert 'rmab_agents{state="live"} 1.0' in text
        assert 'rmab_agents{state="revoked"} 0.0' in text
        assert "rmab_longpolls 0.0" in text
