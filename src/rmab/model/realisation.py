"""True states of arms on NumPy: realisations of the engine's trials, and arms to play with.

A realisation is named by a seed, the number of a trial and a lane: an agent's number, or 0 where
all agents share one. A state moves by comparing one 24-bit number w, Threefry of the realisation,
the slot and the arm, with the chances of reaching at least each state,

    next state = the number of j >= 1 with  w < 2^24 Pr(next >= j | state, action).

Nothing else is random, so the engine (`rmab.engine.environment`, the same for many trials in JAX)
and `RealisedArms` are in the same states in every slot.

`SimulatedArms` are arms for agents without a radio, in demonstrations and tests of a server. They
draw from NumPy's generator. Both start in the limiting distribution under passivity.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rmab.arrays import Bool, BoolArray, Float, FloatArray, Int, IntArray, UInt32, WordArray
from rmab.errors import ModelError
from rmab.markov import limiting_distribution, limiting_distributions
from rmab.model.arms import Arms
from rmab.rng.threefry import CHANNELS, Key, stream, threefry, words_of

__all__ = [
    "BEFORE",
    "BITS",
    "RealisedArms",
    "SimulatedArms",
    "chance_levels",
    "starting_chances",
]

BITS = 24  # transition probabilities are compared as whole numbers of 2^-24
BEFORE = 0xFFFFFFFF  # counter of the draw of the state before the first slot
_WORDS = 1 << 16  # random numbers made at once


def chance_levels(chances: Float[FloatArray, "*B S"]) -> UInt32[WordArray, "*B S-1"]:
    """Convert chances of each next state to chances of state >= 1, 2, ... in units of 2^-24."""
    at_least = chances[..., ::-1].cumsum(-1)[..., ::-1][..., 1:]
    return np.round(at_least * 2.0**BITS).astype(np.uint32)


def starting_chances(arms: Arms) -> Float[FloatArray, "N S"]:
    """Return the limiting distributions under passivity, of the state before the first slot."""
    rest = np.zeros(arms.passive.shape[:2])
    for row, arm in zip(rest, arms, strict=True):
        row[: arm.states] = limiting_distribution(arm.passive)
    return rest


class RealisedArms:
    """Arms in R trials of a seed and L lanes each.

    Attribute `states` is (R, L, N), those of the next slot, and `slot` its number, from 0.
    Parameter `each` has the arms of each lane, where they differ.

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

    def move(self, played: Bool[BoolArray, "R L N"]) -> None:
        """Move to the next slot, after these arms were played in this one."""
        self.slot += 1
        each = np.arange(self.n_arms)
        levels = self._levels[self._lane, played.astype(np.intp), each, self.states]
        self.states = self._reached(self._numbers(), levels)

    @staticmethod
    def _reached(
        words: UInt32[WordArray, "R L N"], levels: UInt32[WordArray, "... N _"]
    ) -> Int[IntArray, "R L N"]:
        """Return the states that random words reach."""
        reached = (words >> np.uint32(32 - BITS))[..., None] < levels
        return np.asarray(reached.sum(-1))

    def _numbers(self) -> UInt32[WordArray, "R L N"]:
        """Return the random words of this slot, which are made for several slots at once."""
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


class SimulatedArms:
    """Arms that move at random by the dynamics of `arms`, and are observed when played.

    Equal seeds, a number or several, give equal arms.

    >>> from rmab.model.arms import channels
    >>> SimulatedArms(channels(p01=1.0, p11=1.0, reward=1.0), seed=0).sense([0])
    [1]
    """

    def __init__(self, arms: Arms, seed: int | Sequence[int]) -> None:
        self.arms = arms
        self._random = np.random.default_rng(seed)
        self._each = np.arange(len(arms))
        # Distribution functions of the next state, by action, arm and state.
        self._at_most = np.stack([arms.passive, arms.active]).cumsum(-1)
        chances = np.zeros((len(arms), arms.passive.shape[1]))
        for row, arm in zip(chances, arms, strict=True):
            row[: arm.states] = limiting_distributions(arm.passive)
        self._states = self._draw(chances.cumsum(-1))
        self._played = np.zeros(len(arms), np.intp)
        self._moved = True  # whether the states are those of the slot that comes next

    def _draw(self, at_most: Float[FloatArray, "N S"]) -> Int[IntArray, " N"]:
        """Draw a state of each arm from its distribution function."""
        at_most[..., -1] = 1.0  # whatever the rounding
        return np.asarray((self._random.random(len(at_most))[:, None] >= at_most).sum(-1))

    def look(self, arms: Sequence[int]) -> list[int]:
        """Return the states of these arms, numbered from 0, before any is played in this slot."""
        for arm in arms:
            if not 0 <= arm < len(self.arms):
                raise ModelError(f"arms must be from 0 to {len(self.arms) - 1}, got {arm}")
        if not self._moved:
            self._states = self._draw(self._at_most[self._played, self._each, self._states])
        self._moved = True
        return [int(self._states[arm]) for arm in arms]

    def sense(self, arms: Sequence[int]) -> list[int]:
        """Play these arms, numbered from 0, for one slot and return their states."""
        states = self.look(arms)
        self._moved = False
        self._played = np.zeros(len(self.arms), np.intp)
        self._played[list(arms)] = 1
        return states

    def paid(self) -> float:
        """Return the total reward of the last slot, also of arms that were not played."""
        rewards = np.where(self._played, self.arms.reward_active.T, self.arms.reward_passive.T)
        return float(rewards[self._states, self._each].sum())
