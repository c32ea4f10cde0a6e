"""Policies by name: which planner fills the table, from which dynamics.

A policy joins a planner (dynamics -> index of every information state) to a learner (counts ->
dynamics), or to none when it knows the true dynamics. `POLICIES` has the built-in ones by name; a
user's own is a `Policy` of her own functions, see docs/own-policy.md.

For channels a planner has a formula for each information state. For other arms it fills a *table*
from the whole transition matrices: with dynamics that are learnt inside the engine, with known ones
beforehand and in double precision (`exact`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from rmab.errors import ModelError
from rmab.learning.learners import Evidence, Prior, survivors, thompson, ucb
from rmab.model.arms import Arms, Dynamics, FloatArray, InformationStates, Moves
from rmab.planning.tables import (
    Planner,
    Table,
    fill_myopic,
    fill_whittle,
    fixed,
    fixed_best,
    fixed_best_scores,
    fixed_scores,
    myopic,
    myopic_table,
    whittle_at,
    whittle_table,
)
from rmab.policies.lookahead import DEPTH
from rmab.policies.plans import take_turns
from rmab.policies.settings import GAPS
from rmab.random import Draws

__all__ = ["POLICIES", "Learner", "Policy", "named"]

Learner = Callable[[Evidence, Draws], Moves | tuple[Array, Array]]
Exact = Callable[[Arms, int], FloatArray]


@dataclass(frozen=True, eq=False)
class Policy:
    """How agents choose arms.

    name        what tables and figures call it
    planner     dynamics and information states -> index; None: decided jointly or at random
    learner     evidence and draws -> Moves, or (p01, p11); None: the true dynamics are known
    statewise   the planner works state by state, so it need not fill a table first
    table       model and highest age -> index of every row, (N, 1 + S max_age, trials), for arms
                that are not channels; None: the policy is for channels
    exact       arms and highest age -> the same table for known dynamics, (N, 1 + S max_age)
    lengths     (p11 of the learner, K) -> slots of the next episode; None: the study's schedule
    estimates   whether the learner's result estimates the dynamics; if not, the planner does
                not read it as dynamics either, and the policy is for any arms
    joint       decisions come from the exact joint optimum, not from a planner
    depth       slots that are looked ahead to choose K arms together, see
    rmab.policies.lookahead;
                0: the planner's index decides
    reads_visits  whether the learner looks at evidence.visits; False spares counting them
    randomised  whether the learner draws; if not, all agents always play by one result
    gaps        G > 0: pairs of looks at an arm seen only when played are counted by how many slots
                lie between them, 1 to G apart and all further ones together; 0: see count_kinds
    max_age     ages that a table tells apart; older arms count as that old
    """

    name: str
    planner: Planner | None
    learner: Learner | None = None
    statewise: bool = False
    table: Table | None = None
    exact: Exact | None = None
    lengths: Callable[[Array, Array], Array] | None = None
    estimates: bool = True
    joint: bool = False
    depth: int = 0
    reads_visits: bool = True
    randomised: bool = True
    gaps: int = 0
    max_age: int = 64

    def __post_init__(self) -> None:
        for key, least in (("depth", 0), ("gaps", 0), ("max_age", 1)):
            value = getattr(self, key)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ModelError(
                    f"policy {self.name}: {key} must be a whole number from {least} on, "
                    f"got {value!r}"
                )


def _fed1_ucb(name: str, horizon: int, *, sigma: float = 0.5) -> Policy:
    """Fed1-UCB: phases of int(10 ln T) pulls of every arm in play; then K arms for ever."""
    pulls = max(1, int(10 * math.log(horizon)))

    def lengths(in_play: Array, plays: Array) -> Array:
        left = in_play.sum(0).astype(jnp.int32)
        return jnp.where(left > plays, -(-pulls * left // plays), horizon)

    def turns(dynamics: Dynamics, states: InformationStates) -> Any:
        return take_turns(dynamics.p11 > 0, states)

    learner = partial(survivors, pulls=pulls, horizon=horizon, sigma=sigma)
    return Policy(
        name,
        turns,
        learner,
        statewise=True,
        lengths=lengths,
        estimates=False,
        randomised=False,
    )


def _constant(scores: Callable[[Arms], FloatArray]) -> Exact:
    """A table that does not depend on what was seen."""

    def exact(arms: Arms, max_age: int) -> FloatArray:
        return np.repeat(scores(arms)[:, None], 1 + arms.passive.shape[1] * max_age, 1)

    return exact


def _known(
    planner: Planner | None, exact: Exact | None = None, *, joint: bool = False
) -> Callable[..., Policy]:
    def make(name: str, horizon: int) -> Policy:  # noqa: ARG001 - one signature for all makers
        return Policy(name, planner, statewise=True, exact=exact, joint=joint)

    return make


def _thompson(planner: Planner, table: Table) -> Callable[..., Policy]:
    def make(
        name: str,
        horizon: int,  # noqa: ARG001 - one signature for all makers
        *,
        prior: Prior = 1.0,
    ) -> Policy:
        learner = partial(thompson, prior=prior)
        return Policy(name, planner, learner, statewise=True, table=table, reads_visits=False)

    return make


def _ucb(planner: Planner, table: Table) -> Callable[..., Policy]:
    def make(
        name: str,
        horizon: int,  # noqa: ARG001 - one signature for all makers
        *,
        clip: bool = True,
        prior: Prior = 1.0,
    ) -> Policy:
        learner = partial(ucb, clip=clip, prior=prior)
        return Policy(name, planner, learner, statewise=True, table=table, randomised=False)

    return make


def _with_gaps(make: Callable[..., Policy]) -> Callable[..., Policy]:
    """The same policy, learning from all pairs of looks; it has one more option, `gaps`."""

    def make_with_gaps(name: str, horizon: int, *, gaps: int = GAPS, **options: Any) -> Policy:
        policy = make(name, horizon, **options)
        learner: Any = policy.learner  # takes gaps as well
        return replace(policy, learner=partial(learner, gaps=gaps), gaps=gaps)

    return make_with_gaps


def _lookahead(name: str, horizon: int, *, depth: int = DEPTH) -> Policy:  # noqa: ARG001 - one signature for all makers
    return Policy(name, None, statewise=True, depth=depth)


def _thompson_lookahead(
    name: str,
    horizon: int,  # noqa: ARG001 - one signature for all makers
    *,
    prior: Prior = 1.0,
    depth: int = DEPTH,
) -> Policy:
    learner = partial(thompson, prior=prior)
    return Policy(name, None, learner, statewise=True, depth=depth, reads_visits=False)


# A maker takes the policy's name, the horizon and the policy's options.
POLICIES: Mapping[str, Callable[..., Policy]] = {
    "fedtswi": _thompson(whittle_at, fill_whittle),
    "fedts-myopic": _thompson(myopic, fill_myopic),
    "feducb-wi": _ucb(whittle_at, fill_whittle),
    "feducb-myopic": _ucb(myopic, fill_myopic),
    "fedtswi-gap": _with_gaps(_thompson(whittle_at, fill_whittle)),
    "fedts-myopic-gap": _with_gaps(_thompson(myopic, fill_myopic)),
    "feducb-wi-gap": _with_gaps(_ucb(whittle_at, fill_whittle)),
    "fedts-lookahead-gap": _with_gaps(_thompson_lookahead),
    "fed1-ucb": _fed1_ucb,
    "whittle": _known(whittle_at, whittle_table),
    "myopic": _known(myopic, myopic_table),
    "lookahead": _lookahead,
    "optimal": _known(None, joint=True),
    "fixed": _known(fixed, _constant(fixed_scores)),
    "fixed-best": _known(fixed_best, _constant(fixed_best_scores)),
    "random": _known(None),
}


def named(name: str, horizon: int, options: Mapping[str, Any] | None = None) -> Policy:
    """The built-in policy of that name with its options, already checked."""
    settings = {k: tuple(v) if isinstance(v, list) else v for k, v in (options or {}).items()}
    return _named(name, horizon, tuple(sorted(settings.items())))


# The same object for the same policy, so that its compiled program is found again.
@lru_cache(maxsize=256)
def _named(name: str, horizon: int, options: tuple[tuple[str, Any], ...]) -> Policy:
    return POLICIES[name](name, horizon, **dict(options))
