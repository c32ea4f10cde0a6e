"""Arms that the exact values are tested on, and what a planner earns on channels."""

from typing import Any

import numpy as np

from rmab.model.arms import Arm, Arms, channels
from rmab.planning.joint.policy_value import policy_value
from rmab.planning.tables import Planner, index_table

PAPER = channels([0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16], [0.4, 0.9, 0.7, 0.6])
POOR = channels([0.13, 0.26, 0.77, 0.57], [0.13, 0.44, 0.48, 0.19], [0.81, 0.38, 0.57, 0.66])
EIGHT = channels(
    [0.1, 0.2, 0.5, 0.5, 0.1, 0.2, 0.7, 0.9], [0.4, 0.1, 0.2, 0.8, 0.7, 0.8, 0.5, 0.8], 1.0
)
# What never changes (0, 1), changes in every slot (1, 0), ends bad (0, .5) or ends good (.5, 1).
FROZEN, SWINGING, ENDS_BAD, ENDS_GOOD = (0, 1), (1, 0), (0, 0.5), (0.5, 1)
IDENTITY, SWAP = [[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]


def arms_of(*pairs: tuple[float, float], reward: float | list[float] = 1.0) -> Arms:
    p01, p11 = zip(*pairs, strict=True)
    return channels(p01, p11, reward)


def random_arms(n_arms: int, seed: int) -> Arms:
    """Arms that forget fast enough for small chains."""
    p01, p11, reward = np.random.default_rng(seed).uniform(0.1, 0.9, (3, n_arms))
    return channels(p01, (p01 + p11) / 2, reward)


def fast_arm(rng: np.random.Generator, states: int, observed: str) -> Arm:
    """Forgets to 1e-9 within a dozen slots; moves and pays differently when left alone."""
    moves = 0.15 * rng.dirichlet(np.ones(states), (2, states)) + 0.85 * rng.dirichlet(
        np.ones(states), (2, 1)
    )
    pays = rng.normal(size=(2, states))
    return Arm(*moves, reward_passive=pays[0], reward_active=pays[1], observed=observed)


def arms_like(seed: int, *kinds: tuple[int, str]) -> Arms:
    rng = np.random.default_rng(seed)
    return Arms(fast_arm(rng, states, observed) for states, observed in kinds)


def always(passive: Any, active: Any = None, **rewards: Any) -> Arm:
    return Arm(passive, active, observed="always", **rewards)


MIXED = arms_like(5, (3, "when_played"), (2, "always"), (2, "when_played"))
# Arms that never forget, end somewhere, move only when played, or come back with a period.
ODD = {
    "frozen": always(IDENTITY, reward=[0, 1]),
    "frozen, restarted": always(IDENTITY, [[0.5, 0.5]] * 2, reward=[-0.1, 0.4]),
    "frozen, hidden": Arm(IDENTITY, reward=[0, 1]),
    "swaps": always(SWAP, reward=[0, 1]),
    "swaps, hidden": Arm(SWAP, IDENTITY, reward=[0, 1], reward_passive=[0.1, 0]),
    "wears out": always([[0.7, 0.3], [0, 1]], [[1, 0], [1, 0]], reward_passive=[0.8, 0]),
    "ends": always([[1, 0, 0], [0, 1, 0], [0.2, 0.2, 0.6]], reward=[0.2, 0.9, 0.5]),
    "ends, hidden": Arm(
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0]],
        [[0, 0, 1], [0, 1, 0], [0, 0, 1]],
        reward=[0, 0.6, 0.5],
    ),
    "turns": Arm(np.roll(np.eye(3), 1, 1), reward=[1, 0, 0]),
}
SIMULATED = [
    (MIXED, 1),
    (MIXED, 2),
    (Arms([*MIXED, ODD["wears out"], ODD["swaps, hidden"]]), 2),
    (Arms([ODD["frozen, hidden"], ODD["turns"], MIXED[0]]), 1),
]


def odd_arm(rng: np.random.Generator) -> Arm:
    """Many zeros: classes that are never left, periods, states that are met once. Hidden states
    move for sure when left alone, so that beliefs repeat."""
    states = int(rng.integers(2, 4))
    always_seen = bool(rng.integers(2))
    moves = rng.random((2, states, states)) * (rng.random((2, states, states)) < 0.5)
    certain = np.eye(states)[rng.integers(states, size=(2, states))]
    moves = np.where(moves.sum(-1, keepdims=True) > 0, moves, certain)
    if not always_seen:
        moves[0] = certain[0]
    return Arm(
        *(moves / moves.sum(-1, keepdims=True)),
        reward_passive=rng.integers(0, 3, states) / 4,
        reward_active=rng.integers(0, 4, states) / 2,
        observed="always" if always_seen else "when_played",
    )


def earned(arms: Arms, plays: int, planner: Planner, **limits: int) -> float:
    """What a planner for channels earns."""
    return policy_value(arms, plays, lambda age: index_table(planner, arms, age), **limits)
