"""What agents share: sums, nothing, and an aggregation that comes from outside the package."""

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
import pytest

import rmab
from rmab.learning.evidence import Evidence
from rmab.linalg import Array, array_namespace
from rmab.planning.tables import whittle_at
from rmab.policies.aggregation import (
    AGGREGATIONS,
    Gossip,
    aggregation_of,
    capped,
    compares_agents,
    evidence_of,
    mixes_evidence,
    owner_weights,
)
from rmab.protocol.config import Federation, KnownArm
from rmab.protocol.growth import Merged
from rmab.protocol.planner import Planner
from rmab.rng.variates import Draws

ARMS = rmab.channels([0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16], [0.4, 0.9, 0.7, 0.6])
STUDY = rmab.Study(ARMS, agents=3, plays=2, horizon=120, trials=64, schedule="linear", seed=3)


@dataclass(frozen=True)
class Ring:
    """Each agent sees the mean of its own counts and its neighbour's: a matrix of who mixes."""

    shared: bool = False
    running: bool = False

    def combine(self, counts: Array, weights: Array) -> Array:
        xp = array_namespace(counts)
        scaled = counts * weights[:, None]
        return (scaled + xp.roll(scaled, 1, axis=-2)) / 2


@dataclass(frozen=True)
class SumApart:
    """The sum, but as evidence of each agent for itself: what per-agent draws from a sum are."""

    shared: bool = False
    running: bool = False

    def combine(self, counts: Array, weights: Array) -> Array:
        xp = array_namespace(counts)
        total = (counts * weights[:, None]).sum(-2, keepdims=True)
        return xp.broadcast_to(total, counts.shape)


GAPS = 3


def drawn_from_gaps(evidence: Evidence, draws: Draws) -> rmab.Moves:
    """Rows from all pairs of observations, those further apart with less weight."""
    assert evidence.counts.shape[0] == GAPS + 1
    pairs = jnp.tensordot(0.25 ** jnp.arange(GAPS + 1), evidence.counts, 1)
    rows = draws.dirichlet(1 + pairs, 1.0, axis=1)
    return rmab.Moves(rows, rows)


# Counts by gap lie otherwise in memory. Drawing from their posterior is a large program to compile,
# and no matter of aggregation, so by default a learner stands in that reads the same counts.
BY_GAPS = rmab.Policy("by gaps", whittle_at, drawn_from_gaps, statewise=True, gaps=GAPS)
LEARNERS = ["fedtswi", pytest.param("fedtswi-gap", marks=pytest.mark.slow)]
# Where nothing depends on how dynamics are learnt, one is enough.
COUNTER = [
    pytest.param(BY_GAPS, id="by gaps"),
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedtswi", "fedtswi-gap")),
]


@pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])
def test_sum_adds_with_weights(xp):
    rng = np.random.default_rng(3)
    counts = rng.integers(0, 30_000, (4, 3, 5, 2)).astype(np.int16)  # kinds, arms, agents, trials
    weights = np.array([1.0, 0.5, 2.0, 0.0, 3.25], np.float32)
    got = np.asarray(AGGREGATIONS["sum"].combine(xp.asarray(counts), xp.asarray(weights)))
    assert got.shape == (4, 3, 1, 2)
    for kind, arm, trial in np.ndindex(4, 3, 2):
        total = sum(float(weights[m]) * int(counts[kind, arm, m, trial]) for m in range(5))
        assert got[kind, arm, 0, trial] == pytest.approx(total, rel=1e-6)


def test_none_leaves_each_agent_its_own():
    counts = np.arange(24).reshape(2, 3, 4)
    weights = np.array([5.0, 0.0, 2.0])
    np.testing.assert_array_equal(AGGREGATIONS["none"].combine(counts, weights), counts)


def name_of(policy: str | rmab.Policy) -> str:
    return policy if isinstance(policy, str) else policy.name


def results(study: rmab.Study, **changes) -> rmab.Results:
    return rmab.run(replace(study, **changes))


@pytest.mark.parametrize(
    "policy",
    ["fed1-ucb", *COUNTER, pytest.param("feducb-wi", marks=pytest.mark.slow)],
)
def test_an_agent_alone_shares_with_nobody_else(policy):
    """With one agent there is nothing to share: both give the same, to the last bit."""
    alone = replace(STUDY, agents=1, policies=[policy])
    both = [results(alone, aggregation=name) for name in ("sum", "none")]
    one, other = (found[name_of(policy)].slots.mean for found in both)
    np.testing.assert_array_equal(one, other)
    assert both[0].mean == both[1].mean


