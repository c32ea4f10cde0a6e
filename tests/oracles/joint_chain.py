"""Joint chains of several arms, written down state by state, and their linear programmes.

Slow and plain: nothing here is shared with `rmab.planning.joint`.
"""

from itertools import combinations, product
from typing import Any

import numpy as np
from scipy.linalg import block_diag
from scipy.optimize import linprog

from rmab.markov import limiting_distribution
from rmab.model.arms import Arm, Arms
from rmab.model.information import stationary_belief


class Plain:
    """One arm from what an arm is; past the cap ages fall back. A row is a state, or None for
    never seen, or (last seen, age)."""

    def __init__(self, arm: Arm, cap: int, fold: int) -> None:
        self.arm, self.cap, self.fold = arm, cap, fold
        self.seen = arm.observed == "always"
        law = limiting_distribution(arm.passive)
        self.start = {s: p for s, p in enumerate(law) if p > 0} if self.seen else {None: 1.0}

    def belief(self, row: Any) -> Any:
        if self.seen:
            return np.eye(self.arm.states)[row]
        if row is None:
            return limiting_distribution(self.arm.passive)
        return self.arm.active[row[0]] @ np.linalg.matrix_power(self.arm.passive, row[1] - 1)

    def step(self, row: Any, played: bool) -> tuple[float, dict[Any, float]]:
        belief = self.belief(row)
        reward = belief @ (self.arm.reward_active if played else self.arm.reward_passive)
        if self.seen:
            chances = (self.arm.active if played else self.arm.passive)[row]
            return reward, {s: p for s, p in enumerate(chances) if p > 0}
        if played:
            return reward, {(s, 1): p for s, p in enumerate(belief) if p > 0}
        if row is None:
            return reward, {None: 1.0}
        age = row[1] + 1 if row[1] < self.cap else self.cap + 1 - self.fold
        return reward, {(row[0], age): 1.0}


def product_law(laws: list[dict[Any, float]]) -> dict[Any, float]:
    return {
        tuple(row for row, _ in joint): float(np.prod([p for _, p in joint]))
        for joint in product(*(law.items() for law in laws))
    }


def long_run(start: dict[Any, float], steps: Any) -> tuple[Any, Any, Any, Any]:
    """The equations of Hordijk and Kallenberg over the shares x and y of all (row, choice) pairs:
    matrix, right-hand side, rewards and choices. steps: row -> [(choice, reward, law ahead)]."""
    place: dict[Any, int] = {}
    pairs, todo = [], list(start)
    while todo:
        row = todo.pop()
        if row not in place:
            place[row] = len(place)
            for choice, reward, after in steps(row):
                pairs.append((row, choice, reward, after))
                todo.extend(after)
    R, C = len(place), len(pairs)
    balance, here, first = np.zeros((R, C)), np.zeros((R, C)), np.zeros(R)
    for j, (row, _, _, after) in enumerate(pairs):
        here[place[row], j] = 1
        for target, chance in after.items():
            balance[place[target], j] -= chance
    balance += here
    for row, chance in start.items():
        first[place[row]] = chance
    matrix = np.block([[balance, np.zeros((R, C))], [here, balance]])
    rewards = np.append([reward for _, _, reward, _ in pairs], np.zeros(C))
    choices = np.append([choice for _, choice, _, _ in pairs], np.zeros(C))
    return matrix, np.append(np.zeros(R), first), rewards, choices


def maximum(rewards: Any, matrix: Any, sides: Any) -> float:
    solved = linprog(-rewards, A_eq=matrix, b_eq=sides)
    assert solved.fun is not None, solved.message
    return -float(solved.fun)


def plain_optimum(arms: Arms, plays: int, cap: int, fold: int = 1) -> float:
    """The optimum of the joint chain, one state after another."""
    each = [Plain(arm, cap, fold) for arm in arms]
    subsets = list(combinations(range(len(arms)), plays))

    def steps(rows: Any) -> Any:
        for number, subset in enumerate(subsets):
            moved = [
                arm.step(row, n in subset)
                for n, (arm, row) in enumerate(zip(each, rows, strict=True))
            ]
            yield number, sum(reward for reward, _ in moved), product_law([law for _, law in moved])

    matrix, sides, rewards, _ = long_run(product_law([arm.start for arm in each]), steps)
    return maximum(rewards, matrix, sides)


def plain_bound(arms: Arms, plays: int, cap: int, fold: int = 1) -> float:
    """The best of arms that meet only in the number of plays a slot, in the long run."""

    def steps(arm: Plain) -> Any:
        return lambda row: [(a, *arm.step(row, a == 1)) for a in (0, 1)]

    each = [Plain(arm, cap, fold) for arm in arms]
    blocks = [long_run(arm.start, steps(arm)) for arm in each]
    matrix = np.vstack(
        [
            block_diag(*(block[0] for block in blocks)),
            np.concatenate([block[3] for block in blocks]),
        ]
    )
    sides = np.concatenate([*(block[1] for block in blocks), [plays]])
    return maximum(np.concatenate([block[2] for block in blocks]), matrix, sides)


def belief_of(arms: Arms, n: int, state: tuple[int, int]) -> float:
    last_seen, age = state
    rest = stationary_belief(arms)[n]
    return float(rest + (0 if age == 0 else (arms.p11 - arms.p01)[n] ** age * (last_seen - rest)))


def plain_chain(arms: Arms, plays: int, caps: list[int]):
    """{joint state: {subset: (reward, {next: chance})}}, one state after another."""
    n_arms = len(arms)
    chain: dict[Any, Any] = {}
    todo = [((0, 0),) * n_arms]
    while todo:
        x = todo.pop()
        if x in chain:
            continue
        chain[x] = {}
        for subset in combinations(range(n_arms), plays):
            belief = {n: belief_of(arms, n, x[n]) for n in subset}
            ahead = {}
            for seen in product((0, 1), repeat=plays):
                shown = dict(zip(subset, seen, strict=True))
                chance = np.prod([belief[n] if shown[n] else 1 - belief[n] for n in subset])
                y = []
                for n, (last_seen, age) in enumerate(x):
                    older = (last_seen, age + 1) if 0 < age < caps[n] else (0, 0)
                    y.append((shown[n], 1) if n in shown else older)
                if chance > 0:
                    ahead[tuple(y)] = chance
            chain[x][subset] = sum(arms.reward[n] * belief[n] for n in subset), ahead
            todo.extend(ahead)
    return chain
