"""The paper's guarantees for learning, worked out by hand."""

import numpy as np
import pytest

from rmab.learning.bounds import episode_bound, regret_bound


def test_episode_bound_by_hand():
    """Eq. (24): sqrt(4 * 4 * 1000 * 2 / (2 * 4) * ln 1001) = sqrt(4000 * 6.9087548)."""
    assert episode_bound(4, 4, 2, 1000) == pytest.approx(166.23784, abs=1e-4)
    # sqrt(4 * 3 * 99 * 5 / (1 * 2) * ln 100) = sqrt(2970 * 4.6051702)
    assert episode_bound(2, 3, 1, 99, n_states=5) == pytest.approx(116.95024, abs=1e-4)


def test_regret_bound_by_hand():
    """Eq. (25) with D = 3: 4 * 4 * 166.23784 + 49 * 3 * sqrt(1000 * ln 2000) * 4 * 2."""
    wanted = 4 * 4 * 166.23784 + 49 * 3 * 87.183145 * 8
    assert regret_bound(4, 4, 2, 1000, span=3.0) == pytest.approx(wanted, rel=1e-6)
    # three states: first part by sqrt(3 / 2), second by 3 / 2
    wanted = 4 * 4 * 166.23784 * np.sqrt(1.5) + 49 * 3 * 87.183145 * 12
    assert regret_bound(4, 4, 2, 1000, span=3.0, n_states=3) == pytest.approx(wanted, rel=1e-6)


def test_bounds_take_arrays_of_horizons():
    horizon = np.array([[10, 100], [1000, 10_000]])
    for bound, alone in [
        (episode_bound(4, 4, 2, horizon), episode_bound(4, 4, 2, 1000)),
        (regret_bound(4, 4, 2, horizon, 1.0), regret_bound(4, 4, 2, 1000, 1.0)),
    ]:
        assert bound.shape == (2, 2)
        assert bound[1, 0] == alone
