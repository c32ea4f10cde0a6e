"""Replicates: the trace's segments and holes, and chains with its dynamics in them."""

import numpy as np

from rmab.traces import replicates
from rmab.traces.fitted_chains import fitted_chains, pair_counts
from rmab.traces.replicates import N_REPLICATES, replicates_of
from rmab.traces.summaries import correlations, mean_correlation, summary_statistics
from tests.oracles.trace_rules import fitted_dynamics
from tests.traces.made import chain, trace_of


def with_holes():
    state = chain([[0.1, 0.5], [0.3, 0.05]], [[0.8, 0.6], [0.95, 0.7]], 2, 2)
    state[0, 1000:1400, 1] = -1
    state[1, ::7] = -1
    return trace_of(state)


def test_replicates_have_the_holes_and_the_dynamics():
    trace = with_holes()
    made = np.concatenate(list(replicates_of(trace)))
    assert made.shape == (N_REPLICATES, *trace.state.shape)
    np.testing.assert_array_equal(made >= 0, np.broadcast_to(trace.measured, made.shape))
    expected = fitted_dynamics(trace.state, trace.segment)
    found = fitted_dynamics(made, trace.segment)
    np.testing.assert_allclose(found.p01.mean(0), expected.p01, atol=0.01)
    np.testing.assert_allclose(found.p11.mean(0), expected.p11, atol=0.01)
    first = trace.segment != np.roll(trace.segment, 1)
    rest = expected.p01 / (expected.p01 + 1 - expected.p11)
    begins = made[:, 0, first]
    share = (begins == 1).sum((0, 1)) / (begins >= 0).sum((0, 1))
    np.testing.assert_allclose(share, rest[0], atol=0.08)


def test_replicates_are_the_same_each_time_and_differ_from_one_another():
    trace = with_holes()
    (first,), (again,) = replicates_of(trace), replicates_of(trace)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first[0], first[1])


def test_large_traces_have_their_replicates_in_groups(monkeypatch):
    trace = with_holes()
    monkeypatch.setattr(replicates, "_MAX_CELLS", 3 * trace.state.size)
    assert [len(group) for group in replicates_of(trace)] == [3] * 6 + [2]


def test_replicates_of_several_states():
    rng = np.random.default_rng(0)
    P = np.array([[0.8, 0.2, 0.0], [0.1, 0.7, 0.2], [0.0, 0.3, 0.7]])
    state = np.zeros((1, 6000, 2), np.int8)
    for t in range(1, 6000):
        for arm in (0, 1):
            state[0, t, arm] = rng.choice(3, p=P[state[0, t - 1, arm]])
    trace = trace_of(state, states=3)
    np.testing.assert_allclose(fitted_chains(pair_counts(trace))[:, :, 0, 0], P, atol=0.03)
    (made,) = replicates_of(trace, 2)
    again = pair_counts(trace_of(made[0], states=3))
    np.testing.assert_allclose(fitted_chains(again)[:, :, 0, 0], P, atol=0.04)


def test_correlations_are_of_slots_that_both_have():
    rng = np.random.default_rng(0)
    good = rng.integers(0, 2, (500, 3))
    good[:, 1] = np.where(rng.random(500) < 0.7, good[:, 0], good[:, 1])
    holes = np.where(rng.random(good.shape) < 0.2, -1, good)
    found, n = correlations(holes.astype(np.int8))
    both = (holes[:, 0] >= 0) & (holes[:, 1] >= 0)
    assert n[0, 1] == both.sum()
    np.testing.assert_allclose(found[0, 1], np.corrcoef(holes[both, 0], holes[both, 1])[0, 1])
    np.testing.assert_allclose(found, found.T)
    mean = (found * n)[np.triu_indices(3, 1)].sum() / n[np.triu_indices(3, 1)].sum()
    np.testing.assert_allclose(mean_correlation(found, n), mean)
    assert np.isnan(mean_correlation(*correlations(np.ones((9, 2), np.int8))))


def test_summary_statistics_by_hand():
    state = np.array([[[1], [1], [0], [1], [1], [1], [-1], [0]]], np.int8)
    found = summary_statistics(state, np.zeros(8, int))
    assert found.good_runs.tolist() == [1, 1, 0, 0]  # runs of 2 and 3 slots
    assert found.bad_runs.tolist() == [1, 0, 0, 0]
    assert found.since_bad.tolist() == [1, 1]  # a slot and two slots after slot 2
    assert found.since_good.tolist() == [3 / 4, 2 / 4]
    assert np.isnan(found.agents).all()
    assert np.isnan(found.arms).all()
