"""Arms that agents who join by and by still pull: against a plain loop over trials."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from rmab.learning.evidence import Evidence
from rmab.model.arms import CHANNEL
from rmab.policies.published.fed2_ucb import joining_survivors
from rmab.rng.variates import DRAWS, Draws, seed_words, stream

UNREAD = Draws(stream(seed_words(5), jnp.arange(1), jnp.uint32(0), DRAWS), jnp.ones(1, jnp.int32))
ARMS, AGENTS, TRIALS, PULLS, HORIZON = 4, 9, 60, 40, 5000


def plain(visits, pays, phase, plays, sigma, sigma_c):
    """(N, M) of one trial; visits: (2, N, M)."""
    pulled = visits.sum(0)
    paid = (visits * pays[:, :, None]).sum(0)
    most = pulled.max(0)
    joined = [m for m in range(AGENTS) if most[m] > 0]
    n = max(len(joined), 1)
    playing = [k for k in range(ARMS) if pulled[k, 0] >= most[0] - PULLS / 2]
    mean = {k: sum(paid[k, m] / max(pulled[k, m], 1) for m in joined) / n for k in playing}
    eta = sum(1 / most[m] for m in joined) / n**2
    level = math.log(HORIZON)
    width = math.sqrt(sigma**2 * eta * level) + math.sqrt(sigma_c**2 * level / n)
    best = sorted(mean.values())[-plays]
    alive = [k for k in playing if mean[k] + width >= best - width]
    there = AGENTS if len(alive) <= plays else 2 ** (phase + 1) - 2
    found = np.zeros((ARMS, AGENTS))
    found[alive, : max(there, 0)] = 1
    return found


@pytest.mark.parametrize(
    ("plays", "sigma", "sigma_c"), [(1, 0.5, 0.02), (2, 0.3, 0.1), (1, 1.0, 0.0)]
)
def test_survivors_are_those_of_the_rule(plays, sigma, sigma_c):
    rng = np.random.default_rng(plays)
    pays = np.stack([np.zeros(ARMS), [0.9, 1.0, 0.8, 0.7]])
    phases = np.arange(TRIALS) % 4 + 1
    there = 2.0**phases - 2  # who joined in the phases before
    pulled = np.full((ARMS, AGENTS, TRIALS), 3 * PULLS)
    pulled[2, :, ::3] -= PULLS // 2 + 1  # dropped a phase ago, by half a phase and one
    pulled[3, :, ::3] -= PULLS // 2  # and one that is in play yet
    pulled = np.where(np.arange(AGENTS)[:, None] < there, pulled, 0)
    good = rng.binomial(pulled, rng.random((ARMS, 1, TRIALS)))
    visits = np.stack([pulled - good, good])  # (2, N, M, R)
    unread = jnp.zeros(0)
    evidence = Evidence(
        unread,
        jnp.asarray(visits.reshape(2, ARMS, -1), jnp.float32),
        jnp.asarray(np.tile(phases, AGENTS)),
        jnp.asarray(pays[..., None], jnp.float32),
        unread,
        jnp.int32(plays),
        1.0,
        (CHANNEL,) * ARMS,
        lanes=AGENTS,
    )
    settings: dict[str, Any] = {
        "pulls": PULLS,
        "horizon": HORIZON,
        "sigma": sigma,
        "sigma_c": sigma_c,
    }
    found, same = joining_survivors(evidence, UNREAD, **settings)
    got = np.asarray(found).reshape(ARMS, AGENTS, TRIALS)
    np.testing.assert_array_equal(found, same)
    kept = []
    for trial in range(TRIALS):
        wanted = plain(visits[..., trial], pays, phases[trial], plays, sigma, sigma_c)
        np.testing.assert_array_equal(got[..., trial], wanted)
        kept.append(wanted.any(1).sum())
    assert len(set(kept)) > 1
