"""Sweeps: one study at several points, each with some of its settings changed.

A `[sweep]` table in a study's file has a list of values for each setting that changes:

    agents, plays, horizon, ...           a key of the study, except policies and options
    policies.NAME.OPTION                  an option of a policy of the study; or options.NAME.OPTION
    privacy.epsilon, .delta, .survey,     of a study with that table
    .groups
    arm.NUMBER.p01, .p11, .reward         a number of an arm that is a channel
    copies                                how often all arms are repeated
    together                              true: the lists side by side, not their product
    labels                                a list of texts that name the points

The points are the product of the lists in the file's order, the last one changing fastest. All have
the seed and the trials of the study, so that they face the same realisations where their arms and
agents are the same. A study without a sweep is one point, whose label is empty.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any

import numpy as np

from rmab.errors import ModelError, StudyError
from rmab.model.arms import Arm, Arms
from rmab.policies.registry import POLICIES
from rmab.studies.arm_tables import CHANNEL_KEYS, read_arm
from rmab.studies.study import KEYS, Study, from_table, read_table
from rmab.text import is_whole, shown

__all__ = [
    "Point",
    "Sweep",
    "key_label",
    "load_sweep",
    "settings_label",
    "sweep_of",
    "telling",
    "value_text",
]

_MAX_POINTS = 1000
_MAX_COPIES = 4096
_TABLES = ("policies", "options")
_PLAIN = tuple(key for key in KEYS if key not in (*_TABLES, "agent", "privacy"))
_KNOWN = (
    *_PLAIN,
    "copies",
    "policies.NAME.OPTION",
    "privacy.epsilon",
    "arm.NUMBER.p11",
    "together",
    "labels",
)


@dataclass(frozen=True, eq=False)
class Point:
    """Study of a sweep, with its label and the settings by key that differ from the study's."""

    label: str
    study: Study
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Sweep:
    """Study at several points: `rmab.Sweep(study, {"agents": [1, 2, 4], "plays": [1, 2]})`.

    Parameters
    ----------
    study
        Study whose settings change. Without values it is the only point.
    values
        List of values for each key, as in a file.
    together
        Take the lists side by side; else their product.
    labels
        Name for each point; None: made of the settings.
    """

    study: Study
    values: Mapping[str, Any]
    together: bool = False
    labels: Sequence[str] | None = None
    points: tuple[Point, ...] = field(init=False)

    def __post_init__(self) -> None:
        study: Any = self.study
        if not isinstance(study, Study):
            raise StudyError(f"a sweep must be of an rmab.Study, got {type(study).__name__}")
        given: Any = self.values
        plain = self.together is False and self.labels is None
        if plain and isinstance(given, Mapping) and not given:
            object.__setattr__(self, "points", (Point("", study),))
            return
        targets: dict[str, _Target] = {}
        values = {}
        for key, given in _flat(self.values):
            target = _target(self.study, key)
            if target in targets.values():
                raise StudyError(f"sweep.{key} is there twice: policies and options are the same")
            targets[key], values[key] = target, _listed(key, given)
        object.__setattr__(self, "values", values)
        settings = self._settings()
        studies = []
        for number, each in enumerate(settings, start=1):
            changes = {targets[key]: value for key, value in each.items()}
            try:
                studies.append(_changed(self.study, changes))
            except (StudyError, ModelError) as error:
                at = ", ".join(f"{key} = {shown(value)}" for key, value in each.items())
                raise StudyError(f"sweep: point {number} ({at}): {error}") from None
        points = map(Point, self._labels(settings), studies, settings)
        object.__setattr__(self, "points", tuple(points))

    @property
    def n_trials(self) -> int:
        """Trials of all points, for a progress bar."""
        return sum(point.study.trials for point in self.points)

    def to_table(self) -> dict[str, Any]:
        """Table of a study file, of which `sweep_of` makes an equal sweep."""
        return {**self.study.to_table(), **({"sweep": self.swept()} if self.values else {})}

    def swept(self) -> dict[str, Any]:
        """Table `[sweep]` of the file; keys of nested tables have dots."""
        labels = {} if self.labels is None else {"labels": list(self.labels)}
        return {**self.values, "together": self.together, **labels}

    def _settings(self) -> list[dict[str, Any]]:
        """Settings of each point."""
        if not isinstance(self.together, bool):
            raise StudyError(f"sweep.together must be true or false, got {shown(self.together)}")
        sizes = {key: len(values) for key, values in self.values.items()}
        if self.together and len(set(sizes.values())) > 1:
            got = ", ".join(f"{key} {size}" for key, size in sizes.items())
            raise StudyError(f"sweep: lists that go together must be of one length, got {got}")
        count = max(sizes.values(), default=1) if self.together else math.prod(sizes.values())
        if count > _MAX_POINTS:
            raise StudyError(f"sweep must have at most {_MAX_POINTS} points, got {count}")
        if not sizes:
            return [{}]
        lists = self.values.values()
        chosen = zip(*lists, strict=True) if self.together else itertools.product(*lists)
        return [dict(zip(sizes, each, strict=True)) for each in chosen]

    def _labels(self, settings: Sequence[Mapping[str, Any]]) -> list[str]:
        """Labels that were given, or else the settings that tell the points apart."""
        keys = telling(settings) or list(self.values)
        labels = [settings_label({key: each[key] for key in keys}) for each in settings]
        _check_differ(labels)
        if self.labels is None:
            return labels
        given: Any = self.labels
        named: list[Any] = list(given) if isinstance(given, list | tuple) else []
        texts = all(isinstance(text, str) and text.strip() for text in named)
        if len(named) != len(settings) or not texts:
            raise StudyError(
                f"sweep.labels must be a list of {len(settings)} texts, one for each point, "
                f"got {shown(given)}"
            )
        _check_differ(named)
        return named


