"""The arena: every policy on every problem of a shipped set, all on the same trials.

A *problem* is a file of `problem_files/`: a study and a line that says why it is there. It names
no policies: all play it that a study of its arms accepts, and what refuses it is kept with the
refusal's own words.

    reason      why it is there, one line
    study       "catalogue:fading", say: the arms and settings of a bundled study, for a start
    left_out    policies that take very long there, with the reason: they play if they are named

An *entrant* is a policy by name, one with options ("ucw-value@scale=0.1"), or one's own.

`whittle` with known dynamics is beside all, as in every study: regret is against it. `random` and
`lookahead` always play, too, for what is measured between `random` and the best that is known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from rmab.arena.scores import KEPT, ProblemOutcome, standings
from rmab.compilation import drop_traces
from rmab.engine.montecarlo import program_for
from rmab.errors import ModelError, RmabError, StudyError, TooLargeError
from rmab.model.arms import Arms
from rmab.policies.filling import check_planner
from rmab.policies.policy import OptimumRule, OutsideRule, Policy
from rmab.policies.registry import POLICIES, STUDIED, check_options, named
from rmab.studies.provenance import Provenance
from rmab.studies.run import Values, run_watched, trials_of, value
from rmab.studies.study import Study, from_table, read_table
from rmab.text import one_of, option_value, shown

__all__ = [
    "MARGIN",
    "PROBLEMS",
    "REFERENCES",
    "Arena",
    "Entrant",
    "Problem",
    "entrants",
    "load_problem",
    "own_entrant",
    "problems",
]

# In the order in which they are run and shown; those of the same shape, which share programs, are
# together.
PROBLEMS = (
    "paper-k1-m1",
    "paper-k2-m1",
    "identical",
    "whittle-loses",
    "paper-k1-m4",
    "paper-k2-m4",
    "paper-k1-m16",
    "paper-k2-m16",
    "jt4",
    "slow",
    "c1",
    "ht",
    "ge5",
    "rb-4",
    "ucwhittle",
    "circulant",
    "restart",
    "fading",
    "machine",
    "adherence",
    "n64",
    "n256",
)
REFERENCES = ("whittle", "lookahead", "random")  # that always play
_MEASURES = ("whittle", "random")  # regret is against the one, and shares begin at the other
_FOLDER = "problem_files"
_ASIDE = ("reason", "study", "left_out", "figure", "sweep", "policies", "options")
_MARK = "@"  # between a name and its options
# Published learners with constants that work beside those that were printed.
_VARIANTS = (
    "restless-ucb@radius=0",
    "ucw-value@scale=0.1",
    "ucw-penalty@scale=0.1",
    "ucw-extreme@scale=0.1",
    "colored-ucrl2@scale=0.1",
)
# What sharing is worth, where there are several agents.
_SHARING = ("fedtswi@aggregation=none", "fedtswi@aggregation=gossip")
MARGIN = 0.5  # of the distance from random to the best known: a trial this far behind is stuck

Advance = Callable[[int], None]


# ------------------------------------------------------------------------------------ the problems


@dataclass(frozen=True, eq=False)
class Problem:
    """A study without policies, and why it is there."""

    name: str
    reason: str
    study: Study
    left_out: Mapping[str, str] = field(default_factory=dict)

    def to_table(self) -> dict[str, Any]:
        """The study's, without policies."""
        table = replace(self.study, policies=("whittle",), options={}).to_table()
        return {key: each for key, each in table.items() if key not in ("policies", "options")}


def problems(
    names: Sequence[str] = (), trials: int | None = None, seed: int | None = None
) -> list[Problem]:
    """The problems of these names or files, all shipped ones if none is given."""
    changes: dict[str, Any] = {
        key: each for key, each in (("trials", trials), ("seed", seed)) if each is not None
    }
    found = [load_problem(name) for name in (names or PROBLEMS)]
    for place, problem in enumerate(found):
        if problem.name in [other.name for other in found[:place]]:
            raise StudyError(f"problems must differ in name, got {problem.name!r} twice")
    return [replace(each, study=replace(each.study, **changes)) for each in found]


