"""A served federation against the engine, slot by slot, and what a server estimates."""

from typing import Any

import numpy as np
import pytest
from scipy import special, stats

from rmab.errors import StorageError
from rmab.model.arms import Arm, Arms, channels
from rmab.policies.plans import IndexPlan
from rmab.protocol.config import Federation, KnownArm
from rmab.protocol.growth import LaneCounts, Merged
from rmab.protocol.planner import Planner
from rmab.protocol.round_memory import RoundMemory
from tests.protocol.lockstep import (
    Realisation,
    engine_decisions,
    served_decisions,
    true_states,
)

PAPER = channels([0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16], [0.4, 0.9, 0.7, 0.6])
LEVELS = [[0.7, 0.3, 0.0], [0.2, 0.5, 0.3], [0.0, 0.4, 0.6]]
MIXED = Arms(
    [
        Arm(LEVELS, reward=[0, 0.5, 1]),
        Arm([[0.8, 0.2], [0.2, 0.8]], reward=[0, 0.7]),
        Arm(LEVELS[::-1], reward=[0, 0.4, 0.9]),
    ]
)


# Of every kind at once: action-dependent or not, observed when played or always, of two states and
# of three, and some that pay when they are left alone.
ALL_KINDS = Arms(
    [
        Arm([[0.8, 0.2], [0.3, 0.7]], reward=[0, 0.6]),
        Arm([[0.9, 0.1], [0.4, 0.6]], [[0.3, 0.7], [0.2, 0.8]], reward=[0, 1.0]),
        Arm(LEVELS, LEVELS[::-1], reward_active=[0, 0.5, 1], reward_passive=[0.2, 0, 0.1]),
        Arm([[0.7, 0.3], [0.4, 0.6]], reward=[0.1, 0.7], observed="always"),
        Arm(
            [[0.6, 0.3, 0.1], [0.0, 0.7, 0.3], [0.0, 0.0, 1.0]],
            [[1.0, 0.0, 0.0], [0.9, 0.1, 0.0], [0.8, 0.2, 0.0]],
            reward_active=[0, 0.2, 0.3],
            reward_passive=[0.5, 0.3, 0.0],
            observed="always",
        ),
    ]
)


def federation_of(arms: Arms, plays: int, policy: str, **others) -> Federation:
    known = tuple(
        KnownArm(
            arm.states,
            tuple(arm.reward_active.tolist()),
            tuple(arm.reward_passive.tolist()),
            arm.observed,
            arm.action_dependent,
        )
        for arm in arms
    )
    return Federation("test", plays, known, policy, seed=7, **others)


CASES = {
    "fedtswi": (PAPER, 4, 2, {"schedule": "linear"}),
    "feducb-wi": (PAPER, 2, 2, {"schedule": "doubling"}),
    "fedts-myopic": (PAPER, 3, 1, {"draws": "per-agent"}),
    "fedtswi-gap": (PAPER, 4, 1, {}),
    "fed1-ucb": (PAPER, 2, 2, {"horizon": 400, "options": {"sigma": 0.05}}),
    "fedts-lookahead-gap": (PAPER, 2, 2, {}),
}
# Programs of their own, which take long to compile.
LONG = (
    "feducb-wi",
    "fedts-myopic",
    "fedtswi-gap",
    "fedts-lookahead-gap",
    "fedtswi, arms of several sizes",
)
OTHERS = {
    "fedtswi, one agent, the paper's stop rule": ("fedtswi", PAPER, 1, 2, {"schedule": "paper"}),
    "fedtswi, arms of several sizes": ("fedtswi", MIXED, 2, 1, {}),
}


@pytest.mark.parametrize(
    ("policy", "arms", "n_agents", "plays", "others"),
    [
        pytest.param(*case, id=name, marks=[pytest.mark.slow] if name in LONG else [])
        for name, case in {**{k: (k, *v) for k, v in CASES.items()}, **OTHERS}.items()
    ],
)
def test_served_agents_decide_as_the_engine_does_slot_by_slot(
    monkeypatch, policy, arms, n_agents, plays, others
):
    federation = federation_of(arms, plays, policy, **others)
    horizon = 400
    states = true_states(arms, federation.seed, n_agents, horizon)
    here = served_decisions(Planner(federation), states)
    there = engine_decisions(monkeypatch, arms, federation, n_agents, horizon)
    assert here.shape == there.shape
    assert (here.sum(2) == plays).all()
    np.testing.assert_array_equal(here, there)
    assert len({tuple(row) for row in here[:, 0].tolist()}) > 1  # it is not one choice for ever


