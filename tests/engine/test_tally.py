"""Sums of batches of trials, against NumPy on all the data at once."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from rmab.engine.setting import Outcome
from rmab.engine.tally import (
    REFERENCE_KEY,
    Simulated,
    Units,
    final_slots,
    reduce_batch,
)

HORIZON, ARMS, MOST, AGENTS = 30, 3, 7, 2
UNITS = Units(2.0**28, HORIZON, AGENTS)


def arrays(*given: Any) -> Any:
    """An outcome of NumPy's arrays."""
    return Outcome(*given)


def outcome(rng, n_trials: int) -> Any:
    """Trials that nothing played: rewards, and episodes of many lengths."""
    rewards = (1 + 0.2 * rng.normal(size=(HORIZON, n_trials))).astype(np.float32)
    lengths = np.zeros((MOST, n_trials), np.int32)
    for trial in range(n_trials):
        number = int(rng.integers(1, MOST + 1))
        cuts = np.sort(rng.choice(np.arange(1, HORIZON), number - 1, replace=False))
        lengths[:number, trial] = np.diff([0, *cuts, HORIZON])
    error = rng.random((MOST, ARMS, n_trials)).astype(np.float32)
    return arrays(rewards, (lengths > 0).sum(0), lengths, error)


def some(n_trials: int, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng([seed, n_trials])
    return {name: outcome(rng, n_trials) for name in ("one", "two", REFERENCE_KEY)}


def added(outcomes: dict[str, Any], *batches: int) -> Simulated:
    """In batches of these sizes by turns; the last trials of a batch are left out of it."""
    found = Simulated(UNITS, len(outcomes))
    n_trials = outcomes[REFERENCE_KEY].rewards.shape[-1]
    start = turn = 0
    while start < n_trials:
        size = min(batches[turn % len(batches)], n_trials - start)
        part = {
            name: Outcome(*(jnp.asarray(x[..., start : start + size + 5]) for x in out))
            for name, out in outcomes.items()
        }
        found.add(reduce_batch(part, UNITS, size))
        start, turn = start + size, turn + 1
    return found


def direct(outcomes: dict[str, Any], name: str) -> dict[str, np.ndarray]:
    """Every quantity of every trial, NaN where there is none."""
    out, reference = outcomes[name], outcomes[REFERENCE_KEY]
    rewards, others = (x.rewards.astype(np.float64) / AGENTS for x in (out, reference))
    total, behind = np.cumsum(rewards, 0), np.cumsum(others - rewards, 0)
    lengths = np.where(out.lengths > 0, out.lengths, np.nan)
    shape = lengths.shape
    by_episode = {
        "episode_reward": np.full(shape, np.nan),
        "episode_regret": np.full(shape, np.nan),
    }
    for trial in range(shape[1]):
        ends = np.cumsum(out.lengths[:, trial])
        for place in range(int(out.episodes[trial])):
            slots = slice(ends[place] - out.lengths[place, trial], ends[place])
            own, other = (x[slots, trial].mean() for x in (rewards, others))
            by_episode["episode_reward"][place, trial] = own
            by_episode["episode_regret"][place, trial] = other - own
    return by_episode | {
        "reward": rewards,
        "regret": behind,
        "final": (total[-1] - total[-final_slots(HORIZON) - 1]) / final_slots(HORIZON),
        "episodes": out.episodes.astype(np.float64),
        "length": lengths,
        "error": np.where(np.isnan(lengths)[:, None], np.nan, out.error),
    }


@pytest.mark.parametrize("n_trials", [1, 2, 31, 100])
def test_moments_are_those_of_all_the_data(n_trials):
    outcomes = some(n_trials)
    found = added(outcomes, 32)
    assert found.n_trials == n_trials
    for name in ("one", "two"):
        for key, data in direct(outcomes, name).items():
            moments, there = getattr(found.tallies[name], key), ~np.isnan(data)
            count = there.sum(-1)
            np.testing.assert_array_equal(moments.count, count, key)
            for place in np.ndindex(count.shape):
                values = data[place][there[place]]
                if values.size:
                    assert moments.mean[place] == pytest.approx(values.mean(), abs=1e-7), key
                if values.size > 1:
                    error = values.std(ddof=1) / np.sqrt(values.size)
                    assert moments.se[place] == pytest.approx(error, rel=1e-6, abs=1e-7), key
                else:
                    assert np.isnan(moments.se[place])


def test_nothing_depends_on_batches():
    outcomes = some(203)
    whole = added(outcomes, 203)
    for batches in ([32], [96, 32]):
        parts = added(outcomes, *batches)
        np.testing.assert_array_equal(parts.means.mean, whole.means.mean)
        np.testing.assert_array_equal(parts.means.covariance, whole.means.covariance)
        for name, tally in whole.tallies.items():
            for key, moments in vars(tally).items():
                other = getattr(parts.tallies[name], key)
                for what in ("count", "mean", "se"):
                    np.testing.assert_array_equal(getattr(other, what), getattr(moments, what))


def test_trials_that_are_stuck_are_counted_where_a_margin_is_given():
    outcomes = some(100)
    margin = 0.05
    last = {
        name: out.rewards[-final_slots(HORIZON) :].astype(np.float64).mean(0) / AGENTS
        for name, out in outcomes.items()
    }
    due = (last[REFERENCE_KEY] - last["one"] > margin)[:90]
    assert 0 < due.sum() < 90
    given = {name: Outcome(*(jnp.asarray(x) for x in out)) for name, out in outcomes.items()}
    with_margin, without = (Simulated(UNITS, 3) for _ in range(2))
    with_margin.add(reduce_batch(given, UNITS, 90, margin))
    without.add(reduce_batch(given, UNITS, 90))
    stuck = with_margin.tallies["one"].stuck
    assert stuck.mean == due.mean()
    assert stuck.count == 90
    assert without.tallies["one"].stuck.count == 0
    # It is a sum beside the others, which are the same to the last bit.
    for key, moments in vars(without.tallies["one"]).items():
        if key != "stuck":
            other = getattr(with_margin.tallies["one"], key)
            np.testing.assert_array_equal(other.mean, moments.mean)
            np.testing.assert_array_equal(other.se, moments.se)


def test_covariance_of_means_alone_and_in_company():
    outcomes = some(60)
    found = added(outcomes, 32)
    data = np.stack([out.rewards.mean(0) / AGENTS for out in outcomes.values()]).astype(np.float64)
    np.testing.assert_allclose(found.means.mean, data.mean(1), rtol=1e-7)
    np.testing.assert_allclose(found.means.covariance, np.cov(data) / 60, rtol=1e-5, atol=1e-10)
    alone = added({name: outcomes[name] for name in ("two", REFERENCE_KEY)}, 32)
    np.testing.assert_array_equal(alone.means.mean, found.means.mean[1:])
    np.testing.assert_array_equal(alone.means.covariance, found.means.covariance[1:, 1:])
    assert np.isnan(added(some(1), 1).means.covariance).all()


def test_constant_rewards_have_no_spread():
    rng = np.random.default_rng(1)
    outcomes = {name: outcome(rng, 50) for name in ("one", REFERENCE_KEY)}
    for out in outcomes.values():
        out.rewards[:] = 1 / 3
    found = added(outcomes, 32)
    assert not found.tallies["one"].reward.se.any()
    assert not found.tallies["one"].regret.se.any()
    assert not found.means.covariance.any()


@pytest.mark.parametrize("largest", [1e-6, 0.7, 1.0, 3.0, 1e9])
def test_units_are_fine_and_the_largest_reward_fits(largest):
    """What a slot pays has 29 bits at least, and whole studies of extremes do not overflow."""
    units = Units.of(HORIZON, AGENTS, largest)
    assert 2**29 < largest * units.scale <= 2**30
    high = np.full((HORIZON, 64), largest, np.float32)
    lengths = np.full((1, 64), HORIZON, np.int32)
    none = np.zeros((0, ARMS, 64), np.float32)
    outcomes = {
        "least": arrays(-high, np.ones(64, np.int32), lengths, none),
        REFERENCE_KEY: arrays(high, np.ones(64, np.int32), lengths, none),
    }
    found = Simulated(units, 2)
    found.add(reduce_batch(outcomes, units, 64))
    one = found.tallies["least"]
    assert one.regret.mean[-1] == pytest.approx(2 * HORIZON * largest / AGENTS, rel=1e-7)
    assert one.regret.se[-1] == one.episode_regret.se[0] == 0
    assert found.means.mean == pytest.approx([-largest / AGENTS, largest / AGENTS], rel=1e-7)
