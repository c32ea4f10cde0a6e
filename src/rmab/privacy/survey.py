"""Surveys: slots whose plays depend on nothing that an agent saw, and of which sums are made.

An agent's log begins with a survey of n slots. In them it plays by a schedule of slots only, K arms
for a block of slots and then the next K; pairs of readings of these slots are given to others, and
nothing else ever is. After the survey it plays as it likes, by all that it saw.

So no reading decides what is counted for others: after any change of what one slot showed, the
counts that are given differ as those of two logs with the same plays, whatever else the agent does
(docs/privacy.md).
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np

from rmab.linalg import Array

__all__ = ["BLOCK", "MOST_SLOTS", "first_turn", "scheduled"]

BLOCK = 8  # slots in which the same arms are played: all except the first make pairs of gap 1
MOST_SLOTS = 10**6


def scheduled(slot: Array | int, turn: Array | int, n_arms: int, plays: Array | int) -> Any:
    """The arms that are played in a slot of a survey, a mask (N, ...).

    slot: from 0; turn: (...), at which block an agent begins; plays: K.
    """
    block = slot // BLOCK + turn
    arm = np.arange(n_arms).reshape(n_arms, *(1,) * np.ndim(block))
    return (arm - block * plays) % n_arms < plays


def first_turn(incarnation: str) -> int:
    """Return the block at which an incarnation begins, so that agents begin at different arms."""
    return crc32(incarnation.encode())
