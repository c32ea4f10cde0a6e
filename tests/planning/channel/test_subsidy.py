"""The channel with a subsidy against all waits, its Bellman equation and hand-made cases."""

from decimal import Decimal, localcontext

import numpy as np
import pytest

from rmab.model.arms import channels
from rmab.planning.channel.subsidy import solve, threshold
from rmab.planning.channel.whittle import whittle_index


def random_problems(n_problems: int, seed: int) -> tuple[np.ndarray, ...]:
    """p01, p11, reward and subsidy (-0.2 to 1.1 rewards), each of shape (n_problems,)."""
    rng = np.random.default_rng(seed)
    p01, p11, reward = rng.random((3, n_problems))
    return p01, p11, reward, rng.uniform(-0.2, 1.1, n_problems) * reward


def test_no_pair_of_waits_does_better():
    """Every pair up to 60 slots, its gain from the two-state chain of what is seen at plays."""
    p01, p11, reward, subsidy = (x[:, None, None] for x in random_problems(400, seed=1))
    memory = p11 - p01
    rest = p01 / (1 - memory)
    k0, k1 = np.arange(1, 61)[:, None], np.arange(1, 61)
    q0, q1 = rest - memory**k0 * rest, rest + memory**k1 * (1 - rest)
    good = q0 / (1 - q1 + q0)
    won = good * (q1 * reward + subsidy * (k1 - 1)) + (1 - good) * (
        q0 * reward + subsidy * (k0 - 1)
    )
    gain = won / (good * k1 + (1 - good) * k0)  # (problems, 60, 60)
    best = np.maximum(gain.max(axis=(1, 2)), subsidy[:, 0, 0])  # or never
    problem = solve(*random_problems(400, seed=1))
    np.testing.assert_allclose(problem.gain, best, rtol=0, atol=1e-12)
    # The waits returned are those of the gain returned.
    plays = np.isfinite(problem.waits).all(axis=0) & (problem.waits.max(axis=0) <= 60)
    first, second = problem.waits[:, plays].astype(int) - 1
    np.testing.assert_allclose(gain[plays, first, second], problem.gain[plays], rtol=0, atol=1e-12)
    assert 100 < plays.sum() < 350


@pytest.mark.parametrize("slow", [1.0, 1e-3])
def test_values_solve_the_bellman_equation(slow):
    """Eq. (18): with it, no policy of any kind does better than the gain."""
    p01, p11, reward, subsidy = random_problems(300, seed=2)
    p01, p11 = slow * p01, np.where(slow < 1, 1 - slow * p11, p11)
    problem = solve(p01, p11, reward, subsidy)
    belief = np.linspace(0, 1, 101)[:, None]
    after_bad, after_good = problem.value(p01), problem.value(p11)
    active = belief * (reward + after_good) + (1 - belief) * after_bad - problem.gain
    passive = subsidy - problem.gain + problem.value(belief * p11 + (1 - belief) * p01)
    scale = 1e-13 / slow  # relative values grow as the arm slows down
    np.testing.assert_allclose(problem.relative_values, [after_bad, after_good], rtol=0, atol=scale)
    np.testing.assert_allclose(problem.active_value(belief), active, rtol=0, atol=scale)
    np.testing.assert_allclose(problem.passive_value(belief), passive, rtol=0, atol=scale)
    best = np.maximum(active, passive)
    np.testing.assert_allclose(problem.value(belief), best, rtol=0, atol=scale)


