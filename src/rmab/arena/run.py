"""Run of the arena: every contestant on every problem, all on the same trials.

Refusals are kept in the study's own words. Regret is against `whittle`, which uses the true
dynamics; scores are normalised between `random` and the best known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

from rmab.arena.contestants import SHARING, Contestant
from rmab.arena.problems import ArenaProblem
from rmab.arena.records import PROBLEMS_FOLDER, ProblemOutcome
from rmab.arena.scores import standings
from rmab.compilation import drop_traces
from rmab.engine.montecarlo import program_for
from rmab.errors import ModelError, RmabError, StudyError, TooLargeError
from rmab.policies.policy import Policy
from rmab.policies.rules.external import OutsideRule
from rmab.studies.arm_tables import same_arms
from rmab.studies.provenance import Provenance
from rmab.studies.run import Values, run_watched, trials_of, value
from rmab.studies.study import Study

__all__ = ["MARGIN", "Arena"]

MARGIN = 0.5  # distance of a failed trial below `whittle`, as a share of that from random to best

Advance = Callable[[int], None]


class Arena:
    """Contestants, run on one problem after the other.

    asked: by problem the contestants that the user named, which play even if they take long.
    """

    def __init__(
        self, everyone: Sequence[Contestant], asked: Mapping[str, Collection[str]] | None = None
    ) -> None:
        self.everyone = list(everyone)
        self._asked = asked or {}
        self._values: list[tuple[Study, Values]] = []  # problems may share arms
        self._admitted: dict[str, tuple[dict[str, Policy], dict[str, str]]] = {}

    def values(self, study: Study) -> Values:
        """Exact values of a study's arms."""
        for other, values in self._values:
            alike = not other.agent and not study.agent and same_arms(other.arms, study.arms)
            if other.plays == study.plays and alike:
                return values
        self._values.append((study, value(study)))
        return self._values[-1][1]

    def admitted(self, problem: ArenaProblem) -> tuple[dict[str, Policy], dict[str, str]]:
        """Policies that play a problem, and the reasons for refusing others, by name."""
        if problem.name not in self._admitted:
            self._admitted[problem.name] = self._admit(problem)
        return self._admitted[problem.name]

    def _admit(self, problem: ArenaProblem) -> tuple[dict[str, Policy], dict[str, str]]:
        playing: dict[str, Policy] = {}
        refused: dict[str, str] = {}
        for contestant in self.everyone:
            try:
                playing[contestant.name] = self._policy(contestant, problem)
            except (StudyError, ModelError, TooLargeError) as error:
                refused[contestant.name] = str(error).removeprefix("policies: ")
        return playing, refused

    def _policy(self, contestant: Contestant, problem: ArenaProblem) -> Policy:
        study = problem.study
        name = contestant.name
        if name not in self._asked.get(problem.name, ()):
            if name in problem.left_out:
                raise StudyError(f"left out: {problem.left_out[name]}")
            if name in SHARING and study.agents == 1:
                raise StudyError(f"{name!r} is {contestant.base} where there is one agent")
        policy = contestant.enter(study)
        if policy.rule.optimal and self.values(study)["optimum"] is None:
            raise StudyError(self.values(study).reasons["optimum"])
        policy.rule.check_kinds(study.arms.kinds, study.plays)
        if contestant.own is not None:
            policy = _tried(contestant, policy, problem)
        return policy

    def check_own(self, chosen: Sequence[ArenaProblem]) -> None:
        """Refuse a user's policy that no problem takes: it is probably wrong."""
        for contestant in self.everyone:
            if contestant.own is not None:
                refused = [self.admitted(problem)[1].get(contestant.name) for problem in chosen]
                if refused and all(refused):
                    where = f"{chosen[0].name}: {refused[0]}"
                    raise StudyError(f"--policy {contestant.source}: plays nowhere; {where}")

    def steps(self, problem: ArenaProblem) -> int:
        """Trials of all policies, as `run` counts them."""
        return problem.study.trials * len(self.admitted(problem)[0])

    def stored(
        self, problem: ArenaProblem, folder: Path, made: Provenance
    ) -> ProblemOutcome | None:
        """Outcome of a problem in a folder, if it is of an equal and complete run.

        With a user's policy it is None, as the policy may have changed.
        """
        if any(each.own is not None for each in self.everyone):
            return None
        try:
            text = (folder / PROBLEMS_FOLDER / f"{problem.name}.json").read_text(encoding="utf-8")
            outcome = ProblemOutcome.from_json(json.loads(text))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None  # absent or torn
        playing, refused = self.admitted(problem)
        same = (
            outcome.study == problem.to_table()
            and outcome.trials == problem.study.trials
            and outcome.made.get("versions") == made.versions
            and set(outcome.standings) == set(playing)
            and outcome.refused == refused
        )
        return replace(outcome, reason=problem.reason) if same else None

    def run(self, problem: ArenaProblem, advance: Advance | None = None) -> ProblemOutcome:
        """Run all contestants on a problem; Ctrl-C returns the trials done, if there are any.

        advance: called with trials done, each of one policy: there are trials x policies.
        """
        playing, refused = self.admitted(problem)
        values = self.values(problem.study)
        study = replace(problem.study, policies=list(playing.values()))
        seconds: dict[str, float] = {}  # per trial
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
                unranked=[name for name in playing if by_name[name].uses_true_dynamics],
                labels={name: by_name[name].label for name in playing},
                seconds=seconds,
            ),
            refused=refused,
            made={} if results.provenance is None else results.provenance.to_json(),
        )


def _best(values: Values) -> float:
    """Best exact value of these arms, else an upper bound."""
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


def _tried(contestant: Contestant, policy: Policy, problem: ArenaProblem) -> Policy:
    """Compile a user's policy, which may do anything, or let it play a trial outside the engine.

    A policy outside the engine is also named in errors of later trials.
    """
    trials = trials_of(replace(problem.study, policies=[policy]))
    if not policy.rule.outside:
        with _failing(contestant, problem, StudyError, ModelError, TooLargeError):
            program_for(trials, policy)
            policy.rule.check(policy.name, problem.study.arms)
        return policy
    play = policy.rule.play
    with _failing(contestant, problem, StudyError, ModelError, TooLargeError):
        play(trials, range(1))

    def guarded(trials: Any, numbers: Sequence[int]) -> Any:
        with _failing(contestant, problem):
            return play(trials, numbers)

    return replace(policy, rule=OutsideRule(guarded))


@contextmanager
def _failing(
    contestant: Contestant, problem: ArenaProblem, *refusals: type[Exception]
) -> Iterator[None]:
    """Report in one line which policy fails, and where, except for refusals of the problem."""
    try:
        yield
    except refusals:
        raise
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        place = f"--policy {contestant.source}: fails on {problem.name}"
        raise RmabError(f"{place}: {type(error).__name__}: {first}") from None
