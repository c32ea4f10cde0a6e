"""What the arena comes to: how policies stand on a problem, what is said of each, other runs.

All of it is plain values that a file has: a page is drawn, and another's run is laid beside, from
`arena.json` alone.

    share    of the distance from `random` to the best policy that knows the dynamics: of mean
             rewards over the horizon, all on the same trials
    rank     among those that do not know the dynamics: one more than the number of policies that
             are better by more than four standard errors of the paired difference
    tied     those within four standard errors: of forty policies, 780 pairs, the chance is about
             5 % that any two that are equal are told apart
    stuck    the share of trials whose last tenth earns less than that of `whittle`, which knows
             the dynamics, in the same trial, by more than half the distance from random to the
             best known in the long run
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import median
from types import UnionType
from typing import Any, Self, get_args, get_origin, get_type_hints

import numpy as np

from rmab.errors import StudyError
from rmab.reading import is_number, is_whole, shown
from rmab.studies.results import Floats, Results, write_csv, write_json

__all__ = [
    "FORMAT",
    "KEPT",
    "RULES",
    "TIE_SIGMA",
    "ArenaOutcome",
    "Comparison",
    "ProblemOutcome",
    "Standing",
    "compare",
    "load_outcome",
    "standings",
]

FORMAT = 1  # of arena.json
KEPT = "problems"  # the folder of what is done, in that of the results
TIE_SIGMA = 4.0  # standard errors within which two policies are tied
_BAND_SIGMA = 1.96  # to each side: 95 %
_POINTS = 40  # of a regret curve, at even distances
_CHANCE = "random"

Json = dict[str, Any]


# ------------------------------------------------------------------------------------ on a problem


@dataclass(frozen=True)
class Standing:
    """How a policy stands on a problem; rewards are averages per agent and slot.

    What is not known is None: the error of a single trial, the share where nothing is to gain.
    """

    label: str
    knows: bool  # the dynamics, or it is chance: a yardstick, which has no rank
    mean: float
    se: float | None
    final: float  # over the last tenth of the slots
    final_se: float | None
    regret: float  # over the horizon, against `whittle`
    regret_low: float | None  # of a 95 % band
    regret_high: float | None
    share: float | None
    share_se: float | None
    rank: int | None
    tied: list[str]  # others with which it is tied
    stuck: float | None
    seconds: float | None  # of a trial, on one core, compiled
    episodes: float
    curve: dict[str, list[float]]  # slot, regret, se

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> Self:
        """What `asdict` gave; KeyError, TypeError or ValueError if it is anything else."""
        found = cls(**_fields(cls, table))
        if [len(found.curve[key]) for key in ("slot", "regret", "se")] != [
            len(found.curve["se"])
        ] * 3:
            raise ValueError("curve: slot, regret and se must be as long as one another")
        return found


def standings(
    results: Results,
    knows: Sequence[str],
    labels: Mapping[str, str],
    seconds: Mapping[str, float],
) -> dict[str, Standing]:
    """How all stand, from the best to the worst mean; knows: the yardsticks."""
    names = list(results)
    mean = np.array([results[name].mean for name in names])
    better = [names.index(name) for name in knows if name != _CHANCE]
    best = max(better, key=lambda place: float(mean[place]))
    ranked = [name for name in names if name not in knows]
    tied = {
        name: [x for x in ranked if x != name and _are_tied(results, name, x)] for name in ranked
    }
    found = {}
    for place in np.argsort(-mean, kind="stable").tolist():
        name = names[place]
        each = results[name]
        share, share_se = _share(mean, results.covariance, place, best, names.index(_CHANCE))
        ahead = [x for x in ranked if results[x].mean > each.mean and x not in tied.get(name, [])]
        regret, se = float(each.regret.mean[-1]), float(each.regret.se[-1])
        found[name] = Standing(
            label=labels[name],
            knows=name in knows,
            mean=each.mean,
            se=_known(each.se),
            final=each.final,
            final_se=_known(each.final_se),
            regret=regret,
            regret_low=_known(regret - _BAND_SIGMA * se),
            regret_high=_known(regret + _BAND_SIGMA * se),
            share=_known(share),
            share_se=_known(share_se),
            rank=None if name in knows else 1 + len([x for x in ahead if x != name]),
            tied=tied.get(name, []),
            stuck=each.stuck,
            seconds=seconds.get(name),
            episodes=each.episodes,
            curve=_curve(each.regret.mean, each.regret.se),
        )
    return found


def _known(number: float) -> float | None:
    return float(number) if math.isfinite(number) else None


def _are_tied(results: Results, one: str, other: str) -> bool:
    apart, se = results.difference(one, other)
    return not abs(apart) > TIE_SIGMA * se  # an unknown error tells nothing apart


def _share(
    mean: Floats, covariance: Floats, place: int, best: int, chance: int
) -> tuple[float, float]:
    """Of the distance from chance to the best, and its standard error, by the paired covariance;
    NaN where the best is not above chance."""
    distance = mean[best] - mean[chance]
    if not distance > 0:
        return math.nan, math.nan
    share = (mean[place] - mean[chance]) / distance
    slope = np.zeros(len(mean))
    slope[place] += 1
    slope[chance] += share - 1
    slope[best] -= share
    spread = float(slope @ covariance @ slope)
    return float(share), math.sqrt(max(spread, 0.0)) / distance if spread == spread else math.nan


def _curve(mean: Floats, se: Floats) -> dict[str, list[float]]:
    """At some slots; an unknown error is 0, as no band is drawn then."""
    slots = np.unique(np.linspace(1, len(mean), min(_POINTS, len(mean))).round().astype(int))
    at = slots - 1
    return {
        "slot": slots.tolist(),
        "regret": [float(f"{x:.6g}") for x in mean[at]],
        "se": [float(f"{x:.4g}") for x in np.nan_to_num(se[at])],
    }


@dataclass(frozen=True)
class ProblemOutcome:
    """A problem that was run."""

    name: str
    reason: str
    study: Json  # without policies
    trials: int  # done
    interrupted: bool
    margin: float  # of trials that are stuck
    exact: dict[str, float | None]  # known dynamics, in the long run
    exact_reasons: dict[str, str]  # why one of them is None
    standings: dict[str, Standing]
    refused: dict[str, str]  # why others did not play
    made: Json  # versions, device, time: see rmab.studies.provenance

    @property
    def best_known(self) -> str:
        """The policy that knows the dynamics and earned most."""
        return next(n for n, each in self.standings.items() if each.knows and n != _CHANCE)

    @property
    def leaders(self) -> list[str]:
        """Those of rank 1, in order of their means."""
        return [name for name, each in self.standings.items() if each.rank == 1]

    @property
    def size(self) -> str:
        """N, K, M and T in short."""
        s = self.study
        return f"N = {len(s['arm'])}, K = {s['plays']}, M = {s['agents']}, T = {s['horizon']}"

    def to_json(self) -> Json:
        """As a file has it."""
        table = asdict(self)
        policies, made = table.pop("standings"), table.pop("made")
        best = {"policy": self.best_known, "mean": self.standings[self.best_known].mean}
        return {**table, "best_known": best, "policies": policies, "made": made}

    def write(self, folder: Path) -> None:
        """problems/NAME.json, from which a run goes on."""
        (folder / KEPT).mkdir(parents=True, exist_ok=True)
        write_json(folder / KEPT / f"{self.name}.json", self.to_json())

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> Self:
        """What `to_json` gave; KeyError, TypeError or ValueError if it is anything else."""
        found = cls(**_fields(cls, {**table, "standings": table["policies"]}))
        if not any(each.knows and name != _CHANCE for name, each in found.standings.items()):
            raise ValueError(f"{shown(found.name)}: nobody there knows the dynamics")
        _typed(list[Any], found.study["arm"], "study.arm")
        for key in ("agents", "horizon", "plays", "seed", "trials"):
            _typed(int, found.study[key], f"study.{key}")
        _check_made(found.made)
        _typed(float | None, found.made.get("time", {}).get("seconds"), "time.seconds")
        return found


def _fields(kind: type[Any], table: Any) -> Json:
    """The values of a dataclass's fields, of the types that it says."""
    kinds, read = get_type_hints(kind), _typed(Json, table, "a table")
    return {key.name: _typed(kinds[key.name], read[key.name], key.name) for key in fields(kind)}


