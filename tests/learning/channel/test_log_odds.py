"""Likelihood, score and information of channels: by hand, and alike on NumPy and JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rmab.learning.channel.log_odds import (
    log_likelihood,
    log_odds_channel,
    log_odds_score,
    log_probabilities,
    observe,
)
from tests.learning.channel.test_local_posterior import chances, observed

POINTS = np.array([(-2.0, 1.0), (0.5, 0.4), (1.5, -2.5), (-6.0, 6.0), (5.0, -5.0), (0.0, 0.0)]).T


def counts_of(gaps, pairs=300):
    """(G + 1, 2, 2, 1, 1)."""
    return observed(0.2, 0.7, pairs, gaps)[..., None, None]


def by_hand(counts, u, v):
    p01, p11 = 1 / (1 + np.exp(-u)), 1 / (1 + np.exp(-v))
    return float((counts[..., 0, 0] * np.log(chances(p01, p11, len(counts) - 1))).sum())


@pytest.mark.parametrize("gaps", [1, 2, 8, 19])
def test_the_likelihood_is_that_of_matrix_powers(gaps):
    counts = counts_of(gaps)
    u, v = POINTS[:, :, None, None]
    found = log_likelihood(observe(counts), log_odds_channel(u, v))[:, 0, 0]
    np.testing.assert_allclose(found, [by_hand(counts, *at) for at in POINTS.T], rtol=1e-8)
    logs = log_probabilities(log_odds_channel(*POINTS), gaps + 1)
    np.testing.assert_allclose((logs * counts[..., 0, 0]).sum((1, 2, 3)), found, rtol=1e-8)


@pytest.mark.parametrize("gaps", [1, 8])
def test_the_score_is_the_slope_and_the_information_its_expected_fall(gaps):
    counts, step = counts_of(gaps), 1e-5
    for u, v in ((-1.4, 0.8), (0.7, -0.9)):
        p01, p11 = 1 / (1 + np.exp(-u)), 1 / (1 + np.exp(-v))
        # As many pairs from each state as were seen, which go where the channel has them go.
        expected = counts.sum(2, keepdims=True) * chances(p01, p11, gaps)[..., None, None]
        at = np.full((1, 1), u), np.full((1, 1), v)
        by_u, by_v, *_ = (x[0, 0] for x in log_odds_score(observe(counts), *at))
        slopes = [
            (by_hand(counts, u + a, v + b) - by_hand(counts, u - a, v - b)) / (2 * step)
            for a, b in ((step, 0), (0, step))
        ]
        np.testing.assert_allclose([by_u, by_v], slopes, rtol=1e-5)
        information = log_odds_score(observe(expected), *at)
        np.testing.assert_allclose([float(x[0, 0]) for x in information[:2]], 0, atol=1e-6)
        h = 1e-3
        bends = [
            (by_hand(expected, u + a + c, v + b + d) - by_hand(expected, u + a - c, v + b - d))
            - (by_hand(expected, u - a + c, v - b + d) - by_hand(expected, u - a - c, v - b - d))
            for a, b, c, d in ((h, 0, h, 0), (h, 0, 0, h), (0, h, 0, h))
        ]
        found = [float(x[0, 0]) for x in information[2:]]
        np.testing.assert_allclose(found, -np.array(bends) / (4 * h * h), rtol=1e-3)


def test_numpy_and_jax_agree():
    counts = counts_of(19)
    u, v = POINTS[:, :, None, None]

    @jax.jit
    def compiled(counts, u, v):
        sums = observe(counts)
        return log_likelihood(sums, log_odds_channel(u, v)), *log_odds_score(sums, u, v)

    got = compiled(*(jnp.asarray(x, jnp.float32) for x in (counts, u, v)))
    want = (
        log_likelihood(observe(counts), log_odds_channel(u, v)),
        *log_odds_score(observe(counts), u, v),
    )
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-3)