ROBUST: dict[str, tuple[str, dict[str, Any]]] = {
    "all of it": ("fedts-myopic-robust", {"options": {"gaps": 8, "longest": 12}}),
    "by the mode": ("fedce-myopic-robust", {"options": {"gaps": 8}, "weights": {"agent-1": 0.5}}),
    "a half-life of the sum": (
        "fedts-myopic-gap",
        {"options": {"gaps": 8, "forget": 60, "prior": "population"}},
    ),
    "bounds that forget": ("feducb-wi-gap", {"options": {"gaps": 8, "forget": 60, "longest": 9}}),
    "pairs alone": (
        "fedts-myopic-gap",
        {"options": {"gaps": 8, "aggregation": "pairs", "plan_by": "mode"}},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ROBUST)
def test_served_agents_decide_as_the_engine_does_where_counts_are_not_added_up(monkeypatch, case):
    """Three agents on channels; the server has what it keeps from bytes in every round."""
    policy, others = ROBUST[case]
    federation = federation_of(PAPER, 1, policy, **others)
    states = true_states(PAPER, federation.seed, 3, 150)
    here = served_decisions(Planner(federation), states)
    there = engine_decisions(monkeypatch, PAPER, federation, 3, 150)
    np.testing.assert_array_equal(here, there)
    assert here.any((0, 1)).sum() > 2  # it is not one choice for ever


OF_ALL_KINDS: dict[str, dict[str, Any]] = {
    "fedtswi": {"weights": {"agent-1": 0.5, "agent-2": 3.0}},
    "fedtswi-gap": {"options": {"gaps": 8}, "weights": {"agent-1": 0.5, "agent-2": 3.0}},
    "fedts-lookahead-gap": {"options": {"gaps": 8}, "draws": "per-agent"},
}


def check_decisions(monkeypatch, arms: Arms, policy: str, **others) -> np.ndarray:
    """Three agents, in the engine and served, on the same arms; what they play."""
    n_agents, plays, horizon = 3, 2, 300
    federation = federation_of(arms, plays, policy, **others)
    realised = Realisation(arms, federation.seed, n_agents)
    here = served_decisions(Planner(federation), realised, horizon)
    there = engine_decisions(monkeypatch, arms, federation, n_agents, horizon)
    assert (here.sum(2) == plays).all()
    np.testing.assert_array_equal(here, there)
    return here


@pytest.mark.slow
@pytest.mark.parametrize("policy", OF_ALL_KINDS)
def test_served_agents_decide_as_the_engine_does_on_arms_of_every_kind(monkeypatch, policy):
    played = check_decisions(monkeypatch, ALL_KINDS, policy, **OF_ALL_KINDS[policy])
    assert played.any((0, 1)).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "others"),
    [
        ("fedts-myopic", {"schedule": "paper", "weights": {"agent-0": 0.25, "agent-2": 3.0}}),
        ("fed1-ucb", {"horizon": 300, "options": {"sigma": 0.05}, "weights": {"agent-1": 2.0}}),
    ],
)
def test_served_agents_decide_as_the_engine_does_on_arms_that_are_always_observed(
    monkeypatch, policy, others
):
    played = check_decisions(monkeypatch, Arms([*MIXED[:2], *ALL_KINDS[3:]]), policy, **others)
    assert len({tuple(row) for row in played[:, 0].tolist()}) > 3


@pytest.mark.parametrize("policy", ["fedts-myopic", "fedts-myopic-gap"])
def test_tables_of_arms_that_are_all_always_observed_have_one_age(policy):
    federation = federation_of(Arms(ALL_KINDS[3:]), 1, policy)
    plan = Planner(federation).plan(nothing(federation), 1).plan
    assert isinstance(plan, IndexPlan)
    assert (plan.max_age, plan.wrap) == (1, 0)
    np.testing.assert_allclose(plan.index[:, 1:], [[0.1, 0.7, 0], [-0.5, -0.1, 0.3]], rtol=1e-6)