def _typed(kind: Any, value: Any, place: str) -> Any:
    """The value, if it is of that type; TypeError says of what is not where it is."""
    inside = get_args(kind)
    if kind is Any or (value is None and type(None) in inside):
        return value
    if get_origin(kind) is UnionType:
        return _typed(inside[0], value, place)
    if kind is Standing:
        return Standing.from_json(value)
    if get_origin(kind) is list and isinstance(value, list):
        return [_typed(inside[0], each, place) for each in value]
    if get_origin(kind) is dict and isinstance(value, dict):
        return {key: _typed(inside[1], each, f"{place}.{key}") for key, each in value.items()}
    is_one = {float: is_number, int: is_whole}.get(kind)
    plain = kind in (bool, str) and isinstance(value, kind)
    if plain or (is_one is not None and is_one(value)):
        return value
    raise TypeError(f"{place} is {shown(value)}")


def _check_made(made: Json) -> None:
    for key in ("versions", "time"):
        _typed(Json, made.get(key) or {}, key)


# -------------------------------------------------------------------------------------- everywhere

# What the first word of a verdict means, in the order in which they are tried.
RULES = (
    ("best", "rank 1, alone or tied, on at least half of the problems it played"),
    ("good", "a median share of at least 90 %, and at least 50 % everywhere"),
    ("uneven", "a median share of at least 90 %, but less than 50 % somewhere"),
    ("fair", "a median share of at least 50 %"),
    ("weak", "a median share of at least 10 %"),
    ("no better than chance", "a smaller one"),
)
_STUCK = 0.01  # a share of trials that a verdict mentions


