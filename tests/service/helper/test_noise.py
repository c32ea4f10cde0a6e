"""Sums that a helper opens with noise: when, how much, and what survives a restart."""

from __future__ import annotations

import json
from dataclasses import replace

import httpx
import jsonschema_rs
import numpy as np
import pytest

import rmab.privacy.accounting
import rmab.service.helper.process
from rmab.errors import FederationError
from rmab.privacy.accounting import cell_noise
from rmab.privacy.settings import Privacy
from rmab.service.helper.store import open_helper_store
from rmab.service.terms import terms_of
from tests.privacy.test_noise import rounded_normal
from tests.service.helper.test_sums import merged, play_round
from tests.service.support.securing import secured
from tests.service.support.serving import spectrum

EPSILON = 8.0


@pytest.fixture(autouse=True)
def draw(monkeypatch):
    """Noise without OpenDP, which the audit of releases is of."""
    drawn = rounded_normal(4)
    monkeypatch.setattr(rmab.privacy.accounting, "discrete_gaussian", drawn)
    monkeypatch.setattr(rmab.service.helper.process, "discrete_gaussian", drawn)


@pytest.fixture
def both(tmp_path):
    with secured(tmp_path, epsilon=EPSILON) as running:
        yield running


def test_a_sum_is_released_with_noise_when_slots_have_doubled(both):
    agents = [both.agent(name) for name in "abc"]
    openings = []
    for _ in range(6):  # of 2, 3, 4, ... slots
        play_round(both, *agents)
        (group,) = both.status()["privacy"]["groups"]
        openings.append((group["opening"], group["opened_slots"]))
    released = [(None, None)] * 2 + [(1, 27)] * 2 + [(2, 60)] * 2
    assert [(n, slots or None) for n, slots in openings] == released
    with both.helper_store() as store:
        ledger = store.ledger(1)
        assert store.releases_left() == {1: 38}
    assert [release.slots for release in ledger.releases] == [27, 60]
    found = merged(both)
    assert not found.visits.any()
    assert (found.counts != 0).sum() > 4
    assert both.status()["privacy"]["impossible"] == 0


def test_the_noise_is_the_ledgers(both):
    agents = [both.agent(name) for name in "abc"]
    for _ in range(3):
        play_round(both, *agents)
    exact = sum(agent.told_counts for agent in both.agents.values())
    with both.helper_store() as store:
        noise = store.ledger(1).noise("1")
    shape = both.federation.shape
    off = (merged(both).counts - exact)[:, :, :, 0].ravel()
    np.testing.assert_array_equal(off, noise[: off.size])
    assert 0 < noise.std() < 3 * cell_noise(both.federation.budget, shape.plays, 1)


def test_what_is_known_survives_restarts(both):
    agents = [both.agent(name) for name in "abc"]
    for _ in range(3):
        play_round(both, *agents)
    before = merged(both)
    both.stop_helper()
    both.start_helper()
    both.stop_server()
    both.start_server()
    for _ in range(3):
        play_round(both, *agents)
    with both.helper_store() as store:
        assert [release.slots for release in store.ledger(1).releases] == [27, 60]
    assert not np.array_equal(merged(both).counts, before.counts)


def test_no_reward_is_told(both):
    agents = [both.agent(name) for name in "abc"]
    for _ in range(3):
        play_round(both, *agents)
    closed = [event for event in both.events() if event["event"] == "round closed"]
    assert len(closed) == 3
    assert not any("reward" in event for event in closed)
    with httpx.Client(base_url=both.served.url) as client:
        page = client.get("/v1/overview").json()
    assert all(row["reward"] is None for row in page["rewards"])
    assert all(row["reward"] is None for row in page["agents"])


def test_a_helper_that_has_no_opendp_does_not_start(tmp_path, monkeypatch):
    def missing(*_):
        raise FederationError("privacy.epsilon needs OpenDP")

    monkeypatch.setattr(rmab.service.helper.process, "discrete_gaussian", missing)
    with pytest.raises(FederationError, match="needs OpenDP"), secured(tmp_path, epsilon=EPSILON):
        pass


def test_a_database_keeps_its_epsilon(tmp_path):
    privacy = Privacy("http://127.0.0.1:9", epsilon=1.0)
    federation = spectrum(privacy=privacy)
    place = str(tmp_path / "helper.db")
    open_helper_store(place, terms_of(federation)).close()
    open_helper_store(place, terms_of(federation)).close()
    for changes in ({"epsilon": 2.0}, {"delta": 1e-5}, {"epsilon": None}):
        other = replace(federation, privacy=replace(privacy, **changes))
        with pytest.raises(FederationError, match=r"was begun with epsilon = 1\.0 and delta"):
            open_helper_store(place, terms_of(other))


def test_a_helper_and_a_server_warn_of_noise_that_costs_few_agents_much(tmp_path):
    with secured(tmp_path, epsilon=EPSILON) as both:
        for name in "abcd":
            both.agent(name)
        both.stop_helper()
        both.start_helper()
        both.stop_server()
        both.start_server()
        logs = both.helper_log.getvalue(), both.log.getvalue()
    for log in logs:
        told = [json.loads(line) for line in log.splitlines() if "much noise for few" in line]
        assert [one["agents"] for one in told] == [0]  # before anybody was enrolled, and not now


def test_the_server_tells_how_many_releases_are_left(both):
    agents = [both.agent(name) for name in "abc"]
    privacy = both.status()["privacy"]
    assert (privacy["epsilon"], privacy["delta"]) == (EPSILON, 1e-6)
    assert [group["releases_left"] for group in privacy["groups"]] == [40]
    for left in (40, 40, 39, 39, 38):
        play_round(both, *agents)
        privacy = both.status()["privacy"]
        assert privacy["groups"][0]["releases_left"] == privacy["releases_left"] == left
    with httpx.Client(base_url=both.served.url) as client:
        assert 'rmab_releases_left{group="1"} 38.0' in client.get("/metrics").text
        components = {"components": client.get("/openapi.json").json()["components"]}
        for name in ("Status", "Overview"):
            schema = components | {"$ref": f"#/components/schemas/{name}"}
            jsonschema_rs.validate(schema, client.get(f"/v1/{name.lower()}").json())
    with httpx.Client(base_url=both.helper_url) as client:
        assert 'rmab_helper_releases_left{group="1"} 38.0' in client.get("/metrics").text
