"""Studies run: from a `Study` to `Results`, and its exact values."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rmab.engine.montecarlo import Trials, Watch, simulate
from rmab.engine.setting import Setting
from rmab.engine.tally import Moments, Simulated, Tally
from rmab.errors import ConvergenceError, ModelError, StudyError, TooLargeError
from rmab.model.arms import Arms
from rmab.planning.joint.policy_value import KNOWN, known_values
from rmab.planning.joint.relaxation import upper_bound
from rmab.policies.lookahead import DEPTH
from rmab.policies.policy import Policy
from rmab.policies.registry import named
from rmab.policies.rules.dynamics import table_ages
from rmab.studies.checkpoint import Checkpoint, Job, KeptPoint
from rmab.studies.provenance import Provenance
from rmab.studies.results import Curve, PolicyResult, Results, SweepResults
from rmab.studies.study import Study
from rmab.studies.sweep import Point, Sweep

if TYPE_CHECKING:
    from rmab.engine.cluster import Cluster

__all__ = [
    "SIMULATED",
    "SIMULATED_SLOTS",
    "Estimate",
    "Values",
    "count_values",
    "provenance",
    "run",
    "run_job",
    "run_sweep",
    "run_watched",
    "setting_of_study",
    "simulated_values",
    "trials_of",
    "value",
    "value_sweep",
    "workers_at",
]

_POINTS_AT_A_TIME = 16  # of a sweep on a cluster


def run(
    study: Study,
    progress: Callable[[int], None] | None = None,
    *,
    batch: int | None = None,
    threads: int | None = None,
    checkpoint: str | PathLike[str] | None = None,
    ray: str | None = None,
) -> Results:
    """Simulate all policies of a study.

    progress is called with the number of trials just done. batch and threads change speed and
    memory, never results. Ctrl-C returns what is done, with `interrupted` set.

    checkpoint: a folder where the trials done are kept as they come. If it has some of the same
    study, those are not run again, and the numbers are the same to the last bit; another study is
    refused.

    ray: run on a Ray cluster: "auto" finds the one that runs on this machine, "local" starts one
    here, HOST:PORT is its head. The numbers are the same, too.
    """
    sweep = Sweep(study, {})
    done = run_sweep(sweep, progress, batch=batch, threads=threads, checkpoint=checkpoint, ray=ray)
    return done[""]


def run_sweep(
    sweep: Sweep,
    progress: Callable[[int], None] | None = None,
    *,
    batch: int | None = None,
    threads: int | None = None,
    checkpoint: str | PathLike[str] | None = None,
    ray: str | None = None,
) -> SweepResults:
    """Simulate the points of a sweep one after the other, as `run` does each.

    Ctrl-C returns the points that are done, the last one perhaps in part.
    """
    with workers_at(ray) as workers:
        job = Job(sweep, provenance(workers))
        if checkpoint is None:
            return run_job(job, progress, batch=batch, threads=threads, workers=workers)
        with Checkpoint(Path(checkpoint)) as folder:
            job = replace(folder.resume_or_begin(job), sweep=sweep)
            return run_job(
                job, progress, batch=batch, threads=threads, folder=folder, workers=workers
            )


def run_watched(study: Study, watch: Watch, margin: float) -> Results:
    """`run` of a study, with the share of trials that are stuck.

    watch: called with a policy, trials and the seconds they took as each policy is done with a
    batch; margin: a trial is stuck whose last tenth earns less than that of `whittle` with known
    dynamics in the same trial by more than this, per agent and slot.
    """
    return _run(study, None, None, None, None, provenance(None), None, watch, margin)


def workers_at(address: str | None) -> AbstractContextManager[Cluster | None]:
    """Those of a Ray cluster; None without an address."""
    if address is None:
        return nullcontext()
    from rmab.engine.cluster import Cluster

    return Cluster(address)


def provenance(workers: Cluster | None, command: str | None = None) -> Provenance:
    """Of what is run now, by these workers or here."""
    if workers is None:
        return Provenance(command)
    # The device is theirs, and this process leaves its own alone.
    return Provenance(command, device=workers.device, threads=None, workers=workers.n_workers)


def run_job(
    job: Job,
    progress: Callable[[int], None] | None = None,
    *,
    batch: int | None = None,
    threads: int | None = None,
    folder: Checkpoint | None = None,
    workers: Cluster | None = None,
) -> SweepResults:
    """`run_sweep` for a job; folder: the checkpoint where it was begun; workers: who runs it.

    Workers run several points at a time.
    """
    lock = Lock()  # of a progress that several points may tell of

    def advance(trials: int) -> None:
        if progress is not None:
            with lock:
                progress(trials)

    def run_point(point: Point) -> Results:
        kept = None if folder is None else folder.point(job, point.label)
        try:
            return _run(point.study, advance, batch, threads, kept, job.provenance, workers)
        except (ModelError, StudyError, TooLargeError, ConvergenceError) as error:
            if not point.label:
                raise
            raise StudyError(f"point {point.label}: {error}") from error

    points = job.sweep.points
    if workers is None or len(points) == 1:
        running: Iterator[Results] = map(run_point, points)
    else:
        running = _side_by_side(run_point, points, workers)
    done: dict[str, Results] = {}
    try:
        for point, results in zip(points, running, strict=True):
            done[point.label] = results
            if results.interrupted and workers is None:
                break
    except KeyboardInterrupt:
        if not done:
            raise
    return SweepResults(job.sweep, done)


def _side_by_side(
    run_point: Callable[[Point], Results], points: Sequence[Point], workers: Cluster
) -> Iterator[Results]:
    """The results of points in their order, some of which are run at a time, in a thread each."""

    def run_one(point: Point) -> Results:
        results = run_point(point)
        if results.interrupted:
            workers.end(KeyboardInterrupt())  # the others, too, with what they have done
        return results

    with ThreadPoolExecutor(min(len(points), workers.n_workers, _POINTS_AT_A_TIME)) as pool:
        waiting = [pool.submit(run_one, point) for point in points]
        try:
            for each in waiting:
                try:
                    results = each.result()
                except KeyboardInterrupt as interrupt:  # it may have reached this thread alone
                    workers.end(interrupt)
                    results = each.result()
                yield results
        except BaseException as error:
            workers.end(error)
            raise


def _run(
    study: Study,
    progress: Callable[[int], None] | None,
    batch: int | None,
    threads: int | None,
    kept: KeptPoint | None,
    made: Provenance,
    workers: Cluster | None,
    watch: Watch | None = None,
    margin: float | None = None,
) -> Results:
    """One point; kept: what its checkpoint keeps of it; margin: see reduce_batch."""
    begun = time.monotonic()
    policies = {
        name: policy
        if isinstance(policy, Policy)
        else named(policy, study.horizon, study.options_of(policy))
        for name, policy in zip(study.policy_names, study.policies, strict=True)
    }
    for policy in study.policies:
        if isinstance(policy, Policy):
            policy.rule.check(policy.name, study.arms)
    trials = trials_of(study, batch, threads, margin)
    done = simulate(trials, policies, progress, kept, workers, watch)
    seconds = time.monotonic() - begun if kept is None else kept.seconds
    used = replace(
        made,
        threads=trials.workers if workers is None and made.threads is not None else None,
        workers=None if workers is None else workers.n_workers,
        seconds=seconds,
    )
    return _results(study, done, used)


def trials_of(
    study: Study,
    batch: int | None = None,
    threads: int | None = None,
    margin: float | None = None,
) -> Trials:
    """What the engine is to run for a study."""
    return Trials(
        study.arms,
        study.plays,
        setting_of_study(study),
        study.trials,
        study.seed,
        batch,
        threads,
        margin,
        study.agent_arms,
    )


def setting_of_study(study: Study) -> Setting:
    """What the engine's programs are made for."""
    return Setting.of(
        study.arms,
        study.agents,
        study.horizon,
        shared=study.realisations == "shared",
        schedule=study.schedule,
        draws=study.draws,
        doubt=study.doubt,
        aggregation=study.shares(),
        weights=None if study.weights is None else tuple(study.weights),
        max_age=max(map(table_ages, study.differing_arms)),
        budget=study.budget,
        groups=study.groups,
        survey=study.survey,
        each=study.agent_arms,
    )


