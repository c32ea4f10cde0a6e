"""The page says when agents see the same."""

import pytest

from tests.service.support.serving import served, spectrum


@pytest.mark.parametrize(("draws", "advised"), [("shared", True), ("per-agent", False)])
def test_agents_that_see_the_same_are_told_of_with_what_to_set(tmp_path, draws, advised):
    """Both play the same arms, which are all good, so that every round is better than expected."""

    def correlation(live):
        return live.client().get("/v1/overview").json()["correlation"]

    with served(tmp_path, spectrum(uploads_per_second=0, draws=draws)) as live:
        agents = [live.agent("a"), live.agent("b")]
        for number in range(24):
            for agent in agents:
                assert agent.fetch(after=number, wait=10) is not None
            if number == 10:
                assert correlation(live) is None  # too little to tell
            for agent in agents:
                assert agent.send(agent.play()).status_code == 201
        agents[0].fetch(after=24, wait=10)
        found = correlation(live)
    assert found["value"] > 0.9
    assert found["correlated"]
    assert found["advised"] == advised
