"""A study: which policies meet which arms, how long and how often.

A study is a value, checked once when it is made. `load` reads one from a TOML file; an optional
`[figure]` table in that file says how to draw it and is kept aside, see rmab.studies.paper.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmab.arms import Arms, channels
from rmab.errors import ModelError, StudyError
from rmab.federation.rounds import SCHEDULES

if TYPE_CHECKING:
    from rmab.federation.policies import Policy

__all__ = [
    "KNOWN",
    "LEARNERS",
    "OPTIONS",
    "REALISATIONS",
    "Study",
    "from_table",
    "load",
]

REALISATIONS = ("independent", "shared")
LEARNERS = ("fedtswi", "fedts-myopic", "feducb-wi", "feducb-myopic", "fed1-ucb")
KNOWN = ("whittle", "myopic", "optimal", "fixed", "fixed-best", "random")


# The engine counts in single precision: what is far smaller or larger is lost in it.
_REWARDS = (1e-30, 1e30)
_PRIORS = (1e-6, 1e6)
_MOST = 1e6


def _number(value: Any) -> bool:
    """Whether it is a finite number."""
    try:
        return (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and math.isfinite(float(value))
        )
    except OverflowError:  # a whole number that no float can hold
        return False


def _pair(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(_number(x) and _PRIORS[0] <= x <= _PRIORS[1] for x in value)
    )


def _shown(value: Any) -> str:
    """A value as a message shows it: on one line and not long, whatever it is."""
    try:
        text = " ".join(repr(value).splitlines())
    except (RecursionError, ValueError):  # nested deeply, or more digits than Python prints
        return f"a value of type {type(value).__name__} that is too large to show"
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


# option: (test, rule)
_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "clip": (lambda v: isinstance(v, bool), "true or false"),
    "prior": (_pair, "two numbers from 1e-6 to 1e6, Beta(a, b)"),
    "sigma": (lambda v: _number(v) and 0 < v <= _MOST, "a positive number of at most 1e6"),
}
OPTIONS = {
    "fedtswi": ("prior",),
    "fedts-myopic": ("prior",),
    "feducb-wi": ("clip", "prior"),
    "feducb-myopic": ("clip", "prior"),
    "fed1-ucb": ("sigma",),
}


@dataclass(frozen=True, eq=False)
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
            raise StudyError(f"arms must be made by rmab.channels, got {_shown(self.arms)}")
        for arm, reward in enumerate(self.arms.reward_active.max(-1), start=1):
            if reward and not _REWARDS[0] <= reward <= _REWARDS[1]:
                raise StudyError(
                    f"arm {arm}: reward must be 0 or from 1e-30 to 1e30 in a study, got {reward}"
                )
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
                raise StudyError(f"{key} must be a whole number {rule}, got {_shown(value)}")
            object.__setattr__(self, key, int(value))
        _one_of("realisations", self.realisations, REALISATIONS)
        _one_of("schedule", self.schedule, SCHEDULES)
        self._check_policies()
        self._check_options()
        self._check_weights()

    def _check_policies(self) -> None:
        if isinstance(self.policies, str) or not isinstance(self.policies, Sequence):
            raise StudyError(f"policies must be a list of names, got {_shown(self.policies)}")
        if not self.policies:
            raise StudyError("policies must name at least one policy, got an empty list")
        for policy in self.policies:
            if isinstance(policy, str):
                _one_of("policies", policy, (*LEARNERS, *KNOWN))
            elif not hasattr(policy, "planner") or not getattr(policy, "name", ""):
                raise StudyError(
                    f"policies must be names or rmab.Policy objects, got {_shown(policy)}"
                )
        names = self.policy_names
        for name in names:
            if names.count(name) > 1:
                raise StudyError(f"policies must differ in name, got {name!r} twice")
        object.__setattr__(self, "policies", tuple(self.policies))

    def _check_options(self) -> None:
        if not isinstance(self.options, Mapping):
            raise StudyError(f"options must be a table by policy name, got {_shown(self.options)}")
        for name, settings in self.options.items():
            _one_of("options", name, (*LEARNERS, *KNOWN))
            if not isinstance(settings, Mapping):
                raise StudyError(f"options.{name} must be a table, got {_shown(settings)}")
            known = OPTIONS.get(name, ())
            for key, value in settings.items():
                if key not in known:
                    has = f"has {', '.join(known)}" if known else "takes no options"
                    raise StudyError(f"options.{name}: unknown key {_shown(key)}; {name} {has}")
                test, rule = _CHECKS[key]
                if not test(value):
                    raise StudyError(f"options.{name}.{key} must be {rule}, got {_shown(value)}")

    def _check_weights(self) -> None:
        if self.weights is None:
            return
        if not isinstance(self.weights, list | tuple) or len(self.weights) != self.agents:
            raise StudyError(
                f"weights must be one number for each of {self.agents} agents, "
                f"got {_shown(self.weights)}"
            )
        for agent, weight in enumerate(self.weights):
            if not (_number(weight) and 0 <= weight <= _MOST):
                raise StudyError(
                    f"weights: agent {agent + 1}'s must be a number from 0 to 1e6, "
                    f"got {_shown(weight)}"
                )
        object.__setattr__(self, "weights", tuple(float(w) for w in self.weights))

    @property
    def policy_names(self) -> list[str]:
        """The policies' names in order."""
        return [p if isinstance(p, str) else p.name for p in self.policies]


def _one_of(key: str, value: Any, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise StudyError(f"{key}: unknown {_shown(value)}; known are {', '.join(allowed)}")


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
            raise StudyError(f"unknown key {_shown(key)}; known are {', '.join((*_KEYS, 'arm'))}")
    arms = table.get("arm")
    if not isinstance(arms, list) or not arms or not all(isinstance(a, dict) for a in arms):
        got = "none" if arms is None else _shown(arms)
        raise StudyError(f"arm must be one or more [[arm]] tables, got {got}")
    columns: dict[str, list[float]] = {key: [] for key in _ARM_KEYS}
    for number, arm in enumerate(arms, start=1):
        for key in arm:
            if key not in _ARM_KEYS:
                raise StudyError(
                    f"arm {number}: unknown key {_shown(key)}; known are {', '.join(_ARM_KEYS)}"
                )
        for key in _ARM_KEYS:
            if key not in arm:
                raise StudyError(f"arm {number}: {key} is missing; an arm has p01, p11 and reward")
            if not _number(arm[key]):
                raise StudyError(
                    f"arm {number}: {key} must be a finite number, got {_shown(arm[key])}"
                )
            columns[key].append(arm[key])
    return Study(arms=channels(**columns), **{k: v for k, v in table.items() if k != "arm"})


def read_table(path: str | PathLike[str]) -> dict[str, Any]:
    """The tables of a TOML file; every way it can fail is a StudyError that names the file."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StudyError(f"{path}: no such file") from None
    except RecursionError:
        raise StudyError(f"{path}: not valid TOML: values are nested too deeply") from None
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
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
