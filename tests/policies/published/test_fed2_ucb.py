"""Fed2-UCB: published numbers from arrays, and the engine against the same plain program."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import rmab
from rmab.learning.evidence import Evidence
from rmab.model.arms import CHANNEL
from rmab.policies.published.fed2_ucb import joining_survivors
from rmab.rng.variates import Draws, Key
from tests.oracles.fed_ucb import Run, bernoulli, fed1, fed2, gaussian

MEANS = np.array([0.70, 0.71, 0.72, 0.73, 0.74, 0.75, 0.76, 0.765, 0.77, 0.79])


def mean_and_error(values: list[float]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(len(values)))


def check(values: list[float], known: float, error: float) -> None:
    mean, se = mean_and_error(values)
    assert abs(mean - known) < 4 * np.hypot(se, error), (mean, se, known)


def costs(runs: list[Run]) -> list[float]:
    """Regret, and one for each message."""
    return [run.regret + run.messages for run in runs]


def test_published_numbers_of_fed1_from_arrays():
    rng = np.random.default_rng(1)
    five, one = (
        [fed1(MEANS, gaussian(MEANS, 0.5, 0.0, rng), 10**6, n) for _ in range(40)] for n in (5, 1)
    )
    check(costs(five), 13485, 111)
    check(costs(one), 13308, 109)
    check([run.ended for run in five], 105_800, 1000)


@pytest.mark.slow  # hundreds of clients
def test_published_numbers_of_fed2_from_arrays():
    rng = np.random.default_rng(2)
    runs = [fed2(MEANS, gaussian(MEANS, 0.5, 0.02, rng), 10**6) for _ in range(50)]
    check(costs(runs), 15155, 397)
    check([run.messages for run in runs], 1617, 80)
    check([run.clients for run in runs], 817, 40)


# ------------------------------------------------------------------------------------- the engine

LOCAL = np.array(
    [[0.3, 0.5, 0.8], [0.2, 0.6, 0.7], [0.35, 0.5, 0.75], [0.3, 0.4, 0.8], [0.25, 0.55, 0.7]]
)
STUDY = rmab.Study(
    rmab.channels(LOCAL[0], LOCAL[0], 1.0),
    agents=5,
    horizon=600,
    trials=256,
    policies=["fed2-ucb"],
    options={"fed2-ucb": {"pulls": 10}},
    agent=[
        {"agents": m, "arms": rmab.channels(mine, mine, 1.0)}
        for m, mine in enumerate(LOCAL[1:], start=2)
    ],
    seed=4,
)


@pytest.mark.slow
def test_the_engine_earns_what_the_plain_program_does():
    """Agents whose arms have no memory and other means: what all are paid until the end."""
    rng = np.random.default_rng(3)
    found = rmab.run(STUDY)["fed2-ucb"]
    runs = [fed2(LOCAL.mean(0), bernoulli(LOCAL, rng), 600, pulls=10, most=5) for _ in range(2000)]
    # Once one arm is left all agents play it.
    after = [
        run.earned + (600 - run.ended) * float(LOCAL[:, run.left[0]].sum())
        for run in runs
        if len(run.left) == 1
    ]
    assert len(after) == len(runs)
    mean, error = mean_and_error([total / (5 * 600) for total in after])
    assert abs(found.mean - mean) < 4 * np.hypot(found.se, error)
    # The first two agents explore three arms for ten pulls each.
    first = found.slots.mean[:30]
    alone = LOCAL[:2].mean() * 2 / 5
    assert abs(first.mean() - alone) < 4 * np.sqrt(0.25 / (30 * 2 * 256)) * 2 / 5
    second = found.slots.mean[30:40].mean()
    assert second > 1.3 * alone, "the others join"


def evidence(pulled: np.ndarray, good: np.ndarray, phase: int) -> Evidence:
    """Of M agents in one trial; pulled, good: (N, M)."""
    visits = jnp.stack([jnp.asarray(pulled - good), jnp.asarray(good)])
    n_arms, M = pulled.shape
    return Evidence(
        counts=jnp.zeros((1, 2, 2, n_arms, M)),
        visits=visits,
        episode=jnp.full(M, phase),
        rewards=jnp.broadcast_to(jnp.array([0.0, 1.0])[:, None, None], (2, n_arms, 1)),
        idle_rewards=jnp.zeros((2, n_arms, 1)),
        plays=jnp.int32(1),
        agents=1.0,
        kinds=(CHANNEL,) * n_arms,
        lanes=M,
    )


def in_play(given: Evidence, sigma_c: float = 0.02) -> np.ndarray:
    draws = Draws(Key(jnp.uint32(0), jnp.uint32(0)), jnp.zeros(1, jnp.int32))  # nobody draws
    options = {"pulls": 10, "horizon": 1000}
    return np.asarray(joining_survivors(given, draws, **options, sigma=0.5, sigma_c=sigma_c)[0])


def test_two_agents_begin_and_four_more_join():
    none = np.zeros((3, 8))
    assert in_play(evidence(none, none, 1)).tolist() == [[1, 1, 0, 0, 0, 0, 0, 0]] * 3
    some = none.copy()
    some[:, :2] = 10
    assert in_play(evidence(some, some / 2, 2)).tolist() == [[1] * 6 + [0] * 2] * 3


def test_an_arm_is_dropped_by_the_mean_of_means():
    """Not by the mean of all pulls, of which the first agents have more; and when K are left all
    agents play them."""
    pulled = np.array([[40.0, 40.0, 20.0, 20.0, 20.0, 20.0]] * 2)
    good = pulled * np.array([[0.9, 0.9, 0.5, 0.5, 0.5, 0.5], [0.2, 0.2, 0.3, 0.3, 0.3, 0.3]])
    mean = [(2 * 0.9 + 4 * 0.5) / 6, (2 * 0.2 + 4 * 0.3) / 6]
    eta = (2 / 40 + 4 / 20) / 36
    for sigma_c, left in ((0.0, 1), (0.02, 1), (0.3, 2)):
        width = np.sqrt(0.25 * eta * np.log(1000)) + np.sqrt(sigma_c**2 * np.log(1000) / 6)
        assert (mean[1] + width < mean[0] - width) == (left == 1)
        found = in_play(evidence(pulled, good, 3), sigma_c=sigma_c)
        assert found.sum(0).tolist() == [left] * 6
    dropped = pulled.copy()
    dropped[1, :2] = 20  # in play for two phases less
    assert in_play(evidence(dropped, good / 2, 3)).sum() == 6, "what was dropped stays dropped"
    alone = in_play(evidence(np.pad(pulled, ((0, 0), (0, 3))), np.pad(good, ((0, 0), (0, 3))), 3))
    assert alone.tolist() == [[1] * 9, [0] * 9], "all that there are"


@pytest.mark.slow  # two programs
def test_an_agent_that_has_not_joined_plays_nothing():
    watched = replace(STUDY, horizon=30, trials=32, options={"fed2-ucb": {"pulls": 100}})
    found = rmab.run(watched)["fed2-ucb"]
    two = rmab.run(replace(watched, agents=2, agent=STUDY.agent[:1]))["fed2-ucb"]
    np.testing.assert_allclose(found.slots.mean * 5, two.slots.mean * 2, rtol=1e-6)
