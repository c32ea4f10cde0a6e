"""Agents that mix what they know with their neighbours: the matrix, what is kept, what it earns."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rmab
from rmab.errors import FederationError, ModelError, StudyError
from rmab.model.arms import Arm, Arms
from rmab.planning.tables import myopic
from rmab.policies.aggregation import AGGREGATIONS, Gossip
from rmab.policies.gossip import GRAPHS, Links, links_of
from rmab.policies.registry import POLICIES
from rmab.protocol.config import Federation, KnownArm
from rmab.studies.study import from_table
from rmab.studies.sweep import Sweep

ARMS = rmab.channels([0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16], [0.4, 0.9, 0.7, 0.6])
STUDY = rmab.Study(
    ARMS,
    agents=4,
    plays=2,
    horizon=120,
    trials=64,
    schedule="linear",
    seed=3,
    policies=["fedtswi"],
    aggregation="gossip",
)


def neighbours(graph: str, n_agents: int, degree: int = 2) -> list[set[int]]:
    links = links_of(graph, n_agents, degree)
    found: list[set[int]] = [set() for _ in range(n_agents)]
    for a, b in links.ends.tolist():
        found[a].add(b)
        found[b].add(a)
    return found


# --------------------------------------------------------------------------------------- the graph


def test_graphs_have_the_links_that_their_names_say():
    assert neighbours("ring", 5) == [{4, 1}, {0, 2}, {1, 3}, {2, 4}, {3, 0}]
    assert neighbours("ring", 2) == [{1}, {0}]
    assert neighbours("regular", 6, 3)[0] == {1, 5, 3}
    assert neighbours("regular", 7, 4)[2] == {0, 1, 3, 4}
    assert neighbours("grid", 6) == [{1, 3}, {0, 2, 4}, {1, 5}, {0, 4}, {1, 3, 5}, {2, 4}]
    assert neighbours("complete", 4)[1] == {0, 2, 3}
    for graph in GRAPHS:
        assert links_of(graph, 1).ends.size == 0, "one agent has nobody to talk to"


@pytest.mark.parametrize(
    ("graph", "n_agents", "degree"),
    [("ring", 5, 2), ("regular", 8, 3), ("regular", 9, 6), ("grid", 12, 2), ("complete", 7, 2)],
)
def test_nothing_is_lost_or_doubled_whatever_links_fail(graph, n_agents, degree):
    """W is symmetric and its rows sum to 1; it has nothing where there is no link."""
    links = links_of(graph, n_agents, degree)
    whole = links.matrix()
    linked = neighbours(graph, n_agents, degree)
    for a in range(n_agents):
        assert set(np.flatnonzero(whole[a])) == {a, *linked[a]}
    if graph != "grid":  # all agents have as many links
        size = len(linked[0]) + 1
        np.testing.assert_allclose(whole[whole > 0], 1 / size, atol=1e-12)
    failed = np.random.default_rng(4).random((len(links.ends), 50)) < 0.4
    some = links.matrix_without(failed)
    for found in (whole[:, :, None], some, np.asarray(links.matrix_without(jnp.asarray(failed)))):
        np.testing.assert_allclose(found.sum(1), 1, atol=1e-6)
        np.testing.assert_array_equal(found, found.swapaxes(0, 1))
        assert found.min() >= 0
    a, b = links.ends[0]
    np.testing.assert_array_equal(some[a, b], np.where(failed[0], 0, links.share))


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"graph": "regular", "degree": 4}, "degree must be from 1 to 3, as each of 4 agents"),
        ({"graph": "regular", "agents": 5, "degree": 3}, "degree must be even where the number"),
        ({"graph": "grid", "agents": 7}, "graph 'grid' must have agents for a rectangle.* got 7"),
        ({"agents": 1025}, "gossip must have at most 1024 agents, got 1025"),
        ({"graph": "star"}, "graph: unknown 'star'; known are ring, regular, grid, complete"),
        ({"degree": 0}, "degree must be a whole number from 1 to 1023, got 0"),
        ({"failure": 1}, "failure must be a number from 0 to below 1, got 1"),
        ({"failure": -0.1}, "failure must be a number from 0 to below 1, got -0.1"),
        ({"failure": True}, "failure must be a number from 0 to below 1, got True"),
        (
            {"aggregation": "sum", "options": {"fedtswi": {"aggregation": "gossip"}}, "agents": 7}
            | {"graph": "grid"},
            "options.fedtswi: graph 'grid' must",
        ),
        (
            {"options": {"fedtswi": {"graph": "regular", "degree": 5}}},
            "options.fedtswi: degree must be from 1 to 3",
        ),
        ({"options": {"fedtswi": {"failure": 2}}}, "options.fedtswi.failure must be a number"),
    ],
)
def test_what_so_many_agents_cannot_do_is_refused_in_a_line(keys, why):
    with pytest.raises(StudyError, match=rf"^{why}[^\n]*$"):
        replace(STUDY, **keys)


def test_what_nobody_reads_is_not_refused():
    """A sweep over graphs may have a degree for one of them, and a study that shares may say how
    its agents would gossip."""
    assert not replace(STUDY, aggregation="sum", graph="grid", agents=7).gossips
    points = Sweep(replace(STUDY, degree=3), {"graph": list(GRAPHS)}).points
    assert [point.study.shares() for point in points] == [Gossip(graph, 3) for graph in GRAPHS]


def test_a_file_says_who_talks_to_whom():
    study = replace(STUDY, graph="regular", degree=3, failure=0.25)
    table = study.to_table()
    assert (table["graph"], table["degree"], table["failure"]) == ("regular", 3, 0.25)
    assert from_table(table).shares() == Gossip("regular", 3, 0.25)
    assert not {"graph", "degree", "failure"} & STUDY.to_table().keys(), "defaults are left out"
    own = replace(study, aggregation="sum", options={"fedtswi": {"aggregation": "gossip"}})
    assert own.shares("fedtswi") == Gossip("regular", 3, 0.25), "as the study says"
    assert own.shares() == AGGREGATIONS["sum"]
    assert own.gossips
    other = replace(own, options={"fedtswi": {"aggregation": "gossip", "graph": "ring"}})
    assert other.shares("fedtswi") == Gossip("ring", 3, 0.25)


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ({"aggregation": "gossip"}, "aggregation"),
        ({"options": {"aggregation": "gossip"}}, r"options\.aggregation"),
    ],
)
def test_a_federation_has_a_server(keys, place):
    why = "must be one of sum, none, pairs, got 'gossip': a federation has a server"
    with pytest.raises(FederationError, match=rf"^{place} {why}$"):
        Federation("f", 1, (KnownArm(2, (0.0, 1.0)),), **keys)
    with pytest.raises(FederationError, match=r"^options.graph is of gossip, and a federation has"):
        Federation("f", 1, (KnownArm(2, (0.0, 1.0)),), options={"graph": "ring"})


# --------------------------------------------------------------------------------- what agents see


@pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])
def test_what_all_see_is_what_all_have_counted(xp):
    """The mean over agents of what they see is the weighted sum of all counts, after any episodes;
    and each agent's is its own rule, slot by slot."""
    rng = np.random.default_rng(5)
    gossip, weights = Gossip("ring", failure=0.3), np.array([1.0, 2.0, 0.5, 0.0, 1.5], np.float32)
    links = gossip.links(5)
    seen = np.zeros((3, 5, 1, 4))
    counted = np.zeros((3, 5, 1, 4))
    for _ in range(6):
        new = rng.integers(0, 9, counted.shape)
        counted += new
        chances = rng.random((len(links.ends), 4))
        before, more, weigh, chance = (xp.asarray(x) for x in (seen, new, weights, chances))
        found = np.asarray(gossip.mixed(before, more, weigh, chance))
        for trial in range(4):
            mix = links.matrix_without(chances[:, trial : trial + 1] < 0.3)[..., 0]
            told = seen[:, :, 0, trial] + 5 * weights * new[:, :, 0, trial]
            np.testing.assert_allclose(found[:, :, 0, trial], told @ mix.T, rtol=2e-5)
        seen = found
        total = (weights[:, None, None] * counted).sum(1)
        np.testing.assert_allclose(seen.mean(1), total, rtol=2e-5)