@dataclass(frozen=True)
class ArenaOutcome:
    """All problems that were run, and with what."""

    problems: list[ProblemOutcome]
    made: Json = field(default_factory=dict)
    interrupted: bool = False

    @property
    def policies(self) -> dict[str, str]:
        """Labels by name: those that learn, from the largest median share to the smallest, then
        the yardsticks likewise; then those that played nowhere."""
        knows: dict[str, bool] = {}
        shares: dict[str, list[float]] = {}
        labels: dict[str, str] = {}
        for problem in self.problems:
            for name, each in problem.standings.items():
                knows[name], labels[name] = each.knows, each.label
                shares.setdefault(name, []).extend([] if each.share is None else [each.share])
        order = sorted(
            labels, key=lambda n: (knows[n], -median(shares[n]) if shares[n] else math.inf)
        )
        nowhere = [n for problem in self.problems for n in problem.refused if n not in labels]
        return {**{name: labels[name] for name in order}, **{name: name for name in nowhere}}

    def of(self, policy: str) -> dict[str, Standing]:
        """How a policy stands, by problem."""
        return {p.name: p.standings[policy] for p in self.problems if policy in p.standings}

    @property
    def verdicts(self) -> dict[str, str]:
        """One line on each policy, by RULES."""
        return {name: self._verdict(name) for name in self.policies}

    def _verdict(self, policy: str) -> str:
        places = self.of(policy)
        shares = {name: each.share for name, each in places.items() if each.share is not None}
        if not places:
            return "Played nowhere: every problem refused it."
        if not shares:
            return "Nothing to say: on its problems the best known is not above chance."
        middle, worst = median(shares.values()), min(shares, key=lambda name: shares[name])
        way = f"{_percent(middle)} of the way from random to the best known in the median"
        if len(shares) > 1:
            way += f", {_percent(shares[worst])} at worst ({worst})"
        if next(iter(places.values())).knows:
            return "Chance: where shares begin." if policy == _CHANCE else f"Yardstick: {way}."
        leads = [name for name, each in places.items() if each.rank == 1]
        word = self.word(policy)
        text = f"{word[0].upper()}{word[1:]}: {way}; best or tied on {len(leads)} of "
        text += f"{len(places)} problem{'' if len(places) == 1 else 's'}"
        stuck = {name: each.stuck for name, each in places.items() if each.stuck is not None}
        most = max(stuck, key=lambda name: stuck[name], default=None)
        if most is not None and stuck[most] >= _STUCK:
            text += f"; up to {_percent(stuck[most])} of trials stuck ({most})"
        slower = self._slower(policy)
        if slower is not None:
            text += f"; {slower:.0f}" if slower >= 10 else f"; {slower:.2g}"
            text += " times fedtswi's time"
        return f"{text}."

    def word(self, policy: str) -> str:
        """The first word of a verdict."""
        places = self.of(policy)
        shares = [each.share for each in places.values() if each.share is not None]
        middle, least = median(shares), min(shares)
        held = (
            2 * sum(each.rank == 1 for each in places.values()) >= len(places),
            middle >= 0.9 and least >= 0.5,
            middle >= 0.9,
            middle >= 0.5,
            middle >= 0.1,
            True,
        )
        return RULES[held.index(True)][0]

    def _slower(self, policy: str) -> float | None:
        """In the median over problems; None for fedtswi itself and where it did not play."""
        ratios = [
            mine.seconds / other.seconds
            for name, mine in self.of(policy).items()
            if (other := self.of("fedtswi").get(name)) and other.seconds and mine.seconds
        ]
        return median(ratios) if ratios and policy != "fedtswi" else None

    def rows(self) -> list[Json]:
        """One row for each problem and policy, without curves, for a table."""
        rows = []
        for problem in self.problems:
            for name, each in problem.standings.items():
                row = {"problem": problem.name, "policy": name, **asdict(each)}
                row["tied"] = " ".join(each.tied)
                del row["curve"]
                rows.append(row)
        return rows

    def to_json(self) -> Json:
        """As arena.json has it."""
        return {
            "arena": FORMAT,
            "interrupted": self.interrupted,
            "problems": {each.name: each.to_json() for each in self.problems},
            "verdicts": self.verdicts,
            **self.made,
        }

    def write(self, folder: Path) -> None:
        """arena.json and arena.csv."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "arena.json", self.to_json())
        write_csv(folder / "arena.csv", self.rows())

    @classmethod
    def from_json(cls, table: Any) -> Self:
        """What `to_json` gave; ValueError, KeyError, TypeError or AttributeError otherwise."""
        if table["arena"] != FORMAT:
            raise ValueError(f"its format is {shown(table['arena'])}, and {FORMAT} is known")
        found = [ProblemOutcome.from_json(each) for each in table["problems"].values()]
        aside = ("arena", "interrupted", "problems", "verdicts", "compare")
        made = {key: each for key, each in table.items() if key not in aside}
        _check_made(made)
        return cls(found, made, bool(table["interrupted"]))


def _percent(share: float) -> str:
    return f"{100 * share:z.0f} %"


def load_outcome(path: Path) -> ArenaOutcome:
    """An arena.json; StudyError if it is none."""
    try:
        return ArenaOutcome.from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise StudyError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as why:
        said = f"no key {why}" if isinstance(why, KeyError) else str(why)
        raise StudyError(f"{path}: is no arena.json: {shown(said)}") from None


# ------------------------------------------------------------------------------ beside another run


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side.

    differ: what is not the same in them, a line each; rows: by problem and policy both means, their
    difference, its standard error and how many of those it is.
    """

    differ: list[str]
    rows: list[Json]

    @property
    def apart(self) -> list[Json]:
        """The rows that differ by more than chance would have it."""
        return [row for row in self.rows if _is_apart(row)]

    @property
    def in_short(self) -> str:
        """One line."""
        if not self.rows:
            return "nothing to compare: no policy played the same problem in both"
        worst = max(self.rows, key=lambda row: abs(row["sigma"] or 0.0))
        return (
            f"{len(self.rows)} means compared, {len(self.apart)} differ by more than "
            f"{TIE_SIGMA:g} standard errors; the most: {worst['policy']} on {worst['problem']}, "
            f"{worst['difference']:+.5f}"
            + (f" ({worst['sigma']:+.1f} standard errors)" if worst["sigma"] is not None else "")
        )

    def to_json(self) -> Json:
        """As --json has it."""
        return {"differ": self.differ, "rows": self.rows, "apart": len(self.apart)}