def _curve(moments: Moments, rows: int | None = None) -> Curve:
    return Curve(moments.mean[:rows], moments.se[:rows])


def _results(study: Study, done: Simulated, made: Provenance) -> Results:
    covariance = done.means.covariance
    reference = len(done.tallies)
    policies = {}
    for place, (name, tally) in enumerate(done.tallies.items()):
        spread = (
            covariance[place, place]
            + covariance[reference, reference]
            - 2 * covariance[place, reference]
        )
        policies[name] = _policy_result(
            tally,
            mean=float(done.means.mean[place]),
            se=float(np.sqrt(covariance[place, place])),
            shortfall=float(done.means.mean[reference] - done.means.mean[place]),
            shortfall_se=float(np.sqrt(np.maximum(spread, 0))),
        )
    size = len(policies)
    return Results(study, done.n_trials, done.interrupted, policies, covariance[:size, :size], made)


def _policy_result(
    tally: Tally, *, mean: float, se: float, shortfall: float, shortfall_se: float
) -> PolicyResult:
    rows = int((tally.length.count > 0).sum())
    return PolicyResult(
        mean=mean,
        se=se,
        final=float(tally.final.mean),
        final_se=float(tally.final.se),
        episodes=float(tally.episodes.mean),
        behind=shortfall,
        behind_se=shortfall_se,
        slots=_curve(tally.reward),
        regret=_curve(tally.regret),
        episode_trials=tally.length.count[:rows],
        episode_length=_curve(tally.length, rows),
        episode_reward=_curve(tally.episode_reward, rows),
        episode_regret=_curve(tally.episode_regret, rows),
        episode_error=_curve(tally.error, rows) if tally.error.count.any() else None,
        stuck=float(tally.stuck.mean) if tally.stuck.count.any() else None,
    )


