"""Contestants of the arena: a policy by name, one with options, or a user's own.

A policy with options is written NAME@OPTION=VALUE, as "ucw-value@scale=0.1". The reference policies
`whittle`, `lookahead` and `random` always play.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from rmab.arena.problems import PROBLEMS
from rmab.errors import StudyError
from rmab.policies.policy import Policy
from rmab.policies.registry import POLICIES, STUDIED, check_options, named
from rmab.studies.study import Study
from rmab.text import one_of, option_value, shown

__all__ = ["REFERENCES", "SHARING", "Contestant", "contestants", "own_contestant"]

REFERENCES = ("whittle", "lookahead", "random")
# Published learners with constants that work beside those that were printed.
_VARIANTS = (
    "restless-ucb@radius=0",
    "ucw-value@scale=0.1",
    "ucw-penalty@scale=0.1",
    "ucw-extreme@scale=0.1",
    "colored-ucrl2@scale=0.1",
)
# Without sharing and with gossip, to measure the gain of sharing between several agents.
SHARING = ("fedtswi@aggregation=none", "fedtswi@aggregation=gossip")


@dataclass(frozen=True, eq=False)
class Contestant:
    """Policy that plays in the arena.

    name: in tables; base, options: the policy by name, with its options; own: else a user's policy,
    from `source`.
    """

    name: str
    base: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    own: Policy | None = None
    source: str = ""

    @property
    def uses_true_dynamics(self) -> bool:
        """Whether it uses the true dynamics, or plays at random: it has no rank."""
        if self.own is not None:
            outside = self.own.rule.outside  # it is given no dynamics
            return not self.own.learns and not self.own.rule.learns and not outside
        return POLICIES[self.base].group == "known"

    @property
    def label(self) -> str:
        """Name for readers."""
        if not self.base:
            return self.name
        options = ", ".join(f"{key} {each}" for key, each in self.options.items())
        return POLICIES[self.base].label + (f", {options}" if options else "")

    def enter(self, study: Study) -> Policy:
        """Make the policy for a study; StudyError if the study does not accept it."""
        if self.own is not None:
            replace(study, policies=[self.own])
            return self.own
        alone = replace(study, policies=[self.base], options={self.base: dict(self.options)})
        options = alone.options_of(self.base)
        given = tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in options.items())
        return _entered(self.name, self.base, study.horizon, given)


# One object for one contestant, so that its compiled program is used again.
@lru_cache(maxsize=512)
def _entered(name: str, base: str, horizon: int, options: tuple[tuple[str, Any], ...]) -> Policy:
    policy = named(base, horizon, dict(options))
    return policy if name == base else replace(policy, name=name)


def contestants(
    names: Sequence[str] | None = None, own: Sequence[Contestant] = ()
) -> list[Contestant]:
    """Make contestants by name, then the reference policies and a user's own; None: all names."""
    if names is None:
        asked = [*STUDIED, *(v for v in (*_VARIANTS, *SHARING) if _is_known(v))]
    else:
        asked = list(dict.fromkeys(names))
    references = [name for name in REFERENCES if name not in asked]
    everyone = [*map(_contestant, (*asked, *references)), *own]
    listed = [each.name for each in everyone]
    for name in listed:
        if listed.count(name) > 1:
            raise StudyError(f"policies must differ in name, got {shown(name)} twice")
    return everyone


def _is_known(variant: str) -> bool:
    try:
        _contestant(variant)
    except StudyError:
        return False
    return True


def _contestant(text: str) -> Contestant:
    """Read NAME@OPTION=VALUE@..., with values as in TOML, or words."""
    base, *settings = text.split("@")
    if base in PROBLEMS:
        raise StudyError(
            f"policies: {shown(base)} is a problem; problems come before the options of the command"
        )
    one_of("policies", base, STUDIED)
    options: dict[str, Any] = {}
    for each in settings:
        key, is_set, given = each.partition("=")
        if not (key and is_set):
            raise StudyError(f"policies: must be NAME or NAME@OPTION=VALUE, got {shown(text)}")
        options[key] = option_value(given)
    check_options(base, options, f"policies: {text}: {base}")
    return Contestant(text, base, options)


def own_contestant(source: str, policy: object) -> Contestant:
    """Make a contestant of a user's policy, or of a function that makes one.

    source: MODULE:NAME of the policy, for messages.
    """
    made = policy
    if callable(policy) and not isinstance(policy, Policy):
        try:
            made = policy()
        except (Exception, SystemExit) as error:  # whatever the user's code does
            raise StudyError(
                f"--policy {source}: cannot be made: {type(error).__name__}: {error}"
            ) from None
    if not isinstance(made, Policy) or not made.name:
        raise StudyError(
            f"--policy {source}: must be an rmab.Policy or a function that makes one, "
            f"got {shown(made)}"
        )
    if not made.name.isprintable():
        raise StudyError(f"--policy {source}: its name must be one line, got {shown(made.name)}")
    return Contestant(made.name, own=made, source=source)
