"""Runs of studies: from a `Study` to `Results`, and its exact values."""

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
from rmab.studies.checkpoint import Checkpoint, Job, StoredPoint
from rmab.studies.provenance import Provenance
from rmab.studies.results import Curve, PolicyResult, Results, SweepResults
from rmab.studies.study import Study
from rmab.studies.sweep import Point, Sweep

if TYPE_CHECKING:
    from rmab.engine.cluster import Cluster

__all__ = [
    "SIMULATED",
    "SIMULATED_SLOTS",
    "SimulatedValue",
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

_POINTS_AT_A_TIME = 16  # points of a sweep that a cluster runs at a time


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

    Ctrl-C returns the trials done, with `interrupted` set. Only `study` changes the numbers.

    Parameters
    ----------
    study
        Study to run.
    progress
        Called with the number of trials just done.
    batch
        Trials of a batch; None: chosen for speed.
    threads
        Threads of this machine; None: its cores.
    checkpoint
        Folder where trials are stored as they are done. Trials of an equal study there are not run
        again; another study is refused.
    ray
        Ray cluster to run on: "auto" is the one on this machine, "local" starts one here, HOST:PORT
        is its head.
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
    """Simulate the points of a sweep, each as `run` does.

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
    """Simulate a study as `run` does, and count failed trials.

    watch: called with a policy, trials and their seconds after each policy's batch; margin: a trial
    has failed if its last tenth earns less than `whittle` with known dynamics earns in the same
    trial, by more than this per agent and slot.
    """
    return _run(study, provenance(None), failures=(watch, margin))


def workers_at(address: str | None) -> AbstractContextManager[Cluster | None]:
    """Connect to the workers of a Ray cluster; None without an address."""
    if address is None:
        return nullcontext()
    from rmab.engine.cluster import Cluster

    return Cluster(address)


def provenance(workers: Cluster | None, command: str | None = None) -> Provenance:
    """Provenance of a run that begins now, on these workers or here."""
    if workers is None:
        return Provenance(command)
    # The device is the workers'; this process does not touch its own.
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
    """Run a job as `run_sweep` does; workers run several points at a time.

    Parameters
    ----------
    job
        Sweep to run, with its provenance.
    progress, batch, threads
        As for `run`.
    folder
        Checkpoint in which the job was begun.
    workers
        Ray cluster; None: this process.
    """
    lock = Lock()  # points that run at a time share the progress

    def advance(trials: int) -> None:
        if progress is not None:
            with lock:
                progress(trials)

    def run_point(point: Point) -> Results:
        stored = None if folder is None else folder.point(job, point.label)
        try:
            return _run(
                point.study,
                job.provenance,
                advance,
                batch=batch,
                threads=threads,
                stored=stored,
                workers=workers,
            )
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
    """Results of points in order; several run at a time, in a thread each."""

    def run_one(point: Point) -> Results:
        results = run_point(point)
        if results.interrupted:
            workers.end(KeyboardInterrupt())  # ends the other points, too
        return results

    with ThreadPoolExecutor(min(len(points), workers.n_workers, _POINTS_AT_A_TIME)) as pool:
        waiting = [pool.submit(run_one, point) for point in points]
        try:
            for each in waiting:
                try:
                    results = each.result()
                except KeyboardInterrupt as interrupt:  # perhaps only in this thread
                    workers.end(interrupt)
                    results = each.result()
                yield results
        except BaseException as error:
            workers.end(error)
            raise


def _run(
    study: Study,
    made: Provenance,
    progress: Callable[[int], None] | None = None,
    *,
    batch: int | None = None,
    threads: int | None = None,
    stored: StoredPoint | None = None,
    workers: Cluster | None = None,
    failures: tuple[Watch, float] | None = None,
) -> Results:
    """Run one point; failures: watch and margin of `run_watched`."""
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
    watch, margin = failures or (None, None)
    trials = trials_of(study, batch, threads, margin)
    done = simulate(trials, policies, progress, stored, workers, watch)
    seconds = time.monotonic() - begun if stored is None else stored.seconds
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
    """Trials that the engine runs for a study."""
    return Trials(
        arms=study.arms,
        plays=study.plays,
        setting=setting_of_study(study),
        n_trials=study.trials,
        seed=study.seed,
        batch=batch,
        threads=threads,
        margin=margin,
        each=study.agent_arms,
    )


def setting_of_study(study: Study) -> Setting:
    """Setting that the engine compiles programs for."""
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
        failed=float(tally.stuck.mean) if tally.stuck.count.any() else None,
    )


SIMULATED_SLOTS = 2_000  # of policies whose exact value is out of reach; the last tenth counts
# Trials of these policies: a slot of a lookahead takes about 70 times as long as one of an index.
SIMULATED = {"whittle": 256, "myopic": 256, "lookahead": 32}


class Values(dict[str, float | None]):
    """Exact values by name; `reasons` has the reason for each None."""

    def __init__(self, values: dict[str, float | None], reasons: dict[str, str]) -> None:
        super().__init__(values)
        self.reasons = reasons


def value(study: Study) -> Values:
    """Compute exact long-run average rewards per agent and slot with known dynamics.

    "optimum", "upper_bound" (Lagrangian), then each policy; None where the problem is too large.
    Where agents differ, values are means over agents.
    """
    return _value_of_study(study, None)


def _value_of_study(study: Study, progress: Callable[[int], None] | None) -> Values:
    """Compute `value`; progress: called with 1 after each value."""
    depth = _lookahead_depth(study)
    by_arms = {arms: _value(arms, study.plays, depth, progress) for arms in study.differing_arms}
    if len(by_arms) == 1:
        return next(iter(by_arms.values()))
    values: dict[str, float | None] = {}
    reasons: dict[str, str] = {}
    for one in by_arms.values():
        reasons = {**one.reasons, **reasons}
    for name in by_arms[study.agent_arms[0]]:
        each = [one[name] for one in by_arms.values()]
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
    """Compute exact values by label; points with equal values share one computation."""
    computed: dict[tuple[Any, ...], Values] = {}
    by_label = {}
    for point in sweep.points:
        key = _value_key(point.study)
        if key not in computed:
            computed[key] = _value_of_study(point.study, progress)
        by_label[point.label] = computed[key]
    return by_label


def count_values(sweep: Sweep) -> int:
    """Count the calls of progress by `value_sweep`."""
    distinct = {_value_key(point.study): point.study for point in sweep.points}
    return (len(KNOWN) + 1) * sum(len(study.differing_arms) for study in distinct.values())


def _value_key(study: Study) -> tuple[Any, ...]:
    return (study.arms, study.agent_arms, study.plays, _lookahead_depth(study))


class SimulatedValue(NamedTuple):
    """Simulated long-run average reward per agent and slot, with its standard error."""

    mean: float
    se: float


def simulated_values(
    study: Study, values: Values, progress: Callable[[int], None] | None = None
) -> dict[str, SimulatedValue]:
    """Simulate the values that are None; policies that cannot be simulated are left out.

    Each is the mean reward in the last tenth of SIMULATED_SLOTS slots. progress: called with 1
    after each policy of SIMULATED.
    """
    simulated = {}
    for name in SIMULATED:
        if values[name] is None:
            with suppress(ModelError, StudyError, TooLargeError, ConvergenceError):
                simulated[name] = _simulated_value(study, name)
        if progress is not None:
            progress(1)
    return simulated


def _simulated_value(study: Study, policy: str) -> SimulatedValue:
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
    return SimulatedValue(mean, math.sqrt(variance))


def _lookahead_depth(study: Study) -> int:
    depth: int = study.options.get("lookahead", {}).get("depth", DEPTH)
    return depth
