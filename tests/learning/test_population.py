"""A prior learnt from all arms and agents that are alike: against plain loops, and closed forms."""

import math
from functools import cache, partial

import jax
import numpy as np
from scipy.special import betaln

from rmab.learning.population import (
    KAPPAS,
    effective_counts,
    fit_population,
    population_prior,
    same_dynamics,
)
from rmab.policies.policy import POPULATION

GAPS, ARMS, AGENTS, TRIALS = 8, 3, 4, 2


@cache
def compiled(function):
    """Of arrays that end in ARMS, AGENTS and TRIALS: another shape is another compilation."""
    return jax.jit(function)


def law_of(counts):
    """The prior (2, 2, TRIALS), and how alike agents are, (M, M, TRIALS)."""
    effective = compiled(effective_counts)(counts)
    prior = compiled(population_prior)(effective)
    return np.asarray(prior), np.asarray(compiled(same_dynamics)(effective, prior))


def plain_prior(effective):
    """(2, 2): of the units (2, 2, ...) of each row, by loops."""
    found = np.zeros((2, 2))
    for row in range(2):
        bad, good = (x.ravel() for x in effective[row])
        best = -math.inf
        for kappa in KAPPAS:
            above, below = 0.25, 0.5
            for b, g in zip(bad, good, strict=True):
                weight = (b + g) / (b + g + kappa)
                above += weight * (g / (b + g) if b + g else 0)
                below += weight
            a, rest = kappa * above / below, kappa * (1 - above / below)
            height = sum(
                betaln(a + g, rest + b) - betaln(a, rest) for b, g in zip(bad, good, strict=True)
            )
            if height > best:
                best, found[row] = height, (rest, a)
    return found


def plain_alike(effective, prior):
    """(M, M) by loops over pairs of agents, arms and rows."""

    def height(row, counts):
        bad, good = counts
        rest, a = prior[row]
        return betaln(a + good, rest + bad) - betaln(a, rest)

    n_arms, n_agents = effective.shape[2:]
    found = np.ones((n_agents, n_agents))
    for a in range(n_agents):
        for b in range(n_agents):
            more = 0.0
            for row in range(2):
                for n in range(n_arms):
                    x, y = effective[row, :, n, a], effective[row, :, n, b]
                    more += height(row, x + y) - height(row, x) - height(row, y)
            if a != b:
                found[a, b] = 1 / (1 + math.exp(-more))
    return found


def test_effective_counts_of_pairs_one_slot_apart_are_their_number():
    counts = np.zeros((GAPS + 1, 2, 2, ARMS, AGENTS, TRIALS), np.float32)
    counts[0] = np.random.default_rng(0).integers(0, 40, counts.shape[1:])
    found = np.asarray(compiled(effective_counts)(counts))
    number = counts[0].sum(1)
    np.testing.assert_allclose(found.sum(1), number, rtol=1e-3, atol=1e-3)
    rate = (counts[0][:, 1] + 0.5) / (number + 1)
    np.testing.assert_allclose(found[:, 1], number * rate, rtol=1e-3, atol=1e-2)


def test_the_prior_and_the_pairs_are_those_of_plain_loops():
    rng = np.random.default_rng(3)
    rates = rng.beta(2, 6, (2, ARMS, AGENTS, TRIALS))
    numbers = rng.integers(0, 60, rates.shape)
    good = rng.binomial(numbers, rates)
    effective = np.stack([numbers - good, good], 1).astype(np.float32)
    prior = np.asarray(compiled(population_prior)(effective))
    alike = np.asarray(compiled(same_dynamics)(effective, prior))
    for r in range(TRIALS):
        exact = plain_prior(effective[..., r].astype(float))
        np.testing.assert_allclose(prior[..., r], exact, rtol=1e-4)
        np.testing.assert_allclose(
            alike[..., r], plain_alike(effective[..., r].astype(float), exact), atol=1e-3
        )


def test_pairs_one_slot_apart_can_be_the_one_kind_there_is():
    """What is learnt is the same as where other kinds are counted and there are none of them: a
    last kind would else be taken for pairs that are far apart."""
    rng = np.random.default_rng(4)
    counts = np.zeros((GAPS + 1, 2, 2, ARMS, AGENTS, TRIALS), np.float32)
    counts[0] = rng.integers(0, 40, counts.shape[1:])
    one, all_kinds = (
        jax.jit(partial(fit_population, prior=POPULATION, compares=True))(kinds)
        for kinds in (counts[:1], counts)
    )
    np.testing.assert_allclose(one.prior, all_kinds.prior, rtol=1e-3)
    np.testing.assert_allclose(one.alike, all_kinds.alike, atol=1e-3)


def test_before_anything_is_observed_the_prior_is_uniform_and_nothing_tells_agents_apart():
    prior, alike = law_of(np.zeros((GAPS + 1, 2, 2, ARMS, AGENTS, TRIALS), np.float32))
    np.testing.assert_allclose(prior[..., 0], np.ones((2, 2)))
    np.testing.assert_allclose(
        alike[..., 0], np.where(np.eye(AGENTS, dtype=bool), 1, 0.5), atol=1e-6
    )


def test_agents_of_one_law_are_alike_and_of_another_are_not():
    rng = np.random.default_rng(1)
    rates = np.array([[0.1, 0.5, 0.3], [0.9, 0.6, 0.8]])  # after bad and good, by arm
    other = rates[:, [1, 0, 2]]
    by_agent = np.stack([rates, rates, other, other], -1)
    counts = np.zeros((GAPS + 1, 2, 2, ARMS, AGENTS, TRIALS), np.float32)
    good = rng.binomial(400, by_agent)
    counts[0] = np.stack([400 - good, good], 1)[..., None]
    alike = law_of(counts)[1][..., 0]
    one, two = slice(0, 2), slice(2, 4)
    assert alike[one, one].min() > 0.9
    assert alike[two, two].min() > 0.9
    assert alike[one, two].max() < 1e-6
