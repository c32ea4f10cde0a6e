"""The blocks of DSEE, one after another from the first slot, by a loop."""

import math


def dsee_block(
    slot: int, n_arms: int, plays: int, agents: float, exploration: float
) -> tuple[set[int] | None, int]:
    """The arms explored in that slot, None: none are; and the slots to the end of it."""
    now, explorations, exploitations = 0, 0, 0
    while True:
        explored = (4**explorations - 1) / 3
        if now and explored * agents > exploration * math.log(now):
            length = 2 * 4**exploitations
            if slot < now + length:
                return None, now + length - slot
            exploitations += 1
            now += length
        else:
            for first in range(0, n_arms, plays):
                if slot < now + 4**explorations:
                    group = {(first + i) % n_arms for i in range(plays)}
                    return group, now + 4**explorations - slot
                now += 4**explorations
            explorations += 1
