"""Openings with noise: which a helper refuses, and what an answer leaves."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from rmab.errors import FederationError
from rmab.policies.plans import IndexPlan
from rmab.policies.registry import SERVED
from rmab.privacy.accounting import Budget, PrivacyAccountant, cell_noise
from rmab.privacy.masks import numbers_of, vector_of, vector_size
from rmab.privacy.noise import MOST_RELEASES
from rmab.privacy.settings import Privacy, privacy_of
from rmab.privacy.unmasking import AggregationJob, answer_job
from rmab.protocol.config import Federation, KnownArm
from rmab.protocol.growth import Merged
from rmab.protocol.planner import Planner
from tests.privacy.masking import FINGERPRINT, SHAPE, Helper, total
from tests.privacy.test_noise import rounded_normal

HELPER = "http://127.0.0.1:9443"


class Noisy(Helper):
    """A helper that adds noise."""

    def __init__(self):
        super().__init__()
        self.ledger = PrivacyAccountant(Budget(4.0), SHAPE.plays, SHAPE.size)

    def keep(self, opening, opened):
        super().keep(opening, opened)
        self.ledger = opened.accountant

    def ask(self, *members, **changes):
        number, digest = self.last()
        opening = AggregationJob(number + 1, digest, 1, tuple(members))._replace(**changes)
        size = vector_size(SHAPE)
        return answer_job(opening, self, FINGERPRINT, size, self.least, lambda _: self.ledger)


@pytest.fixture
def helper(monkeypatch):
    monkeypatch.setattr("rmab.privacy.accounting.discrete_gaussian", rounded_normal(1))
    return Noisy()


def test_a_sum_is_opened_with_noise_and_visits_never(helper):
    agents = [helper.enroll(name) for name in "abc"]
    uploads = [agent.upload(slots=10) for agent in agents]
    masks = helper.ask(*(a.named(u) for a, u in zip(agents, uploads, strict=True)))
    vector = total(*(upload.masked for upload in uploads)) - masks
    clear = [agent.counting.upload(1, slots=0) for agent in agents]
    exact = total(*(vector_of(each.counts, each.visits, SHAPE) for each in clear))
    noise = (vector - exact).view(np.int64)
    np.testing.assert_array_equal(noise[: SHAPE.size], helper.ledger.noise("1"))
    assert not masks[SHAPE.size :].any()  # visits stay under their masks
    assert np.abs(noise[SHAPE.size :].astype(float)).min() > 2**30


def test_a_release_that_is_not_due_is_refused(helper):
    agents = [helper.enroll(name) for name in "abc"]
    assert helper.refuses(*(agent.member(slots=7) for agent in agents)) == "due"
    helper.ask(*(agent.member(slots=1) for agent in agents))  # 8 each
    assert helper.refuses(*(agent.member(slots=7) for agent in agents)) == "due"
    helper.ask(*(agent.member(slots=1) for agent in agents))
    assert [release.slots for release in helper.ledger.releases] == [24, 48]


def test_a_repeat_has_the_same_noise(helper):
    agents = [helper.enroll(name) for name in "abc"]
    members = [agent.member(slots=8) for agent in agents]
    before = helper.last()[1]
    first = helper.ask(*members)
    again = helper.ask(*members, number=1, before=before)
    np.testing.assert_array_equal(first, again)
    assert len(helper.ledger.releases) == 1


def test_the_41st_release_of_a_group_is_refused(helper):
    draw = rounded_normal(3)
    for n in range(MOST_RELEASES):
        helper.ledger = helper.ledger.released(f"old {n}", 24 * 2**n, 3, draw)
    agents = [helper.enroll(name) for name in "abc"]
    assert helper.refuses(*(agent.member(slots=8) for agent in agents)) == "releases"


# -------------------------------------------------------------------------------- the federation


def federation(**changes):
    arms = tuple(KnownArm(2, (0.0, reward)) for reward in (0.4, 0.9, 0.7))
    given = {"policy": "fedtswi", "privacy": Privacy(HELPER, epsilon=4.0), "schedule": "linear"}
    return Federation("f", 2, arms, **{**given, **changes})


def test_a_file_may_ask_for_noise():
    found = privacy_of({"helper": HELPER, "epsilon": 1})
    assert found.budget == Budget(1, 1e-6)
    assert found.to_table() == {"least": 3, "groups": 1, "epsilon": 1.0, "delta": 1e-6}
    assert privacy_of({"helper": HELPER}).budget is None


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"epsilon": 0}, "privacy.epsilon must be a number above 0 and at most 100, got 0"),
        ({"epsilon": "1"}, "privacy.epsilon must be"),
        ({"epsilon": 1, "delta": 0.1}, "privacy.delta must be .* at most 0.001, got 0.1"),
        ({"delta": 0}, "privacy.delta must be"),
    ],
)
def test_a_bad_budget_is_refused(table, said):
    with pytest.raises(FederationError, match=said):
        privacy_of({"helper": HELPER, **table})


THOMPSON = ("fedtswi", "fedts-myopic", "fedtswi-gap", "fedts-myopic-gap")
NOISE = (Privacy(HELPER, epsilon=4.0), Privacy(epsilon=4.0))  # of a helper, and of the server


@pytest.mark.parametrize("privacy", NOISE)
def test_every_policy_that_cannot_learn_from_noise_is_refused_with_the_reason(privacy):
    for policy in SERVED:
        if policy in THOMPSON:
            for draws in ("shared", "per-agent", "own"):
                assert federation(policy=policy, draws=draws, privacy=privacy).budget is not None
            continue
        with pytest.raises(FederationError) as refusal:
            federation(policy=policy, privacy=privacy)
        why = "reads more than counts|is for arms that are always|needs the counts of each agent"
        assert re.search(why, str(refusal.value)), policy
        assert "\n" not in str(refusal.value)
    assert "fed1-ucb" in SERVED


@pytest.mark.parametrize("privacy", NOISE)
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schedule": "paper"}, "the ends of episodes under"),
        ({"aggregation": "none"}, "aggregation = 'none' cannot go with"),
        ({"aggregation": "pairs", "policy": "fedtswi-gap"}, "aggregation = 'pairs' cannot go"),
        ({"weights": {"a": 2.0}}, "weights cannot go with"),
        ({"cap": 2}, "cap cannot go with"),
        (
            {"policy": "fedtswi-gap", "options": {"forget": "bank"}},
            "options.forget = 'bank' cannot",
        ),
        ({"policy": "fedtswi-gap", "options": {"prior": "population"}}, "options.prior = 'popul"),
        (
            {"arms": (KnownArm(2, (0.0, 1.0)), KnownArm(3, (0.0, 0.5, 1.0))), "plays": 1},
            "where all arms are channels, and arm 2 is none",
        ),
    ],
)
def test_what_cannot_go_with_noise_is_refused(privacy, changes, said):
    with pytest.raises(FederationError, match=said):
        replace(federation(), **{"privacy": privacy, **changes})


def test_without_a_helper_the_server_draws_the_noise():
    privacy = privacy_of({"epsilon": 1, "delta": 1e-5})
    assert (privacy.helper, privacy.budget) == (None, Budget(1, 1e-5))
    made = federation(privacy=privacy)
    assert (made.masks, made.draws_noise) == (False, True)
    assert (federation().masks, federation().draws_noise) == (True, False)
    clear = federation(privacy=None)
    assert (clear.masks, clear.draws_noise) == (False, False)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({}, "privacy.helper is missing: .*; or give privacy.epsilon alone"),
        ({"delta": 1e-6}, "privacy.helper is missing"),
        ({"epsilon": 1, "least": 3}, "privacy.least must not be given without privacy.helper"),
        ({"epsilon": 1, "groups": 2}, "privacy.groups must not be given without privacy.helper"),
        ({"epsilon": 0}, "privacy.epsilon must be"),
        ({"epsilon": 1, "helper": ""}, "privacy.helper must be an address"),
    ],
)
def test_what_makes_no_sense_without_a_helper_is_refused(table, said):
    with pytest.raises(FederationError, match=said):
        privacy_of(table)


def test_plans_are_made_from_sums_with_noise():
    """Below 0, or lost in it: the server plans all the same."""
    made = Planner(federation())
    shape = made.federation.shape
    vector = np.random.default_rng(1).integers(-60, 60, vector_size(shape))
    counts, _ = numbers_of(vector, shape)
    counts[0, :, :, 1] = [[100, 900], [800, 200]]
    merged = Merged(counts, np.zeros((2, 3), np.int64), 5)
    plan = made.plan(merged, 2).plan
    assert isinstance(plan, IndexPlan)
    assert np.isfinite(plan.index).all()
    by_server = Planner(federation(privacy=Privacy(epsilon=4.0)))
    assert np.array_equal(by_server._mended(merged).counts, made._mended(merged).counts)
    assert not np.array_equal(made._mended(merged).counts, merged.counts)
    arm = made.estimates(merged)[1]
    assert arm["p01"]["mean"] == pytest.approx(0.9, abs=0.03)
    assert arm["p11"]["mean"] == pytest.approx(0.2, abs=0.06)
    exact = math.sqrt(0.9 * 0.1 / 1000)  # without noise
    assert arm["p01"]["high"] - arm["p01"]["low"] > 4 * exact


def test_laws_are_told_of_rows_that_stand_further_out_than_plans_need():
    """A row of one deviation of its noise tells a plan something, and a law nothing."""
    made = Planner(federation(policy="fedtswi", draws="own", privacy=Privacy(epsilon=4.0)))
    budget = made.federation.budget
    assert budget is not None
    s = cell_noise(budget, made.federation.plays, MOST_RELEASES)
    counts = np.zeros((2, 2, 2, 3))
    counts[0, 0] = np.array([2.4, 2.6, 9.0]) * math.sqrt(2) * s / 2
    merged = Merged(np.round(counts), np.zeros((2, 3), np.int64), 5)
    (spread,) = made.laws(merged, 2).summaries.covariance[:, 0]
    prior = math.pi**2 / 3
    assert spread[0] == pytest.approx(prior, rel=1e-4)
    assert spread[1] < 0.9 * prior
    assert spread[2] < spread[1]
    assert made._mended(merged).counts[0, 0].min() > 0
