"""Correlation of agents: how their plays turn out together, round by round.

Agents that share one realisation of an arm, or sit in one place, know less together than their
counts suggest: with correlation rho, M are worth about M / (1 + (M - 1) rho) independent agents. A
server has no slots, but it has the counts of every round. Agent a played an arm k_a times in a
round and saw it in its best state y_a times, where its earlier share p_a predicts p_a k_a. With the
residuals r_a = y_a - p_a k_a,

    rho = sum of r_a r_b over pairs of agents / the same sum if all residuals of a round were equal,

over all arms and rounds. Agents that are independent have products of mean 0, so that the sum is
compared with the root of the sum of squares. Agents play an arm in different slots of a round,
which makes rho smaller than the correlation of two agents in one slot.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from rmab.protocol.shape import Ints

__all__ = ["AgentCorrelation"]


_LEAST = 0.1  # smallest correlation that matters
_ERRORS = 3.0  # standard errors above which products are no chance
_ROUNDS = 20  # rounds before the first estimate


class AgentCorrelation:
    """Estimate of rho from sums over rounds; best: (N,), the state of each arm that pays most."""

    def __init__(self, best: npt.NDArray[np.intp]) -> None:
        self._best = best
        self._before: dict[str, Ints] = {}
        self._rounds = 0
        self._products = 0.0
        self._squares = 0.0
        self._equal = 0.0  # products if all agents saw the same

    def add(self, visits: Mapping[str, Ints]) -> None:
        """Add a round that has closed; visits: (S, N) of each agent's plays since the beginning."""
        before, self._before = self._before, {name: x.copy() for name, x in visits.items()}
        residuals = []
        for name, now in visits.items():
            if name not in before:
                continue
            then = before[name]
            if (now < then).any():  # some were taken out
                continue
            plays, good = now - then, (now - then)[self._best, np.arange(now.shape[1])]
            known = then[self._best, np.arange(now.shape[1])]
            expected = (known + 0.5) / (then.sum(0) + 1)
            residuals.append(np.where(plays.sum(0) > 0, good - expected * plays.sum(0), 0.0))
        if len(residuals) < 2:
            return
        rest = np.stack(residuals)  # (M, N)
        taking_part = (rest != 0).sum(0)
        squares = (rest**2).sum(0)
        products = rest.sum(0) ** 2 - squares
        self._rounds += 1
        self._products += float(products.sum())
        self._squares += float((products**2).sum())
        self._equal += float((np.maximum(taking_part - 1, 0) * squares).sum())

    @property
    def correlation(self) -> float | None:
        """Estimate of rho; None before there are enough rounds."""
        if self._rounds < _ROUNDS or self._equal <= 0:
            return None
        return self._products / self._equal

    @property
    def correlated(self) -> bool:
        """Return whether rho is large enough to matter, and more than chance."""
        rho = self.correlation
        beyond = self._products > _ERRORS * float(np.sqrt(self._squares))
        return rho is not None and rho > _LEAST and beyond