def _is_apart(row: Mapping[str, Any]) -> bool:
    return row["sigma"] is not None and abs(row["sigma"]) > TIE_SIGMA


def compare(ours: ArenaOutcome, theirs: ArenaOutcome) -> Comparison:
    """What differs. Standard errors are those of independent trials: of the same seed, whose trials
    are the same, they are an upper bound."""
    differ = [
        f"{name}: {mine} here, {other} there"
        for name, mine, other in _unlike(_setting(ours), _setting(theirs))
    ]
    mine, others = ({p.name: p for p in run.problems} for run in (ours, theirs))
    differ += [f"{name}: only here" for name in mine if name not in others]
    differ += [f"{name}: only there" for name in others if name not in mine]
    rows = []
    for name, here in mine.items():
        there = others.get(name)
        if there is None:
            continue
        unlike = _unlike(
            {**here.study, "trials": here.trials}, {**there.study, "trials": there.trials}
        )
        differ += [f"{name}: {key} is {a} here, {b} there" for key, a, b in unlike]
        for here_alone, one, other in (("here", here, there), ("there", there, here)):
            alone = [n for n in one.standings if n not in other.standings]
            if alone:
                differ.append(f"{name}: only {here_alone}: {', '.join(alone)}")
        if {key for key, *_ in unlike} - {"trials", "seed"}:
            differ.append(f"{name}: another problem there, so nothing is compared")
            continue
        for policy, standing in here.standings.items():
            if policy in there.standings:
                rows.append(_row(name, policy, standing, there.standings[policy]))
    return Comparison(differ, rows)


def _setting(run: ArenaOutcome) -> Json:
    versions = run.made.get("versions") or {}
    return {**versions, "device": run.made.get("device")}


def _unlike(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    def said(table: Mapping[str, Any], key: str) -> str:
        return "none" if table.get(key) is None else shown(table[key])

    keys = [key for key in dict.fromkeys((*one, *other)) if one.get(key) != other.get(key)]
    return [(key, said(one, key), said(other, key)) for key in keys]


def _row(problem: str, policy: str, here: Standing, there: Standing) -> Json:
    apart = here.mean - there.mean
    se = None if here.se is None or there.se is None else math.hypot(here.se, there.se)
    return {
        "problem": problem,
        "policy": policy,
        "here": here.mean,
        "there": there.mean,
        "difference": apart,
        "se": se,
        "sigma": apart / se if se else (0.0 if apart == 0 else None),
    }