def test_the_engine_loses_and_doubles_nothing():
    """Plays are K of each agent in every slot; of arms that are always observed every slot but the
    first completes a pair."""
    watched = Arms(
        [
            rmab.Arm([[0.6, 0.4], [0.7, 0.3]], reward=[0.0, 0.5], observed="always"),
            rmab.Arm([[0.2, 0.8], [0.5, 0.5]], reward=[0.0, 1.0], observed="always"),
        ]
    )
    seen: list[tuple[np.ndarray, ...]] = []

    def learner(evidence, draws):
        jax.debug.callback(
            lambda *numbers: seen.append(tuple(map(np.asarray, numbers))),
            evidence.counts[0].sum((0, 1)),
            evidence.visits.sum((0, 1)),
            evidence.episode,
            evidence.agents,
            ordered=True,
        )
        rows = draws.dirichlet(1 + evidence.counts[0], 1.0, axis=1)
        return rmab.Moves(rows, rows)

    def table(model, max_age):
        n_arms, width = len(model.kinds), model.moves.passive.shape[-1]
        return jnp.broadcast_to(
            model.moves.passive[0, 1][:, None], (n_arms, 1 + 2 * max_age, width)
        )

    mine = rmab.Policy("mine", learner=learner, table=table)
    study = replace(STUDY, arms=watched, plays=1, horizon=40, trials=32, policies=[mine])
    rmab.run(replace(study, failure=0.4), batch=32, threads=1)
    jax.effects_barrier()
    assert len(seen) > 6
    for pairs, visits, episode, agents in seen:
        (number,) = set(episode.tolist())
        past = sum(range(2, number + 1))  # episodes have 2, 3, 4, ... slots
        np.testing.assert_allclose(agents, 4)
        visits = visits.reshape(4, -1)  # by agent and trial
        np.testing.assert_allclose(visits.sum(0), 4 * 4 * past, rtol=1e-5)
        by_arm = pairs.reshape(2, 4, -1).sum(1)
        np.testing.assert_allclose(by_arm, 4 * 4 * max(0, past - 1), rtol=1e-5)


