"""Makers of the paper's and this project's policies: a learner joined to a rule.

A maker takes the policy's name, the horizon and the policy's options.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from rmab.learning.thompson import thompson
from rmab.learning.ucb import ucb
from rmab.policies.lookahead import DEPTH
from rmab.policies.options import GAPS
from rmab.policies.planners import FIXED, FIXED_BEST, MYOPIC, WHITTLE
from rmab.policies.policy import (
    POPULATION,
    Forgetting,
    Learner,
    LookaheadRule,
    Policy,
    Rule,
)
from rmab.policies.rules.optimum import OptimumRule
from rmab.policies.rules.random import RandomRule
from rmab.policies.rules.recency import AgeRule
from rmab.policies.rules.true_state import TrueStateRule

__all__: list[str] = []  # makers are named in the registry

BANK = Forgetting((math.inf, 2048.0, 512.0, 128.0), (0.7, 0.1, 0.1, 0.1))  # of forget = "bank"


# ----------------------------------------------------------------------- that do not learn


def _known(rule: Rule, name: str, horizon: int) -> Policy:  # noqa: ARG001 - as every maker
    return Policy(name, rule=rule)


whittle = partial(_known, WHITTLE)
myopic = partial(_known, MYOPIC)
fixed = partial(_known, FIXED)
fixed_best = partial(_known, FIXED_BEST)
optimal = partial(_known, OptimumRule())
at_random = partial(_known, RandomRule())
stay = partial(_known, AgeRule(stays=True))
round_robin = partial(_known, AgeRule(stays=False))
genie = partial(_known, TrueStateRule())


def lookahead(name: str, horizon: int, *, depth: int = DEPTH) -> Policy:  # noqa: ARG001 - as every maker
    """The lookahead with known dynamics."""
    return Policy(name, rule=LookaheadRule(depth))


# --------------------------------------------------------------------------------- learners


def _thompson(
    rule: Rule,
    name: str,
    horizon: int,  # noqa: ARG001 - as every maker
    *,
    gaps: int = 0,
    tied: bool = False,
    **options: Any,
) -> Policy:
    function = partial(thompson, tied=True) if tied else thompson
    return _learning(rule, name, function, options, gaps=gaps, ties=tied, reads_visits=False)


def _ucb(
    rule: Rule,
    name: str,
    horizon: int,  # noqa: ARG001 - as every maker
    *,
    gaps: int = 0,
    clip: bool = True,
    **options: Any,
) -> Policy:
    function = partial(ucb, clip=clip)
    return _learning(rule, name, function, options, gaps=gaps, randomised=False)


def _learning(
    rule: Rule,
    name: str,
    function: Callable[..., Any],
    options: dict[str, Any],
    *,
    gaps: int,
    **fields: Any,
) -> Policy:
    """Join a learner to a rule; fields: of the learner, options: of a user, others as they are."""
    prior, mode = options.pop("prior", 1.0), options.pop("plan_by", "draw") == "mode"
    forget = _forgetting(options.pop("forget", "never"))
    given = {} if prior == POPULATION else {"prior": prior}  # one that is learnt is evidence
    learner = Learner(
        partial(function, **given, gaps=gaps, mode=mode),
        **{"gaps": gaps, "randomised": not mode, "forget": forget, "prior": prior, **fields},
    )
    return Policy(name, rule=rule, learner=learner, **options)


def _forgetting(forget: str | float) -> Forgetting | None:
    if forget == "never":
        return None
    return BANK if isinstance(forget, str) else Forgetting((float(forget),))


thompson_whittle = partial(_thompson, WHITTLE)
thompson_myopic = partial(_thompson, MYOPIC)
ucb_whittle = partial(_ucb, WHITTLE)
ucb_myopic = partial(_ucb, MYOPIC)
thompson_whittle_gap = partial(_thompson, WHITTLE, gaps=GAPS)
thompson_myopic_gap = partial(_thompson, MYOPIC, gaps=GAPS)
ucb_whittle_gap = partial(_ucb, WHITTLE, gaps=GAPS)


def thompson_lookahead_gap(
    name: str, horizon: int, *, depth: int = DEPTH, gaps: int = GAPS, **options: Any
) -> Policy:
    """Thompson sampling from observations at any gap, and a lookahead."""
    return _thompson(LookaheadRule(depth), name, horizon, gaps=gaps, **options)
