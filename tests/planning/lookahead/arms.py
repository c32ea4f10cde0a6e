"""Arms that the lookahead is tested on."""

import numpy as np

from rmab.model.arms import Arm, Arms, channels

PAPER = channels([0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16], [0.4, 0.9, 0.7, 0.6])
POOR = channels([0.13, 0.26, 0.77, 0.57], [0.13, 0.44, 0.48, 0.19], [0.81, 0.38, 0.57, 0.66])


def random_arm(rng: np.random.Generator, states: int, observed: str) -> Arm:
    passive, active = rng.dirichlet(np.ones(states), (2, states))
    return Arm(
        passive,
        active,
        reward_active=rng.normal(size=states),
        reward_passive=rng.normal(size=states),
        observed=observed,
    )


def some_channels(n_arms: int, seed: int) -> Arms:
    p01, p11, reward = np.random.default_rng(seed).uniform(0.05, 0.95, (3, n_arms))
    return channels(p01, p11, reward)


def mixed(seed: int) -> Arms:
    rng = np.random.default_rng(seed)
    kinds = [(2, "when_played"), (3, "when_played"), (2, "always"), (3, "always")]
    picked = rng.permutation(4)[:3]
    return Arms(random_arm(rng, *kinds[kind]) for kind in picked)


def hidden(seed: int) -> Arms:
    rng = np.random.default_rng(seed)
    return Arms(random_arm(rng, states, "when_played") for states in (3, 2, 3, 2))
