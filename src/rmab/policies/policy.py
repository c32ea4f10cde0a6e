"""Policies: a learner, a rule, an episode rule and sharing, put together.

A *learner* turns evidence into dynamics (`rmab.learning.evidence`); without one the dynamics are
known. A *rule* (`rmab.policies.rules`, one module each) says how arms are chosen by them.
*Episodes* (`rmab.policies.episode_rules`) end when a schedule or a rule of the policy says so.
*Sharing* is how agents' evidence and draws are joined. Each part owns everything about itself.

`rmab.policies.registry` has the policies by name, and docs/own-policy.md shows how to make others.
This module imports no JAX: a study's file is read with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rmab.errors import ModelError
from rmab.policies.aggregation import AGGREGATIONS, Aggregation, mixes_evidence
from rmab.policies.episode_rules import EpisodeRule, Lengths, OwnVisits
from rmab.policies.rules.index import IndexRule
from rmab.policies.rules.lookahead import LookaheadRule
from rmab.policies.rules.own_learner import OwnIndexRule
from rmab.policies.rules.rule import Rule
from rmab.text import is_whole, shown

if TYPE_CHECKING:  # which is above
    from rmab.engine.setting import Setting

__all__ = [
    "POPULATION",
    "Forgetting",
    "IndexRule",
    "Learner",
    "Lengths",
    "LookaheadRule",
    "OwnIndexRule",
    "Policy",
    "Rule",
    "Sharing",
]

POPULATION = "population"  # a prior that is learnt from all arms: rmab.learning.population


@dataclass(frozen=True)
class Forgetting:
    """Half-lives in slots by which counts lose weight, of one expert or several.

    first: the experts' first weights. See `rmab.learning.forgetting`.
    """

    half_lives: tuple[float, ...]
    first: tuple[float, ...] = (1.0,)


@dataclass(frozen=True, eq=False)
class Learner:
    """A learner and its inputs; without function and own the dynamics are known.

    Parameters
    ----------
    function
        (evidence, draws) -> Moves, or for channels (p01, p11), or more that the rule reads.
    own
        In place of a function, a `rmab.policies.own_index.OwnLearner` with `dynamics`: it keeps a
        state of its own, for each arm and agent, and reads no counts.
    gaps
        G > 0: pairs of observations of an arm observed when played are counted by the slots between
        them, 1 to G and all further ones together (an action-dependent arm's waits one by one,
        those that are too long never). 0: see `rmab.learning.evidence.count_kinds`.
    reads_visits
        False spares counting evidence.visits.
    randomised
        It uses `draws`; if not, agents with the same evidence play by one result.
    forget
        How counts lose weight; None: never.
    prior
        A number, Beta's two, or POPULATION, which is learnt and given as evidence.prior.
    ties
        It reads the ties of an arm's rows.
    """

    function: Callable[[Any, Any], Any] | None = None
    own: Any = None
    gaps: int = 0
    reads_visits: bool = True
    randomised: bool = True
    forget: Forgetting | None = None
    prior: float | tuple[float, float] | str = 1.0
    ties: bool = False

    @property
    def learns(self) -> bool:
        """Whether it gives dynamics at the start of every episode."""
        return self.function is not None or hasattr(self.own, "dynamics")


@dataclass(frozen=True)
class Sharing:
    """Joining of agents' evidence and draws; None: as the study says.

    aggregation: a name or an object of `rmab.policies.aggregation`; draws: "shared" or "per-agent".
    """

    aggregation: str | Aggregation | None = None
    draws: str | None = None

    def applied(self, setting: Setting) -> Setting:
        """Return a study's setting with this aggregation; of several gossips it is the study's."""
        own = self.aggregation
        if own is None:
            return setting
        if isinstance(own, str):
            mixes = mixes_evidence(AGGREGATIONS[own]) and mixes_evidence(setting.aggregation)
            own = setting.aggregation if mixes else AGGREGATIONS[own]
        return replace(setting, aggregation=own)


# Options of `Policy`, by the part that has them as fields, and the least value of numbers.
_INDEX = ("table", "statewise", "max_age")
_LEARNER = ("own", "gaps", "reads_visits", "randomised", "forget", "prior", "ties")
_EPISODES = ("lengths", "own_visits", "longest", "explores")
_OPTIONS = {*_INDEX, *_LEARNER, *_EPISODES, "depth", "aggregation", "draws"}
_LEAST = MappingProxyType({"depth": 0, "gaps": 0, "max_age": 1, "longest": 1})


@dataclass(frozen=True, eq=False, init=False)
class Policy:
    """Policy: a name and four parts.

    Parts are given as such, or by their own parts: a planner, a table or a depth (of a rule),
    a function (of a learner), and options, which docs/own-policy.md lists.
    """

    name: str
    learner: Learner
    rule: Rule
    episodes: EpisodeRule
    sharing: Sharing

    def __init__(
        self,
        name: str,
        planner: Callable[[Any, Any], Any] | None = None,
        learner: Learner | Callable[[Any, Any], Any] | None = None,
        *,
        rule: Rule | None = None,
        episodes: EpisodeRule | None = None,
        sharing: Sharing | None = None,
        **options: Any,
    ) -> None:
        _check(name, options)
        if rule is None:
            rule = _rule(name, planner, options)
        elif planner is not None or options.get("table") is not None or options.get("depth"):
            raise ModelError(f"policy {name}: a rule must come without planner, table and depth")
        if learner is not None and options.get("own") is not None:
            raise ModelError(f"policy {name}: learner and own must not both be given")
        if options.get("lengths") is not None and learner is None:
            raise ModelError(
                f"policy {name}: lengths must come with a learner, whose evidence they read"
            )
        if not isinstance(learner, Learner):
            learner = Learner(learner, **_some(options, _LEARNER))
        if episodes is None:
            plain = OwnVisits if options.get("own_visits") else EpisodeRule
            episodes = options.get("lengths") or plain()
            longest, explored = options.get("longest"), options.get("explores")
            episodes = replace(episodes, longest=longest, explored=explored)
        if sharing is None:
            sharing = Sharing(options.get("aggregation"), options.get("draws"))
        parts = (name, learner, rule, episodes, sharing)
        for key, part in zip(self.__dataclass_fields__, parts, strict=True):
            object.__setattr__(self, key, part)

    @property
    def learns(self) -> bool:
        """Whether it has episodes, in each of which a learner gives new dynamics."""
        return self.learner.learns

    @property
    def estimates(self) -> bool:
        """Whether its learner's outputs are estimates of the dynamics, to be kept by episode.

        They are not where there may be as many episodes as slots.
        """
        return self.learns and self.rule.estimates and not self.episodes.countless


def _check(name: str, options: Mapping[str, Any]) -> None:
    for key, value in options.items():
        if key not in _OPTIONS:
            raise TypeError(f"Policy() got an unexpected keyword argument {key!r}")
        least = _LEAST.get(key)
        if least is None or (key == "longest" and value is None):
            continue
        if not is_whole(value) or value < least:
            raise ModelError(
                f"policy {name}: {key} must be a whole number from {least} on, got {shown(value)}"
            )


def _rule(name: str, planner: Callable[[Any, Any], Any] | None, options: Mapping[str, Any]) -> Rule:
    if options.get("depth"):
        return LookaheadRule(options["depth"])
    if planner is None and options.get("table") is None:
        raise ModelError(
            f"policy {name}: a planner, a table, a depth or a rule must say how arms are chosen, "
            "got none"
        )
    return IndexRule(planner, **_some(options, _INDEX))


def _some(options: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: options[key] for key in keys if key in options}
