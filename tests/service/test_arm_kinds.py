"""Arms of every kind and agents of different weights, served: real servers, agents and files."""

import json
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import rmab
from rmab.cli import main
from rmab.cli.federation import _agents_table
from rmab.errors import FederationError, ModelError, UnavailableError
from rmab.model.arms import Arms
from rmab.protocol.config import Federation, KnownArm
from rmab.protocol.growth import Merged
from rmab.protocol.planner import Planner
from rmab.protocol.player import Player
from rmab.protocol.shape import Upload
from rmab.service.agent.outbox import pack, recovered, unpack
from rmab.service.agent.state_file import AgentFile, Observation
from rmab.service.store.store import open_store
from tests.protocol.lockstep import Realisation, engine_decisions, name_of, served_decisions
from tests.protocol.test_arm_kinds import SHAPE, message_of, played
from tests.protocol.test_planner import ALL_KINDS, MIXED, federation_of
from tests.service.support.serving import PATIENCE, Flat, Served, served

WATCHED = Arms([*MIXED[:2], *ALL_KINDS[3:]])
WEIGHTS = {"agent-0": 0.25, "agent-2": 3.0}
STUDY = """\
plays = 1
policies = ["whittle"]
[[arm]]
p01 = 0.2
p11 = 0.8
reward = 0.4
[[arm]]
passive = [[0.9, 0.1], [0.4, 0.6]]
active = [[0.3, 0.7], [0.2, 0.8]]
reward = [0.0, 1.0]
[[arm]]
passive = [[0.7, 0.3], [0.4, 0.6]]
active = [[1.0, 0.0], [0.5, 0.5]]
reward_active = [0.0, 0.3]
reward_passive = [0.2, 0.1]
observed = "always"
"""
CHANGING = """\
passive = [[0.9, 0.1], [0.4, 0.6]]
active = [[0.3, 0.7], [0.2, 0.8]]
reward = [0.0, 0.4]
"""
WARD = """\
class Ward:
    def __init__(self):
        self.looks = 0

    def look(self, arms):
        self.looks += 1
        assert arms == [2]
        return [self.looks % 2]

    def sense(self, arms):
        return [self.looks % 2 for _ in arms]


class Blind:
    sense = Ward.sense


class Failing(Ward):
    def look(self, arms):
        raise OSError("no such device")


class Misspelt(Ward):
    def look(self, arms):
        return [self.lokos % 2]
"""


def ward(**changes) -> Federation:
    """Three arms of two states: as most are, action-dependent, and that and always observed."""
    arms = (
        KnownArm(2, (0.0, 0.4)),
        KnownArm(2, (0.0, 1.0), action_dependent=True),
        KnownArm(2, (0.0, 0.3), (0.2, 0.1), "always", action_dependent=True),
    )
    return Federation("ward", 1, arms, **changes)


class FirstAlone(Flat):
    """Arm 0 is always played."""

    def plan(self, merged, number, lane=0, each=None, memory=None):
        planned = super().plan(merged, number, lane)
        planned.plan.index[1:] = -1.0
        return planned


# -------------------------------------------------------------------------------------- the whole


def play(folder: Path, arms: Arms, federation: Federation, slots: int, restart_at: int):
    """Which arms three agents play, (slots, agents, arms), of a server that restarts once; and what
    it shows in the end."""
    realised = Realisation(arms, federation.seed, 3)
    decisions = np.zeros((slots, 3, len(arms)), bool)
    agents: list[rmab.Agent] = []
    tokens: list[str] = []
    port, planner = 0, Planner(federation)  # which has no memory, and is compiled once
    for first, until in ((0, restart_at), (restart_at, slots)):
        with served(folder, federation, planner, port=port) as running:
            port = running.port
            if not agents:
                tokens = [running.enroll(name_of(m)) for m in range(3)]
                agents = [
                    rmab.Agent(running.url, token=token, file=folder / f"{m}.db")
                    for m, token in enumerate(tokens)
                ]
            for slot in range(first, until):
                for m, agent in enumerate(agents):
                    if agent.over:
                        assert agent.wait(PATIENCE)
                    now = realised.states[m]
                    chosen = agent.choose(now[list(agent.always_observed)])
                    decisions[slot, m, chosen] = True
                    agent.observe(now[chosen])
                realised.move(decisions[slot])
            if until == slots:
                for agent in agents:
                    assert agent.flush(PATIENCE)
                shown = overview(running)
                paid = [agent.reward for agent in agents]
                for agent in agents:
                    agent.close()
    return decisions, shown, paid


