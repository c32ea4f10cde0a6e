"""A study: which policies meet which arms, how long and how often.

A study is a value, checked once when it is made. `load` reads one from a TOML file; an optional
`[figure]` table in that file says how to draw it and is kept aside, see rmab.studies.paper.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmab.arms import Arms, channels
from rmab.errors import ModelError, StudyError

if TYPE_CHECKING:
    from rmab.federation.policies import Policy

__all__ = ["KNOWN", "LEARNERS", "REALISATIONS", "SCHEDULES", "Study", "from_table", "load"]

REALISATIONS = ("independent", "shared")
SCHEDULES = ("paper", "linear", "doubling")
LEARNERS = ("fedtswi", "fedts-myopic", "feducb-wi", "feducb-myopic", "fed1-ucb")
KNOWN = ("whittle", "myopic", "optimal", "fixed", "fixed-best", "random")


def _pair(value: Any) -> bool:
    return (
        isinstance(value, Sequence)
        and len(value) == 2
        and all(_number(x) and math.isfinite(x) and x > 0 for x in value)
    )


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# option: (test, rule)
_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "clip": (lambda v: isinstance(v, bool), "true or false"),
    "prior": (_pair, "two positive numbers, Beta(a, b)"),
    "sigma": (lambda v: _number(v) and math.isfinite(v) and v > 0, "a positive number"),
}
_OPTIONS = {
    "fedtswi": ("prior",),
    "fedts-myopic": ("prior",),
    "feducb-wi": ("clip", "prior"),
    "feducb-myopic": ("clip", "prior"),
    "fed1-ucb": ("sigma",),
}


@dataclass(frozen=True)
class Study:
    """Policies on arms: M `agents` play K = `plays` of the arms in each of `horizon` slots.

    policies: names, or `rmab.Policy` objects of one's own; options: settings by policy name;
    weights: what each agent's counts weigh when they are merged (default 1 each).
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

    def __post_init__(self) -> None:
        if not isinstance(self.arms, Arms):
            raise StudyError(f"arms must be made by rmab.channels, got {self.arms!r}")
        for key, low, high, rule in (
            ("agents", 1, 2**16, "at least 1 and at most 65536"),
            ("plays", 1, len(self.arms), f"between 1 and {len(self.arms)}, the number of arms"),
            ("horizon", 1, 10**6, "at least 1 and at most 1000000"),
            ("trials", 1, 2**32, "at least 1 and at most 2^32"),
            ("seed", 0, 2**64 - 1, "from 0 to 2^64 - 1"),
        ):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise StudyError(f"{key} must be a whole number {rule}, got {value!r}")
        _one_of("realisations", self.realisations, REALISATIONS)
        _one_of("schedule", self.schedule, SCHEDULES)
        self._check_policies()
        self._check_options()
        self._check_weights()

    def _check_policies(self) -> None:
        if isinstance(self.policies, str) or not isinstance(self.policies, Sequence):
            raise StudyError(f"policies must be a list of names, got {self.policies!r}")
        if not self.policies:
            raise StudyError("policies must name at least one policy, got an empty list")
        for policy in self.policies:
            if isinstance(policy, str):
                _one_of("policies", policy, (*LEARNERS, *KNOWN))
            elif not hasattr(policy, "planner"):
                raise StudyError(f"policies must be names or rmab.Policy objects, got {policy!r}")
        names = self.policy_names
        for name in names:
            if names.count(name) > 1:
                raise StudyError(f"policies must differ in name, got {name!r} twice")
        object.__setattr__(self, "policies", tuple(self.policies))

    def _check_options(self) -> None:
        if not isinstance(self.options, Mapping):
            raise StudyError(f"options must be a table by policy name, got {self.options!r}")
        for name, settings in self.options.items():
            _one_of("options", name, (*LEARNERS, *KNOWN))
            if not isinstance(settings, Mapping):
                raise StudyError(f"options.{name} must be a table, got {settings!r}")
            known = _OPTIONS.get(name, ())
            for key, value in settings.items():
                if key not in known:
                    has = f"has {', '.join(known)}" if known else "takes no options"
                    raise StudyError(f"options.{name}: unknown key {key!r}; {name} {has}")
                test, rule = _CHECKS[key]
                if not test(value):
                    raise StudyError(f"options.{name}.{key} must be {rule}, got {value!r}")

    def _check_weights(self) -> None:
        if self.weights is None:
            return
        if not isinstance(self.weights, list | tuple) or len(self.weights) != self.agents:
            raise StudyError(
                f"weights must be one number for each of {self.agents} agents, got {self.weights!r}"
            )
        for agent, weight in enumerate(self.weights):
            if not (_number(weight) and math.isfinite(weight) and weight >= 0):
                raise StudyError(
                    f"weights: agent {agent + 1}'s must be finite and not negative, got {weight!r}"
                )
        object.__setattr__(self, "weights", tuple(float(w) for w in self.weights))

    @property
    def policy_names(self) -> list[str]:
        """The policies' names in order."""
        return [p if isinstance(p, str) else p.name for p in self.policies]


def _one_of(key: str, value: Any, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise StudyError(f"{key}: unknown {value!r}; known are {', '.join(allowed)}")


_KEYS = (
    "agents",
    "plays",
    "horizon",
    "trials",
    "seed",
    "realisations",
    "schedule",
    "policies",
    "options",
    "weights",
)
_ARM_KEYS = ("p01", "p11", "reward")


def from_table(table: Mapping[str, Any]) -> Study:
    """A study from the table of a TOML file, without its `figure`."""
    for key in table:
        if key not in (*_KEYS, "arm"):
            raise StudyError(f"unknown key {key!r}; known are {', '.join((*_KEYS, 'arm'))}")
    arms = table.get("arm")
    if not isinstance(arms, list) or not arms or not all(isinstance(a, dict) for a in arms):
        got = "none" if arms is None else repr(arms)
        raise StudyError(f"arm must be one or more [[arm]] tables, got {got}")
    columns: dict[str, list[float]] = {key: [] for key in _ARM_KEYS}
    for number, arm in enumerate(arms, start=1):
        for key in arm:
            if key not in _ARM_KEYS:
                raise StudyError(
                    f"arm {number}: unknown key {key!r}; known are {', '.join(_ARM_KEYS)}"
                )
        for key in _ARM_KEYS:
            if key not in arm:
                raise StudyError(f"arm {number}: {key} is missing; an arm has p01, p11 and reward")
            if not _number(arm[key]):
                raise StudyError(f"arm {number}: {key} must be a number, got {arm[key]!r}")
            columns[key].append(arm[key])
    return Study(arms=channels(**columns), **{k: v for k, v in table.items() if k != "arm"})


def read_table(path: str | PathLike[str]) -> dict[str, Any]:
    """The tables of a TOML file; every way it can fail is a StudyError that names the file."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StudyError(f"{path}: no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StudyError(f"{path}: not valid TOML: {error}") from None
    except OSError as error:
        raise StudyError(f"{path}: cannot be read: {error.strerror}") from None


def load(path: str | PathLike[str]) -> Study:
    """The study in a TOML file."""
    table = read_table(path)
    table.pop("figure", None)
    try:
        return from_table(table)
    except (StudyError, ModelError) as error:
        raise StudyError(f"{path}: {error}") from None
