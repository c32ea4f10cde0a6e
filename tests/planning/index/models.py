"""Arms for tests of indices: many of one size at once, and one as an `Arm`."""

import numpy as np

from rmab.model.arms import Arm
from rmab.planning.index.hidden import information_table
from rmab.planning.index.parametric import Models


def random_models(seed, S, B, spread=1.0):
    rng = np.random.default_rng(seed)
    matrices = np.moveaxis(rng.dirichlet(np.full(S, spread), (2, B, S)), 1, -1)
    return Models(*matrices, *rng.normal(size=(2, S, B)))


def degenerate_models(seed, S, B):
    """Frozen, swinging, absorbing, equal and nearly such rows."""
    rng = np.random.default_rng(seed)

    def matrix():
        whole = np.eye(S)
        kinds = [
            whole,
            whole[rng.permutation(S)],
            whole[rng.integers(0, S, S)],
            np.tile(rng.dirichlet(np.ones(S)), (S, 1)),
            rng.dirichlet(np.full(S, 0.02), S),
            rng.dirichlet(np.ones(S), S),
        ]
        return kinds[rng.integers(len(kinds))]

    matrices = np.stack([[matrix() for _ in range(B)] for _ in range(2)])
    rewards = rng.integers(-1, 2, (2, S, B)).astype(float)
    return Models(*np.moveaxis(matrices, 1, -1), *rewards)


def seen(passive, active, reward_passive, reward_active) -> Arm:
    """An arm whose state is seen before each choice."""
    return Arm(
        passive,
        active,
        reward_passive=reward_passive,
        reward_active=reward_active,
        observed="always",
    )


def arm_of(models, b, observed="when_played"):
    passive, active, unpaid, paid = (array[..., b] for array in models)
    return Arm(passive, active, reward_passive=unpaid, reward_active=paid, observed=observed)


def table_of(models, max_age):
    passive, active, unpaid, paid = models
    return information_table(passive, active, unpaid, paid, max_age)
