"""Confidence sets of optimistic learners: against plain loops over rows and colours."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from rmab.learning.evidence import Evidence
from rmab.model.arms import CHANNEL, ArmKind
from rmab.policies.published.coloured_ucrl2 import colours
from rmab.policies.published.ucwhittle import confident_rows
from rmab.rng.variates import DRAWS, Draws, seed_words, stream

UNREAD = Draws(stream(seed_words(5), jnp.arange(1), jnp.uint32(0), DRAWS), jnp.ones(1, jnp.int32))
MACHINE = ArmKind(3, fully_observed=True, action_dependent=True)
LEVELS = ArmKind(2, fully_observed=True, action_dependent=False)
EPISODES = (1, 7)


def row_evidence(counts):
    """counts: (2, S, S, N) of plays and of slots left alone; two trials, in different episodes."""
    counts = jnp.asarray(np.repeat(counts[..., None], 2, -1), jnp.float32)
    unread = jnp.zeros(0)
    visits = jnp.zeros((*counts.shape[2:4], 2))
    episode = jnp.asarray(EPISODES, jnp.int32)
    return Evidence(
        counts, visits, episode, unread, unread, jnp.int32(1), 1.0, (MACHINE, LEVELS, MACHINE)
    )


@pytest.mark.parametrize(("scale", "delta"), [(1.0, 1e-3), (0.05, 0.2)])
def test_rows_and_radii_are_those_of_the_formula(scale, delta):
    rng = np.random.default_rng(2)
    sizes = (3, 2, 3)
    counts = np.zeros((2, 3, 3, 3))
    for n, S in enumerate(sizes):
        counts[:, :S, :S, n] = rng.integers(0, 4000, (2, S, S))
    counts[0, 1, :, 0] = 0  # a row that was never seen
    counts[0, 2, :, 0] = [1, 0, 0]  # and one that was seen once
    found = confident_rows(row_evidence(counts), UNREAD, scale=scale, delta=delta)
    some_below_one = False
    for trial, episode in enumerate(EPISODES):
        for n, S in enumerate(sizes):
            for action, moves, width in (
                (1, found.moves.active, found.width.active),
                (0, found.moves.passive, found.width.passive),
            ):
                kind = 0 if action or n == 1 else 1  # the second arm moves alike
                for s in range(S):
                    steps = counts[kind, s, :S, n]
                    total = steps.sum()
                    level = math.log(2 * S * 2 * 3 * episode**4 / delta)
                    radius = scale * math.sqrt(2 * S * level / total) if total else 1.0
                    some_below_one |= radius < 1
                    row = steps / total if total else np.full(S, 1 / S)
                    got = np.asarray(moves)[s, :, n, trial]
                    np.testing.assert_allclose(got[:S], row, rtol=1e-5, atol=1e-7)
                    assert (got[S:] == 0).all()
                    due = min(radius, 1.0)
                    assert float(width[s, n, trial]) == pytest.approx(due, rel=1e-4)
    assert some_below_one


def test_colours_hold_the_chance_of_good_by_age():
    """By state, age and arm; the last age is all that are as old or older."""
    rng = np.random.default_rng(3)
    ages, n_arms, agents, slot, scale, delta = 3, 2, 4, 50, 0.1, 0.01
    counts = rng.integers(0, 3000, (ages, 2, 2, n_arms, 1)).astype(float)
    counts[1, 0, :, 1] = 0  # never seen
    pays, idle = np.array([[0.0, 0.2], [0.9, 0.4]]), np.array([[0.0, 0.0], [0.1, -1.5]])
    evidence = Evidence(
        jnp.asarray(counts, jnp.float32),
        jnp.zeros((2, n_arms, 1)),
        jnp.ones(1, jnp.int32),
        jnp.asarray(pays[..., None]),
        jnp.asarray(idle[..., None]),
        jnp.int32(1),
        agents,
        (CHANNEL, CHANNEL),
        slot=jnp.int32(slot),
    )
    found = colours(evidence, UNREAD, scale=scale, delta=delta)
    t = agents * slot + 1
    assert found.lower.shape == found.upper.shape == (1 + 2 * ages, n_arms, 1)
    assert np.asarray(found.lower[0]).tolist() == [[0], [0]]
    assert np.asarray(found.upper[0]).tolist() == [[1], [1]]
    for state in range(2):
        for age in range(ages):
            for n in range(n_arms):
                bad, good = counts[age, state, :, n, 0]
                lower, upper = 0.0, 1.0
                if bad + good:
                    level = math.log(4 * 2 * ages * n_arms * t / delta)
                    half = scale * math.sqrt(56 * 2 * level / (bad + good)) / 2
                    share = good / (bad + good)
                    lower, upper = max(share - half, 0), min(share + half, 1)
                row = 1 + state * ages + age
                assert float(found.lower[row, n, 0]) == pytest.approx(lower, abs=1e-5)
                assert float(found.upper[row, n, 0]) == pytest.approx(upper, abs=1e-5)
    assert 0 < float(found.lower[1, 0, 0]) < float(found.upper[1, 0, 0]) < 1
    assert float(found.accuracy[0]) == pytest.approx(1.5 / math.sqrt(t), rel=1e-5)