def load_problem(name: str) -> Problem:
    """A shipped problem by name, or the one in a TOML file."""
    if name.endswith(".toml"):
        return _read_problem(name, Path(name).stem)
    if name not in PROBLEMS:
        raise StudyError(
            f"unknown problem {shown(name)}; known are {', '.join(PROBLEMS)}; or a file, NAME.toml"
        )
    with resources.as_file(resources.files("rmab.arena") / _FOLDER / f"{name}.toml") as path:
        return _read_problem(str(path), name)


def _read_problem(path: str, name: str) -> Problem:
    table = read_table(path)
    try:
        sweeps = "sweep" in table
        base = table.get("study", None)
        if base is not None:
            if not isinstance(base, str) or not base.startswith("catalogue:"):
                raise StudyError(f"study must be the name of a bundled one, got {shown(base)}")
            table = {**read_table(base), **table}
        reason, left_out = table.get("reason", "a problem of one's own"), table.get("left_out", {})
        if not isinstance(reason, str) or not reason or "\n" in reason:
            raise StudyError(f"reason must be one line of text, got {shown(reason)}")
        if not isinstance(left_out, dict) or not all(
            isinstance(why, str) for why in left_out.values()
        ):
            raise StudyError(f"left_out must be reasons by policy, got {shown(left_out)}")
        for policy in left_out:
            one_of("left_out", policy.partition(_MARK)[0], STUDIED)
            if policy in _MEASURES:
                raise StudyError(f"left_out: {policy} must play, as what others earn is told by it")
        if sweeps:
            raise StudyError("sweep: a problem is one study; rmab run has sweeps")
        study = from_table({key: each for key, each in table.items() if key not in _ASIDE})
    except (StudyError, ModelError) as error:
        raise StudyError(f"{path}: {error}") from None
    return Problem(name, reason, study, left_out)


# ------------------------------------------------------------------------------------ the entrants


@dataclass(frozen=True, eq=False)
class Entrant:
    """Who plays.

    name: what tables call it; base, options: the policy by name that it is; own: else a policy of
    one's own, from `source`.
    """

    name: str
    base: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    own: Policy | None = None
    source: str = ""

    @property
    def knows(self) -> bool:
        """Whether it knows the dynamics, or chance: a yardstick, which is not ranked."""
        if self.own is not None:
            outside = isinstance(self.own.rule, OutsideRule)  # which is told no dynamics
            return self.own.learner is None and self.own.own is None and not outside
        return POLICIES[self.base].group == "known"

    @property
    def label(self) -> str:
        """For people."""
        if not self.base:
            return self.name
        told = ", ".join(f"{key} {each}" for key, each in self.options.items())
        return POLICIES[self.base].label + (f", {told}" if told else "")

    def enter(self, study: Study) -> Policy:
        """The policy for this study; StudyError if the study does not accept it."""
        if self.own is not None:
            replace(study, policies=[self.own])
            return self.own
        alone = replace(study, policies=[self.base], options={self.base: dict(self.options)})
        options = alone.options_of(self.base)
        given = tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in options.items())
        return _entered(self.name, self.base, study.horizon, given)


# The same object for the same entrant, so that its compiled program is found again.
@lru_cache(maxsize=512)
def _entered(name: str, base: str, horizon: int, options: tuple[tuple[str, Any], ...]) -> Policy:
    policy = named(base, horizon, dict(options))
    return policy if name == base else replace(policy, name=name)


def entrants(names: Sequence[str] | None = None, own: Sequence[Entrant] = ()) -> list[Entrant]:
    """Those of these names, and one's own; without names all. The references are always there."""
    if names is None:
        asked = [*STUDIED, *(v for v in (*_VARIANTS, *_SHARING) if _is_known(v))]
    else:
        asked = list(dict.fromkeys(names))
    found = [_entrant(name) for name in (*asked, *(r for r in REFERENCES if r not in asked))]
    everyone = [*found, *own]
    listed = [each.name for each in everyone]
    for name in listed:
        if listed.count(name) > 1:
            raise StudyError(f"policies must differ in name, got {shown(name)} twice")
    return everyone


