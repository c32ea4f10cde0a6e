"""Outcomes of problems, and a user's planner and learner, made up."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from rmab.arena.records import ArenaOutcome, ProblemOutcome
from rmab.arena.scores import Standing

STANDING = Standing(
    label="Quick",
    uses_true_dynamics=False,
    mean=0.5,
    se=0.01,
    final=0.5,
    final_se=0.01,
    regret=1.0,
    regret_low=0.5,
    regret_high=1.5,
    score=0.95,
    score_se=0.01,
    rank=2,
    tied=[],
    failed=0.0,
    seconds=0.002,
    episodes=3.0,
    curve={"slot": [1, 2], "regret": [0.0, 1.0], "se": [0.0, 0.1]},
)


def problem(name: str, **changes: Any) -> ProblemOutcome:
    """One that a learner `quick` played, with these numbers."""
    known = replace(STANDING, label="WI policy", uses_true_dynamics=True, rank=None, score=1.0)
    chance = replace(known, label="Random", score=0.0)
    study = {"agents": 1, "plays": 1, "horizon": 100, "trials": 32, "seed": 0, "arm": [1, 2]}
    return ProblemOutcome(
        name,
        "a reason",
        study,
        32,
        interrupted=False,
        margin=0.1,
        exact={"optimum": 1.0},
        exact_reasons={},
        standings={"whittle": known, "quick": replace(STANDING, **changes), "random": chance},
        refused={"nobody": "is for others"},
        made={},
    )


def outcome(**changes: Any) -> ArenaOutcome:
    made = {"versions": {"rmab": "1", "jax": "2"}, "device": "here"}
    return ArenaOutcome([problem("one", **changes), problem("two")], made)


def expected(dynamics, states):
    return dynamics.reward * jnp.where(states.last_seen == 1, dynamics.p11, dynamics.p01)


def half(evidence, draws):
    return tuple(0 * evidence.transitions[:, 0] + 0.5)
