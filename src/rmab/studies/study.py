"""A study: which policies meet which arms, how long and how often.

A study is a value, checked once when it is made. `load` reads one from a TOML file; an optional
`[figure]` table in that file says how to draw it and is kept aside, see rmab.studies.paper. The
studies of the catalogue come with the package: `load("catalogue:fading")`.

An `[[arm]]` table is of one of two kinds, which may be mixed in a study:

    channel     p01, p11, reward             numbers; see rmab.channels
    general     passive                      S rows of S numbers
                active                       likewise; as passive if left out
                reward or reward_active      S numbers, what a play pays
                reward_passive               S numbers, what a slot without a play pays
                observed                     "when_played" (if left out) or "always"

Arms count from 1, rows, columns and states from 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from rmab.errors import ModelError, StudyError
from rmab.federation.aggregation import AGGREGATIONS
from rmab.federation.rounds import DRAWS, SCHEDULES
from rmab.model.arms import OBSERVED, Arm, Arms, channels
from rmab.policies.lookahead import DEPTH, check_depth
from rmab.policies.policy import Policy
from rmab.policies.registry import KNOWN, LEARNERS, check_options
from rmab.reading import is_number, one_of, read_toml, shown

__all__ = [
    "CATALOGUE",
    "KNOWN",
    "LEARNERS",
    "MOST_STATES",
    "REALISATIONS",
    "Study",
    "from_table",
    "load",
]

REALISATIONS = ("independent", "shared")
CATALOGUE = "catalogue:"  # what the name of a study that comes with the package begins with

MOST_STATES = 64
_MOST_ENTRIES = 2**22  # of N transition matrices, each as large as the largest
# The engine counts in single precision: what is far smaller or larger is lost in it.
_REWARDS = (1e-30, 1e30)
MOST_WEIGHT = 1e6


@dataclass(frozen=True, eq=False)
class Study:
    """Policies on arms: M `agents` play K = `plays` of the arms in each of `horizon` slots.

    arms: an `Arms`, or a list of `Arm`, which becomes one; policies: names, or `rmab.Policy`
    objects of one's own; options: settings by policy name; weights: what each agent's counts weigh
    when they are merged (default 1 each); draws: whether agents play by one draw of the dynamics or
    each by one of its own; aggregation: what agents share, by name.
    """

    arms: Arms
    agents: int = 1
    plays: int = 1
    horizon: int = 1000
    trials: int = 1000
    seed: int = 0
    realisations: str = "independent"
    schedule: str = "paper"
    policies: Sequence[str | Policy] = ("fedtswi", "whittle")
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    weights: Sequence[float] | None = None
    draws: str = "shared"
    aggregation: str = "sum"

    def __post_init__(self) -> None:
        self._check_arms()
        for key, low, high, rule in (
            ("agents", 1, 2**16, "at least 1 and at most 65536"),
            ("plays", 1, len(self.arms), f"between 1 and {len(self.arms)}, the number of arms"),
            ("horizon", 1, 10**6, "at least 1 and at most 1000000"),
            ("trials", 1, 2**32, "at least 1 and at most 2^32"),
            ("seed", 0, 2**64 - 1, "from 0 to 2^64 - 1"),
        ):
            value = getattr(self, key)
            whole = isinstance(value, Integral) and not isinstance(value, bool)
            if not whole or not low <= value <= high:
                raise StudyError(f"{key} must be a whole number {rule}, got {shown(value)}")
            object.__setattr__(self, key, int(value))
        one_of("realisations", self.realisations, REALISATIONS)
        one_of("schedule", self.schedule, SCHEDULES)
        one_of("draws", self.draws, DRAWS)
        one_of("aggregation", self.aggregation, tuple(AGGREGATIONS))
        alike = [arm.moves_alike for arm in self.arms]
        if self.realisations == "shared" and not all(alike):
            raise StudyError(
                f"realisations must be 'independent', as arm {alike.index(False) + 1} moves "
                "otherwise when played: agents cannot each move what they share; got 'shared'"
            )
        self._check_policies()
        self._check_options()
        self._check_weights()

    def _check_arms(self) -> None:
        given: Any = self.arms
        if isinstance(given, list | tuple) and given and all(isinstance(a, Arm) for a in given):
            object.__setattr__(self, "arms", Arms(given))
        elif not isinstance(given, Arms):
            raise StudyError(
                f"arms must be a list of rmab.Arm, or made by rmab.channels, got {shown(given)}"
            )
        arms = self.arms
        S = int(arms.sizes.max())
        if S > MOST_STATES:
            number = int(arms.sizes.argmax()) + 1
            raise StudyError(
                f"arm {number} must have at most {MOST_STATES} states in a study, got {S}"
            )
        if len(arms) * S * S > _MOST_ENTRIES:
            raise StudyError(
                f"there must be at most {_MOST_ENTRIES // (S * S)} arms where one has {S} states, "
                f"got {len(arms)}"
            )
        for name in ("reward_active", "reward_passive"):
            rewards = getattr(arms, name)
            size = np.abs(rewards)
            lost = (size > 0) & ~((size >= _REWARDS[0]) & (size <= _REWARDS[1]))
            for n, state in np.argwhere(lost)[:1]:
                raise StudyError(
                    f"arm {n + 1}: {name} of state {state} must be 0 or from 1e-30 to 1e30 in "
                    f"size in a study, got {rewards[n, state]}"
                )

    def _check_policies(self) -> None:
        if isinstance(self.policies, str) or not isinstance(self.policies, Sequence):
            raise StudyError(f"policies must be a list of names, got {shown(self.policies)}")
        if not self.policies:
            raise StudyError("policies must name at least one policy, got an empty list")
        policy: Any
        for policy in self.policies:
            if isinstance(policy, str):
                one_of("policies", policy, (*LEARNERS, *KNOWN))
            elif not isinstance(policy, Policy) or not policy.name:
                raise StudyError(
                    f"policies must be names or rmab.Policy objects, got {shown(policy)}"
                )
        names = self.policy_names
        for name in names:
            if names.count(name) > 1:
                raise StudyError(f"policies must differ in name, got {name!r} twice")
        object.__setattr__(self, "policies", tuple(self.policies))

    def _check_options(self) -> None:
        if not isinstance(self.options, Mapping):
            raise StudyError(f"options must be a table by policy name, got {shown(self.options)}")
        largest = int(self.arms.sizes.argmax())
        S = int(self.arms.sizes[largest])
        for name, settings in self.options.items():
            one_of("options", name, (*LEARNERS, *KNOWN))
            check_options(name, settings, f"options.{name}")
            prior = settings.get("prior")
            if S > 2 and isinstance(prior, list | tuple):
                raise StudyError(
                    f"options.{name}.prior must be one number, as arm {largest + 1} has {S} "
                    f"states, got {shown(prior)}"
                )
            try:
                check_depth(self.arms.kinds, self.plays, settings.get("depth", DEPTH))
            except ModelError as error:
                raise StudyError(f"options.{name}.{error}") from None
            if settings.get("clip") is False and not self.arms.are_channels:
                raise StudyError(
                    f"options.{name}.clip must be true unless all arms are channels: bounds that "
                    "are not clipped are no probabilities of several states; got false"
                )

    def _check_weights(self) -> None:
        if self.weights is None:
            return
        if not isinstance(self.weights, list | tuple) or len(self.weights) != self.agents:
            raise StudyError(
                f"weights must be one number for each of {self.agents} agents, "
                f"got {shown(self.weights)}"
            )
        for agent, weight in enumerate(self.weights):
            if not (is_number(weight) and 0 <= weight <= MOST_WEIGHT):
                raise StudyError(
                    f"weights: agent {agent + 1}'s must be a number from 0 to 1e6, "
                    f"got {shown(weight)}"
                )
        object.__setattr__(self, "weights", tuple(float(w) for w in self.weights))

    @property
    def policy_names(self) -> list[str]:
        """The policies' names in order."""
        return [p if isinstance(p, str) else p.name for p in self.policies]