def _is_known(variant: str) -> bool:
    try:
        _entrant(variant)
    except StudyError:
        return False
    return True


def _entrant(text: str) -> Entrant:
    """From a name, perhaps with options: NAME@OPTION=VALUE@..., values as in TOML, or words."""
    base, *settings = text.split(_MARK)
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
    return Entrant(text, base, options)


def own_entrant(source: str, found: object) -> Entrant:
    """One's own policy, or what makes it; source: where it is from."""
    made = found
    if callable(found) and not isinstance(found, Policy):
        try:
            made = found()
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
    return Entrant(made.name, own=made, source=source)


# ----------------------------------------------------------------------------------------- the run


class Arena:
    """Entrants, and the problems that they are run on one by one.

    asked: by problem those that somebody named, which are not left out for the time that they take.
    """

    def __init__(
        self, everyone: Sequence[Entrant], asked: Mapping[str, Collection[str]] | None = None
    ) -> None:
        self.everyone = list(everyone)
        self._asked = asked or {}
        self._values: list[tuple[Study, Values]] = []  # of arms that several problems may share
        self._admitted: dict[str, tuple[dict[str, Policy], dict[str, str]]] = {}

    def values(self, study: Study) -> Values:
        """The exact values of a study's arms."""
        for other, values in self._values:
            alike = not other.agent and not study.agent and _same_arms(other.arms, study.arms)
            if other.plays == study.plays and alike:
                return values
        self._values.append((study, value(study)))
        return self._values[-1][1]

    def admitted(self, problem: Problem) -> tuple[dict[str, Policy], dict[str, str]]:
        """Who plays a problem, and why others do not."""
        if problem.name not in self._admitted:
            self._admitted[problem.name] = self._admit(problem)
        return self._admitted[problem.name]

    def _admit(self, problem: Problem) -> tuple[dict[str, Policy], dict[str, str]]:
        playing: dict[str, Policy] = {}
        refused: dict[str, str] = {}
        for entrant in self.everyone:
            try:
                playing[entrant.name] = self._policy(entrant, problem)
            except (StudyError, ModelError, TooLargeError) as error:
                refused[entrant.name] = str(error).removeprefix("policies: ")
        return playing, refused

    def _policy(self, entrant: Entrant, problem: Problem) -> Policy:
        study = problem.study
        asked = entrant.name in self._asked.get(problem.name, ())
        if not asked and entrant.name in problem.left_out:
            raise StudyError(f"left out: {problem.left_out[entrant.name]}")
        if not asked and entrant.name in _SHARING and study.agents == 1:
            raise StudyError(f"{entrant.name!r} is {entrant.base} where there is one agent")
        policy = entrant.enter(study)
        if isinstance(policy.rule, OptimumRule) and self.values(study)["optimum"] is None:
            raise StudyError(self.values(study).reasons["optimum"])
        if entrant.own is not None:
            policy = _tried(entrant, policy, problem)
        return policy

    def check_own(self, chosen: Sequence[Problem]) -> None:
        """Refuse a policy of one's own that no problem takes: it is more likely to be wrong."""
        for entrant in self.everyone:
            if entrant.own is not None:
                refused = [self.admitted(problem)[1].get(entrant.name) for problem in chosen]
                if refused and all(refused):
                    where = f"{chosen[0].name}: {refused[0]}"
                    raise StudyError(f"--policy {entrant.source}: plays nowhere; {where}")

    def steps(self, problem: Problem) -> int:
        """Trials of all policies, as `run` tells of them."""
        return problem.study.trials * len(self.admitted(problem)[0])

    def kept(self, problem: Problem, folder: Path, made: Provenance) -> ProblemOutcome | None:
        """What a folder has of a problem, if it was run in the same way and to its end.

        A policy of one's own may have changed, so what it played is run again.
        """
        if any(each.own is not None for each in self.everyone):
            return None
        try:
            text = (folder / KEPT / f"{problem.name}.json").read_text(encoding="utf-8")
            found = ProblemOutcome.from_json(json.loads(text))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None  # none, or a torn one: it is run
        playing, refused = self.admitted(problem)
        same = (
            found.study == problem.to_table()
            and found.trials == problem.study.trials
            and found.made.get("versions") == made.versions
            and set(found.standings) == set(playing)
            and found.refused == refused
        )
        return replace(found, reason=problem.reason) if same else None

    def run(self, problem: Problem, advance: Advance | None = None) -> ProblemOutcome:
        """All on one problem; Ctrl-C returns the trials done, or is raised if there are none.

        advance: called with trials done, of one policy each: there are trials x policies.
        """
        playing, refused = self.admitted(problem)
        values = self.values(problem.study)
        study = replace(problem.study, policies=list(playing.values()))
        seconds: dict[str, float] = {}  # of a trial
        lock = Lock()

        def watch(name: str, count: int, took: float) -> None:
            with lock:
                seconds[name] = min(seconds.get(name, math.inf), took / count)
                if advance is not None and name:
                    advance(count)

        margin = MARGIN * (_best(values) - _random(values))
        results = run_watched(study, watch, max(margin, 0.0))
        drop_traces()
        by_name = {each.name: each for each in self.everyone}
        return ProblemOutcome(
            name=problem.name,
            reason=problem.reason,
            study=problem.to_table(),
            trials=results.trials,
            interrupted=results.interrupted,
            margin=margin,
            exact=dict(values),
            exact_reasons=dict(values.reasons),
            standings=standings(
                results,
                knows=[name for name in playing if by_name[name].knows],
                labels={name: by_name[name].label for name in playing},
                seconds=seconds,
            ),
            refused=refused,
            made={} if results.provenance is None else results.provenance.to_json(),
        )


