"""What learners see of counts that are compared, forgotten or mixed: who needs it, and refusals."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

from rmab.learning.evidence_state import Recall, recall_of
from rmab.learning.thompson import thompson
from rmab.model.arms import CHANNEL, ArmKind
from rmab.planning.tables import whittle_at
from rmab.policies.aggregation import AGGREGATIONS
from rmab.policies.capabilities import Conditions
from rmab.policies.policy import POPULATION, Forgetting, Policy
from rmab.policies.published.ucb import MeanRewards
from rmab.policies.refusal import refusal

SUM, NONE, PAIRS, GOSSIP = (AGGREGATIONS[name] for name in ("sum", "none", "pairs", "gossip"))
SHOWN = ArmKind(2, fully_observed=True, action_dependent=False)


class Gives(MeanRewards):
    """A learner with a state of its own, which gives dynamics."""

    def dynamics(self, state, draws):
        raise NotImplementedError


def learner(**options):
    return Policy("mine", whittle_at, partial(thompson, prior=1.0), statewise=True, **options)


@pytest.mark.parametrize(
    ("options", "aggregation", "needed"),
    [
        ({}, SUM, False),
        ({}, NONE, False),
        ({}, PAIRS, True),
        ({}, GOSSIP, True),
        ({"prior": POPULATION}, SUM, True),
        ({"forget": Forgetting((9.0,))}, NONE, True),
    ],
)
def test_who_needs_more_than_added_counts(options, aggregation, needed):
    found = recall_of(learner(**options), aggregation)
    assert (found is not None) == needed
    if found is not None:
        assert found.mixes == (aggregation is GOSSIP)
        assert found.compares == (aggregation is PAIRS)
        assert found.learns_prior == (options.get("prior") == POPULATION)
        assert (found.forgetting is not None) == ("forget" in options or aggregation is GOSSIP)
    known = Policy("known", whittle_at, statewise=True)
    assert recall_of(known, aggregation) is None


@pytest.mark.parametrize(
    ("options", "aggregation"),
    [({"forget": Forgetting((9.0,))}, SUM), ({}, PAIRS), ({}, GOSSIP)],
)
def test_a_learner_with_its_own_state_shares_none_of_it(options, aggregation):
    own = Policy("own", whittle_at, own=Gives(), statewise=True, **options)
    assert refusal(own, Conditions((CHANNEL,), aggregation=aggregation)) == (
        "policy own: a learner with its own state must not have a prior that is learnt, forget, or "
        "have agents that gossip or are compared by their counts"
    )
    plain = Policy("own", whittle_at, own=Gives(), statewise=True)
    assert refusal(plain, Conditions((CHANNEL,), aggregation=SUM)) is None
    assert recall_of(plain, SUM) is None


@pytest.mark.parametrize(
    ("options", "aggregation", "refused"),
    [
        ({"prior": POPULATION}, SUM, True),
        ({}, PAIRS, True),
        ({"forget": Forgetting((9.0, 1.0))}, SUM, True),
        ({"forget": Forgetting((9.0,))}, SUM, False),
        ({}, GOSSIP, False),
    ],
)
def test_what_is_for_channels(options, aggregation, refused):
    policy = learner(**options)
    assert recall_of(policy, aggregation) is not None
    assert refusal(policy, Conditions((CHANNEL, CHANNEL), aggregation=aggregation)) is None
    assert refusal(policy, Conditions((CHANNEL, SHOWN), aggregation=aggregation)) == (
        "policy mine: a prior that is learnt, agents compared by their counts and several "
        "half-lives are for arms of two states, observed when played, that move alike"
        if refused
        else None
    )


def test_nothing_is_kept_where_nothing_is_forgotten_or_mixed():
    recall = Recall(learner(), PAIRS)
    assert recall.start((1, 2, 2, 3, 4), None, 4, 5) is None
    for aggregation, lanes in ((SUM, 1), (NONE, 4), (GOSSIP, 4)):
        recall = Recall(learner(forget=Forgetting((9.0,))), aggregation)
        memory = recall.start((1, 2, 2, 3, lanes), None, 4, 5)
        assert memory is not None
        assert memory.log_weights.shape[-1] == 5
        assert memory.counts.shape[:5] == (1, 2, 2, 3, lanes)


def test_counts_are_added_up_once_where_all_share_them():
    rng = np.random.default_rng(1)
    pairs = jnp.asarray(rng.integers(0, 9, (1, 2, 2, 3, 4, 5)), jnp.float32)
    weights = jnp.asarray([1.0, 0.5, 0.0, 2.0])
    total = (pairs * weights[:, None]).sum(-2, keepdims=True)
    recall = Recall(learner(forget=Forgetting((9.0,))), SUM)
    shared = recall.learnt(pairs, None, weights)
    np.testing.assert_allclose(shared.pairs, total, rtol=1e-6)
    assert shared.weights is shared.prior is shared.visits is None
    again = recall.learnt(total, None, weights, merged=True)
    np.testing.assert_allclose(again.pairs, total, rtol=1e-6)
    alone = Recall(learner(forget=Forgetting((9.0,))), NONE).learnt(pairs, None, weights)
    np.testing.assert_array_equal(alone.pairs, pairs)
