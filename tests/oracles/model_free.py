"""Learners without a model, one agent, in plain loops: RCA, WIQL and Q-learning of indices."""

from __future__ import annotations

import math

import numpy as np


def _best(index: list[float], plays: int) -> list[int]:
    """The K largest, ties to the lower arm, in ascending order."""
    ranked = sorted(range(len(index)), key=lambda n: (-index[n], n))
    return sorted(ranked[:plays])


class PlainWiql:
    """chosen by Q(s, 1) - Q(s, 0) of each arm, or at random with probability N / (N + t)."""

    def __init__(self, n_arms: int, n_states: int, plays: int) -> None:
        self.n_arms, self.plays = n_arms, plays
        self.q = np.zeros((n_arms, n_states, 2))
        self.visits = np.zeros((n_arms, n_states, 2))

    def choose(self, states: np.ndarray, t: int, uniforms: np.ndarray) -> list[int]:
        if uniforms[1, 0] < self.n_arms / (self.n_arms + t):
            return _best(uniforms[0].tolist(), self.plays)
        gains = [self.q[n, s, 1] - self.q[n, s, 0] for n, s in enumerate(states)]
        return _best(gains, self.plays)

    def learn(
        self, t: int, before: np.ndarray, played: list[int], paid: np.ndarray, after: np.ndarray
    ) -> None:
        for n in range(self.n_arms):
            x, u, y = before[n], int(n in played), after[n]
            self.visits[n, x, u] += 1
            rate = 1 / (1 + self.visits[n, x, u])
            aim = paid[n] + max(self.q[n, y])
            self.q[n, x, u] = (1 - rate) * self.q[n, x, u] + rate * aim


class PlainIndexLearning:
    """One table for all arms if they are equal, else one for each."""

    def __init__(self, n_arms: int, n_states: int, plays: int, *, equal: bool) -> None:
        self.n_arms, self.plays = n_arms, plays
        self.table = [0 if equal else n for n in range(n_arms)]
        n_tables = 1 if equal else n_arms
        self.q = np.zeros(
            (n_tables, n_states, n_states, 2)
        )  # table, reference state, state, action
        self.index = np.zeros((n_tables, n_states))
        self.visits = np.zeros((n_tables, n_states, 2))

    def choose(self, states: np.ndarray, t: int, uniforms: np.ndarray) -> list[int]:
        if uniforms[1, 0] < 0.1:
            return _best(uniforms[0].tolist(), self.plays)
        return _best([self.index[self.table[n], s] for n, s in enumerate(states)], self.plays)

    def learn(
        self, t: int, before: np.ndarray, played: list[int], paid: np.ndarray, after: np.ndarray
    ) -> None:
        """t: slots up to this one, which ends."""
        for n in range(self.n_arms):
            i, x, u, y = self.table[n], before[n], int(n in played), after[n]
            self.visits[i, x, u] += 1
            rate = 0.1 / math.ceil(self.visits[i, x, u] / 500)
            for k, q in enumerate(self.q[i]):
                subsidy = self.index[i, k] if u == 0 else 0.0
                q[x, u] += rate * (paid[n] + subsidy + max(q[y]) - q.mean() - q[x, u])
        if t % self.n_arms == 0:
            rate = 0.2 / (1 + math.ceil(t * math.log(t) / 500))
            for q, index in zip(self.q, self.index, strict=True):
                for k in range(len(index)):
                    index[k] += rate * (q[k, k, 1] - q[k, k, 0])


def plain_rca(states: np.ndarray, rewards: np.ndarray, plays: int, level: float) -> np.ndarray:
    """Arms played in each slot, (slots, K), as blocks written out; states, rewards: (slots, N)."""
    n_arms = states.shape[1]
    mark: dict[int, int] = {}
    number, total = [0] * n_arms, [0.0] * n_arms
    blocks: dict[int, str] = {}  # by arm: which part of its block comes next
    chosen = []
    for now, pays in zip(states, rewards, strict=True):
        while len(blocks) < plays:
            fresh = [n for n in range(n_arms) if number[n] == 0 and n not in blocks]
            if fresh:
                blocks[fresh[0]] = "SB1"
                continue
            counted = math.log(max(1, sum(number)))
            bound = [total[n] / number[n] + math.sqrt(level * counted / number[n])
                     if n not in blocks else -math.inf for n in range(n_arms)]  # fmt: skip
            blocks[bound.index(max(bound))] = "SB1"
        chosen.append(sorted(blocks))
        for n in sorted(blocks):
            mark.setdefault(n, int(now[n]))
            at_mark = now[n] == mark[n]
            if blocks[n] == "SB2" and at_mark:  # SB3
                del blocks[n]
            elif blocks[n] == "SB2" or at_mark:
                blocks[n] = "SB2"
                number[n] += 1
                total[n] += pays[n]
    return np.array(chosen)