_KEYS = (
    "agents",
    "plays",
    "horizon",
    "trials",
    "seed",
    "realisations",
    "schedule",
    "draws",
    "aggregation",
    "policies",
    "options",
    "weights",
)
_CHANNEL_KEYS = ("p01", "p11", "reward")
_REWARD_KEYS = ("reward", "reward_active", "reward_passive")
_GENERAL_KEYS = ("passive", "active", *_REWARD_KEYS, "observed")
_KINDS = f"a channel has {', '.join(_CHANNEL_KEYS)}; any other arm {', '.join(_GENERAL_KEYS)}"


def from_table(table: Mapping[str, Any]) -> Study:
    """A study from the table of a TOML file, without its `figure`."""
    for key in table:
        if key not in (*_KEYS, "arm"):
            raise StudyError(f"unknown key {shown(key)}; known are {', '.join((*_KEYS, 'arm'))}")
    tables = table.get("arm")
    if not isinstance(tables, list) or not tables or not all(isinstance(a, dict) for a in tables):
        got = "none" if tables is None else shown(tables)
        raise StudyError(f"arm must be one or more [[arm]] tables, got {got}")
    arms = []
    for number, arm in enumerate(tables, start=1):
        try:
            arms.append(_arm(arm))
        except (StudyError, ModelError) as error:
            # A channel made alone takes itself for the first.
            raise StudyError(f"arm {number}: {str(error).removeprefix('arm 1: ')}") from None
    return Study(arms=Arms(arms), **{k: v for k, v in table.items() if k != "arm"})


