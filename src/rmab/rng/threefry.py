"""Threefry-2x32, the generator of every random number, on NumPy and JAX alike.

A number is a function of (key, counter): the key names the seed, the trial and the purpose, the
counter the slot and arm or the episode and parameter. Thirteen rounds are the fewest that its
authors found to pass TestU01's BigCrush. The variates drawn from it are in `rmab.rng.variates`,
which needs JAX; this module imports only NumPy.

Reference: J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rmab.arrays import Array, Float, UInt32, WordArray
from rmab.linalg import array_namespace

__all__ = ["CHANNELS", "DRAWS", "EXPERTS", "PLAYS", "Key", "stream", "threefry", "unit", "words_of"]

ROUNDS = 13
ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)

# Purposes of streams of numbers.
CHANNELS, DRAWS, PLAYS, EXPERTS = 0, 1, 2, 3


class Key(NamedTuple):
    """Two words that name a stream."""

    high: UInt32[Array, "*B"]
    low: UInt32[Array, "*B"]


def threefry(key: Key, high: Array, low: Array, rounds: int = ROUNDS) -> tuple[Array, Array]:
    """Return two 32-bit words for each (key, counter); all arguments broadcast."""
    word = array_namespace(*key, high, low).uint32
    with np.errstate(over="ignore"):  # NumPy's scalars would warn where its arrays do not
        schedule = (key.high, key.low, key.high ^ key.low ^ word(0x1BD11BDA))
        x, y = high + schedule[0], low + schedule[1]
        for i in range(rounds):
            turn = ROTATIONS[i % 8]
            x = x + y
            y = ((y << turn) | (y >> (32 - turn))) ^ x
            if i % 4 == 3:
                step = i // 4 + 1
                x = x + schedule[step % 3]
                y = y + schedule[(step + 1) % 3] + word(step)
    return x, y


def stream(seed: UInt32[Array, 2], trial: Array, lane: Array, purpose: int) -> Key:
    """Return the key of a trial's stream; lanes (agents) and purposes never share numbers.

    seed has the words of `words_of`; trial and lane broadcast.
    """
    xp = array_namespace(seed, trial, lane)
    which = xp.asarray(lane, xp.uint32) * xp.uint32(4) + xp.uint32(purpose)
    return Key(*threefry(Key(seed[0], seed[1]), xp.asarray(trial, xp.uint32), which, rounds=20))


def unit(word: UInt32[Array, "*B"]) -> Float[Array, "*B"]:
    """Return a float32 uniform on the open interval (0, 1) from a 32-bit word."""
    single = array_namespace(word).float32
    return ((word >> 9).astype(single) + 0.5) * single(2.0**-23)


def words_of(seed: int) -> UInt32[WordArray, 2]:
    """Return a seed of up to 64 bits as the two words `stream` takes."""
    return np.array([seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF], np.uint32)
