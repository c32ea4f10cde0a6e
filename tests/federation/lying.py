"""Uploads that are possible and not true."""

from __future__ import annotations

import numpy as np

from rmab.federation.messages import Shape, Upload


def lie(
    shape: Shape,
    slots: int,
    p01: list[float],
    p11: list[float],
    *,
    sequence: int = 1,
    round: int = 1,
    length: int = 1,
    incarnation: str = "f" * 32,
) -> Upload:
    """Counts of channels that move as a liar likes, from looks in consecutive slots.

    The arms are played K at a time, one group after another, each in an equal part of the slots.
    """
    N, K = shape.n_arms, shape.plays
    looks = slots // -(-N // K)  # of each arm
    counts = np.zeros((shape.kinds, 2, 2, N), np.int64)
    visits = np.zeros((2, N), np.int64)
    for n in range(N if looks else 0):
        # A sequence that begins and ends in state 0 enters and leaves state 1 equally often.
        good = p01[n] / (1 - p11[n] + p01[n])
        in_1 = min(looks - 1, round_half(looks * good))
        moves = min(in_1, looks - 1 - in_1, round_half(in_1 * (1 - p11[n]))) if in_1 else 0
        moves = max(moves, 1) if in_1 else 0
        counts[0, :, :, n] = [[looks - 1 - in_1 - moves, moves], [moves, in_1 - moves]]
        visits[:, n] = looks - in_1, in_1
    return Upload(incarnation, sequence, round, slots, min(length, slots), counts, visits)


def round_half(x: float) -> int:
    """To the next whole number; `round` is taken."""
    return int(np.floor(x + 0.5))