def _arm(table: Mapping[str, Any]) -> Arm:
    """The arm of an [[arm]] table. That all numbers are numbers is checked here, as NumPy would
    take "0.5" and true for some; that they make an arm is checked by what makes it."""
    for key in table:
        if key not in (*_CHANNEL_KEYS, *_GENERAL_KEYS):
            raise StudyError(f"unknown key {shown(key)}; {_KINDS}")
    channel = [key for key in ("p01", "p11") if key in table]
    general = [key for key in _GENERAL_KEYS if key in table and key != "reward"]
    if channel and general:
        raise StudyError(f"{channel[0]} and {general[0]} must not be in one table; {_KINDS}")
    for key in _CHANNEL_KEYS if channel else ("passive",):
        if key not in table:
            raise StudyError(f"{key if channel else 'p01 or passive'} is missing; {_KINDS}")
    if channel:
        for key in _CHANNEL_KEYS:
            if not is_number(table[key]):
                raise StudyError(f"{key} must be a finite number, got {shown(table[key])}")
        return channels(**table)[0]
    for key in ("passive", "active"):
        rows = table.get(key, [])
        if not isinstance(rows, list | tuple):
            raise StudyError(f"{key} must be a list of rows of numbers, got {shown(rows)}")
        for state, row in enumerate(rows):
            _check_numbers(f"{key} row {state}", "column", row)
    for key in _REWARD_KEYS:
        _check_numbers(key, "state", table.get(key, []))
    one_of("observed", table.get("observed", OBSERVED[0]), OBSERVED)
    return Arm(**table)


def _check_numbers(key: str, place: str, values: Any) -> None:
    if not isinstance(values, list | tuple):
        raise StudyError(f"{key} must be a list of numbers, got {shown(values)}")
    for number, value in enumerate(values):
        if not is_number(value):
            raise StudyError(f"{key}: {place} {number} must be a finite number, got {shown(value)}")


def read_table(path: str | PathLike[str]) -> dict[str, Any]:
    """The tables of a TOML file; every way it can fail is a StudyError that names the file."""
    return read_toml(path, _file(path))


def _file(path: str | PathLike[str]) -> Path | Traversable:
    """The file of that name, or that of the catalogue."""
    if not (isinstance(path, str) and path.startswith(CATALOGUE)):
        return Path(path)
    shipped = {
        file.name.removesuffix(".toml"): file
        for file in resources.files("rmab.studies").joinpath("catalogue").iterdir()
    }
    name = path.removeprefix(CATALOGUE)
    one_of("catalogue", name, sorted(shipped))
    return shipped[name]


def load(path: str | PathLike[str]) -> Study:
    """The study in a TOML file, or one that comes with the package: "catalogue:fading", say."""
    table = read_table(path)
    table.pop("figure", None)
    try:
        return from_table(table)
    except (StudyError, ModelError) as error:
        raise StudyError(f"{path}: {error}") from None
