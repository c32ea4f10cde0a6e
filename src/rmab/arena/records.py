"""Records of the arena: outcomes of problems as values, written to and read from arena.json.

Pages are drawn and runs compared from `arena.json`, without simulation.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Self

from rmab.arena.scores import RANDOM, SIGMA, Standing
from rmab.arena.verdicts import Score, Word, in_words, percent, word_of
from rmab.errors import StudyError
from rmab.studies.json_tables import check_type, from_table, to_table
from rmab.studies.results import write_csv, write_json
from rmab.text import shown

__all__ = ["FORMAT", "PROBLEMS_FOLDER", "ArenaOutcome", "ProblemOutcome", "load_outcome"]

FORMAT = 1  # of arena.json
PROBLEMS_FOLDER = "problems"  # of the results
_NEARLY = 0.9  # least score of a policy whose failed trials count as chance
_FAILED = 0.01  # least share of failed trials that a verdict mentions

Json = dict[str, Any]


# ------------------------------------------------------------------------------------- one problem


@dataclass(frozen=True)
class ProblemOutcome:
    """Outcome of a problem."""

    name: str
    reason: str
    study: Json  # without policies
    trials: int  # done
    interrupted: bool
    margin: float  # reward per slot by which a failed trial is below `whittle`
    exact: dict[str, float | None]  # long-run averages with known dynamics
    exact_reasons: dict[str, str]  # why one of them is None
    standings: dict[str, Standing] = field(metadata={"key": "policies"})  # from the best mean on
    refused: dict[str, str]  # reasons by policy
    made: Json  # versions, device, time: see rmab.studies.provenance

    @property
    def best_known(self) -> str:
        """Policy that uses the true dynamics and earned most."""
        return next(name for name, each in self.standings.items() if _is_oracle(name, each))

    @property
    def leaders(self) -> list[str]:
        """Learner with the largest mean, and those tied with it, in order of their means."""
        ranked = [name for name, each in self.standings.items() if each.rank is not None]
        tied = self.standings[ranked[0]].tied if ranked else []
        return [name for name in ranked if name == ranked[0] or name in tied]

    def place(self, policy: str) -> str:
        """Place of a learner: "first", "tied" with the first, or "" for any other."""
        leaders = self.leaders
        return "" if policy not in leaders else "first" if policy == leaders[0] else "tied"

    @property
    def failed_by_chance(self) -> float:
        """Share of trials that fail by chance.

        The largest of policies that use the true dynamics and score nearly as well as the best.
        """
        shares = [
            each.failed
            for name, each in self.standings.items()
            if _is_oracle(name, each) and (each.score or 0.0) >= _NEARLY
        ]
        return max((share for share in shares if share is not None), default=0.0)

    @property
    def ranks_explained(self) -> list[str]:
        """Lines on learners that have a better rank than one with a larger mean."""
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
        """Line with N, K, M and T."""
        s = self.study
        return f"N = {len(s['arm'])}, K = {s['plays']}, M = {s['agents']}, T = {s['horizon']}"

    def to_json(self) -> Json:
        """Table of the problem's file."""
        table = to_table(self)
        policies, made = table.pop("policies"), table.pop("made")
        best = {"policy": self.best_known, "mean": self.standings[self.best_known].mean}
        return {**table, "best_known": best, "policies": policies, "made": made}

    def write(self, folder: Path) -> None:
        """Write problems/NAME.json, from which a run can be resumed."""
        (folder / PROBLEMS_FOLDER).mkdir(parents=True, exist_ok=True)
        write_json(folder / PROBLEMS_FOLDER / f"{self.name}.json", self.to_json())

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> Self:
        """Read the table of `to_json`; KeyError, TypeError or ValueError for any other."""
        outcome = from_table(cls, table)
        if not any(_is_oracle(name, each) for name, each in outcome.standings.items()):
            raise ValueError(f"{shown(outcome.name)}: nobody there knows the dynamics")
        check_type(list[Any], outcome.study["arm"], "study.arm")
        for key in ("agents", "horizon", "plays", "seed", "trials"):
            check_type(int, outcome.study[key], f"study.{key}")
        _check_made(outcome.made)
        check_type(float | None, outcome.made.get("time", {}).get("seconds"), "time.seconds")
        return outcome


def _is_oracle(name: str, standing: Standing) -> bool:
    """Whether a policy uses the true dynamics."""
    return standing.uses_true_dynamics and name != RANDOM


def _check_made(made: Json) -> None:
    for key in ("versions", "time"):
        check_type(Json, made.get(key) or {}, key)


