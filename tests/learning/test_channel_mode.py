"""Modes of posteriors of channels, and what is known there: closed forms, and a fine grid."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rmab.learning.channel.mode import channel_modes, pair_likelihood
from tests.learning.observations import powers

GAPS = 8
WIDTH = 40  # channels of one call, for all tests alike: a width is a compilation


@cache
def compiled():
    return jax.jit(channel_modes)


def modes(counts, pseudo):
    """p01, p11 and information of counts (G + 1, 2, 2, WIDTH); pseudo: (2, 2)."""
    wide = np.broadcast_to(np.asarray(pseudo, np.float32)[:, :, None, None], (2, 2, 1, WIDTH))
    found = compiled()(np.asarray(counts, np.float32)[:, :, :, None], wide)
    return [np.asarray(x, np.float64)[..., 0, :] for x in found]


def laws(p01, p11):
    """Probabilities (G + 1, 2, 2, ...) of all gaps."""
    step = np.moveaxis(np.array([[1 - p01, p01], [1 - p11, p11]]), (0, 1), (-2, -1))
    return np.moveaxis(powers(step, GAPS), (-3, -2, -1), (0, 1, 2))


def observed(rng, pairs):
    """Channels of all memories, and counts of pairs at all gaps."""
    p01, p11 = rng.uniform(0.05, 0.95, (2, WIDTH))
    chances = laws(p01, p11)
    counts = np.zeros(chances.shape)
    for g, s, r in np.ndindex(GAPS + 1, 2, WIDTH):
        law = chances[g, s, :, r]
        counts[g, s, :, r] = rng.multinomial(rng.poisson(pairs), law / law.sum())
    return counts


def test_pairs_one_slot_apart_have_a_mode_in_closed_form():
    rng = np.random.default_rng(1)
    counts = np.zeros((GAPS + 1, 2, 2, WIDTH))
    counts[0] = rng.integers(0, 30, (2, 2, WIDTH))
    counts[0, 0, :, :3] = 0  # nothing is known of what follows bad
    pseudo = np.array([[0.5, 2.0], [3.0, 1.0]])
    p01, p11, information = modes(counts, pseudo)
    weights = counts[0] + pseudo[:, :, None]
    exact = weights[:, 1] / weights.sum(1)
    np.testing.assert_allclose([p01, p11], exact, atol=2e-4)
    number = counts[0].sum(1)
    np.testing.assert_allclose(information, number * exact * (1 - exact), rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("pairs", [2, 60])
def test_no_point_of_a_grid_is_higher_than_a_mode(pairs):
    counts = observed(np.random.default_rng(pairs), pairs)
    p01, p11, _ = modes(counts, np.full((2, 2), 0.5))
    counts[0] += 0.5
    here = (counts * np.log(laws(p01, p11))).sum((0, 1, 2))
    odds = np.linspace(-6, 6, 121)
    grid = np.meshgrid(*[1 / (1 + np.exp(-odds))] * 2, indexing="ij")
    best = np.tensordot(counts, np.log(laws(*(x.ravel() for x in grid))), ((0, 1, 2), (0, 1, 2)))
    # Where little is known there may be several modes, all but as high.
    assert (best.max(1) - here).max() < (0.1 if pairs == 2 else 1e-2)


def test_information_is_what_expected_curvature_says_with_the_other_profiled_out():
    """By differences of the chances of all gaps, in NumPy."""
    counts = observed(np.random.default_rng(5), 30)
    p01, p11, information = modes(counts, np.full((2, 2), 0.5))
    starts = counts.sum(2)  # (G + 1, 2, WIDTH)
    step = 1e-5

    def chances(du, dv):
        u, v = np.log(p01 / (1 - p01)) + du, np.log(p11 / (1 - p11)) + dv
        return laws(1 / (1 + np.exp(-u)), 1 / (1 + np.exp(-v)))

    by = [
        (chances(step, 0) - chances(-step, 0)) / (2 * step),
        (chances(0, step) - chances(0, -step)) / (2 * step),
    ]
    whole = np.array(
        [[(starts[:, :, None] * a * b / chances(0, 0)).sum((0, 1, 2)) for a in by] for b in by]
    )
    profiled = [
        whole[0, 0] - whole[0, 1] ** 2 / whole[1, 1],
        whole[1, 1] - whole[0, 1] ** 2 / whole[0, 0],
    ]
    np.testing.assert_allclose(information, profiled, rtol=1e-2, atol=2e-3)


def test_pairs_that_are_far_apart_tell_of_neither_row_alone():
    counts = np.zeros((GAPS + 1, 2, 2, WIDTH))
    counts[-1, :, 1], counts[-1, :, 0] = 30, 10
    p01, p11, information = modes(counts, np.full((2, 2), 0.5))
    np.testing.assert_allclose(p01 / (p01 + 1 - p11), 0.75, atol=0.02)
    np.testing.assert_allclose(information, 0, atol=1e-3)


def test_the_likelihood_of_pairs_is_the_product_of_their_chances():
    rng = np.random.default_rng(2)
    counts = observed(rng, 5)
    p01, p11 = rng.uniform(0.02, 0.98, (2, 1, WIDTH)).astype(np.float32)
    found = pair_likelihood(jnp.asarray(counts)[:, :, :, None], jnp.asarray(p01), jnp.asarray(p11))
    exact = (counts * np.log(laws(p01[0].astype(float), p11[0].astype(float)))).sum((0, 1, 2))
    np.testing.assert_allclose(found[0], exact, rtol=1e-4, atol=1e-3)
