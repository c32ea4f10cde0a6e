"""Arms that are simulated, for agents without a radio: demonstrations, tests, trials of a server.

Each arm is a Markov chain that moves once a slot, by what was played, and is observed when it is
played or, before that, looked at. Before the first slot the arms were left alone for ever: they
start in the limiting distribution of their passive transitions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rmab.arrays import FloatArray
from rmab.errors import ModelError
from rmab.markov import limiting_distributions
from rmab.model.arms import Arms

__all__ = ["SimulatedArms"]


class SimulatedArms:
    """Arms that move by the dynamics of `arms`, by chance from `seed` on.

    seed: a number or several; the same give the same arms.

    >>> from rmab.model.arms import channels
    >>> SimulatedArms(channels(p01=1.0, p11=1.0, reward=1.0), seed=0).sense([0])
    [1]
    """

    def __init__(self, arms: Arms, seed: int | Sequence[int]) -> None:
        self.arms = arms
        self._random = np.random.default_rng(seed)
        self._each = np.arange(len(arms))
        # Chances of at most each next state, by action, arm and state.
        self._at_most = np.stack([arms.passive, arms.active]).cumsum(-1)
        chances = np.zeros((len(arms), arms.passive.shape[1]))
        for row, arm in zip(chances, arms, strict=True):
            row[: arm.states] = limiting_distributions(arm.passive)
        self._states = self._draw(chances.cumsum(-1))
        self._played = np.zeros(len(arms), np.intp)
        self._moved = True  # whether the states are those of the slot that comes next

    def _draw(self, at_most: FloatArray) -> npt.NDArray[np.intp]:
        """A state of each arm from its chances of at most each state, (N, S)."""
        at_most[..., -1] = 1.0  # whatever the rounding
        return np.asarray((self._random.random(len(at_most))[:, None] >= at_most).sum(-1))

    def look(self, arms: Sequence[int]) -> list[int]:
        """The states that these arms, from 0, are in, before any is played in this slot."""
        for arm in arms:
            if not 0 <= arm < len(self.arms):
                raise ModelError(f"arms must be from 0 to {len(self.arms) - 1}, got {arm}")
        if not self._moved:
            self._states = self._draw(self._at_most[self._played, self._each, self._states])
        self._moved = True
        return [int(self._states[arm]) for arm in arms]

    def sense(self, arms: Sequence[int]) -> list[int]:
        """Play these arms, from 0, for one slot: the states they are in."""
        states = self.look(arms)
        self._moved = False
        self._played = np.zeros(len(self.arms), np.intp)
        self._played[list(arms)] = 1
        return states

    def paid(self) -> float:
        """What the last slot paid in all, also by arms that were not played."""
        rewards = np.where(self._played, self.arms.reward_active.T, self.arms.reward_passive.T)
        return float(rewards[self._states, self._each].sum())