def test_estimates_are_of_each_action_where_plays_change_an_arm():
    federation = federation_of(Arms(ALL_KINDS[3:]), 1, "fedtswi")
    merged = nothing(federation)
    merged.counts[0, 0, :2, 0], merged.counts[1, 0, :2, 0] = (10, 2), (20, 6)
    merged.counts[0, 1, :, 1], merged.counts[1, 1, :, 1] = (30, 3, 0), (0, 5, 7)
    alike, controlled = Planner(federation).estimates(merged)
    assert alike["p01"]["mean"] == pytest.approx((1 + 8) / (2 + 38))  # played or not
    assert "passive" not in alike
    assert controlled["transitions"][1][0]["mean"] == pytest.approx(31 / 36)
    assert controlled["passive"]["transitions"][1][2]["mean"] == pytest.approx(8 / 15)


def nothing(federation: Federation) -> Merged:
    shape, S = federation.shape, max(federation.shape.states)
    counts = np.zeros((shape.kinds, S, S, shape.n_arms), np.int64)
    return Merged(counts, np.zeros((S, shape.n_arms), np.int64), 0)


def test_a_plan_depends_on_seed_round_lane_and_counts_alone():
    federation = federation_of(PAPER, 2, "fedtswi")
    merged = nothing(federation)
    one, other = Planner(federation), Planner(federation)

    def index(planner, *where):
        plan = planner.plan(merged, *where).plan
        assert isinstance(plan, IndexPlan)
        return plan.index[:, 0]

    other.plan(merged, 5)  # what was asked before does not matter
    np.testing.assert_array_equal(index(one, 3, 2), index(other, 3, 2))
    assert not np.array_equal(index(one, 3, 2), index(one, 4, 2))
    assert not np.array_equal(index(one, 3, 2), index(one, 3, 1))


def test_estimates_of_neighbouring_looks_are_those_of_the_beta_law():
    federation = federation_of(PAPER, 2, "fedtswi", options={"prior": [2.0, 3.0]})
    merged = nothing(federation)
    merged.counts[0, 0, :, 1] = 30, 12
    merged.counts[1, 0, :, 1] = 400, 1  # pairs further apart tell this learner nothing
    estimate = Planner(federation).estimates(merged)
    law = stats.beta(2 + 12, 3 + 30)
    for key, value in {"mean": law.mean(), "low": law.ppf(0.025), "high": law.ppf(0.975)}.items():
        assert estimate[1]["p01"][key] == pytest.approx(value, abs=1e-6)
    assert estimate[0]["p11"]["mean"] == pytest.approx(0.4)


def test_estimates_of_larger_arms_are_those_of_the_dirichlet_law():
    federation = federation_of(MIXED, 1, "fedts-myopic")
    merged = nothing(federation)
    merged.counts[0, 2, :, 0] = 5, 10, 20
    estimate = Planner(federation).estimates(merged)
    law = stats.beta(11, 38 - 11)
    cell = estimate[0]["transitions"][2][1]
    assert cell["low"] == pytest.approx(law.ppf(0.025), abs=1e-6)
    assert cell["mean"] == pytest.approx(law.mean(), abs=1e-6)
    assert set(estimate[1]) == {"p01", "p11"}


@pytest.mark.slow
def test_estimates_from_every_look_agree_with_the_beta_law_where_all_looks_are_neighbouring():
    federation = federation_of(PAPER, 2, "fedtswi-gap")
    merged = nothing(federation)
    merged.counts[0, 0, :, 2] = 90, 10
    merged.counts[0, 1, :, 2] = 10, 90
    estimate = Planner(federation).estimates(merged)[2]["p11"]
    law = stats.beta(91, 11)
    se = law.std() / np.sqrt(1024)
    assert estimate["mean"] == pytest.approx(law.mean(), abs=4 * se)
    # The error of an empirical quantile is sqrt(q (1 - q) / n) / density.
    for key, q in (("low", 0.025), ("high", 0.975)):
        exact = law.ppf(q)
        error = np.sqrt(q * (1 - q) / 1024) / law.pdf(exact)
        assert estimate[key] == pytest.approx(exact, abs=4 * error)