def _check_differ(labels: Sequence[str]) -> None:
    for number, label in enumerate(labels, start=1):
        first = labels.index(label) + 1
        if first < number:
            raise StudyError(
                f"sweep: points {first} and {number} must differ, got {shown(label)} twice"
            )


def telling(settings: Sequence[Mapping[str, Any]], known: Sequence[str] = ()) -> list[str]:
    """Keys, in order, that tell points of these settings apart beyond the known keys.

    A key that adds nothing is left out: one with one value, or one that varies with earlier keys.

    >>> telling([{"agents": 1, "seed": 0}, {"agents": 2, "seed": 1}])
    ['agents']
    """
    chosen = list(known)

    def apart(keys: Sequence[str]) -> int:
        return len({tuple(value_text(each[key]) for key in keys) for each in settings})

    for key in settings[0]:
        if apart([*chosen, key]) > apart(chosen):
            chosen.append(key)
    return chosen[len(known) :]


def settings_label(settings: Mapping[str, Any]) -> str:
    """Write settings in one line: M = 4, K = 2."""
    return ", ".join(f"{_symbol(key)} = {value_text(value)}" for key, value in settings.items())


def key_label(key: str) -> str:
    """Label of a key for an axis."""
    return KEYS[key].label if key in KEYS else _symbol(key)


def _symbol(key: str) -> str:
    """Symbol of a key in a label: M for agents, fedtswi.prior for policies.fedtswi.prior."""
    if key in KEYS:
        return KEYS[key].symbol or key
    table, _, rest = key.partition(".")
    return rest if table in (*_TABLES, "privacy") else key


