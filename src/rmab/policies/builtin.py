"""What makes the policies of `rmab.policies.registry`: a learner joined to a rule.

A maker takes the policy's name, the horizon and the policy's options.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array

from rmab.learning.evidence import Evidence, Prior
from rmab.learning.thompson import thompson
from rmab.learning.ucb import survivors, ucb
from rmab.policies.aggregation import Aggregation
from rmab.policies.lookahead import DEPTH
from rmab.policies.planners import FIXED, FIXED_BEST, MYOPIC, WHITTLE
from rmab.policies.policy import (
    POPULATION,
    AgeRule,
    Forgetting,
    Lengths,
    LookaheadRule,
    OptimumRule,
    Policy,
    RandomRule,
    Rule,
    TrueStateRule,
    TurnsRule,
)
from rmab.policies.registry import GAPS

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
    prior: Prior | str = 1.0,
    gaps: int = 0,
    plan_by: str = "draw",
    forget: str | float = "never",
    tied: bool = False,
    **others: Any,
) -> Policy:
    """others: fields of a policy that are options as they are."""
    mode = plan_by == "mode"
    learns = {**_learner_options(prior, gaps, mode), **({"tied": True} if tied else {})}
    return Policy(
        name,
        rule=rule,
        learner=partial(thompson, **learns),
        ties=tied,
        gaps=gaps,
        reads_visits=False,
        randomised=not mode,
        forget=_forgetting(forget),
        prior=prior,
        **others,
    )


def _ucb(
    rule: Rule,
    name: str,
    horizon: int,  # noqa: ARG001 - as every maker
    *,
    clip: bool = True,
    prior: Prior | str = 1.0,
    gaps: int = 0,
    plan_by: str = "draw",
    forget: str | float = "never",
    **others: Any,
) -> Policy:
    """others: fields of a policy that are options as they are."""
    options = _learner_options(prior, gaps, plan_by == "mode")
    return Policy(
        name,
        rule=rule,
        learner=partial(ucb, clip=clip, **options),
        gaps=gaps,
        randomised=False,
        forget=_forgetting(forget),
        prior=prior,
        **others,
    )


def _learner_options(prior: Prior | str, gaps: int, mode: bool) -> dict[str, Any]:
    """A prior that is learnt comes with the evidence."""
    own = {} if prior == POPULATION else {"prior": prior}
    return {**own, "gaps": gaps, "mode": mode}


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


def fed1_ucb(
    name: str,
    horizon: int,
    *,
    sigma: float = 0.5,
    epsilon: float | None = None,
    aggregation: str | Aggregation | None = None,
) -> Policy:
    """Fed1-UCB: phases of int(10 ln T) pulls of every arm in play; then K arms for ever.

    epsilon: of the noise that agents add to the means of a phase; None: they add none.
    """
    pulls = max(1, int(10 * math.log(horizon)))

    def phase(evidence: Evidence, found: tuple[Array, Array]) -> Array:
        left = found[1].sum(0).astype(jnp.int32)
        return jnp.where(left > evidence.plays, -(-pulls * left // evidence.plays), horizon)

    learner = partial(survivors, pulls=pulls, horizon=horizon, sigma=sigma, epsilon=epsilon)
    return Policy(
        name,
        rule=TurnsRule(),
        learner=learner,
        randomised=False,
        lengths=Lengths(phase, complete=True),  # who has not pulled all of it cannot compare
        aggregation=aggregation,
    )
