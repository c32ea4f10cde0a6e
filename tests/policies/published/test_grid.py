"""Thompson sampling of channels on a grid: the posterior, draws from it, a continuous prior."""

import jax.numpy as jnp
import numpy as np
import pytest

from rmab.learning.channel.posterior import mean_channels
from rmab.learning.evidence import Evidence
from rmab.model.arms import CHANNEL
from rmab.policies.published.grid import grid, log_weights, points
from rmab.rng.variates import Draws, seed_words, stream

GAPS = 8


def counts_of(p01: float, p11: float, looks: int, seed: int) -> np.ndarray:
    """Pairs (G + 1, 2, 2) of a channel that is observed at gaps of 1 to G + 2 slots."""
    random = np.random.default_rng(seed)
    counts = np.zeros((GAPS + 1, 2, 2), np.float32)
    state = 1
    for gap in random.integers(1, GAPS + 3, looks):
        was = state
        for _ in range(gap):
            state = int(random.random() < (p11 if state else p01))
        counts[min(gap, GAPS + 1) - 1, was, state] += 1
    return counts


def evidence(counts: np.ndarray, trials: int) -> Evidence:
    wide = jnp.repeat(jnp.asarray(counts)[..., None], trials, -1)
    unread = jnp.zeros(0)
    episode = jnp.ones(trials, jnp.int32)
    visits = jnp.zeros((2, counts.shape[3], trials))
    kinds = (CHANNEL,) * counts.shape[3]
    return Evidence(wide, visits, episode, unread, unread, unread, 1, kinds)


def test_the_published_grid():
    np.testing.assert_allclose(points(9), np.arange(1, 10) / 10)


def test_weights_are_the_chances_of_what_was_seen():
    """Against products of matrices, point by point; what lies further apart has settled."""
    counts = counts_of(0.3, 0.8, 40, 1)
    found = np.asarray(log_weights(jnp.asarray(counts)[..., None, None], 3))[:, 0, 0]
    for place, (p01, p11) in enumerate((a, b) for a in points(3) for b in points(3)):
        step = np.array([[1 - p01, p01], [1 - p11, p11]])
        powers = [np.linalg.matrix_power(step, g) for g in (*range(1, GAPS + 1), 1000)]
        assert found[place] == pytest.approx((counts * np.log(powers)).sum(), rel=1e-5)


def test_draws_have_the_law_of_the_posterior():
    counts = np.stack([counts_of(0.3, 0.8, 12, 1), counts_of(0.9, 0.2, 25, 2)], -1)
    trials = 20_000
    key = stream(seed_words(5), jnp.arange(trials), jnp.uint32(0), 1)
    draws = Draws(key, jnp.ones(trials, jnp.int32))
    moves = grid(evidence(counts, trials), draws, support=4, gaps=GAPS)
    np.testing.assert_array_equal(moves.passive, moves.active)
    np.testing.assert_allclose(np.asarray(moves.passive).sum(1), 1, atol=1e-6)
    places = np.rint(np.asarray(moves.passive)[:, 1] * 5).astype(int) - 1  # (2, N, trials)
    for n in range(2):
        logs = np.asarray(log_weights(jnp.asarray(counts)[:, :, :, n : n + 1, None], 4))[:, 0, 0]
        law = np.exp(logs - logs.max())
        law /= law.sum()
        share = np.bincount(4 * places[0, n] + places[1, n], minlength=16) / trials
        assert np.abs(share - law).max() < 4 * np.sqrt(0.25 / trials)


@pytest.mark.slow
def test_without_evidence_every_point_is_as_likely():
    key = stream(seed_words(5), jnp.arange(4000), jnp.uint32(0), 1)
    draws = Draws(key, jnp.ones(4000, jnp.int32))
    moves = grid(
        evidence(np.zeros((GAPS + 1, 2, 2, 1), np.float32), 4000), draws, support=9, gaps=GAPS
    )
    good = np.asarray(moves.passive)[:, 1, 0]
    assert set(np.rint(10 * good).astype(int).ravel()) == set(range(1, 10))
    assert good.mean(1) == pytest.approx([0.5, 0.5], abs=4 * np.sqrt(1 / 12 / 4000))


@pytest.mark.slow
def test_a_fine_grid_agrees_with_the_continuous_posterior():
    counts = counts_of(0.3, 0.8, 60, 3)[..., None]
    support = 49
    logs = np.asarray(log_weights(jnp.asarray(counts)[..., None], support))[:, 0, 0]
    law = np.exp(logs - logs.max())
    law = (law / law.sum()).reshape(support, support)
    found = law.sum(1) @ points(support), law.sum(0) @ points(support)
    exact = mean_channels(jnp.asarray(counts)[..., None], (1.0, 1.0))
    np.testing.assert_allclose(found, np.ravel(exact), atol=0.01)
