"""Where posteriors lie along the memory: estimates by moments, and the law of cells of memories."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rmab.learning.channel import memory_grid as moments
from rmab.learning.channel.sums import summed

GAPS = 8
HALF = moments.CELLS // 2
UNIFORM = 1.0, 1.0


def expected_counts(p01, p11, pairs):
    """(G + 1, 2, 2, 1, 1), as expected; pairs: (gap, state, number), gap 0 for settled ones."""
    counts = np.zeros((GAPS + 1, 2, 2))
    step = np.array([[1 - p01, p01], [1 - p11, p11]])
    for gap, state, number in pairs:
        law = np.linalg.matrix_power(step, gap or 10_000)
        counts[gap - 1, state] += number * law[state]
    return jnp.asarray(counts[..., None, None], jnp.float32)


def observations_of(*args):
    return summed(expected_counts(*args), UNIFORM)[0]


@pytest.mark.parametrize(("p01", "p11"), [(0.2, 0.7), (0.6, 0.1), (0.9, 0.3), (0.01, 0.02)])
@pytest.mark.parametrize(
    "gaps", [((1,), (1,)), ((1,), (2,)), ((3, 8), (0,)), ((0,), (0,))], ids=str
)
def test_both_estimates_are_right_at_the_true_memory(p01, p11, gaps):
    pairs = [(gap, state, 1e7) for state in (0, 1) for gap in gaps[state]]
    memory, b0 = p11 - p01, p01 / (1 - p11 + p01)
    observed = observations_of(p01, p11, pairs)
    at = moments.balance(observed, jnp.full((1, 1), memory))
    assert np.allclose([at.b0[0, 0], at.q0[0, 0]], [b0, 1 - b0], rtol=1e-4)
    # the variance of a count of crossings, by the slope of what is expected of it
    stayed, crossed = (float(number) for number in observed.counts[:, 0].sum(0)[:, 0, 0])
    known = (crossed / b0) ** 2 * (crossed + stayed) / (crossed * stayed)
    assert float(at.known0[0, 0]) == pytest.approx(known, rel=1e-3)


@pytest.mark.parametrize("p11", [0.15, 0.3, 0.55])
def test_p01_less_p11_does_as_well_where_observations_come_one_slot_after_0_and_two_after_1(p11):
    p01 = 0.8
    found = moments.cells(observations_of(p01, p11, [(1, 0, 1e6), (2, 1, 1e6)]))
    memories = sorted([p11 - p01, -p11])
    assert bool(found.agreement.found.all())
    assert np.allclose(found.agreement.memory[:, 0, 0], memories, atol=0.02)
    assert np.allclose(found.agreement.b0[:, 0, 0], [p01 / (1 - m) for m in memories], atol=0.02)


def test_cells_are_where_the_memory_is():
    for p01, p11 in ((0.2, 0.8), (0.7, 0.25), (0.5, 0.35)):
        shares = moments.cells(observations_of(p01, p11, [(1, 0, 1e4), (1, 1, 1e4)])).shares[
            :, 0, 0
        ]
        assert float(shares.sum()) == pytest.approx(1, abs=1e-5)
        size = np.sqrt(abs(p11 - p01)) / (np.sqrt(abs(p11 - p01)) + np.sqrt(1 - abs(p11 - p01)))
        cell = int((np.sign(p11 - p01) * size + 1) * HALF)
        assert float(shares[cell - 1 : cell + 2].sum()) > 0.75


@pytest.mark.parametrize("tails", [None, 1.0, 2.5])
def test_places_are_picked_by_the_density(tails):
    rng = np.random.default_rng(4)
    shares = rng.dirichlet(np.ones(2 * HALF))
    shape = jnp.asarray(shares, jnp.float32)[:, None, None]
    longer = None if tails is None else jnp.full((1, 1), tails)
    which, depth = (jnp.asarray(rng.random((200_000, 1, 1)), jnp.float32) for _ in range(2))
    places = np.asarray(moments.pick_memory(shape, longer, which, depth), np.float64).ravel()
    assert (abs(places) <= 1).all()
    # what the density says of unequal bins, by the midpoints of many small steps
    edges = np.linspace(-1, 1, 6 * HALF + 1)
    nodes = np.linspace(-1, 1, 240 * HALF, endpoint=False) + 1 / (240 * HALF)
    size = jnp.asarray(abs(nodes)[:, None, None], jnp.float32)
    level = np.asarray(
        moments.memory_density(shape, longer, size, 1 - size, jnp.asarray(nodes > 0)[:, None, None])
    ).ravel()
    due = level.reshape(len(edges) - 1, -1).mean(1) * np.diff(edges)
    coarse = 0 if tails in (None, 1.0) else 0.1 * due  # a density without bounds at the ends
    seen = np.histogram(places, edges)[0] / places.size
    assert (abs(seen - due) < coarse + 5 * np.sqrt(due / places.size)).all()


def test_sums_of_counts_are_not_rounded_on_a_gpu():
    counts = jnp.zeros((GAPS + 1, 2, 2, 1, 1))
    text = jax.jit(lambda counts: summed(counts, UNIFORM)).lower(counts).as_text()
    assert "precision = [HIGHEST, HIGHEST]" in text
