"""What the arena comes to: how policies stand on a problem, what is said of each, other runs.

All of it is plain values that a file has: a page is drawn, and another's run is laid beside, from
`arena.json` alone.

    share    of the distance from `random` to the best policy that knows the dynamics: of mean
             rewards over the horizon, all on the same trials
    rank     among those that do not know the dynamics: one more than the number of policies that
             are better by more than four standard errors of the paired difference
    tied     those within four standard errors: of forty policies, 780 pairs, the chance is about
             5 % that any two that are equal are told apart
    first    the largest mean of those that do not know the dynamics, and those tied with it
    stuck    the share of trials that failed: whose last tenth earns less than that of `whittle`,
             which knows the dynamics, in the same trial, by more than half the distance from
             random to the best known in the long run

What is said of a learner (`rmab.studies.words`) follows from its shares and failed trials, never
from its ranks and ties: many are tied where trials are few or rewards vary much.
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
from rmab.studies.results import Floats, Results, write_csv, write_json
from rmab.studies.words import SIGMA, Bounds, Score, Word, word_of
from rmab.text import is_number, is_whole, shown

__all__ = [
    "FORMAT",
    "KEPT",
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
_BAND_SIGMA = 1.96  # to each side: 95 %
_POINTS = 40  # of a regret curve, at even distances
_CHANCE = "random"
_NEARLY = 0.9  # a share of a policy that knows the dynamics, all of whose failed trials are chance

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
    return not abs(apart) > SIGMA * se  # an unknown error tells nothing apart


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
        """The learner with the largest mean, and those tied with it, in order of their means."""
        ranked = [name for name, each in self.standings.items() if each.rank is not None]
        tied = self.standings[ranked[0]].tied if ranked else []
        return [name for name in ranked if name == ranked[0] or name in tied]

    def place(self, policy: str) -> str:
        """Whether a learner is "first", "tied" with the first, or neither, ""."""
        leaders = self.leaders
        return "" if policy not in leaders else "first" if policy == leaders[0] else "tied"

    @property
    def failed_by_chance(self) -> float:
        """The share of trials that look failed by chance: of a policy that knows the dynamics, the
        largest among those whose share is nearly that of the best."""
        found = [
            each.stuck
            for name, each in self.standings.items()
            if each.knows and name != _CHANCE and (each.share or 0.0) >= _NEARLY
        ]
        return max((x for x in found if x is not None), default=0.0)

    @property
    def ranks_explained(self) -> list[str]:
        """A line for each learner that has a better rank than one above it in order of means."""
        ranks = {name: each.rank for name, each in self.standings.items() if each.rank is not None}
        names = list(ranks)
        lines = []
        for place, name in enumerate(names):
            worse = [above for above in names[:place] if ranks[above] > ranks[name]]
            if not worse:
                continue
            above = worse[-1]
            ahead = [
                x
                for x in names[: names.index(above)]
                if x in self.standings[name].tied and x not in self.standings[above].tied
            ]
            verb = "is" if len(ahead) == 1 else "are"
            lines.append(
                f"{name} has rank {ranks[name]}, and {above}, whose mean is larger, rank "
                f"{ranks[above]}: {_listed(ahead)} {verb} better than {above} by more than "
                f"{SIGMA:g} standard errors, and than {name} by less, as paired differences to "
                f"{name} vary more."
            )
        return lines

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

_FAILED = 0.01  # a share of trials that a verdict mentions


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
        """One line on each policy, by the rules of `words`."""
        return {name: self._verdict(name) for name in self.policies}

    @property
    def words(self) -> dict[str, Word]:
        """The word for each learner, and what it follows from; without those that nothing is known
        of: that were refused everywhere, or had nothing to gain."""
        return {
            name: word_of(scores)
            for name in self.policies
            if not self._knows(name) and (scores := self._scores(name))
        }

    @property
    def refused(self) -> dict[str, dict[str, str]]:
        """By policy, why each problem refused it; those that were refused everywhere come last."""
        found: dict[str, dict[str, str]] = {name: {} for name in self.policies}
        for problem in self.problems:
            for name, why in problem.refused.items():
                found[name][problem.name] = why
        return {name: each for name, each in found.items() if each}

    def places(self, policy: str) -> list[str]:
        """Where it is first or tied with the first: names of problems."""
        return [each.name for each in self.problems if policy in each.leaders]

    def _knows(self, policy: str) -> bool:
        return any(each.knows for each in self.of(policy).values())

    def _scores(self, policy: str) -> list[Score]:
        return [
            Score(each.share, each.share_se, problem.trials, each.stuck, problem.failed_by_chance)
            for problem in self.problems
            if (each := problem.standings.get(policy)) is not None and each.share is not None
        ]

    def _verdict(self, policy: str) -> str:
        places = self.of(policy)
        shares = {name: each.share for name, each in places.items() if each.share is not None}
        if not places:
            return "Played nowhere: every problem refused it."
        if not shares:
            return "Nothing to say: on its problems the best known is not above chance."
        found = word_of(self._scores(policy))
        worst = min(shares, key=lambda name: shares[name])
        parts = [f"{_around(found.middle)} of the distance from random to the best known"]
        if len(shares) > 1:
            parts = [f"{parts[0]} in the median", f"{_around(found.least)} at worst ({worst})"]
        if self._knows(policy):
            text = ", ".join(parts)
            return "Chance: where shares begin." if policy == _CHANCE else f"Yardstick: {text}."
        failed = {name: each.stuck for name, each in places.items() if each.stuck is not None}
        most = max(failed, key=lambda name: failed[name], default=None)
        if most is not None and failed[most] >= _FAILED:
            parts.append(f"up to {_percent(failed[most])} of trials failed ({most})")
        parts.append(
            f"first or tied with the first on {len(self.places(policy))} of "
            f"{len(places)} problem{'' if len(places) == 1 else 's'}"
        )
        slower = self.slower(policy)
        if slower is not None:
            times = f"{slower:.0f}" if slower >= 10 else f"{slower:.2g}"
            parts.append(f"{times} times fedtswi's time")
        word = found.word[0].upper() + found.word[1:]
        if found.best != found.worst:
            word += f" between {found.worst} and {found.best}"
        return f"{word}: {'; '.join(parts)}."

    def slower(self, policy: str) -> float | None:
        """Its time of a trial over that of fedtswi, the median over problems; None for fedtswi
        itself and where it did not play."""
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
            "words": {name: found.to_json() for name, found in self.words.items()},
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
        aside = ("arena", "interrupted", "problems", "verdicts", "words", "compare")
        made = {key: each for key, each in table.items() if key not in aside}
        _check_made(made)
        return cls(found, made, bool(table["interrupted"]))


def _percent(share: float) -> str:
    return f"{100 * share:z.0f} %"


def _around(number: Bounds) -> str:
    """A share with its bounds, in per cent."""
    if not math.isfinite(number.high - number.low):
        return f"{_percent(number.value)} (error unknown)"
    return f"{_percent(number.value)} ({100 * number.low:z.0f} to {100 * number.high:z.0f})"


def _listed(names: Sequence[str]) -> str:
    """Names as a sentence has them."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


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
            f"{SIGMA:g} standard errors; the most: {worst['policy']} on {worst['problem']}, "
            f"{worst['difference']:+.5f}"
            + (f" ({worst['sigma']:+.1f} standard errors)" if worst["sigma"] is not None else "")
        )

    def to_json(self) -> Json:
        """As --json has it."""
        return {"differ": self.differ, "rows": self.rows, "apart": len(self.apart)}


def _is_apart(row: Mapping[str, Any]) -> bool:
    return row["sigma"] is not None and abs(row["sigma"]) > SIGMA


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
        "sigma": None if se is None else apart / se if se else 0.0 if apart == 0 else None,
    }
