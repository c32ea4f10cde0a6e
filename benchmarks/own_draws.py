"""What agents lose that draw for themselves: alone, together, among liars and strangers, in noise.

The paper's setting: four channels, two plays a slot, `fedtswi-gap` with 8 gaps, linear rounds. Of
each case it prints the loss of reward per agent and slot against Whittle indices with known
dynamics on the same trials, and its standard error: the tables of docs/privacy.md.

Liars say of arms 2 and 3 that they played both in every slot, and what they would have seen if
p01 = p11 = .05. Strangers' arms move as arms 2 1 4 3 do. Where the loss of some agents is asked
for, the rewards of the others count a thousandth: no index changes its rank by that.

    make own-draws                                 about half an hour on 2 cores
    make own-draws ARGS='--trials 16 --slots 300'
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from rmab import Study, channels, run
from rmab.federation.aggregation import AGGREGATIONS, Sum
from rmab.linalg import Array
from rmab.model.arms import Arms

__all__ = ["CASES", "Case", "loss"]

P01, P11, REWARDS = (0.20, 0.89, 0.10, 0.90), (0.80, 0.17, 0.90, 0.16), (0.4, 0.9, 0.7, 0.6)
CLAIMED = 0.05  # p01 and p11
LIED_OF = (1, 2)  # arms, from 0
STRANGE = (1, 0, 3, 2)  # whose law each arm of a stranger has
POLICY, GAPS, PLAYS, SLOTS, TRIALS = "fedtswi-gap", 8, 2, 1000, 64
UNREAD = 1e-3  # of rewards that are not asked for


@dataclass(frozen=True)
class WithLies(Sum):
    """The sum, in which the last agents' counts of some arms are made up."""

    running: bool = False
    liars: int = 3

    def combine(self, counts: Array, weights: Array) -> Array:
        """counts: pairs (C, 2, 2, N, M, R); anything else is true."""
        if counts.ndim < 6:
            return super().combine(counts, weights)
        slots = counts.sum((0, 1, 2, 3)) / PLAYS  # (M, R)
        row = np.array([1 - CLAIMED, CLAIMED])
        cells = np.outer(row, row)[..., None, None, None]
        said = jnp.zeros_like(counts, jnp.float32).at[0].set(cells * slots)
        agents, arms = np.arange(counts.shape[-2]), np.arange(counts.shape[-3])
        lies = np.isin(arms, LIED_OF)[:, None, None] & (agents >= agents.size - self.liars)[:, None]
        return super().combine(jnp.where(lies, said, counts), weights)


@dataclass(frozen=True)
class Case:
    """apart: how many of the agents, the last, differ; strange: their arms do, else they lie;
    reads: whose loss it is, "all", "apart" or "others"; epsilon: None without noise."""

    about: str
    agents: int
    draws: str = "own"
    aggregation: str = "sum"
    apart: int = 0
    strange: bool = False
    reads: str = "all"
    epsilon: float | None = None


CASES = (
    Case("alone", 4, "shared", "none"),
    *(Case("together", agents) for agents in (4, 16, 64)),
    *(
        Case("honest among 3 liars", 16, draws, "lies", apart=3, reads="others")
        for draws in ("shared", "own")
    ),
    *(
        Case("strangers", 16, draws, shares, apart=4, strange=True, reads="apart")
        for draws, shares in (("shared", "sum"), ("own", "sum"), ("shared", "none"))
    ),
    Case("among 4 strangers", 16, apart=4, strange=True, reads="others"),
    *(Case("noise", agents, epsilon=1.0) for agents in (4, 16, 64)),
    *(Case("noise", agents, epsilon=8.0) for agents in (4, 16, 64)),
    Case("noise", 4, "shared", epsilon=1.0),
)


def _arms(order: tuple[int, ...], share: float) -> Arms:
    p01, p11 = ([law[arm] for arm in order] for law in (P01, P11))
    return channels(p01, p11, [share * reward for reward in REWARDS])


def loss(case: Case, slots: int, trials: int) -> tuple[float, float]:
    """Per agent and slot, and its standard error."""
    AGGREGATIONS["lies"] = WithLies(liars=case.apart)
    more: dict[str, Any] = {}
    read = case.agents
    if case.apart:
        read = case.apart if case.reads == "apart" else case.agents - case.apart
        order = STRANGE if case.strange else (0, 1, 2, 3)
        arms = _arms(order, UNREAD if case.reads == "others" else 1.0)
        last = range(case.agents - case.apart + 1, case.agents + 1)
        more["agent"] = [{"agents": list(last), "arms": arms}]
    if case.epsilon is not None:
        more["privacy"] = {"epsilon": case.epsilon}
    study = Study(
        arms=_arms((0, 1, 2, 3), UNREAD if case.reads == "apart" else 1.0),
        agents=case.agents,
        plays=PLAYS,
        horizon=slots,
        trials=trials,
        schedule="linear",
        draws=case.draws,
        aggregation=case.aggregation,
        policies=(POLICY, "whittle"),
        options={POLICY: {"gaps": GAPS}},
        **more,
    )
    found = run(study)
    behind = found.policies["whittle"].mean - found.policies[POLICY].mean
    spread = found.covariance[0, 0] + found.covariance[1, 1] - 2 * found.covariance[0, 1]
    scale = case.agents / read
    return scale * behind, scale * float(np.sqrt(spread))


def main() -> None:
    """Print every case."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--slots", type=int, default=SLOTS)
    parser.add_argument("--trials", type=int, default=TRIALS, help="of 16 agents; others alike")
    options = parser.parse_args()
    for case in CASES:
        trials = max(2, options.trials * 16 // case.agents)
        behind, error = loss(case, options.slots, trials)
        noise = "" if case.epsilon is None else f", epsilon {case.epsilon:g}"
        shares = "" if case.aggregation != "none" else ", each for itself"
        print(
            f"{case.about}{noise}, M = {case.agents}, {case.draws}{shares}: "
            f"{behind:.4f} ± {error:.4f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