def test_what_an_agent_counted_that_was_taken_out_is_forgotten_at_once():
    """Of the others all but half is kept after a half-life."""
    options = {"forget": 10, "gaps": 8}
    planner = Planner(federation_of(PAPER, 1, "fedts-myopic-gap", options=options))
    rng = np.random.default_rng(0)
    shape = nothing(planner.federation)
    before = LaneCounts(
        rng.integers(0, 9, (3, *shape.counts.shape)), rng.integers(5, 9, (3, *shape.visits.shape))
    )
    memory = planner.remember(None, None, before, 0)
    np.testing.assert_array_equal(memory.counts[..., 0], np.moveaxis(before.counts, 0, -1))
    counts, visits = before.counts.copy(), before.visits.copy()
    counts[1], visits[1] = 0, 0  # taken out
    counts[2, 0] += 3
    now = LaneCounts(counts, visits)
    found = planner.remember(memory, before, now, 10).counts[..., 0]
    np.testing.assert_allclose(found[..., 0], before.counts[0] / 2)
    np.testing.assert_array_equal(found[..., 1], 0)
    np.testing.assert_allclose(found[..., 2], before.counts[2] / 2 + (counts[2] - before.counts[2]))
    more = [np.concatenate([x, np.zeros_like(x[:1])]) for x in (counts, visits)]
    wider = planner.remember(memory, before, LaneCounts(*more), 10)
    np.testing.assert_array_equal(wider.counts[..., :3, 0], found)  # whoever was enrolled since


def test_what_a_round_keeps_is_the_same_from_its_bytes():
    rng = np.random.default_rng(0)
    memory = RoundMemory(
        rng.random((9, 2, 2, 3, 2, 4), np.float32),
        rng.random((2, 3, 2, 4), np.float32),
        rng.random(4, np.float32),
        np.zeros(0, np.float32),
    )
    for one, other in zip(RoundMemory.from_bytes(memory.to_bytes()), memory, strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(StorageError, match="is damaged"):
        RoundMemory.from_bytes(b"PK\x03\x04 and no more")


@pytest.mark.parametrize(("policy", "index"), [("fedtswi", "whittle"), ("fedts-myopic", "myopic")])
def test_the_laws_of_consecutive_observations_are_those_of_betas(policy, index):
    """Pairs further apart are not learnt from; an arm without any has the prior's law."""
    federation = federation_of(PAPER, 2, policy, draws="own", doubt=0.3)
    counts = np.zeros((2, 2, 2, 4), np.int64)
    counts[0, :, :, 1] = [[2, 9], [7, 1]]
    counts[1, :, :, 1] = 100
    told = Planner(federation).laws(Merged(counts, counts.sum((0, 1)), 3), 5)
    assert (told.round, told.index, told.gaps, told.doubt) == (5, index, 0, 0.3)
    (mean,), (covariance,) = (x[..., 0] for x in told.summaries)
    expected = [special.digamma(10) - special.digamma(3), special.digamma(2) - special.digamma(8)]
    assert mean[:, 1] == pytest.approx(expected, abs=1e-4)
    spread = special.polygamma(1, 10) + special.polygamma(1, 3)
    assert covariance[0, 1] == pytest.approx(spread, rel=1e-4)
    assert covariance[:, 0] == pytest.approx([np.pi**2 / 3, 0, np.pi**2 / 3], rel=1e-4)


def test_each_group_has_a_law_beside_that_of_all():
    federation = federation_of(PAPER, 2, "fedtswi", draws="own")
    counts = np.arange(32).reshape(2, 2, 2, 4)
    one, both = (Merged(times * counts, counts.sum((0, 1)), 3) for times in (1, 2))
    planner = Planner(federation)
    told = planner.laws(both, 2, {1: one, 3: one})
    assert told.names == ("all", "group-1", "group-3")
    for law, merged in zip(told.summaries.mean, (both, one, one), strict=True):
        np.testing.assert_array_equal(law, planner.laws(merged, 2).summaries.mean[0])
