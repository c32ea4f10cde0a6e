"""Surveys: slots with scheduled plays, the only ones whose pairs are counted for others.

An agent's log begins with a survey of n slots, with plays by a schedule: K arms for a block of
slots, then the next K. It reports pairs of readings in these slots only. After the survey it plays
by everything that it observed.

So no reading decides which slots are reported: if one slot had shown another state, the reported
counts would differ as those of two logs with the same plays (docs/privacy.md).
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
    """Return the arms that are played in a slot of a survey, a mask (N, ...).

    slot: from 0; turn: (...), the block at which an agent begins; plays: K.
    """
    block = slot // BLOCK + turn
    arm = np.arange(n_arms).reshape(n_arms, *(1,) * np.ndim(block))
    return (arm - block * plays) % n_arms < plays


def first_turn(incarnation: str) -> int:
    """Return the block at which an incarnation begins, so that agents begin at different arms."""
    return crc32(incarnation.encode())