@pytest.mark.parametrize("policy", COUNTER)
def test_agents_that_learn_alone_are_agents_of_studies_of_their_own(policy):
    """The first of three agents that share nothing does what it does where it is the only one."""
    three = results(STUDY, aggregation="none", policies=[policy])
    one = results(STUDY, agents=1, policies=[policy])
    # Means over agents of independent runs: the same expectation, less spread.
    name = name_of(policy)
    error = np.hypot(three.se[name], one.se[name])
    assert abs(three.mean[name] - one.mean[name]) < 4 * error
    shared = results(STUDY, policies=[policy])
    gain, se = shared.mean[name] - three.mean[name], np.hypot(shared.se[name], error)
    assert gain > 2 * se, "sharing counts pays"


@pytest.mark.parametrize("policy", LEARNERS)
def test_an_option_of_a_policy_stands_beside_a_policy_without(policy):
    """Learners that share and learners that do not, in one study on the same trials."""
    study = replace(STUDY, policies=[policy, "whittle"], options={policy: {"aggregation": "none"}})
    assert (
        results(study).mean == results(STUDY, aggregation="none", policies=[policy, "whittle"]).mean
    )


@pytest.mark.parametrize("policy", COUNTER)
def test_an_aggregation_from_outside_is_a_class_in_one_file(policy, monkeypatch):
    monkeypatch.setitem(AGGREGATIONS, "ring", Ring())
    monkeypatch.setitem(AGGREGATIONS, "sum apart", SumApart())
    study = replace(STUDY, policies=[policy])
    per_agent = results(study, draws="per-agent")
    apart = results(study, aggregation="sum apart")
    name = name_of(policy)
    np.testing.assert_array_equal(apart[name].slots.mean, per_agent[name].slots.mean)
    ring, alone = results(study, aggregation="ring"), results(study, aggregation="none")
    assert ring.mean != alone.mean
    assert ring.mean != apart.mean


def test_an_unknown_aggregation_is_refused_by_name():
    with pytest.raises(
        rmab.StudyError, match=r"^aggregation: unknown 'mean'; known are sum, none, pairs, gossip$"
    ):
        replace(STUDY, aggregation="mean")
    with pytest.raises(
        rmab.StudyError, match=r"^options.fedtswi.aggregation must be one of sum, none"
    ):
        replace(STUDY, options={"fedtswi": {"aggregation": "mean"}})
    with pytest.raises(rmab.FederationError, match=r"^aggregation: unknown 'mean'"):
        Federation("f", 1, (KnownArm(2, (0.0, 1.0)),), aggregation="mean")


# --------------------------------------------------------------------------------------- served


