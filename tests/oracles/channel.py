"""One channel with a subsidy for every slot it is left alone, in plain ways."""

import numpy as np

from rmab.model.arms import Dynamics
from rmab.planning.channel.subsidy import solve


def bisected_index(dynamics: Dynamics, belief: np.ndarray) -> np.ndarray:
    """The subsidy at which both actions are equally good, by bisection on the solved problem."""
    low, high = -1e-3 + 0 * belief, 1 + 1e-3 + 0 * belief
    for _ in range(50):
        subsidy = (low + high) / 2
        active = solve(*dynamics, subsidy).advantage(belief) > 0
        low, high = np.where(active, subsidy, low), np.where(active, high, subsidy)
    return (low + high) / 2


def iterated_advantage(
    p01: np.ndarray, p11: np.ndarray, subsidy: np.ndarray, max_age: int
) -> np.ndarray:
    """Q(active) - Q(passive) in (last seen, age): (problems, 2, max_age).

    Relative value iteration over information states, eq. (27) for the beliefs and eq. (18) for
    the values, each step half taken so that periodic policies converge. Ages stop at max_age.
    """
    beliefs = [np.stack([p01, p11], axis=-1)]  # (problems, 2)
    for _ in range(max_age - 1):
        beliefs.append(beliefs[-1] * p11[:, None] + (1 - beliefs[-1]) * p01[:, None])
    good = np.stack(beliefs, axis=-1)
    value = np.zeros_like(good)
    for _ in range(30_000):
        fresh = value[:, :, :1]  # (problems, 2, 1)
        active = good + good * fresh[:, 1:] + (1 - good) * fresh[:, :1]
        older = np.concatenate([value[:, :, 1:], value[:, :, -1:]], axis=-1)
        passive = subsidy[:, None, None] + older
        step = np.maximum(active, passive) - value
        if np.ptp(step, axis=(1, 2)).max() < 1e-9:
            return np.asarray(active - passive)
        value = value + step / 2
        value -= value[:, :1, :1]
    raise AssertionError("relative value iteration did not converge")