def overview(running: Served) -> Any:
    """What the page is told, once there are estimates."""
    end = time.monotonic() + 5 * PATIENCE  # they may have to be compiled
    while True:
        shown = httpx.get(f"{running.url}/v1/overview", timeout=PATIENCE).json()
        if shown["arms"][-1]["estimate"] is not None:
            return shown
        assert time.monotonic() < end, "no estimates were made"
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("arms", "policy", "slots"),
    [
        (WATCHED, "fedts-myopic", 60),
        pytest.param(ALL_KINDS, "fedtswi", 150, marks=pytest.mark.slow),
    ],
    ids=["always observed", "every kind"],
)
def test_agents_decide_as_the_engine_does_through_a_restart_of_their_server(
    tmp_path, monkeypatch, arms, policy, slots
):
    federation = federation_of(arms, 2, policy, weights=WEIGHTS, deadline=PATIENCE)
    here, shown, paid = play(tmp_path, arms, federation, slots, slots // 2 + 1)
    there = engine_decisions(monkeypatch, arms, federation, 3, slots)
    np.testing.assert_array_equal(here, there)
    assert shown["slots"] == 3 * slots
    # What each agent was paid, but for arms that were left alone in the last slot.
    for agent, mine in zip(shown["agents"], paid, strict=True):
        assert agent["reward"] == pytest.approx(mine / slots, abs=1.0 / slots)
    last = shown["arms"][-1]
    assert (last["observed"], last["action_dependent"]) == ("always", True)
    assert last["reward_passive"] == [0.5, 0.3, 0.0]
    assert last["index"]["never"] is None
    assert [len(line) for line in last["index"]["by_state"]] == [1, 1, 1]
    assert set(last["estimate"]) == {"transitions", "passive"}
    assert "observed" not in shown["arms"][0]


@pytest.mark.parametrize("how", ["simulate", "env"])
def test_the_agent_command_plays_arms_of_every_kind(tmp_path, monkeypatch, capsys, how):
    (tmp_path / "study.toml").write_text(STUDY)
    (tmp_path / "ward.py").write_text(WARD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    federation = ward()
    with served(tmp_path, federation, FirstAlone(federation)) as running:
        token = tmp_path / "one.token"
        token.write_text(running.enroll("one"))
        token.chmod(0o600)
        what = {"simulate": "study.toml", "env": "ward:Ward"}[how]
        options = ["--token-file", str(token), "--state", str(tmp_path / "one.db"), "--json"]
        assert main(["agent", running.url, f"--{how}", what, "--slots", "40", *options]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["slots"] == 40
        assert main(["agent", running.url, "--env", "ward:Blind", "--slots", "1", *options]) == 2
        assert "must have a method look(arms)" in capsys.readouterr().err
        assert main(["agent", running.url, "--env", "ward:Failing", "--slots", "11", *options]) == 1
        assert "10 bad readings in a row" in (told := capsys.readouterr().err)
        assert "look raised OSError: no such device (ward.py, line" in told
        assert main(["agent", running.url, "--env", "ward:Misspelt", *options]) == 2
        assert "look raised AttributeError: 'Misspelt' object" in (told := capsys.readouterr().err)
        assert "(ward.py, line 25); this is a bug" in told
        for old, new, rule in (
            ('observed = "always"', "", 'arm 3 must be observed "always"'),
            ("p01 = 0.2\np11 = 0.8\nreward = 0.4", CHANGING, "arm 1 must move alike when played"),
        ):
            (tmp_path / "other.toml").write_text(STUDY.replace(old, new))
            assert main(["agent", running.url, "--simulate", "other.toml", *options]) == 2
            assert rule in capsys.readouterr().err
    with closing(open_store(running.database, federation, create=False)) as store:
        merged = store.merged()
    assert merged.counts[..., 2].sum() == 39  # one reading a slot
    assert merged.visits.sum() == 50


def test_an_agent_wants_a_look_at_arms_that_are_always_observed(tmp_path):
    with served(tmp_path, ward()) as running:
        token = running.enroll("one")
        with rmab.Agent(running.url, token=token, file=tmp_path / "one.db") as agent:
            assert agent.always_observed == (2,)
            assert agent.action_dependent == (1, 2)
            with pytest.raises(ModelError, match="the states of 1 arms that are always observed"):
                agent.choose()
            assert agent.slots == 0


def test_a_bad_look_is_skipped_and_counted_as_a_bad_reading_is(tmp_path, caplog):
    with served(tmp_path, ward(), FirstAlone(ward())) as running:
        token, file = running.enroll("one"), tmp_path / "one.db"
        with rmab.Agent(running.url, token=token, file=file, max_bad_readings=5) as agent:
            looks: Any
            for looks in ([1], [0, 1], [2], 7, [None], [1.0], [1]):
                assert agent.choose(looks) == [0]
                agent.observe([1])
            assert agent.bad_readings == 4
            assert "there must be one state for each of 1 arms" in caplog.text
            for _ in range(4):
                agent.choose(unread="look raised OSError: no such device")
                agent.observe([1])
            agent.choose([1])
            with pytest.raises(UnavailableError, match="5 bad readings in a row"):
                agent.skip("the device is gone")
            assert agent.flush(PATIENCE)
    with closing(open_store(running.database, ward(), create=False)) as store:
        merged = store.merged()
    assert merged.visits.sum() == 11
    assert merged.counts[..., 2].sum() == 1  # of the last two looks that followed one another


# --------------------------------------------------------------------------------- agents' files


def test_what_a_slot_showed_is_kept_as_it_was():
    for seen in (
        Observation((3, 1), (0, 2)),
        Observation((3,), (None,), (1, None, 0)),
        Observation((), (), (5,)),
        Observation((), ()),
    ):
        assert Observation.unpack(seen.pack()) == seen
    assert Observation((3, 1), (0, 2)).pack().hex() == "03000000010000000000000002000000"


def test_an_agents_file_leads_back_to_what_it_counted(tmp_path):
    """A snapshot after some slots, and the slots since, with readings that are missing."""
    file = AgentFile(tmp_path / "agent.db")
    rng = np.random.default_rng(4)
    player = Player(message_of(SHAPE), "0" * 32)
    file.begin(player.incarnation)

    def reading(arm):
        return None if rng.random() < 0.2 else int(rng.integers(SHAPE.states[arm]))

    for slot in range(1, 41):
        looks = [reading(arm) for arm in SHAPE.always]
        player.look(looks)
        arms = rng.permutation(SHAPE.n_arms)[: SHAPE.plays].tolist()
        states = [reading(arm) for arm in arms]
        player.observe(arms, states)
        file.keep_slot(slot, arms, states, None, looks)
        if slot == 15:
            kept = pack(player.counts, player.visits, player.last_seen, player.age)
            file.keep_snapshot(player.incarnation, slot, kept)
            for one, other in zip(
                unpack(kept, SHAPE), (player.counts, player.visits, player.last_seen), strict=False
            ):
                np.testing.assert_array_equal(one, other)
    file.begin("1" * 32)
    (outgoing,) = recovered(file, message_of(SHAPE))
    assert outgoing.upload.digest == replace(player.upload(1), length=0).digest
    file.close()


@pytest.mark.slow
def test_players_that_come_back_from_their_files_decide_as_before(monkeypatch):
    """Every few slots each player is made anew from its snapshot."""
    federation = federation_of(WATCHED, 2, "fedts-myopic", weights=WEIGHTS)
    slots = 0

    def from_its_file(_: int, player: Player) -> Player:
        nonlocal slots
        slots += 1
        if slots % 7 or player.over:
            return player
        kept = pack(player.counts, player.visits, player.last_seen, player.age)
        again = Player(player.message, player.incarnation)
        again.counts, again.visits, again.last_seen, again.age = unpack(kept, federation.shape)
        again.slots, again.length = player.slots, player.length
        return again

    realised = Realisation(WATCHED, federation.seed, 3)
    here = served_decisions(Planner(federation), realised, 60, after_slot=from_its_file)
    there = engine_decisions(monkeypatch, WATCHED, federation, 3, 60)
    np.testing.assert_array_equal(here, there)


# ---------------------------------------------------------------------------------------- weights


class Telling(Flat):
    """Remembers the evidence of every plan."""

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation)
        self.given: list[Merged] = []

    def plan(self, merged, number, lane=0, each=None, memory=None):
        self.given.append(merged)
        return super().plan(merged, number, lane)


def round_of_three(running: Served) -> list[Upload]:
    """What agents one, two and three report in the first round; the second has begun."""
    agents = [running.agent(name) for name in ("one", "two", "three")]
    for agent in agents:
        agent.fetch()
    sent = []
    for agent in agents:
        while not agent.player.over:
            agent.player.look([1])
            agent.player.observe(agent.player.choose().tolist(), [1])
        sent.append(agent.player.upload(1))
        assert agent.send(sent[-1]).status_code == 201
    assert agents[0].fetch(after=1, wait=30).round == 2
    return sent


@pytest.mark.parametrize("aggregation", ["sum", "none"])
def test_a_plan_is_made_from_counts_by_their_agents_weights(tmp_path, aggregation):
    federation = ward(weights={"one": 0.5, "two": 4.0}, aggregation=aggregation)
    planner = Telling(federation)
    with served(tmp_path, federation, planner) as running:
        sent = round_of_three(running)
        shown = httpx.get(f"{running.url}/v1/overview", timeout=PATIENCE).json()
    weights = (0.5, 4.0, 1.0) if aggregation == "sum" else (1.0, 0.0, 0.0)
    evidence = planner.given[planner.calls.index((2, 0))]
    expected = sum(w * upload.counts for w, upload in zip(weights, sent, strict=True))
    np.testing.assert_array_equal(evidence.counts, expected)
    expected = sum(w * upload.visits for w, upload in zip(weights, sent, strict=True))
    np.testing.assert_array_equal(evidence.visits, expected)
    assert evidence.agents == sum(weights)
    assert [agent["weight"] for agent in shown["agents"]] == [0.5, 4.0, 1.0]
    (warned,) = (event for event in running.events() if "weights" in event["event"])
    assert warned["agents"] == ["one", "two"]  # when it started
    # A server that starts again has the same in mind.
    with closing(open_store(running.database, federation, create=False)) as store:
        opened = store.current_round()
    assert opened is not None
    assert opened.by_lane is not None
    assert opened.by_lane.weights is not None
    np.testing.assert_array_equal(opened.by_lane.weights, [0.5, 4.0, 1.0])
    np.testing.assert_array_equal(opened.merged.counts, sum(upload.counts for upload in sent))


def test_weights_are_listed_where_there_are_any():
    row = {"role": "agent", "enrolled": 0.0, "last_seen": None, "revoked": None, "live": True}
    row |= {"uploads": 1, "outlier": None}
    plain = [row | {"name": name, "weight": 1.0} for name in ("one", "two")]
    assert "weight" not in _agents_table(plain)
    assert "weight" not in _agents_table([row | {"name": "of an older server"}])
    weighed = [*plain, row | {"name": "three", "weight": 0.25}]
    lines = _agents_table(weighed).splitlines()
    assert lines[0].split()[-2:] == ["weight", "revoked"]
    assert [line.split()[-2] for line in lines[1:]] == ["1", "1", "0.25"]


def test_a_cap_holds_whatever_an_agent_weighs(tmp_path):
    federation = ward(weights={"one": 8.0, "two": 0.5}, cap=2.0)
    planner = Telling(federation)
    with served(tmp_path, federation, planner) as running:
        round_of_three(running)
    # The median agent is the third, of weight 1: the first counts twice as much, not eight times.
    assert planner.given[-1].agents == 2.0 + 0.5 + 1.0


def test_what_is_taken_out_does_not_change_what_a_round_paid(tmp_path):
    """An arm that is always observed pays when it is left alone, also to who is forgotten."""
    federation = ward()
    with served(tmp_path, federation, FirstAlone(federation)) as running:
        agent = running.agent("one")
        agent.fetch()
        while not agent.player.over:
            agent.player.look([0])
            agent.player.observe([0], [1])
        assert agent.send(agent.player.upload(1)).status_code == 201
        assert agent.fetch(after=1, wait=30).round == 2
        with closing(open_store(running.database, federation, create=False)) as store:
            (paid,) = store.rewards(10)
            done = store.erase("one", 0.0)
    slots = agent.player.slots
    assert paid.reward == pytest.approx((0.4 * slots + 0.2 * (slots - 1)) / slots)
    assert done is not None
    assert done.paid == pytest.approx(0.4 * slots + 0.2 * (slots - 1))


def test_without_weights_counts_of_agents_are_not_kept_apart(tmp_path):
    with served(tmp_path, ward()) as running:
        running.agent("one")
    with closing(open_store(running.database, ward(), create=False)) as store:
        opened = store.current_round()
    assert opened is not None
    assert opened.by_lane is None


def test_counts_of_other_arms_cannot_be_added(tmp_path):
    with served(tmp_path, ward()) as running:
        pass
    other = replace(ward(), arms=(*ward().arms[:2], KnownArm(2, (0.0, 0.3))))
    with pytest.raises(FederationError, match="differs in its name, plays, arms or gaps"):
        open_store(running.database, other)


def test_uploads_of_readings_that_are_missing_are_taken(tmp_path):
    federation = replace(ward(), plays=2)
    shape = federation.shape
    with served(tmp_path, federation) as running:
        agent = running.agent("one")
        agent.fetch()
        upload = played(shape, 2, 50, 0.3).upload(1)
        upload = replace(upload, incarnation=agent.incarnation)
        assert agent.send(upload).status_code == 201