def value_text(value: Any) -> str:
    """Write a value as in a file."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else repr(value)


# ----------------------------------------------------------------------------- from keys to studies

# A key taken apart: (key,), ("privacy", key), ("options", policy, option) or ("arm", number, key).
_Target = tuple[str, ...]


def _flat(values: Any) -> Iterator[tuple[str, Any]]:
    """Keys and values; keys of nested tables have dots."""
    if not isinstance(values, Mapping):
        raise StudyError(f"sweep must be a table of lists, got {shown(values)}")
    for key, value in values.items():
        if not isinstance(value, Mapping) or not value:
            yield key, value
            continue
        for second, below in value.items():
            if not isinstance(below, Mapping) or not below:
                yield f"{key}.{second}", below
                continue
            for third, lowest in below.items():
                yield f"{key}.{second}.{third}", lowest


def _listed(key: str, given: Any) -> list[Any]:
    """Values of a key, as a list."""
    if isinstance(given, np.ndarray | range):
        given = list(given)
    if not isinstance(given, list | tuple):
        raise StudyError(f"sweep.{key} must be a list of values, got {shown(given)}")
    if not given:
        raise StudyError(f"sweep.{key} must have at least one value, got an empty list")
    return [_as_in_a_file(each) for each in given]


def _as_in_a_file(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    return list(value) if isinstance(value, tuple) else value


def _target(study: Study, key: str) -> _Target:
    """Target of a key in the study; StudyError if the study has none."""
    table, *rest = key.split(".", 2)
    if key in (*_PLAIN, "copies"):
        return (key,)
    if table in _TABLES and len(rest) == 2:
        name, option = rest
        names = [policy for policy in study.policies if isinstance(policy, str)]
        if name not in names:
            raise StudyError(
                f"sweep.{table}: {shown(name)} must be a built-in policy of the study: "
                f"{', '.join(names) or 'it has none'}"
            )
        known = POLICIES[name].options
        if option not in known:
            has = f"has {', '.join(known)}" if known else "takes no options"
            raise StudyError(f"sweep.{table}.{name}: unknown key {shown(option)}; {name} {has}")
        return ("options", name, option)
    if table == "arm" and len(rest) == 2:
        number, part = rest
        places = [str(n) for n, arm in enumerate(study.arms, start=1) if arm.is_channel]
        if number not in places or part not in CHANNEL_KEYS:
            raise StudyError(
                f"sweep: {shown(key)} must be arm.NUMBER and one of {', '.join(CHANNEL_KEYS)}, of "
                f"an arm from 1 to {len(study.arms)} that is a channel"
            )
        return ("arm", number, part)
    if table == "privacy" and rest in (["epsilon"], ["delta"], ["survey"], ["groups"]):
        return ("privacy", *rest)
    raise StudyError(f"sweep: unknown key {shown(key)}; known are {', '.join(_KNOWN)}")


def _changed(study: Study, settings: Mapping[_Target, Any]) -> Study:
    """Study with these settings, itself without any."""
    if not settings:
        return study
    changes: dict[str, Any] = {}
    options = {name: dict(table) for name, table in study.options.items()}
    arms = list(study.arms)
    copies = 1
    for target, value in settings.items():
        match target:
            case ("copies",):
                copies = value
            case ("options", name, option):
                options.setdefault(name, {})[option] = value
            case ("arm", number, key):
                arms[int(number) - 1] = _changed_channel(arms[int(number) - 1], key, value, number)
            case ("privacy", key):
                changes.setdefault("privacy", dict(study.privacy or {}))[key] = value
            case (key,):
                changes[key] = value
    if not (is_whole(copies) and 1 <= copies <= _MAX_COPIES):
        raise StudyError(
            f"copies must be a whole number from 1 to {_MAX_COPIES}, got {shown(copies)}"
        )
    if copies > 1 or any(new is not old for new, old in zip(arms, study.arms, strict=True)):
        changes["arms"] = Arms(arms * copies)
    if copies > 1:
        changes["agent"] = [_copied(table, len(arms), copies) for table in study.agent]
    return replace(study, **changes, options=options)


def _copied(table: Mapping[str, Any], n_arms: int, copies: int) -> dict[str, Any]:
    """Table `[[agent]]` for arms that are repeated."""
    numbers = range(0, n_arms * copies, n_arms)
    arms = [{**arm, "number": arm["number"] + more} for more in numbers for arm in table["arm"]]
    return {**table, "arm": arms}


def _changed_channel(arm: Arm, key: str, value: Any, number: str) -> Arm:
    to_good, stays_good = (float(p) for p in arm.passive[:, 1])
    numbers = {"p01": to_good, "p11": stays_good, "reward": float(arm.reward_active[1])}
    try:
        return read_arm({**numbers, key: value})
    except (StudyError, ModelError) as error:
        raise StudyError(f"arm {number}: {str(error).removeprefix('arm 1: ')}") from None


# ------------------------------------------------------------------------------------------- files


def sweep_of(table: Mapping[str, Any]) -> Sweep:
    """Make the sweep of a study file's table; without `[sweep]` it has one point."""
    study = from_table({key: value for key, value in table.items() if key != "sweep"})
    if "sweep" not in table:
        return Sweep(study, {})
    given = table["sweep"]
    if not isinstance(given, Mapping):
        raise StudyError(f"sweep must be a [sweep] table, got {shown(given)}")
    values = {key: value for key, value in given.items() if key not in ("together", "labels")}
    if not values:
        raise StudyError(f"sweep must have a list of values; known keys are {', '.join(_KNOWN)}")
    return Sweep(study, values, given.get("together", False), given.get("labels"))


def load_sweep(path: str | PathLike[str]) -> Sweep:
    """Load the sweep of a study's TOML file, or a bundled one, as `sweep_of` makes it."""
    table = read_table(path)
    table.pop("figure", None)
    try:
        return sweep_of(table)
    except (StudyError, ModelError) as error:
        raise StudyError(f"{path}: {error}") from None
