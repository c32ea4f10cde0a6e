"""Fed1-UCB whose agents add noise to their means."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import rmab
from rmab.errors import FederationError, StudyError
from rmab.learning.evidence import Evidence
from rmab.learning.ucb import phase_noise, survivors
from rmab.model.arms import CHANNEL
from rmab.protocol.config import load_federation
from rmab.rng.variates import Draws, Key

N, M, PULLS, HORIZON, PLAYS = 4, 3, 5, 400, 2
REWARDS = np.array([0.4, 0.9, 0.7, 0.6])


def draws(episode: int, trials: int = 6) -> Draws:
    key = Key(jnp.arange(trials, dtype=jnp.uint32), jnp.uint32(7))
    return Draws(key, jnp.full(trials, episode))


def evidence(good: np.ndarray, phase: int) -> Evidence:
    """Every agent has pulled every arm PULLS times in each phase before; good: (N, trials)."""
    pulled = np.full(good.shape, M * PULLS * (phase - 1))
    return Evidence(
        counts=jnp.zeros((1, 2, 2, *good.shape)),
        visits=jnp.stack([jnp.asarray(pulled - good), jnp.asarray(good)]),
        episode=jnp.full(good.shape[-1], phase),
        rewards=jnp.stack([jnp.zeros(N), jnp.asarray(REWARDS)])[..., None],
        idle_rewards=jnp.zeros((2, N, 1)),
        plays=jnp.int32(PLAYS),
        agents=M,
        kinds=(CHANNEL,) * N,
    )


def plainly(good: np.ndarray, phase: int, epsilon: float, sigma: float) -> np.ndarray:
    """Agent by agent, phase by phase, arm by arm."""
    alive = np.zeros(good.shape)
    for trial in range(good.shape[1]):
        bounds = []
        for arm, reward in enumerate(REWARDS):
            noise = 0.0
            for number in range(1, phase):
                uniforms = np.asarray(draws(number).uniform(M, N), float)
                for agent in range(M):
                    u = uniforms[agent, arm, trial] - 0.5
                    scale = reward / (epsilon * PULLS)
                    noise += -scale * math.copysign(1, u) * math.log(1 - 2 * abs(u))
            pulled = M * PULLS * (phase - 1)
            mean = reward * good[arm, trial] / pulled + noise / (M * (phase - 1))
            width = math.sqrt(4 * sigma**2 * math.log(HORIZON) / pulled)
            unsure = math.log(4 * N * (phase - 1) ** 2 / 0.1)
            width += reward * unsure / (epsilon * PULLS * math.sqrt(M))
            bounds.append((mean - width, mean + width, mean))
        kth = sorted(bounds, key=lambda each: -each[2])[PLAYS - 1]
        # The lower bound of the K-th best mean, with each arm's own width.
        for arm, (low, high, mean) in enumerate(bounds):
            alive[arm, trial] = high >= kth[2] - (mean - low)
    return alive


@pytest.mark.parametrize("phase", [2, 4])
@pytest.mark.parametrize("epsilon", [1.0, 30.0])
def test_arms_are_dropped_as_a_plain_program_drops_them(phase, epsilon):
    rng = np.random.default_rng(phase)
    good = rng.integers(0, M * PULLS * (phase - 1), (N, 6), endpoint=True)
    found, _ = survivors(
        evidence(good, phase),
        draws(phase),
        pulls=PULLS,
        horizon=HORIZON,
        sigma=0.02,
        epsilon=epsilon,
    )
    expected = plainly(good, phase, epsilon, 0.02)
    assert np.asarray(found).tolist() == expected.tolist()
    assert expected.min() == 0 or epsilon == 1.0, "some arm is dropped"


def test_nothing_is_dropped_before_the_first_phase():
    nothing = np.zeros((N, 6), int)
    options: dict[str, Any] = {"pulls": PULLS, "horizon": HORIZON, "sigma": 0.001, "epsilon": 0.01}
    assert np.asarray(survivors(evidence(nothing, 1), draws(1), **options)[0]).all()


def test_the_noise_of_a_phase_stays_and_is_laplace():
    one, two = (phase_noise(draws(9, 4000), jnp.full(4000, n), 2, N) for n in (1, 2))
    assert abs(float(one.var()) - 1.0) < 0.1, "variance 2, over two agents"
    assert abs(float(two.var()) - 0.5) < 0.05
    later = phase_noise(draws(50, 4000), jnp.full(4000, 2), 2, N)
    assert np.array_equal(np.asarray(two), np.asarray(later))
    assert np.corrcoef(np.asarray(one).ravel(), np.asarray(two).ravel())[0, 1] > 0.6


def test_without_epsilon_nothing_changes():
    good = np.random.default_rng(0).integers(0, 30, (N, 6))
    options: dict[str, Any] = {"pulls": PULLS, "horizon": HORIZON, "sigma": 0.02}
    plain, _ = survivors(evidence(good, 3), draws(3), **options)
    none, _ = survivors(evidence(good, 3), draws(3), **options, epsilon=None)
    assert np.array_equal(np.asarray(plain), np.asarray(none))


def test_what_epsilon_does_not_go_with_is_refused():
    arms = rmab.channels(p01=[0.2, 0.8], p11=[0.8, 0.2], reward=1.0)
    keys: dict[str, Any] = {
        "policies": ["fed1-ucb"],
        "agents": 2,
        "options": {"fed1-ucb": {"epsilon": 1.0}},
    }
    rmab.Study(arms, **keys)
    with pytest.raises(StudyError, match=r"epsilon of fed1-ucb goes without weights"):
        rmab.Study(arms, **keys, weights=[1.0, 2.0])
    with pytest.raises(StudyError, match=r"with aggregation 'sum' or 'none', got 'gossip'"):
        rmab.Study(arms, **keys, aggregation="gossip")
    with pytest.raises(StudyError, match=r"epsilon must be a number above 0 and at most 100"):
        rmab.Study(arms, policies=["fed1-ucb"], options={"fed1-ucb": {"epsilon": 0}})


def test_a_server_refuses_it(tmp_path):
    file = tmp_path / "federation.toml"
    file.write_text(
        'name = "f"\nplays = 1\npolicy = "fed1-ucb"\noptions = {epsilon = 1.0}\n'
        "[[arm]]\nreward = 1.0\n[[arm]]\nreward = 0.5\n"
    )
    with pytest.raises(FederationError, match="served agents upload counts without noise"):
        load_federation(file)
