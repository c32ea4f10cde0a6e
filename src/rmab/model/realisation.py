"""The true states of the engine's trials, on NumPy: arms as a player outside the engine meets them.

A realisation is named by a seed, the number of a trial and a lane: an agent's number, or 0 where
all agents share one. A state moves by comparing one 24-bit number w, Threefry of the realisation,
the slot and the arm, with the chances of reaching at least each state,

    next state = how many j >= 1 have  w < 2^24 Pr(next >= j | state, action).

Nothing else is random, so the engine (`rmab.engine.environment`, the same for many trials in JAX)
and the arms here are in the same states in every slot, whoever plays them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rmab.arrays import FloatArray, WordArray
from rmab.markov import limiting_distribution
from rmab.model.arms import Arms
from rmab.rng.threefry import CHANNELS, Key, stream, threefry, words_of

__all__ = ["BEFORE", "BITS", "RealisedArms", "chance_levels", "starting_chances"]

BITS = 24  # transition probabilities are compared as whole numbers of 2^-24
BEFORE = 0xFFFFFFFF  # the counter of the draw of the state before the first slot
_WORDS = 1 << 16  # random numbers made at once, of as many slots as that


def chance_levels(chances: FloatArray) -> WordArray:
    """Chances (..., S) of each next state to (..., S - 1): of state >= 1, 2, ... in units of
    2^-24."""
    at_least = chances[..., ::-1].cumsum(-1)[..., ::-1][..., 1:]
    return np.round(at_least * 2.0**BITS).astype(np.uint32)


def starting_chances(arms: Arms) -> FloatArray:
    """(N, S) of the state before the first slot: the limiting distribution under passivity."""
    rest = np.zeros(arms.passive.shape[:2])
    for row, arm in zip(rest, arms, strict=True):
        row[: arm.states] = limiting_distribution(arm.passive)
    return rest


class RealisedArms:
    """Arms in R trials of a seed and L lanes each; each: the arms of each lane, where they differ.

    states: (R, L, N) in the slot that comes next; slot: its number, from 0.

    >>> from rmab.model.arms import channels
    >>> RealisedArms(channels(p01=1.0, p11=1.0, reward=1.0), 0, [0], [0]).states.tolist()
    [[[1]]]
    """

    def __init__(
        self,
        arms: Arms,
        seed: int,
        trials: Sequence[int],
        lanes: Sequence[int] = (0,),
        each: Sequence[Arms] = (),
    ) -> None:
        self.n_arms = len(arms)
        moves = [np.stack([own.passive, own.active]) for own in each or [arms]]
        self._levels = chance_levels(np.stack(moves))  # (L or 1, 2, N, S, S - 1)
        self._lane = np.arange(len(moves))[:, None]
        trial = np.asarray(trials, np.uint32)[:, None]
        self._key = stream(words_of(seed), trial, np.asarray(lanes, np.uint32), CHANNELS)  # (R, L)
        self._first, self._words = 0, np.zeros((0, 0), np.uint32)  # the slot of the first words
        key = Key(*(word[..., None] for word in self._key))
        before = threefry(key, np.uint32(BEFORE), np.arange(self.n_arms, dtype=np.uint32))[0]
        rest = chance_levels(np.stack([starting_chances(own) for own in each or [arms]]))
        self.states = self._reached(before, rest)
        self.slot = -1
        self.move(np.zeros(self.states.shape, bool))

    def move(self, played: npt.NDArray[np.bool_]) -> None:
        """The states of the next slot, after these arms (R, L, N) were played in this one."""
        self.slot += 1
        each = np.arange(self.n_arms)
        levels = self._levels[self._lane, played.astype(np.intp), each, self.states]
        self.states = self._reached(self._numbers(), levels)

    @staticmethod
    def _reached(words: WordArray, levels: WordArray) -> npt.NDArray[np.int64]:
        """words: (R, L, N); levels: (..., L or 1, N, S - 1)."""
        reached = (words >> np.uint32(32 - BITS))[..., None] < levels
        return np.asarray(reached.sum(-1))

    def _numbers(self) -> WordArray:
        """The numbers (R, L, N) of this slot; some slots' are made at once."""
        if not self._first <= self.slot < self._first + len(self._words):
            half = (self.n_arms + 1) // 2  # a call gives two words, for two arms
            size = self._key.high.size * half
            slots = np.arange(self.slot, self.slot + max(1, _WORDS // size), dtype=np.uint32)
            arm = np.arange(half, dtype=np.uint32)
            high, low = threefry(self._key_of_slots, slots[:, None, None, None], arm)
            self._first, self._words = self.slot, np.concatenate([high, low], -1)
        return self._words[self.slot - self._first, ..., : self.n_arms]

    @property
    def _key_of_slots(self) -> Key:
        return Key(*(word[None, :, :, None] for word in self._key))