@pytest.mark.slow  # two programs to compile
def test_all_with_all_is_a_server_with_a_draw_for_each():
    """To the last bit where a share is a power of two."""
    complete = rmab.run(replace(STUDY, graph="complete"))
    served = rmab.run(replace(STUDY, aggregation="sum", draws="per-agent"))
    np.testing.assert_array_equal(complete["fedtswi"].slots.mean, served["fedtswi"].slots.mean)


@dataclass(frozen=True)
class ToOneself(Gossip):
    """Agents that talk to nobody, and count what they count once."""

    def links(self, n_agents: int) -> Links:
        return Links(n_agents, np.zeros((0, 2), np.int64), 0.0)

    def factor(self, n_agents: int) -> float:
        return 1.0


@pytest.mark.slow  # two programs
def test_agents_that_talk_to_nobody_learn_alone(monkeypatch):
    monkeypatch.setitem(AGGREGATIONS, "to oneself", ToOneself())
    silent = rmab.run(replace(STUDY, aggregation="to oneself"))
    alone = rmab.run(replace(STUDY, aggregation="none"))
    np.testing.assert_array_equal(silent["fedtswi"].slots.mean, alone["fedtswi"].slots.mean)


WATCHED = Arms(
    Arm(passive, active, reward=[0.0, 1.0], observed="always")
    for passive, active in (
        ([[0.9, 0.1], [0.3, 0.7]], [[0.5, 0.5], [0.1, 0.9]]),
        ([[0.8, 0.2], [0.4, 0.6]], [[0.7, 0.3], [0.1, 0.9]]),
        ([[0.95, 0.05], [0.5, 0.5]], [[0.4, 0.6], [0.3, 0.7]]),
    )
)


