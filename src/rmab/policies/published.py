"""What makes the published learners of `rmab.policies.registry`, beside the paper's and rmab's own.

A maker takes the policy's name, the horizon and the policy's options. docs/learners.md has a
section for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array

from rmab.learning.channel.grid import grid
from rmab.learning.confidence import colours, confident_rows
from rmab.learning.evidence import Evidence, Prior
from rmab.learning.exploration import (
    block_arms,
    block_explores,
    block_slots,
    explored_arms,
    raised_steps,
    slots_to_explore,
    steps_wanted,
)
from rmab.learning.joining import joining_survivors
from rmab.learning.thompson import thompson
from rmab.model.arms import Moves, Uncertain
from rmab.planning.optimism import fill_extreme, fill_penalty, fill_value
from rmab.planning.tables import Model
from rmab.policies.aggregation import Aggregation
from rmab.policies.own_index import OWN_INDICES
from rmab.policies.planners import FIXED_BEST, MYOPIC, WHITTLE
from rmab.policies.policy import IndexRule, JointRule, Lengths, OwnIndexRule, Policy, TurnsRule
from rmab.policies.registry import AGES, GAPS

__all__: list[str] = []  # makers are named in the registry


def _own_index(which: str, name: str, horizon: int, **options: Any) -> Policy:  # noqa: ARG001 - as every maker
    """A learner with a state of its own; options: its fields."""
    return Policy(name, rule=OwnIndexRule(OWN_INDICES[which](**options)))


ucb = partial(_own_index, "ucb")
rca = partial(_own_index, "rca")
wiql = partial(_own_index, "wiql")
qwi = partial(_own_index, "qwi")


_MAPS = {"whittle": WHITTLE, "myopic": MYOPIC, "fixed": FIXED_BEST}  # what ts-grid plans by


def ts_grid(
    name: str,
    horizon: int,  # noqa: ARG001 - as every maker
    *,
    support: int = 9,
    planner: str = "whittle",
    gaps: int = GAPS,
    aggregation: str | Aggregation | None = None,
) -> Policy:
    """Thompson sampling of channels on a grid, from observations at any gap."""
    return Policy(
        name,
        rule=_MAPS[planner],
        learner=partial(grid, support=support, gaps=gaps),
        gaps=gaps,
        reads_visits=False,
        aggregation=aggregation,
    )


def restless_ucb(
    name: str,
    horizon: int,
    *,
    radius: float = 1.0,
    scale: float = 1.0,
    exponent: float = 2 / 3,
    aggregation: str | Aggregation | None = None,
) -> Policy:
    """Exploration of all arms in turn, then Whittle indices of the optimistic dynamics."""
    wanted = steps_wanted(horizon, scale, exponent)
    raised = radius * math.sqrt(math.log(horizon) / (2 * wanted))

    def slots(evidence: Evidence, found: Moves) -> Array:  # noqa: ARG001 - counts decide
        return slots_to_explore(evidence, wanted, horizon)

    return Policy(
        name,
        rule=replace(WHITTLE, first=partial(explored_arms, wanted=wanted)),
        learner=partial(raised_steps, radius=raised),
        randomised=False,
        reads_visits=False,
        lengths=Lengths(slots),
        aggregation=aggregation,
    )


def dsee(
    name: str,
    horizon: int,
    *,
    exploration: float = 10.0,
    aggregation: str | Aggregation | None = None,
) -> Policy:
    """Blocks of exploration and of the arms with the best mean."""

    def slots(evidence: Evidence, found: tuple[Array, Array]) -> Array:  # noqa: ARG001 - the clock decides
        return block_slots(evidence, exploration, horizon)

    def explores(evidence: Evidence, found: tuple[Array, Array]) -> Array:  # noqa: ARG001 - likewise
        return block_explores(evidence, exploration, horizon)

    return Policy(
        name,
        rule=TurnsRule(),
        learner=partial(block_arms, exploration=exploration, horizon=horizon),
        explores=explores,
        randomised=False,
        lengths=Lengths(slots),
        aggregation=aggregation,
    )


def fed2_ucb(
    name: str, horizon: int, *, pulls: int = 100, sigma: float = 0.5, sigma_c: float = 0.02
) -> Policy:
    """Fed2-UCB: more agents in every phase of `pulls` pulls of every arm in play; then K arms for
    ever, for all."""

    def phase(evidence: Evidence, found: tuple[Array, Array]) -> Array:
        left = found[1].sum(0).astype(jnp.int32)
        slots = -(-pulls * left // evidence.plays)
        return jnp.where(left > evidence.plays, slots, jnp.where(left > 0, horizon, 1))

    return Policy(
        name,
        rule=TurnsRule(waits=True),
        learner=partial(
            joining_survivors, pulls=pulls, horizon=horizon, sigma=sigma, sigma_c=sigma_c
        ),
        randomised=False,
        lengths=Lengths(phase, complete=True),  # who has not joined asks for one slot
        aggregation="none",  # the server reads each agent's own means
    )


_EPISODE = 20  # slots of UCWhittle's episodes, as in its experiments


def _ucwhittle(
    table: Callable[[Model, int], Array],
    name: str,
    horizon: int,  # noqa: ARG001 - as every maker
    *,
    scale: float = 1.0,
    delta: float = 1e-3,
    aggregation: str | Aggregation | None = None,
) -> Policy:
    def slots(evidence: Evidence, found: Uncertain) -> int:  # noqa: ARG001 - always the same
        return _EPISODE

    return Policy(
        name,
        rule=IndexRule(table=table, by_chance=True),
        learner=partial(confident_rows, scale=scale, delta=delta),
        randomised=False,
        reads_visits=False,
        lengths=Lengths(slots, least=_EPISODE),
        aggregation=aggregation,
    )


ucw_value = partial(_ucwhittle, fill_value)
ucw_penalty = partial(_ucwhittle, fill_penalty)
ucw_extreme = partial(_ucwhittle, fill_extreme)


def rb_tsde(
    name: str,
    horizon: int,  # noqa: ARG001 - as every maker
    *,
    prior: Prior = 1.0,
    aggregation: str | Aggregation | None = None,
) -> Policy:
    """Thompson sampling of rows and Whittle indices; an agent's own visits end episodes."""
    return Policy(
        name,
        rule=WHITTLE,
        learner=partial(thompson, prior=prior),
        own_visits=True,
        reads_visits=False,
        prior=prior,
        aggregation=aggregation,
    )


def tsde(
    name: str,
    horizon: int,  # noqa: ARG001 - as every maker
    *,
    ages: int = AGES,
    prior: Prior = 1.0,
    aggregation: str | None = None,
) -> Policy:
    """Thompson sampling, and the joint optimum of the draw."""
    return Policy(
        name,
        rule=JointRule(ages),
        learner=partial(thompson, prior=prior),
        reads_visits=False,
        aggregation=aggregation,
        prior=prior,
    )


def colored_ucrl2(
    name: str,
    horizon: int,  # noqa: ARG001 - as every maker
    *,
    ages: int = AGES,
    delta: float = 1e-3,
    scale: float = 1.0,
    aggregation: str | None = None,
) -> Policy:
    """The joint optimum of the best channels within intervals of the colours' chances."""
    return Policy(
        name,
        rule=JointRule(ages, intervals=True),
        learner=partial(colours, scale=scale, delta=delta),
        gaps=ages - 1,
        own_pairs=True,
        randomised=False,
        reads_visits=False,
        aggregation=aggregation,
    )
