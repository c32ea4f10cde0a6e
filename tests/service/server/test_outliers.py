"""A liar on a running server: its score is on the page, in the metrics and in the list."""

import json

import numpy as np
import pytest
from benchmarks.liar import lie

from rmab.cli import main
from rmab.model.arms import channels
from rmab.model.realisation import SimulatedArms
from rmab.service.server.limits import ServerLimits
from rmab.service.store.limits import StoreLimits
from tests.service.support.processes import SPECTRUM
from tests.service.support.serving import Served, served, spectrum, until

ARMS = channels([0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16], [0.4, 0.9, 0.7, 0.6])
NAMES = ("a", "b", "c", "liar")


def with_a_liar(live: Served) -> None:
    """Three agents that tell what they have seen in 300 slots, and one that does not."""
    shape = live.federation.shape
    agents = [live.agent(name) for name in NAMES]
    for agent in agents:
        agent.fetch()
    for n, agent in enumerate(agents[:3]):
        arms, rng = SimulatedArms(ARMS, (3, n)), np.random.default_rng(n)
        while agent.player.slots < 300:
            played = sorted(rng.permutation(4)[:2].tolist())
            agent.player.observe(played, arms.sense(played))
        assert agent.send(agent.player.upload(1)).status_code == 201
    lies = lie(shape, 300)
    assert agents[3].send(lies).status_code == 201


def measured(live: Served) -> dict[str, float]:
    lines = live.client().get("/metrics").text.splitlines()
    found = [line.split() for line in lines if line.startswith("rmab_agent_outlier{")]
    return {name.split('"')[1]: float(value) for name, value in found}


def test_a_liar_stands_out_everywhere(tmp_path, capsys):
    with served(tmp_path, spectrum(), limits=ServerLimits(outlier_seconds=0.0)) as live:
        assert measured(live) == {}
        with_a_liar(live)
        boss = live.enroll("boss", "admin")
        listed = live.client(boss).get("/v1/agents").json()["agents"]
        scores = {row["name"]: row["outlier"] for row in listed}
        assert scores.pop("boss") is None
        assert set(scores) == set(NAMES)
        assert scores["liar"] > 10
        assert max(scores[name] for name in "abc") < 5
        until(lambda: measured(live) == scores)
        page = live.client().get("/v1/overview").json()
        assert {row["name"]: row["outlier"] for row in page["agents"]} == scores
        # Nothing is dropped for it.
        assert page["slots"] == 1200
        (tmp_path / "federation.toml").write_text(SPECTRUM)
        (tmp_path / "boss.token").write_text(boss)
        for where in (
            [str(tmp_path / "federation.toml")],
            [live.url, "--token-file", str(tmp_path / "boss.token")],
        ):
            assert main(["agents", *where, "--json"]) == 0
            rows = json.loads(capsys.readouterr().out)["agents"]
            assert {row["name"]: row["outlier"] for row in rows if row["name"] in scores} == scores
            assert main(["agents", *where]) == 0
            lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
            assert f" {scores['liar']:.1f} " in lines["liar"]
        # Who is forgotten is compared no more.
        assert main(["agents", str(tmp_path / "federation.toml"), "--forget", "liar"]) == 0
        rows = live.client(boss).get("/v1/agents").json()["agents"]
        assert next(row["outlier"] for row in rows if row["name"] == "liar") is None


@pytest.mark.parametrize("room", [0, 10**9])
def test_what_is_too_much_to_hold_has_no_score(tmp_path, room):
    limits = ServerLimits(store=StoreLimits(compared_bytes=room))
    with served(tmp_path, spectrum(), limits=limits) as live:
        with_a_liar(live)
        client = live.client(live.enroll("boss", "admin"))
        rows = client.get("/v1/agents").json()["agents"]
        assert [row["outlier"] is None for row in rows] == [True] + 4 * [room == 0]
