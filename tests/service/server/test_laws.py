"""What a server tells agents that draw for themselves."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rmab.errors import ProtocolError
from rmab.learning.channel.local_posterior import PosteriorSummaries
from rmab.privacy.prior_summaries import SummariesMessage, parse_summaries
from tests.service.support.securing import Securing
from tests.service.support.serving import Flat, served, spectrum

OWN = spectrum(draws="own", doubt=0.2)


class Told(Flat):
    """Laws whose means say of which round they are, and how many visits there were."""

    def laws(self, merged, number, groups=None):
        sums = {"all": merged, **{f"group-{group}": each for group, each in (groups or {}).items()}}
        mean = np.full((len(sums), 2, 4, 1), float(number))
        mean[:, 1, :, 0] = np.array([[each.visits.sum() / 1000] for each in sums.values()])
        spread = np.tile(np.array([0.1, 0.02, 0.2])[None, :, None, None], (len(sums), 1, 4, 1))
        names, laws = tuple(sums), PosteriorSummaries(mean, spread)
        return SummariesMessage("spectrum", number, "whittle", 0, (1.0, 1.0), 0.2, names, laws)


def test_agents_are_told_the_laws_of_the_open_round(tmp_path):
    with served(tmp_path, OWN, Told(OWN)) as made:
        agent = made.agent("one")
        answer = agent.client.get("/v1/round")
        assert answer.headers["rmab-draws"] == "own"
        found = parse_summaries(agent.client.get("/v1/laws").content, OWN.shape)
        assert (found.round, found.doubt, found.names) == (1, 0.2, ("all",))
        assert found.summaries.mean[0, :, 0, 0].tolist() == [1.0, 0.0]
        assert found.summaries.covariance[0, :, 3, 0] == pytest.approx([0.1, 0.02, 0.2])
        agent.episode()
        assert agent.fetch(1, 30).round == 2
        found = parse_summaries(agent.client.get("/v1/laws").content, OWN.shape)
        assert found.round == 2
        assert found.summaries.mean[0, 1, 0, 0] > 0  # of what was counted meanwhile


def test_a_server_that_starts_again_tells_the_same(tmp_path):
    with served(tmp_path, OWN, Told(OWN)) as made:
        agent = made.agent("one")
        agent.episode()
        assert agent.fetch(1, 30).round == 2
        before, token = agent.client.get("/v1/laws").content, agent.token
    with served(tmp_path, OWN, Told(OWN)) as made:
        assert made.client(token).get("/v1/laws").content == before


def test_agents_are_told_the_law_of_each_group_too(tmp_path):
    """A lie in one group's sum is then one law of several; a restart tells the same."""
    both = Securing(tmp_path, groups=2)
    both.federation, both.planner = replace(both.federation, draws="own"), Told
    try:
        both.start_helper()
        both.start_server()
        agents = [both.agent(name, 1 + (name > "c")) for name in "abcdef"]
        for agent in agents:
            agent.fetch()
        assert {agent.send(agent.play()).status_code for agent in agents} == {201}
        assert agents[0].fetch(1, 30).round == 2
        before = agents[0].client.get("/v1/laws").content
        found = parse_summaries(before, both.federation.shape)
        assert found.names == ("all", "group-1", "group-2")
        everybody, *groups = found.summaries.mean[:, 1, 0, 0]
        assert everybody == pytest.approx(sum(groups))
        assert min(groups) > 0
        both.stop_server()
        both.start_server()
        assert agents[0].client.get("/v1/laws").content == before
    finally:
        both.close()


def test_laws_are_for_agents_of_such_a_federation_alone(tmp_path):
    with served(tmp_path, OWN, Told(OWN)) as made:
        assert made.client().get("/v1/laws").status_code == 401
    other = tmp_path / "other"
    other.mkdir()
    with served(other, spectrum()) as made:
        agent = made.agent("one")
        assert "rmab-draws" not in agent.client.get("/v1/round").headers
        refused = agent.client.get("/v1/laws")
        assert refused.status_code == 404
        assert refused.json()["error"] == "laws"


def test_laws_that_are_none_are_refused():
    """Each is off in one thing."""
    good = json.loads(Told(OWN).laws(FakeMerged, 3).to_json())
    parse_summaries(json.dumps(good).encode(), OWN.shape)
    law = good["laws"][0]
    changes: tuple[dict[str, Any], ...] = (
        {"doubt": 0},
        {"doubt": 1.5},
        {"index": "gittins"},
        {"gaps": 7},
        {"prior": [0, 1]},
        {"protocol": 2},
        {"laws": []},
        {"laws": [{**law, "mean": law["mean"][:3]}]},
        {"laws": [{**law, "mean": [[1e9, 0]] * 4}]},
        {"laws": [{**law, "covariance": [[1, 2, 1]] * 4}]},
        {"laws": [{**law, "covariance": [[0, 0, 1]] * 4}]},
        {"more": 1},
    )
    for change in changes:
        with pytest.raises(ProtocolError):
            parse_summaries(json.dumps({**good, **change}).encode(), OWN.shape)


class FakeMerged:
    visits = np.zeros((2, 4))
