"""The joint optimum of a few channels with ages cut, in plain loops over joint states."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np


def channel_rows(p01: float, p11: float, ages: int) -> dict[tuple[int, int], float]:
    """The chance of good in every information state (s, age); (0, 0) is never observed."""
    rows = {(0, 0): p01 / (1 - p11 + p01)}
    for s in (0, 1):
        chance = p11 if s else p01
        for age in range(1, ages + 1):
            rows[s, age] = chance
            chance = p01 + (p11 - p01) * chance
    return rows


def plain_joint_plan(
    ends: list[list[dict[tuple[int, int], float]]],
    rewards: list[tuple[float, float]],
    plays: int,
    ages: int,
    sweeps: int = 200,
) -> tuple[float, dict[tuple[tuple[int, int], ...], list[float]]]:
    """The gain, and what each set of arms is worth in every joint state.

    ends: of each arm one or two tables of chances, of which the best is taken; rewards: bad, good.
    """
    single = [(0, 0), *((s, age) for s in (0, 1) for age in range(1, ages + 1))]
    states = list(product(single, repeat=len(ends)))
    sets = list(combinations(range(len(ends)), plays))

    def aged(row: tuple[int, int]) -> tuple[int, int]:
        return row if row == (0, 0) else (row[0], min(row[1] + 1, ages))

    def worth(state, played, value) -> float:
        corners = []
        for tables in product(*(ends[n] for n in played)):
            total = 0.0
            for shown in product((0, 1), repeat=plays):
                chance, pays, after = 1.0, 0.0, [aged(row) for row in state]
                for n, table, s in zip(played, tables, shown, strict=True):
                    good = table[state[n]]
                    chance *= good if s else 1 - good
                    pays += rewards[n][s]
                    after[n] = (s, 1)
                total += chance * (pays + value[tuple(after)])
            corners.append(total)
        return max(corners)

    value = dict.fromkeys(states, 0.0)
    gains = [0.0]
    for _ in range(sweeps):
        best = {x: max(worth(x, played, value) for played in sets) for x in states}
        gains = [best[x] - value[x] for x in states]
        value = {x: value[x] + 0.8 * (best[x] - value[x]) for x in states}
        base = value[states[0]]
        value = {x: v - base for x, v in value.items()}
    assert np.ptp(gains) < 1e-6
    return float(np.mean(gains)), {x: [worth(x, p, value) for p in sets] for x in states}
