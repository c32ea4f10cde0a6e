"""Whether what is released can be told apart as little as it should, by attack.

Two worlds differ in one slot of one agent's log, as much as a slot can: counts of (0, 0) are lower
by 2, those of (0, 1) and (1, 0) higher by 1. An attacker reads all releases and guesses the world.
A mechanism that is mu-Gaussian-private holds every guesser to

    Phi^-1(1 - false alarms) - Phi^-1(misses) <= mu,       mu = 1 / z(epsilon, delta).

Each guesser is a statistic and a threshold that half of the runs give; on the other half errors are
counted. An audit fails if the left side passes mu, errors taken at their upper bounds of 1 in 10^4.
"""

import math
from functools import partial

import numpy as np
import pytest
from scipy.stats import beta, norm

from rmab.privacy.accounting import Budget, PrivacyAccountant, noise_multiplier
from rmab.privacy.noise import GRID, discrete_gaussian, factor, mixing

BUDGET = Budget(4.0)
PLAYS, MEMBERS = 1, 3
RELEASES = 5
RUNS = 10_000  # of each world
CHANGE = np.array([-2, 1, 1])
# Since the release before, in the first world. What is 0 shows best what floats leak.
COUNTED = np.array([[40, 0, 0], [55, 20, 18], [130, 31, 29], [200, 80, 81], [450, 130, 131]])


def fast_draw(rng, budget, plays, size):
    """As `discrete_gaussian` but for 1 part in 10^5, and faster."""
    return np.rint(rng.normal(0, GRID * budget.scale(plays), size)).astype(int).tolist()


def in_all(world, runs=RUNS):
    """Sums of all releases, for all runs at once, (releases, 3 runs): the slot's pairs are of the
    first release."""
    increments = COUNTED.copy()
    increments[0] += world * CHANGE
    return np.repeat(np.cumsum(increments, 0), runs, axis=1)


def released(world, draw, runs=RUNS):
    """What is told of every run, (releases, 3, runs)."""
    sums = in_all(world, runs)
    ledger, told = PrivacyAccountant(BUDGET, PLAYS, sums.shape[1]), []
    for t, x in enumerate(sums):
        ledger = ledger.released(str(t), 8 * MEMBERS * 2**t, MEMBERS, draw)
        told.append(x + ledger.noise(str(t)))
    return np.array(told).reshape(RELEASES, 3, runs)


# -------------------------------------------------------------------------------- what is planted


def half_the_noise(world, rng):
    return released(world, lambda *given: [n // 2 for n in fast_draw(rng, *given)])


def wrong_sensitivity(world, rng):
    return released(world, lambda *given: [round(n / math.sqrt(6)) for n in fast_draw(rng, *given)])


def anew_for_a_repeat(world, rng):
    """Every release is asked for three times, and drawn each time."""
    return np.mean([released(world, partial(fast_draw, rng)) for _ in range(3)], 0)


def used_twice(world, rng):
    drawn: list[list[int]] = []

    def draw(*given):
        drawn.append(drawn[0] if drawn else fast_draw(rng, *given))
        return drawn[-1]

    return released(world, draw)


def as_floats(world, rng):
    """Noise in floating point, and nothing is rounded."""
    z = rng.normal(0, BUDGET.scale(PLAYS), (RELEASES, 3 * RUNS))
    b = np.array([float(x) for x in mixing()[:RELEASES]])
    noise = [sum(b[t - s] * z[s] for s in range(t + 1)) for t in range(RELEASES)]
    return (in_all(world) + np.array(noise)).reshape(RELEASES, 3, RUNS)


PLANTED = [half_the_noise, wrong_sensitivity, anew_for_a_repeat, used_twice, as_floats]


# -------------------------------------------------------------------------------------- the audit


def unmixed(told):
    """C g + z, but for rounding."""
    b = np.array([float(x) for x in mixing()[:RELEASES]])
    B = np.array([[b[t - s] if s <= t else 0 for s in range(RELEASES)] for t in range(RELEASES)])
    return np.einsum("ts,scr->tcr", np.linalg.inv(B), told)


def likelihood(told):
    """The best statistic if noise is as it should be."""
    c = np.array(factor()[:RELEASES]) / GRID
    return np.einsum("t,c,tcr->r", c, CHANGE, unmixed(told))


def differences(told):
    """What is left where two releases have the same z."""
    y = unmixed(told)
    return np.einsum("c,cr->r", CHANGE, y[0] - y[1])


def fine_bits(told):
    """In how many numbers there are bits that no sum of 1 and a float has."""
    return np.sum((told * 2.0**53) % 1 != 0, (0, 1))


def least_mu(first, second):
    """A lower bound of mu by one statistic's values in both worlds, (runs,) each."""
    half = len(first) // 2
    middle = (first[:half].mean() + second[:half].mean()) / 2
    if second[:half].mean() >= middle:
        alarms, misses = first[half:] > middle, second[half:] <= middle
    else:
        alarms, misses = first[half:] < middle, second[half:] >= middle
    upper = [
        beta.ppf(1 - 1e-4, wrong.sum() + 1, max(half - wrong.sum(), 1e-9))
        for wrong in (alarms, misses)
    ]
    return norm.isf(upper[0]) - norm.ppf(upper[1])


def audited(mechanism):
    """The largest of all attackers' lower bounds of mu."""
    rngs = np.random.default_rng(20).spawn(2)
    worlds = [mechanism(world, rng) for world, rng in enumerate(rngs)]
    return max(
        least_mu(*(statistic(told) for told in worlds))
        for statistic in (likelihood, differences, fine_bits)
    )


MU = 1 / noise_multiplier(BUDGET.epsilon, BUDGET.delta)


def test_what_is_released_passes_the_audit():
    found = audited(lambda world, rng: released(world, partial(fast_draw, rng)))
    assert 0.6 * MU < found <= MU  # an audit that finds nothing would pass everything


def test_what_opendp_draws_passes_the_audit():
    pytest.importorskip("opendp")
    found = audited(lambda world, _: released(world, discrete_gaussian, runs=1200))
    assert 0 < found <= MU


@pytest.mark.parametrize("mechanism", PLANTED)
def test_a_planted_mistake_fails_the_audit(mechanism):
    assert audited(mechanism) > MU
