"""Agents that draw for themselves by what the server tells them."""

import json
import logging
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import rmab
import rmab.service.agent.agent
import rmab.service.server.rounds
from rmab.cli import main
from rmab.learning.channel.local_posterior import PosteriorSummaries
from rmab.privacy.prior_summaries import SummariesMessage
from rmab.privacy.settings import Privacy
from rmab.service.agent.limits import AgentLimits
from rmab.service.store.store import open_store
from tests.privacy.test_noise import rounded_normal
from tests.service.support.serving import PATIENCE, Flat, served, spectrum

OWN = spectrum(draws="own", schedule="linear")
STUDY = 'plays = 2\npolicies = ["whittle"]\n' + "".join(
    f"[[arm]]\np01 = {p01}\np11 = 0.9\nreward = {reward}\n"
    for p01, reward in ((0.1, 0.4), (0.1, 0.9), (0.9, 0.7), (0.9, 0.6))
)
QUICK = AgentLimits(first_pause=0.01, longest_pause=0.05)


class Certain(Flat):
    """Arms 3 and 4 are said to be good nearly always, the others hardly ever; by the plan agents
    would play arms 1 and 2. wrong: the answer is no law."""

    wrong = False

    def laws(self, merged, number, groups=None):
        mean = np.tile(np.array([-3.0, -3.0, 3.0, 3.0])[None, None, :, None], (1, 2, 1, 1))
        spread = np.tile(np.array([0.01, 0, 0.01])[None, :, None, None], (1, 1, 4, 1))
        names, laws = ("all",), PosteriorSummaries(mean, -spread if self.wrong else spread)
        return SummariesMessage("spectrum", number, "whittle", 0, (1.0, 1.0), 0.1, names, laws)


def played(agent, slots, state):
    """The arms of each slot; an arm shows what `state` says of it."""
    chosen = []
    for _ in range(slots):
        if agent.over:
            assert agent.wait(PATIENCE)
        arms = agent.choose()
        agent.observe([state(arm) for arm in arms])
        chosen.append(arms)
    return chosen


@pytest.fixture(autouse=True)
def numbered_incarnations(monkeypatch):
    """An agent's random numbers are a function of its incarnation: here all are the same in every
    run. By chance an agent may never try an arm that it was told is bad."""
    numbers = count()
    secrets = SimpleNamespace(token_hex=lambda size: f"{next(numbers):0{2 * size}x}")
    monkeypatch.setattr(rmab.service.agent.agent, "secrets", secrets)


@pytest.fixture
def start(tmp_path):
    def begin(made):
        token = made.enroll("one")
        return rmab.Agent(made.url, token=token, file=tmp_path / "one", limits=QUICK)

    return begin


def test_an_agent_plays_by_what_it_is_told(tmp_path, start):
    """Doubt lets other arms be tried in some rounds."""
    with served(tmp_path, OWN, Certain(OWN)) as made, start(made) as agent:
        arms = played(agent, 60, lambda arm: int(arm > 1))
        assert sum(each == [2, 3] for each in arms) > 25
        assert len(agent.alike) == 4
        assert min(agent.alike[2:]) > 0.9


def test_an_agent_that_is_told_lies_finds_out(tmp_path, start, caplog):
    """Here arms 1 and 2 are good: it is warned, and plays no longer what it was told. When it tries
    the others is a matter of its doubt."""
    with served(tmp_path, OWN, Certain(OWN)) as made, start(made) as agent:
        with caplog.at_level(logging.WARNING, "rmab.agent"):
            arms = played(agent, 150, lambda arm: int(arm < 2))
        assert min(agent.alike) < 0.01
        assert "unlike what the other agents observe" in caplog.text
        assert sum(each == [2, 3] for each in arms[75:]) < 15  # as it was told


def alike(agent: rmab.Agent) -> list[float]:
    assert agent.alike is not None
    return agent.alike


def test_what_it_found_out_stays_through_a_restart(tmp_path, start):
    with served(tmp_path, OWN, Certain(OWN)) as made:
        token = made.enroll("one")
        begin = partial(rmab.Agent, made.url, token=token, file=tmp_path / "one", limits=QUICK)
        with begin() as agent:
            played(agent, 60, lambda arm: int(arm < 2))
            assert alike(agent)[2] < 0.01
        with begin() as agent:
            assert agent.wait(PATIENCE) or agent.alike is not None
            agent.choose()
            assert alike(agent)[2] < 0.01
        with rmab.Agent(made.url, token=token, file=tmp_path / "new", limits=QUICK) as agent:
            assert alike(agent)[2] > 0.5


def test_with_a_survey_an_agent_gives_no_more_and_draws_from_all_that_it_saw(
    tmp_path, start, monkeypatch
):
    monkeypatch.setattr(rmab.service.server.rounds, "discrete_gaussian", rounded_normal(1))
    private = spectrum(
        draws="own", schedule="linear", privacy=Privacy(epsilon=8.0, survey=6), slot_seconds=0
    )
    with served(tmp_path, private, Certain(private)) as made:
        with start(made) as agent:
            arms = played(agent, 150, lambda arm: int(arm < 2))
            # Arms 3 and 4 are observed after the survey only, in slots that are not reported.
            assert max(agent.alike[2:]) < 0.01
        assert arms[:6] == [[0, 1]] * 6
        assert sum(each == [0, 1] for each in arms[75:]) > 60
        store = open_store(made.database, private)
        given = store.uploads.merged()
        store.close()
    assert given.counts.sum() == 2 * 5  # pairs of two arms in six slots
    assert given.visits.sum() == 2 * 6


def test_where_there_are_no_laws_the_plan_is_played(tmp_path, start, caplog):
    planner = Certain(OWN)
    planner.wrong = True
    with served(tmp_path, OWN, planner) as made, start(made) as agent:
        with caplog.at_level(logging.WARNING, "rmab.agent"):
            assert played(agent, 2, lambda _: 1) == [[0, 1]] * 2
        assert agent.alike is None
    assert "the server's plan is played" in caplog.text


def test_a_federation_that_says_nothing_of_it_is_asked_nothing(tmp_path, start):
    with served(tmp_path, spectrum()) as made, start(made) as agent:
        played(agent, 5, lambda _: 1)
        assert agent.alike is None
        assert not [event for event in made.events() if event.get("path") == "/v1/laws"]


def test_the_command_says_how_alike_arms_are(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with served(tmp_path, OWN, Certain(OWN)) as made:
        token = Path("my.token")
        token.write_text(made.enroll("one"), encoding="utf-8")
        token.chmod(0o600)
        Path("study.toml").write_text(STUDY, encoding="utf-8")
        words = ["--token-file", "my.token", "--simulate", "study.toml", "--state", "one.db"]
        assert main(["agent", made.url, *words, "--slots", "12", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert len(table["alike"]) == 4
    assert all(0 <= weight <= 1 for weight in table["alike"])