@pytest.mark.slow  # two programs each
@pytest.mark.parametrize(
    "policy", [name for name, entry in POLICIES.items() if "aggregation" in entry.options]
)
def test_all_that_learn_from_counts_may_gossip(policy):
    """All with all, they do as with a server and a draw for each. What is learnt of all arms
    together differs with who is a unit, so of that only that it learns."""
    watched = policy.startswith("ucw") or policy == "rb-tsde"
    study = replace(
        STUDY,
        arms=WATCHED if watched else ARMS,
        plays=1,
        policies=[policy],
        trials=128,
        draws="per-agent",
    )
    gossip = {policy: {"aggregation": "gossip", "graph": "complete"}}
    found = rmab.run(replace(study, options=gossip))
    served = rmab.run(replace(study, options={policy: {"aggregation": "sum"}}))
    error = np.hypot(found.se[policy], served.se[policy])
    margin = 0.1 if policy.endswith("-robust") else 4 * error + 1e-6
    assert abs(found.mean[policy] - served.mean[policy]) < margin


def test_a_learner_with_its_own_state_does_not_gossip():
    class Own:
        def init(self, n_states, shape):
            return (jnp.zeros(shape),)

        def update(self, state, seen):
            return state

        def dynamics(self, state, draws):
            return state[0], state[0]

    own = rmab.Policy("own", myopic, own=Own(), statewise=True)
    with pytest.raises(ModelError, match=r"must not .* have agents that gossip"):
        rmab.run(replace(STUDY, policies=[own]))


# ---------------------------------------------------------------------- what was measured elsewhere

THETA = [0.2646, 0.6135, 0.8950, 0.5764]


def bernoulli(evidence, draws):
    """Beta(1, 1) and all plays, of arms without a memory."""
    good = draws.dirichlet(1 + evidence.visits[::-1], 1.0, axis=0)[0]
    return good, good


def regret(n_agents: int, graph: str, horizon: int, trials: int) -> tuple[np.ndarray, np.ndarray]:
    """Of each agent, up to each slot: Thompson sampling that is told everything in every slot."""
    policy = rmab.Policy("bernoulli", myopic, bernoulli, statewise=True, longest=1)
    study = rmab.Study(
        rmab.channels(THETA, THETA, 1.0),
        agents=n_agents,
        horizon=horizon,
        trials=trials,
        schedule="linear",
        policies=[policy],
        aggregation="gossip",
        graph=graph,
        seed=1,
    )
    found = rmab.run(study)["bernoulli"].regret
    return found.mean, found.se


def close(found: tuple[np.ndarray, np.ndarray], slot: int, known: float) -> None:
    """Within four standard errors, of which the known number has 3 % of its own."""
    mean, se = found[0][slot - 1], found[1][slot - 1]
    assert abs(mean - known) < 4 * np.hypot(se, 0.03 * known), (mean, se, known)


@pytest.mark.slow
def test_decentralised_thompson_sampling_of_four_agents_on_a_ring():
    close(regret(4, "ring", 100, 256), 100, 2.38)


@pytest.mark.slow  # 800 episodes each
@pytest.mark.parametrize(
    ("n_agents", "graph", "trials", "early", "late"),
    [
        (1, "ring", 1024, 7.1, 10.5),
        (4, "complete", 256, 2.45, 3.26),
        (4, "ring", 256, 2.38, 3.20),
        (36, "ring", 64, 0.97, 0.98),
        (36, "complete", 64, 0.46, 0.54),
        (64, "ring", 64, 0.98, 0.98),
        (64, "complete", 64, 0.39, 0.42),
    ],
)
def test_decentralised_thompson_sampling_as_published(n_agents, graph, trials, early, late):
    found = regret(n_agents, graph, 800, trials)
    close(found, 100, early)
    close(found, 800, late)
