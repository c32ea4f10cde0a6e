"""The joint optimum of a few channels with ages cut, in plain loops over joint states, and coloured
UCRL2, which plays by it."""

from __future__ import annotations

import math
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
    accuracy: float = 1e-6,
) -> tuple[float, dict[tuple[tuple[int, int], ...], list[float]]]:
    """The gain, and what each set of arms is worth in every joint state.

    ends: of each arm one or two tables of chances, of which the best is taken; rewards: bad, good;
    accuracy: of the gain.
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
    gains = [-np.inf, np.inf]
    while max(gains) - min(gains) > accuracy:
        best = {x: max(worth(x, played, value) for played in sets) for x in states}
        gains = [best[x] - value[x] for x in states]
        value = {x: value[x] + 0.9 * (best[x] - value[x]) for x in states}
        base = value[states[0]]
        value = {x: v - base for x, v in value.items()}
    return float(np.mean(gains)), {x: [worth(x, p, value) for p in sets] for x in states}


def plain_coloured_ucrl2(
    states: np.ndarray, rewards: list[tuple[float, float]], plays: int, ages: int, scale: float
) -> tuple[np.ndarray, list[int]]:
    """Arms played in each slot, (slots, K), and lengths of episodes, of one agent and channels that
    are in states (slots, N)."""
    n_arms = states.shape[1]
    sets = list(combinations(range(n_arms), plays))
    single = [(0, 0), *((s, age) for s in (0, 1) for age in range(1, ages + 1))]
    counts = {(n, row): [0, 0] for n in range(n_arms) for row in single[1:]}
    rows: list[tuple[int, int]] = [(0, 0)] * n_arms
    played, lengths = [], []
    worths: dict[tuple[tuple[int, int], ...], list[float]] = {}
    before: dict[tuple[int, tuple[int, int]], int] = {}
    length, over = 0, True
    for slot, now in enumerate(states):
        if over:
            lengths += [length] if slot else []
            before, length, over = {c: sum(seen) for c, seen in counts.items()}, 0, False
            level = math.log(4 * len(counts) * (slot + 1) / 0.001)
            lower = [{(0, 0): 0.0} for _ in range(n_arms)]
            upper = [{(0, 0): 1.0} for _ in range(n_arms)]
            for (n, row), (bad, good) in counts.items():
                seen = bad + good
                half = scale / 2 * math.sqrt(56 * 2 * level / seen) if seen else 1
                lower[n][row] = max(good / seen - half, 0) if seen else 0.0
                upper[n][row] = min(good / seen + half, 1) if seen else 1.0
            ends = [list(pair) for pair in zip(lower, upper, strict=True)]
            most = max(max(pair) for pair in rewards)
            _, worths = plain_joint_plan(ends, rewards, plays, ages, most / math.sqrt(slot + 1))
        worth = worths[tuple(rows)]
        chosen = sets[worth.index(max(worth))]
        played.append(chosen)
        for n in range(n_arms):
            if n not in chosen:
                rows[n] = rows[n] if rows[n] == (0, 0) else (rows[n][0], min(rows[n][1] + 1, ages))
                continue
            if rows[n] != (0, 0):
                seen_now = counts[n, rows[n]]
                seen_now[now[n]] += 1
                used = sum(seen_now) - before[n, rows[n]]
                over = over or used >= max(1, before[n, rows[n]])
            rows[n] = (int(now[n]), 1)
        length += 1
    return np.array(played), lengths