SIMULATED_SLOTS = 2_000  # of a policy whose exact value is out of reach; the last tenth counts
# Trials of such policies: a slot of a lookahead costs some seventy times as much as an index's.
SIMULATED = {"whittle": 256, "myopic": 256, "lookahead": 32}


class Values(dict[str, float | None]):
    """Exact values by name; `reasons` says why a value is None."""

    def __init__(self, values: dict[str, float | None], reasons: dict[str, str]) -> None:
        super().__init__(values)
        self.reasons = reasons


def value(study: Study) -> Values:
    """Exact long-run average rewards per agent and slot with known dynamics.

    "optimum", "upper_bound" (Lagrangian), then each policy; None where the problem is too large.
    Where agents differ they are means over agents.
    """
    return _value_of_study(study, None)


def _value_of_study(study: Study, progress: Callable[[int], None] | None) -> Values:
    """`value`; progress: called with 1 after each value."""
    depth = _lookahead_depth(study)
    by_arms = {arms: _value(arms, study.plays, depth, progress) for arms in study.differing_arms}
    if len(by_arms) == 1:
        return next(iter(by_arms.values()))
    values: dict[str, float | None] = {}
    reasons: dict[str, str] = {}
    for found in by_arms.values():
        reasons = {**found.reasons, **reasons}
    for name in by_arms[study.agent_arms[0]]:
        each = [found[name] for found in by_arms.values()]
        known = [
            x * n for x, n in zip(each, study.differing_arms.values(), strict=True) if x is not None
        ]
        values[name] = sum(known) / study.agents if len(known) == len(each) else None
    return Values(values, {name: why for name, why in reasons.items() if values.get(name) is None})


def _value(arms: Arms, plays: int, depth: int, progress: Callable[[int], None] | None) -> Values:
    known = known_values(arms, plays, depth, progress=progress)
    values, reasons = dict(known.values), dict(known.reasons)
    optimum = values.pop("optimum")
    bound = None
    try:
        bound = upper_bound(arms, plays)
    except (TooLargeError, ConvergenceError) as error:
        reasons["upper_bound"] = str(error)
    if progress is not None:
        progress(1)
    return Values({"optimum": optimum, "upper_bound": bound, **values}, reasons)


def value_sweep(sweep: Sweep, progress: Callable[[int], None] | None = None) -> dict[str, Values]:
    """The exact values of each point, by label; points that have the same are computed once."""
    found: dict[tuple[Any, ...], Values] = {}
    by_label = {}
    for point in sweep.points:
        same = _same_values(point.study)
        if same not in found:
            found[same] = _value_of_study(point.study, progress)
        by_label[point.label] = found[same]
    return by_label


def count_values(sweep: Sweep) -> int:
    """Return how often `value_sweep` calls its progress."""
    distinct = {_same_values(point.study): point.study for point in sweep.points}
    return (len(KNOWN) + 1) * sum(len(study.differing_arms) for study in distinct.values())


def _same_values(study: Study) -> tuple[Any, ...]:
    return (study.arms, study.agent_arms, study.plays, _lookahead_depth(study))


class Estimate(NamedTuple):
    """A simulated long-run average reward per agent and slot, with its standard error."""

    mean: float
    se: float


def simulated_values(
    study: Study, values: Values, progress: Callable[[int], None] | None = None
) -> dict[str, Estimate]:
    """Estimate by simulation the values of policies that are None; what cannot be is left out.

    Each is the mean reward in the last tenth of SIMULATED_SLOTS slots. progress: called with 1
    after each policy of SIMULATED.
    """
    found = {}
    for name in SIMULATED:
        if values[name] is None:
            with suppress(ModelError, StudyError, TooLargeError, ConvergenceError):
                found[name] = _simulated_value(study, name)
        if progress is not None:
            progress(1)
    return found


def _simulated_value(study: Study, policy: str) -> Estimate:
    mean = variance = 0.0
    for arms, agents in study.differing_arms.items():
        alone = Study(
            arms=arms,
            agents=1,
            plays=study.plays,
            horizon=SIMULATED_SLOTS,
            trials=SIMULATED[policy],
            seed=study.seed,
            policies=[policy],
            options={key: o for key, o in study.options.items() if key == policy},
        )
        result = run(alone)[policy]
        share = agents / study.agents
        mean += share * result.final
        variance += (share * result.final_se) ** 2
    return Estimate(mean, math.sqrt(variance))


def _lookahead_depth(study: Study) -> int:
    depth: int = study.options.get("lookahead", {}).get("depth", DEPTH)
    return depth