def _listed(names: Sequence[str]) -> str:
    """Join names for a sentence."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


# -------------------------------------------------------------------------------------- everywhere


@dataclass(frozen=True)
class ArenaOutcome:
    """Outcomes of all problems, with the provenance of the run."""

    problems: list[ProblemOutcome]
    made: Json = field(default_factory=dict)
    interrupted: bool = False

    @property
    def policies(self) -> dict[str, str]:
        """Labels by name: learners from the largest median score to the smallest, then the other
        policies from the largest to the smallest, then policies that played nowhere."""
        unranked: dict[str, bool] = {}
        scores: dict[str, list[float]] = {}
        labels: dict[str, str] = {}
        for problem in self.problems:
            for name, each in problem.standings.items():
                unranked[name], labels[name] = each.uses_true_dynamics, each.label
                scores.setdefault(name, []).extend([] if each.score is None else [each.score])
        order = sorted(
            labels, key=lambda n: (unranked[n], -median(scores[n]) if scores[n] else math.inf)
        )
        nowhere = [n for problem in self.problems for n in problem.refused if n not in labels]
        return {**{name: labels[name] for name in order}, **{name: name for name in nowhere}}

    def of(self, policy: str) -> dict[str, Standing]:
        """Standings of a policy, by problem."""
        return {p.name: p.standings[policy] for p in self.problems if policy in p.standings}

    @property
    def verdicts(self) -> dict[str, str]:
        """Verdict on each policy, in one line."""
        return {name: self._verdict(name) for name in self.policies}

    @property
    def words(self) -> dict[str, Word]:
        """Word for each learner, with its numbers.

        Learners that were refused everywhere, or had nothing to gain, are left out.
        """
        return {
            name: word_of(scores)
            for name in self.policies
            if not self._is_unranked(name) and (scores := self._scores(name))
        }

    @property
    def refused(self) -> dict[str, dict[str, str]]:
        """Reasons of refusals, by policy and problem; policies refused everywhere come last."""
        reasons: dict[str, dict[str, str]] = {name: {} for name in self.policies}
        for problem in self.problems:
            for name, why in problem.refused.items():
                reasons[name][problem.name] = why
        return {name: each for name, each in reasons.items() if each}

    def places(self, policy: str) -> list[str]:
        """Names of problems where a policy is first or tied with the first."""
        return [each.name for each in self.problems if policy in each.leaders]

    def _is_unranked(self, policy: str) -> bool:
        return any(each.uses_true_dynamics for each in self.of(policy).values())

    def _scores(self, policy: str) -> list[Score]:
        return [
            Score(each.score, each.score_se, problem.trials, each.failed, problem.failed_by_chance)
            for problem in self.problems
            if (each := problem.standings.get(policy)) is not None and each.score is not None
        ]

    def _verdict(self, policy: str) -> str:
        places = self.of(policy)
        scores = {name: each.score for name, each in places.items() if each.score is not None}
        if not places:
            return "Played nowhere: every problem refused it."
        if not scores:
            return "Nothing to say: on its problems the best known is not above chance."
        word = word_of(self._scores(policy))
        worst = min(scores, key=lambda name: scores[name])
        parts = [f"{in_words(word.middle)} of the distance from random to the best known"]
        if len(scores) > 1:
            parts = [f"{parts[0]} in the median", f"{in_words(word.least)} at worst ({worst})"]
        if self._is_unranked(policy):
            text = ", ".join(parts)
            return "Chance: where shares begin." if policy == RANDOM else f"Yardstick: {text}."
        failed = {name: each.failed for name, each in places.items() if each.failed is not None}
        most = max(failed, key=lambda name: failed[name], default=None)
        if most is not None and failed[most] >= _FAILED:
            parts.append(f"up to {percent(failed[most])} of trials failed ({most})")
        parts.append(
            f"first or tied with the first on {len(self.places(policy))} of "
            f"{len(places)} problem{'' if len(places) == 1 else 's'}"
        )
        slower = self.slower(policy)
        if slower is not None:
            times = f"{slower:.0f}" if slower >= 10 else f"{slower:.2g}"
            parts.append(f"{times} times fedtswi's time")
        said = word.word[0].upper() + word.word[1:]
        if word.best != word.worst:
            said += f" between {word.worst} and {word.best}"
        return f"{said}: {'; '.join(parts)}."

    def slower(self, policy: str) -> float | None:
        """Time of a trial relative to fedtswi, the median over problems.

        None for fedtswi itself, and without a problem that both played.
        """
        ratios = [
            mine.seconds / other.seconds
            for name, mine in self.of(policy).items()
            if (other := self.of("fedtswi").get(name)) and other.seconds and mine.seconds
        ]
        return median(ratios) if ratios and policy != "fedtswi" else None

    def rows(self) -> list[Json]:
        """Rows for a table, one for each problem and policy, without curves."""
        rows = []
        for problem in self.problems:
            for name, each in problem.standings.items():
                row = {"problem": problem.name, "policy": name, **to_table(each)}
                row["tied"] = " ".join(each.tied)
                del row["curve"]
                rows.append(row)
        return rows

    def to_json(self) -> Json:
        """Table of arena.json."""
        return {
            "arena": FORMAT,
            "interrupted": self.interrupted,
            "problems": {each.name: each.to_json() for each in self.problems},
            "verdicts": self.verdicts,
            "words": {name: word.to_json() for name, word in self.words.items()},
            **self.made,
        }

    def write(self, folder: Path) -> None:
        """Write arena.json and arena.csv."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "arena.json", self.to_json())
        write_csv(folder / "arena.csv", self.rows())

    @classmethod
    def from_json(cls, table: Any) -> Self:
        """Read the table of `to_json`; raises ValueError, KeyError, TypeError, AttributeError."""
        if table["arena"] != FORMAT:
            raise ValueError(f"its format is {shown(table['arena'])}, and {FORMAT} is known")
        problems = [ProblemOutcome.from_json(each) for each in table["problems"].values()]
        aside = ("arena", "interrupted", "problems", "verdicts", "words", "compare")
        made = {key: each for key, each in table.items() if key not in aside}
        _check_made(made)
        return cls(problems, made, bool(table["interrupted"]))


def load_outcome(path: Path) -> ArenaOutcome:
    """Read an arena.json; StudyError if it cannot be read or is none."""
    try:
        return ArenaOutcome.from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise StudyError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as why:
        said = f"no key {why}" if isinstance(why, KeyError) else str(why)
        raise StudyError(f"{path}: is no arena.json: {shown(said)}") from None
