"""Draws of each agent's own beside the posterior that the server draws from; laws of sums."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from rmab.learning.channel.local_draws import draw_for_agents
from rmab.learning.channel.local_posterior import (
    PROPOSALS,
    UNIFORMS,
    PosteriorSummaries,
    draw_local,
)
from rmab.learning.channel.posterior import draw_channels, log_odds_moments
from rmab.policies.registry import named
from rmab.rng.variates import Draws, seed_words, stream
from tests.learning.channel.test_local_posterior import observed

GAPS, WIDTH = 8, 1500
CHANNELS = ((0.3, 0.7, 4), (0.2, 0.9, 40), (0.9, 0.2, 40), (0.6, 0.5, 300))


def counts_of_channels():
    """(G + 1, 2, 2, n, 1)."""
    return np.stack([observed(*each, GAPS) for each in CHANNELS], -1)[..., None]


def in_all_trials(counts):
    return np.broadcast_to(counts, (*counts.shape[:-1], WIDTH))


@pytest.fixture(scope="module")
def from_server():
    """p01 and p11, (2, n, WIDTH), as the server draws them."""

    @jax.jit
    def draw(counts):
        key = stream(seed_words(0), jnp.arange(WIDTH, dtype=jnp.uint32), jnp.uint32(0), 1)
        return jnp.stack(draw_channels(counts, (1.0, 1.0), Draws(key, jnp.ones(WIDTH, jnp.int32))))

    return np.asarray(draw(jnp.asarray(in_all_trials(counts_of_channels()), jnp.float32)))


def test_with_full_doubt_draws_are_those_of_the_channel_posterior(from_server):
    """Means and spreads agree within 4 standard errors, whatever laws say."""
    counts = in_all_trials(counts_of_channels())
    n = len(CHANNELS)
    uniforms = np.random.default_rng(0).random((UNIFORMS, PROPOSALS, n, WIDTH))
    laws = PosteriorSummaries(
        np.ones((1, 2, n, WIDTH)), np.full((1, 3, n, WIDTH), 0.01) * [[[1]], [[0]], [[1]]]
    )
    own = draw_local(counts, laws, uniforms, doubt=1.0)
    assert not own.borrowing.round(6).any()
    for mine, theirs in zip((own.p01, own.p11), from_server, strict=True):
        error = np.hypot(mine.std(1), theirs.std(1)) / np.sqrt(WIDTH)
        assert (np.abs(mine.mean(1) - theirs.mean(1)) < 4 * error).all()
        assert (np.abs(mine.std(1) / theirs.std(1) - 1) < 0.08).all()


def test_both_kinds_of_arrays_give_the_same_draws():
    """Nearly all: single precision may take another step where it is close."""
    counts = counts_of_channels()
    counts = np.broadcast_to(counts, (*counts.shape[:-1], 200))
    n = len(CHANNELS)
    uniforms = np.random.default_rng(0).random((UNIFORMS, PROPOSALS, n, 200)).clip(1e-6, 1 - 1e-6)
    laws = PosteriorSummaries(
        np.zeros((1, 2, n, 200)), np.ones((1, 3, n, 200)) * [[[1]], [[0.2]], [[0.5]]]
    )
    plain = draw_local(counts, laws, uniforms)
    single = [jnp.asarray(x, jnp.float32) for x in (counts, *laws, uniforms)]
    compiled = jax.jit(lambda c, m, s, x: draw_local(c, PosteriorSummaries(m, s), x))(*single)
    for one, other in zip(plain, compiled, strict=True):
        assert (np.abs(one - np.asarray(other)) < 1e-3).mean() > 0.97


def test_a_law_has_the_moments_of_the_posterior(from_server):
    counts = jnp.asarray(counts_of_channels(), jnp.float32)
    mean, covariance = jax.jit(lambda c: log_odds_moments(c, (1.0, 1.0), GAPS))(counts)
    odds = special.logit(from_server.astype(float).clip(1e-7, 1 - 1e-7))
    assert (np.abs(mean[..., 0] - odds.mean(-1)) < 0.2 * odds.std(-1)).all()
    spread = np.sqrt(np.asarray(covariance)[[0, 2], :, 0])
    assert np.abs(spread / odds.std(-1) - 1).max() < 0.15


def test_a_law_of_consecutive_observations_is_that_of_betas():
    counts = np.zeros((1, 2, 2, 1, 1), np.float32)
    counts[0, :, :, 0, 0] = [[12, 3], [1, 20]]
    mean, covariance = log_odds_moments(jnp.asarray(counts), (1.0, 1.0), 0)
    for row, (a, b) in enumerate(((4, 13), (21, 2))):
        expected = special.digamma(a) - special.digamma(b)
        assert mean[row, 0, 0] == pytest.approx(expected, abs=1e-4)
        spread = special.polygamma(1, a) + special.polygamma(1, b)
        assert covariance[2 * row, 0, 0] == pytest.approx(spread, rel=1e-4)
    assert covariance[1, 0, 0] == 0


@pytest.mark.slow
def test_agents_draw_from_the_laws_of_all_sums():
    """The first sum is unlike what they observe of either arm, the second is like it of one."""
    policy = named("fedtswi-gap", 100, {"gaps": GAPS})
    one, other = observed(0.2, 0.9, 40, GAPS), observed(0.9, 0.2, 40, GAPS)
    seen = np.stack([one, other], -1)  # (..., N)
    two = 25 * np.stack([seen[..., ::-1], np.stack([one, one], -1)], -1)[..., None]
    sums, own = (
        jnp.tile(jnp.asarray(x, jnp.float32), (*[1] * (x.ndim - 2), agents, 2))
        for x, agents in ((two, 1), (seen[..., None, None], 3))
    )
    draws = Draws(
        stream(seed_words(0), jnp.arange(6, dtype=jnp.uint32), jnp.uint32(0), 1),
        jnp.ones(6, jnp.int32),
    )
    found = jax.jit(lambda sums, own: draw_for_agents(policy, sums, own, draws, 0.1))(sums, own)
    assert found.p01.shape == (2, 3 * 2)
    assert np.all(found.borrowing[0] > 0.9)
    assert np.all(found.borrowing[1] < 0.2)
    # The law that is like the first arm tells more of it than what each has observed.
    spread = np.ptp(found.p01, axis=1)
    assert spread[0] < 0.05 < spread[1]
