"""Coloured UCRL2: the joint optimum of the best channels within confidence intervals, for few arms.

Playing a channel that was last seen in s, k slots ago, is the same experiment whatever the other
arms are in: a *colour* (arm, s, k), with ages cut at J. Counts by gap are the colours' counts: with
gaps = J - 1 slice k - 1 has the pairs k slots apart, and the last all that are J or more apart. Of
a colour that was seen n times and then good g times, the chance of good is held to lie within

    g / n -+ d / 2,   d = c sqrt( 56 S ln(4 C t / delta) / n ),

S = 2 outcomes, C = 2 J N colours, t - 1 the slots that all agents whose counts are merged have
played, c a scale (1 as published); and anywhere where n = 0. Nothing is made of the fact that all
ages of an arm follow from two numbers.

Reference: R. Ortner, D. Ryabko, P. Auer, R. Munos, "Regret bounds for restless Markov bandits",
Theor. Comp. Sci. 558, 2014.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rmab.linalg import array_namespace
from rmab.model.arms import Intervals
from rmab.policies.capabilities import Capabilities, channels_only, few_arms
from rmab.policies.entry import BROKEN, Entry
from rmab.policies.episode_rules import PairDoubling
from rmab.policies.options import AGES, shared
from rmab.policies.policy import Policy

if TYPE_CHECKING:
    from rmab.learning.evidence import Evidence
    from rmab.rng.variates import Draws

__all__ = ["ENTRIES", "colours"]

_OUTCOMES = 2  # of a channel


def colours(
    evidence: Evidence, _draws: Draws, *, scale: float = 1.0, delta: float = 1e-3
) -> Intervals:
    """Return the interval of every colour; a channel that was never observed may be anything.

    Plans need be as accurate as the largest reward over sqrt(t).
    """
    assert evidence.slot is not None
    xp = array_namespace(evidence.counts)
    ages, _, _, n_arms, width = evidence.counts.shape
    t = xp.broadcast_to(evidence.agents * evidence.slot + 1.0, width)
    pairs = xp.moveaxis(evidence.counts, 0, 1)  # by state, age and next state
    pairs = pairs.reshape(2 * ages, 2, n_arms, width)
    seen = pairs.sum(1)
    share = pairs[:, 1] / xp.maximum(seen, 1e-30)
    level = xp.log(4.0 * _OUTCOMES * ages * n_arms / delta * t)
    half = scale / 2 * xp.sqrt(56.0 * _OUTCOMES * level / xp.maximum(seen, 1e-30))
    half = xp.where(seen > 0, half, 1)
    lower, upper = xp.clip(share - half, 0, 1), xp.clip(share + half, 0, 1)
    anything = xp.ones_like(lower[:1])
    most = xp.maximum(xp.abs(evidence.rewards).max(), xp.abs(evidence.idle_rewards).max())
    return Intervals(
        xp.concatenate([0 * anything, lower]),
        xp.concatenate([anything, xp.where(seen > 0, upper, 1)]),
        most / xp.sqrt(t),
    )


def coloured_ucrl2(
    name: str, _horizon: int, *, ages: int = AGES, delta: float = 1e-3, scale: float = 1.0
) -> Policy:
    """Return coloured UCRL2."""
    from rmab.policies.rules.joint import OptimisticJointRule

    return Policy(
        name,
        rule=OptimisticJointRule(ages),
        learner=partial(colours, scale=scale, delta=delta),
        gaps=ages - 1,
        episodes=PairDoubling(),
        randomised=False,
        reads_visits=False,
    )


ENTRIES = {
    "colored-ucrl2": Entry(
        "published", f"{__name__}:coloured_ucrl2",
        shared("ages", "aggregation", "delta", "scale"),
        "the joint optimum of the best channels within confidence intervals, for few",
        "Coloured UCRL2", "#8855cc", BROKEN, "3",
        capabilities=Capabilities(arms=(channels_only, few_arms), served=False),
    ),
}  # fmt: skip
