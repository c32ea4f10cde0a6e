"""An agent's own draw: against numeric integration, by hand, and in time."""

import time

import numpy as np
import pytest

from rmab.learning.channel.local_posterior import (
    PROPOSALS,
    UNIFORMS,
    PosteriorSummaries,
    draw_local,
)
from tests.learning import posteriors

DRAWN = 2000
LAW = (np.array([-0.85, 0.85]), np.array([[0.02, 0.005], [0.005, 0.03]]))  # near (.3, .7)


def chances(p01, p11, gaps):
    """Of (from, to) at all gaps, the last settled, (G + 1, 2, 2), by matrix powers."""
    step = np.array([[1 - p01, p01], [1 - p11, p11]])
    powers = [np.linalg.matrix_power(step, gap) for gap in range(1, gaps + 1)]
    return np.array([*powers, np.linalg.matrix_power(step, 4096)])


def observed(p01, p11, pairs, gaps=8, seed=0):
    """Counts (G + 1, 2, 2) of an agent that looks after random gaps."""
    rng = np.random.default_rng(seed)
    law, counts, state = chances(p01, p11, gaps), np.zeros((gaps + 1, 2, 2)), 0
    for _ in range(pairs):
        gap = min(rng.geometric(0.4), gaps + 1) - 1
        after = int(rng.random() < law[gap, state, 1])
        counts[gap, state, after] += 1
        state = after
    return counts


def drawn(counts, laws=(LAW,), doubt=0.1, seed=1, **others):
    """DRAWN draws, p01 and p11, and alike of each."""
    wide = np.broadcast_to(counts[..., None, None], (*counts.shape, 1, DRAWN))
    told = None
    if laws:
        mean = np.array([mean for mean, _ in laws])[:, :, None, None]
        spread = np.array([[c[0, 0], c[0, 1], c[1, 1]] for _, c in laws])[:, :, None, None]
        told = PosteriorSummaries(mean * np.ones(DRAWN), spread * np.ones(DRAWN))
    uniforms = np.random.default_rng(seed).random((UNIFORMS, PROPOSALS, 1, DRAWN))
    found = draw_local(wide, told, uniforms, doubt=doubt, **others)
    return np.stack([found.p01[0], found.p11[0]]), found.borrowing[0]


def integrated(counts, laws=(LAW,), doubt=0.1):
    """Means and standard deviations of p01 and p11, and the weight of the laws, on a fine grid of
    the log odds."""
    axis = np.linspace(-9, 9, 301)
    u, v = (x.ravel() for x in np.meshgrid(axis, axis, indexing="ij"))
    p01, p11 = 1 / (1 + np.exp(-u)), 1 / (1 + np.exp(-v))
    memory, settled = p11 - p01, p01 / (1 - p11 + p01)
    height = np.zeros(u.size)
    for kind, pairs in enumerate(counts):
        left = memory ** (kind + 1) if kind < len(counts) - 1 else 0
        good = settled * (1 - left), settled + (1 - settled) * left
        for state in (0, 1):
            height += pairs[state, 1] * np.log(good[state])
            height += pairs[state, 0] * np.log(1 - good[state])
    told = np.zeros(u.size)
    for mean, covariance in laws:
        off = np.stack([u - mean[0], v - mean[1]])
        far = (off * np.linalg.solve(covariance, off)).sum(0)
        told += np.exp(-far / 2) / (2 * np.pi * np.sqrt(np.linalg.det(covariance))) / len(laws)
    parts = (1 - doubt) * told, doubt * p01 * (1 - p01) * p11 * (1 - p11)
    own = np.exp(height - height.max())
    whole = own * (parts[0] + parts[1])
    whole, of_laws = whole / whole.sum(), (own * parts[0]).sum() / whole.sum()
    means = np.array([(whole * p01).sum(), (whole * p11).sum()])
    squares = np.array([(whole * p01**2).sum(), (whole * p11**2).sum()])
    return means, np.sqrt(squares - means**2), of_laws


@pytest.mark.parametrize(
    ("p01", "p11", "pairs"),
    [(0.3, 0.7, 0), (0.3, 0.7, 6), (0.35, 0.65, 60), (0.6, 0.4, 25), (0.9, 0.2, 60)],
)
@pytest.mark.parametrize("laws", [(LAW,), (LAW, (np.array([2.0, -1.0]), np.eye(2) * 0.05))])
def test_draws_and_the_weight_of_the_laws_are_those_of_the_mixture(p01, p11, pairs, laws):
    """Within 4 standard errors of what numeric integration gives."""
    counts = observed(p01, p11, pairs)
    means, spread, weight = integrated(counts, laws)
    found, alike = drawn(counts, laws)
    assert np.abs(found.mean(1) - means).max() < 4 * spread.max() / np.sqrt(DRAWN)
    assert np.abs(found.std(1) / spread - 1).max() < 0.15
    assert alike.mean() == pytest.approx(weight, abs=4 * alike.std() / np.sqrt(DRAWN) + 0.01)