def counts_of(seed: int) -> Merged:
    """Counts as an upload has them, (C, S, S, N) and (S, N)."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 40, (2, 2, 2, 3))
    return Merged(counts, counts.sum((0, 1)) + 1, 1)


@pytest.mark.parametrize("name", ["sum", "none", "ring"])
def test_a_server_gives_each_agent_the_evidence_that_the_engine_does(name, monkeypatch):
    monkeypatch.setitem(AGGREGATIONS, "ring", Ring())
    aggregation = AGGREGATIONS[name]
    agents = [counts_of(seed) for seed in range(3)]
    stacked = np.stack([agent.counts for agent in agents], -1)[..., None]
    combined = aggregation.combine(jnp.asarray(stacked), jnp.ones(3))
    for lane in range(3):
        served = evidence_of(aggregation, [agent.counts for agent in agents], lane)
        place = 0 if aggregation.shared else lane
        np.testing.assert_allclose(served, combined[..., place, 0])


def test_plans_of_agents_that_share_nothing_differ():
    arms = tuple(KnownArm(2, (0.0, pays)) for pays in (0.4, 0.9, 0.7))
    federation = Federation("f", 1, arms, aggregation="none")
    assert federation.plan_per_agent
    planner = Planner(federation)
    one, other = (planner.plan(counts_of(lane), 2, lane).plan for lane in range(2))
    assert not np.array_equal(one.index, other.index)  # type: ignore[attr-defined]  # of index plans


@pytest.mark.parametrize(
    ("weights", "sizes", "cap", "due"),
    [
        ([1, 1, 1, 1, 1], [90, 100, 110, 120, 10**6], 2.0, [1, 1, 1, 1, 220 / 10**6]),
        ([1, 1, 1], [100, 100, 150], 2.0, [1, 1, 1]),
        ([1, 1, 1, 1], [100, 100, 100, 0], 1.0, [1, 1, 1, 1]),  # who has none is not the median
        ([1, 1], [100, 2**40], 2.0, [1, 200 / 2**40]),
        ([1, 5, 1], [100, 100, 100], 2.0, [1, 2, 1]),  # a weight counts as so many agents
        ([1, 0, 0], [100, 10**6, 10**6], 2.0, [1, 0, 0]),
        ([1], [10**6], 1.0, [1]),
        ([1, 1], [0, 0], 1.0, [1, 1]),
    ],
)
def test_no_agent_weighs_more_than_the_cap_times_the_median_one(weights, sizes, cap, due):
    got = capped(np.array(weights, float), np.array(sizes, np.int64), cap)
    np.testing.assert_allclose(got, due, rtol=1e-12)


@pytest.mark.parametrize(
    ("sizes", "owners", "cap", "due"),
    [
        ([100, 100, 100], [0, 1, 2], None, [1, 1, 1]),
        ([100, 60, 40, 0], [0, 1, 1, 1], None, [1, 0.6, 0.6, 0.6]),  # as much as the largest
        ([0, 0], [0, 0], None, [1, 1]),
        ([100, 100, 100, *[1000] * 3], [0, 1, 2, 3, 3, 3], 2.0, [1, 1, 1, *[200 / 3000] * 3]),
        # Ten names are no majority: the median is that of four owners, not of thirteen agents.
        ([10, 10, 10, *[1000] * 10], [0, 1, 2, *[3] * 10], 1.0, [1, 1, 1, *[10 / 10_000] * 10]),
    ],
)
def test_an_owner_weighs_as_much_as_one_agent(sizes, owners, cap, due):
    ones = np.ones(len(sizes))
    got = owner_weights(ones, np.array(sizes, np.int64), np.array(owners), cap)
    np.testing.assert_allclose(got, due, rtol=1e-12)
    twice = owner_weights(2 * ones, np.array(sizes, np.int64), np.array(owners))
    np.testing.assert_allclose(
        twice, 2 * owner_weights(ones, np.array(sizes, np.int64), np.array(owners)), rtol=1e-12
    )


@pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])
def test_pairs_weigh_what_an_agent_takes_of_each_other(xp):
    """weights[a, b] is what a takes of b's counts, which is not what b takes of a's."""
    rng = np.random.default_rng(4)
    counts = rng.integers(0, 50, (2, 3, 4)).astype(np.float32)  # arms, agents, trials
    weights = rng.random((3, 3, 4)).astype(np.float32)
    got = np.asarray(AGGREGATIONS["pairs"].combine(xp.asarray(counts), xp.asarray(weights)))
    assert got.shape == (2, 3, 4)
    for arm, a, trial in np.ndindex(2, 3, 4):
        due = sum(weights[a, b, trial] * counts[arm, b, trial] for b in range(3))
        assert got[arm, a, trial] == pytest.approx(due, rel=1e-5)


# ------------------------------------------------------------------------------- in plain NumPy


def test_evidence_of_one_agent_by_every_aggregation():
    rng = np.random.default_rng(4)
    counts = [rng.integers(0, 9, (2, 3)) for _ in range(3)]
    weights = np.array([0.5, 0.0, 2.0])
    for agent in range(3):
        total = evidence_of(AGGREGATIONS["sum"], counts, agent)
        np.testing.assert_array_equal(total, sum(counts))
        assert total.dtype == counts[0].dtype
        weighed = evidence_of(AGGREGATIONS["sum"], counts, agent, weights)
        np.testing.assert_allclose(weighed, 0.5 * counts[0] + 2 * counts[2])
        for name in ("none", "gossip"):
            for given in (None, weights):
                own = evidence_of(AGGREGATIONS[name], counts, agent, given)
                np.testing.assert_array_equal(own, counts[agent])
    takes = rng.random((3, 3, 1))
    takes[0, 1], takes[1, 0] = 0.0, 1.0  # what 1 takes of 2 is not what 2 takes of 1
    for agent in range(3):
        found = evidence_of(AGGREGATIONS["pairs"], counts, agent, takes)
        due = sum(takes[agent, other, 0] * counts[other] for other in range(3))
        np.testing.assert_allclose(found, due)


def test_what_aggregations_say_of_themselves():
    said = {
        name: (each.shared, each.running, compares_agents(each), mixes_evidence(each))
        for name, each in AGGREGATIONS.items()
    }
    assert said == {
        "sum": (True, True, False, False),
        "none": (False, False, False, False),
        "pairs": (False, False, True, False),
        "gossip": (False, False, False, True),
    }
    assert not compares_agents(Ring())
    assert not mixes_evidence(Ring())


def test_settings_are_of_gossip():
    made = aggregation_of("gossip", graph="regular", degree=4, failure=0.5)
    assert isinstance(made, Gossip)
    assert (made.graph, made.degree, made.failure) == ("regular", 4, 0.5)
    plain = aggregation_of("gossip")
    assert isinstance(plain, Gossip)
    assert (plain.graph, plain.degree, plain.failure) == ("ring", 2, 0.0)
    for name in ("sum", "none", "pairs"):
        assert aggregation_of(name, graph="regular", degree=4) is AGGREGATIONS[name]


@pytest.mark.parametrize("failure", [0.0, 0.5])
def test_what_agents_see_is_a_mixture_of_their_neighbours(failure):
    """Of five agents in a ring, in plain loops; a link fails where its number is below failure."""
    rng = np.random.default_rng(2)
    gossip = aggregation_of("gossip", graph="ring", failure=failure)
    assert isinstance(gossip, Gossip)
    links = gossip.links(5)
    kept, new = rng.random((2, 5, 3, 4)), rng.random((2, 5, 1, 4))
    weights = np.array([1.0, 2.0, 0.5, 0.0, 1.0])
    told = kept + 5 * weights[:, None, None] * new
    chances = None if failure == 0 else rng.choice([0.25, 0.5, 0.75], (len(links.ends), 4))
    found = gossip.mixed(kept, new, weights, chances)
    for run in range(4):
        if chances is None:
            matrix = links.matrix()
        else:
            matrix = links.matrix_without(chances[:, run : run + 1] < failure)[..., 0]
            assert (chances == failure).any()
        due = np.einsum("ij,kjb->kib", matrix, told[..., run])
        np.testing.assert_allclose(found[..., run], due)
    # Nothing is lost: the mean of what all see is the sum of what they saw and have counted.
    np.testing.assert_allclose(found.mean(1), (kept + 5 * weights[:, None, None] * new).mean(1))
    assert found.shape == kept.shape


def test_the_cap_is_of_the_lower_median_of_those_that_weigh_anything():
    ones = np.ones(4)
    for sizes, due in (
        ([1, 1, 1, 10], [1, 1, 1, 0.3]),
        ([0, 0, 2, 10], [1, 1, 1, 0.6]),
        ([0, 0, 0, 10], [1, 1, 1, 1]),
        ([0, 0, 0, 0], [1, 1, 1, 1]),
        ([1, 2, 6, 9], [1, 1, 1, 6 / 9]),
    ):
        np.testing.assert_allclose(capped(ones, np.array(sizes), 3.0), due)
    weights = np.array([2.0, 1.0, 0.0])
    np.testing.assert_allclose(capped(weights, np.array([10, 1, 99]), 3.0), [0.3, 1.0, 0.0])


def test_owners_of_several_agents_have_one_voice():
    weights, owners = np.array([2.0, 2.0, 1.0, 1.0]), np.array([0, 0, 2, 3])
    sizes = np.array([30, 10, 8, 0])
    found = owner_weights(weights, sizes, owners)
    np.testing.assert_allclose(found, [1.5, 1.5, 1.0, 1.0])
    assert (found * sizes)[:2].sum() == 2.0 * 30
    # Owners are held against one another by the largest of their agents: 60 and 8, of which 8 is
    # the lower median.
    capped_found = owner_weights(weights, sizes, owners, 3.0)
    np.testing.assert_allclose((capped_found * sizes)[:2].sum(), 3.0 * 8)
    np.testing.assert_allclose(capped_found[2:], 1.0)