@pytest.mark.parametrize(
    ("p01", "p11", "subsidy", "gain", "waits"),
    [
        (0.2, 0.8, 0.0, 0.5, (1, 1)),  # always: b0
        (0.2, 0.8, 0.3, 0.475 / 0.9, (2, 1)),  # good at 8 of 13 plays, 18 slots for 13 plays
        (0.2, 0.8, 0.75, 0.75, (np.inf, 1)),  # above the index .714286 of b0, below p11
        (0.2, 0.8, 2.0, 2.0, (np.inf, np.inf)),
        (0.2, 0.8, -1.0, 0.5, (1, 1)),
        (0.89, 0.17, 0.5, 0.663387, (1, 2)),  # good at g = .792944 of plays: 1.5 g / (1 + g)
        (0.89, 0.17, 0.8, 0.8, (1, np.inf)),
        (0.4, 0.4, 0.3, 0.4, (1, 1)),
        (0.4, 0.4, 0.5, 0.5, (np.inf, np.inf)),
        (0.0, 0.5, 0.2, 0.2, (np.inf, 1)),  # bad for ever, but good now may last
        (0.0, 0.5, -0.2, 0.0, (1, 1)),
        (0.3, 1.0, 0.6, 1.0, (3, 1)),  # good for ever once good
        (0.3, 1.0, 1.5, 1.5, (np.inf, np.inf)),
        (1.0, 0.0, 0.4, 0.7, (1, 2)),  # alternates: reward and subsidy by turns
        (1.0, 1.0, 0.4, 1.0, (1, 1)),
        (0.0, 0.0, 0.4, 0.4, (np.inf, np.inf)),
        (0.0, 1.0, 0.4, 0.7, (np.inf, 1)),  # never changes: 0.4 + 0.6 / 2
        (0.0, 1.0, 1.2, 1.2, (np.inf, np.inf)),
        (0.0, 1.0, -0.5, 0.5, (1, 1)),
    ],
)
def test_by_hand(p01, p11, subsidy, gain, waits):
    problem = solve(p01, p11, 1.0, subsidy)
    np.testing.assert_allclose(problem.gain, gain, rtol=0, atol=5e-7)
    assert problem.waits.tolist() == list(waits)


def test_gain_is_convex_with_the_passive_share_as_slope():
    """Also for an arm that never changes and for one that alternates."""
    p01, p11 = np.array([(0.2, 0.8), (0.89, 0.17), (0.0, 1.0), (1.0, 0.0), (1e-9, 1 - 1e-9)]).T
    subsidy = np.linspace(-0.1, 1.1, 601)[:, None]
    problem = solve(p01, p11, 1.0, subsidy)
    rise = np.diff(problem.gain, axis=0) / np.diff(subsidy, axis=0)
    share = problem.passive_share
    assert np.all(share[:-1] <= rise + 1e-9)
    assert np.all(rise <= share[1:] + 1e-9)
    np.testing.assert_array_equal(share[[0, -1]], [[0] * 5, [1] * 5])


@pytest.mark.parametrize("order", [1, -1])
def test_active_above_the_threshold(order):
    """Proposition 2 for positively and negatively correlated channels.

    The paper's proof and Fig. 13 put the active set below the threshold; it lies above.
    """
    rng = np.random.default_rng(3)
    p01, p11 = np.sort(rng.uniform(0.02, 0.98, (2, 300)), axis=0)[::order]
    reward = rng.uniform(0.1, 1, 300)
    subsidy = rng.uniform(0.01, 0.99, 300) * reward
    border = threshold(p01, p11, reward, subsidy)
    assert np.all(border.active_above)
    belief = np.linspace(0, 1, 401)[:, None]
    active = solve(p01, p11, reward, subsidy).advantage(belief) > 0
    clear = np.abs(belief - border.belief) > 1e-6
    np.testing.assert_array_equal(active[clear], (belief > border.belief)[clear])
    np.testing.assert_allclose(
        whittle_index(channels(p01, p11, reward), border.belief), subsidy, rtol=0, atol=1e-12
    )


def test_threshold_at_the_ends_of_the_subsidy():
    border = threshold([0.2, 0.8], [0.8, 0.2], 0.7, [[-0.1], [0.7], [0.9]])
    assert border.belief.tolist() == [[0, 0], [1, 1], [1, 1]]
    assert np.all(border.active_above)


@pytest.mark.parametrize("subsidy", [0.1, 0.5, 0.9])
def test_slow_arms_lose_no_precision(subsidy):
    """Against 60 digits, where waits are tens of thousands of slots; frozen in the limit."""
    p01, p11 = 1e-9, 1 - 2e-9
    problem = solve(p01, p11, 1.0, subsidy)
    with localcontext() as context:
        context.prec = 60
        rise, fail, paid = Decimal(p01), 1 - Decimal(p11), Decimal(subsidy)
        memory = 1 - rise - fail

        def gain(wait: int) -> Decimal:
            """k_0 = wait, k_1 = 1."""
            after_bad = rise * (1 - memory**wait) / (rise + fail)
            good = after_bad / (fail + after_bad)
            won = good + (1 - good) * paid * (wait - 1)
            return won / (good + (1 - good) * wait)

        wait = int(problem.waits[0])
        assert problem.waits[1] == 1
        assert float(gain(wait)) == pytest.approx(float(problem.gain), rel=1e-14)
        assert gain(wait) >= max(gain(wait - 1), gain(wait + 1))
    frozen_from_a_third = subsidy + (1 - subsidy) / 3
    assert float(problem.gain) == pytest.approx(frozen_from_a_third, abs=1e-4)