def test_an_agent_that_nobody_is_like_learns_alone():
    """Its arm is at (.9, .2), the others say (.3, .7): their weight vanishes."""
    counts = observed(0.9, 0.2, 80)
    alone, spread, _ = integrated(counts, doubt=1)
    found, alike = drawn(counts)
    assert alike.max() < 1e-4
    assert np.abs(found.mean(1) - alone).max() < 4 * spread.max() / np.sqrt(DRAWN)


def test_an_agent_like_the_others_knows_what_they_know():
    counts = observed(0.3, 0.7, 20)
    _, alone, _ = integrated(counts, doubt=1)
    found, alike = drawn(counts)
    assert alike.mean() > 0.9
    between = np.quantile(found, 0.75, 1) - np.quantile(found, 0.25, 1)
    assert (between < 0.6 * alone).all()  # alone about 1.35


def test_without_laws_the_prior_is_all():
    """From consecutive observations alone p01 and p11 are Betas."""
    counts = np.zeros((2, 2, 2))
    counts[0] = [[12, 3], [1, 20]]
    found, alike = drawn(counts, laws=(), prior=(2.0, 5.0))
    for values, (a, b) in zip(found, ((2 + 3, 5 + 12), (2 + 20, 5 + 1)), strict=True):
        error = np.sqrt(a * b / (a + b + 1)) / (a + b) / np.sqrt(DRAWN)
        assert values.mean() == pytest.approx(a / (a + b), abs=4 * error)
    assert alike.max() < 1e-12


def test_many_observations_are_drawn_as_well_as_few():
    """A year's: the posterior is far narrower than a cell of the grid."""
    counts = 1e5 * chances(0.02, 0.97, 8) * [[[0.6], [0.4]]]
    found, _ = drawn(counts)
    assert np.abs(found.mean(1) - [0.02, 0.97]).max() < 1e-4
    assert 1e-5 < found.std(1).min() < 1e-3


@pytest.mark.parametrize(
    ("arm", "gaps", "telling"),
    [
        ((0.89, 0.17), (1, 2), (1, 0, 14)),  # two modes, both likely
        ((0.89, 0.17), (1, 2), (1, 1, 14)),  # the mirror image has probability 4e-5
        ((0.83, 0.11), (2, 1), (1, 0, 14)),  # the same, states exchanged
        ((0.1, 0.6), (2, 3), (1, 1, 14)),  # the highest cell is near the wrong mode
        ((0.2, 0.8), (2, 2), (1, 1, 14)),  # m and -m
    ],
)
def test_of_many_pairs_the_right_mode_is_drawn(arm, gaps, telling):
    """By numeric integration: the share of m below its middle, and no place that should not be."""
    law, counts = posteriors.chances(arm[0], arm[1], 9), np.zeros((9, 2, 2))
    for gap, state, number in ((gaps[0], 0, 100_000), (gaps[1], 1, 100_000), telling):
        good = round(number * float(law[gap - 1, state, 1]))
        counts[gap - 1, state] += [number - good, good]
    exact = posteriors.integrate(counts)
    p01, p11 = drawn(counts, laws=())[0]
    middle = (p11 - p01).mean()
    share = exact.share(lambda a, b: b - a < middle)
    assert (p11 - p01 < middle).mean() == pytest.approx(share, abs=5 * 0.5 / np.sqrt(DRAWN))
    assert (exact.depth(p01, p11) < 1e-4).sum() <= 4


@pytest.mark.parametrize(("arms", "limit"), [(4, 0.02), (100, 0.05)])
def test_a_draw_is_quick(arms, limit):
    """In seconds of this process; the best of several, as the machine may have more to do."""
    counts = np.stack([observed(0.3, 0.7, 60, gaps=32, seed=n) for n in range(arms)], -1)[..., None]
    spread = np.array([0.1, 0, 0.1]).reshape(1, 3, 1, 1) * np.ones((arms, 1))
    laws = PosteriorSummaries(np.zeros((1, 2, arms, 1)), spread)
    uniforms = np.random.default_rng(0).random((UNIFORMS, PROPOSALS, arms, 1))
    taken = []
    for _ in range(5):
        begun = time.process_time()
        draw_local(counts, laws, uniforms)
        taken.append(time.process_time() - begun)
    assert min(taken) < limit
