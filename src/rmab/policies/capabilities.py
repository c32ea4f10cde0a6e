"""Capabilities of policies by name: the data they read, the arms and the sharing they go with.

A capability is a value on a policy's entry; `rmab.policies.refusal.refusal` reads it. A rule is a
function of a `Case`, one policy under some conditions. It returns why they do not go together, or
None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rmab.model.arms import CHANNEL, ArmKind
from rmab.policies.aggregation import AGGREGATIONS, Aggregation
from rmab.policies.options import AGES
from rmab.policies.policy import Policy

__all__ = [
    "Capabilities",
    "Case",
    "Conditions",
    "Rule",
    "always_observed",
    "capabilities_of",
    "capable",
    "channels_only",
    "few_arms",
    "first_other",
    "seen_in_play",
    "two_states",
]

_NOTE = "rmab_capabilities"  # attribute of learners
_MAX_CODES, _MAX_SETS = 100_000, 100  # of joint plans, each made anew in every episode


@dataclass(frozen=True)
class Conditions:
    """Arms, sharing and privacy under which a policy is to play."""

    kinds: Sequence[ArmKind]  # (N,)
    plays: int = 1  # K, the arms that an agent plays in a slot
    channels: Sequence[bool] = ()  # (N,), whether each arm is one, by its rewards too
    aggregation: str | Aggregation = "sum"  # of policies that have none of their own
    draws: str = "shared"  # or "per-agent", "own"
    weighted: bool = False  # whether agents have weights
    noise: bool = False  # whether sums over agents are released with noise
    served: bool = False  # whether a federation runs the policy; else a study does
    recorded: bool = False  # whether agents play a recording, each its own


@dataclass(frozen=True)
class Capabilities:
    """Data that a policy reads, and the conditions that it goes with.

    Parameters
    ----------
    reads : str
        "nothing", "own" (each agent's observations, by itself), "counts" (merged over agents),
        "states" (true states, which only a recording shows) or "unknown".
    arms, options : tuple of rules
        Reasons follow the policy's name ("is for channels"), or begin with an option's name.
    """

    reads: str = "counts"
    arms: tuple[Rule, ...] = ()
    options: tuple[Rule, ...] = ()
    noise: bool = False  # whether it learns from sums with noise: rmab.privacy.noise
    local_draws: bool = False  # whether an agent may draw by itself: channel.local_posterior
    served: bool = True  # whether a federation may run it
    one_law: bool = False  # whether it needs the same dynamics for all agents


@dataclass(frozen=True)
class Case:
    """One policy under some conditions."""

    name: str
    at: Conditions
    capabilities: Capabilities
    settings: Mapping[str, Any]  # its own defaults, and the options that are set
    place: str = "options"  # of the options in a file
    policy: Policy | None = None  # the object; None for a policy by name

    @property
    def aggregation(self) -> str | Aggregation:
        """Aggregation of the policy, or else of the conditions."""
        found: str | Aggregation = self.settings.get("aggregation", self.at.aggregation)
        return found

    @property
    def shares(self) -> Aggregation:
        """Aggregation as an object."""
        given = self.aggregation
        return AGGREGATIONS[given] if isinstance(given, str) else given


Rule = Callable[[Case], str | None]
F = TypeVar("F", bound=Callable[..., Any])


def capable(capabilities: Capabilities) -> Callable[[F], F]:
    """Return a decorator that notes the capabilities of a learner."""

    def noted(learner: F) -> F:
        setattr(learner, _NOTE, capabilities)
        return learner

    return noted


def capabilities_of(learner: Callable[..., Any] | None) -> Capabilities:
    """Return the noted capabilities of a learner, or of the learner in a `partial`."""
    return getattr(getattr(learner, "func", learner), _NOTE, Capabilities("unknown"))


def first_other(holds: Sequence[bool]) -> int:
    """Return the number, from 1, of the first arm for which a property does not hold; 0: none."""
    return next((number for number, each in enumerate(holds, 1) if not each), 0)


def channels_only(case: Case) -> str | None:
    """Refuse arms that are no channels."""
    other = first_other([kind == CHANNEL for kind in case.at.kinds])
    if not other:
        return None
    return (
        f"is for channels alone, and arm {other} is not of two states, observed when played, "
        "moving alike played or not"
    )


def always_observed(case: Case) -> str | None:
    """Refuse arms that are observed only when played."""
    other = first_other([kind.fully_observed for kind in case.at.kinds])
    if not other:
        return None
    return f"is for arms that are always observed, and arm {other} is observed when played"


def two_states(case: Case) -> str | None:
    """Refuse arms of more than two states."""
    other = first_other([kind.states == 2 for kind in case.at.kinds])
    if not other:
        return None
    return f"is for arms of two states, and arm {other} has {case.at.kinds[other - 1].states}"


def seen_in_play(case: Case) -> str | None:
    """Refuse arms that are always observed, and arms that move otherwise when played."""
    for number, kind in enumerate(case.at.kinds, 1):
        if kind.fully_observed:
            return f"is for arms that are observed when played, and arm {number} always is"
        if kind.action_dependent:
            return f"is for arms that move alike played or not, and arm {number} does not"
    return None


def few_arms(case: Case) -> str | None:
    """Refuse arms whose joint information states, or sets of K arms, are too many to plan for."""
    ages, kinds = case.settings.get("ages", AGES), case.at.kinds
    codes = math.prod(k.states if k.fully_observed else 1 + k.states * ages for k in kinds)
    sets = math.comb(len(kinds), case.at.plays)
    if codes <= _MAX_CODES and sets <= _MAX_SETS:
        return None
    about = f"{codes:,}" if codes < 10**12 else f"about 10^{math.log10(codes):.0f}"
    return (
        f"is for few arms: ages up to {ages} give {about} joint information states and {sets:,} "
        f"sets of {case.at.plays} arms, and at most {_MAX_CODES:,} and {_MAX_SETS:,} are planned "
        "for"
    )