def _best(values: Values) -> float:
    """The best that is known exactly of these arms, else an upper bound."""
    optimum, bound = values["optimum"], values["upper_bound"]
    if optimum is not None:
        return optimum
    if values["whittle"] is None and bound is not None:
        return bound
    return max(each for name, each in values.items() if name != "upper_bound" and each is not None)


def _random(values: Values) -> float:
    known = values["random"]
    assert known is not None  # it needs no chain
    return known


def _tried(entrant: Entrant, policy: Policy, problem: Problem) -> Policy:
    """One's own policy, which may do anything, if it compiles; one that plays outside the engine
    plays a trial, and names itself where it fails later."""
    trials = trials_of(replace(problem.study, policies=[policy]))
    if not isinstance(policy.rule, OutsideRule):
        with _failing(entrant, problem, StudyError, ModelError, TooLargeError):
            program_for(trials, policy)
            check_planner(policy, problem.study.arms)
        return policy
    play = policy.rule.play
    with _failing(entrant, problem, StudyError, ModelError, TooLargeError):
        play(trials, range(1))

    def guarded(trials: Any, numbers: Sequence[int]) -> Any:
        with _failing(entrant, problem):
            return play(trials, numbers)

    return replace(policy, rule=OutsideRule(guarded))


@contextmanager
def _failing(entrant: Entrant, problem: Problem, *refusals: type[Exception]) -> Iterator[None]:
    """Say on one line whose policy fails, and where, but for what refuses the problem."""
    try:
        yield
    except refusals:
        raise
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise RmabError(
            f"--policy {entrant.source}: fails on {problem.name}: {type(error).__name__}: {first}"
        ) from None


def _same_arms(one: Arms, other: Arms) -> bool:
    keys = ("passive", "active", "reward_passive", "reward_active")
    return one.kinds == other.kinds and all(
        np.array_equal(getattr(one, key), getattr(other, key)) for key in keys
    )
