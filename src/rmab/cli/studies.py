"""Commands on studies: run, value, index, reproduce."""

from __future__ import annotations

import argparse
import json
import math
import shlex
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from threading import Thread
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rmab.cli.console import DONE, INTERRUPTED, columns, folder, progress, say
from rmab.errors import (
    RmabError,
    StorageError,
    StudyError,
    UnavailableError,
    system_reason,
)

if TYPE_CHECKING:
    from rmab.engine.cluster import Cluster
    from rmab.experiments.figure import FigureResult
    from rmab.model.arms import Arm
    from rmab.studies.checkpoint import Checkpoint, Job
    from rmab.studies.results import Results, SweepResults
    from rmab.studies.run import SimulatedValue, Values
    from rmab.studies.sweep import Point, Sweep

__all__ = ["index", "reproduce", "run", "value"]


def _changes(options: argparse.Namespace) -> dict[str, Any]:
    """Return the keys of the study file that options replace."""
    changes = {"trials": options.trials, "seed": options.seed}
    return {key: value for key, value in changes.items() if value is not None}


def _load(file: str, changes: Mapping[str, Any] = MappingProxyType({})) -> Sweep:
    """The study of a file with its sweep; without one it is a sweep of one point."""
    from rmab.studies.sweep import load_sweep

    return _changed(load_sweep(file), changes)


def _changed(sweep: Sweep, changes: Mapping[str, Any]) -> Sweep:
    for key in changes:
        if key in sweep.values:
            raise StudyError(f"--{key} cannot be given where the sweep has values of {key}")
    return replace(sweep, study=replace(sweep.study, **changes))


def run(options: argparse.Namespace) -> int:
    if options.resume is not None:
        return _resume(options)
    if options.study is None:
        raise StudyError("the following arguments are required: STUDY.toml; see rmab run --help")
    changes = _changes(options)
    sweep = _load(options.study, changes)
    out = None if options.out is None else folder(options.out)
    from rmab.studies.checkpoint import Checkpoint, Job
    from rmab.studies.run import provenance

    with _workers(options.ray) as workers:
        made = provenance(workers, shlex.join(["rmab", *options.words]))
        job = Job(sweep, made, _absolute(options.study), changes)
        if out is None:
            return _run_job(options, job, None, workers)
        with Checkpoint(out) as checkpoint:
            checkpoint.begin(job)
            return _run_job(options, job, checkpoint, workers)


def _workers(address: str | None) -> AbstractContextManager[Cluster | None]:
    from rmab.studies.run import workers_at

    if address is not None:
        import jax

        # A GPU of this machine may be a worker's.
        jax.config.update("jax_platforms", "cpu")  # type: ignore[no-untyped-call]  # untyped in JAX
    return workers_at(address)


def _resume(options: argparse.Namespace) -> int:
    """Continue a job, if file and options still describe it."""
    if options.out is not None:
        raise StudyError("--resume and --out exclude each other: results go where they were to go")
    changes = _changes(options)
    out = Path(options.resume)
    if not (out / "checkpoint").is_dir():
        raise StudyError(f"--resume {options.resume}: there is no checkpoint to go on from")
    from rmab.studies.checkpoint import Checkpoint
    from rmab.studies.run import provenance

    with _workers(options.ray) as workers, Checkpoint(out) as checkpoint:
        job = checkpoint.resume(provenance(workers))
        file = options.study or job.file
        if options.study is not None or _is_there(file):
            sweep = _load(file, {**job.changes, **changes})
        else:
            sweep = _changed(job.sweep, changes)

        def where(key: str) -> str:
            return f"by --{key}" if key in changes else f"in {file}"

        checkpoint.refuse_changes(job, sweep, where)
        return _run_job(options, job, checkpoint, workers)


def _absolute(file: str) -> str:
    """A study file's name that holds in every folder."""
    return file if file.startswith("catalogue:") else str(Path(file).absolute())


def _is_there(file: str) -> bool:
    return file.startswith("catalogue:") or (bool(file) and Path(file).exists())


def _run_job(
    options: argparse.Namespace, job: Job, checkpoint: Checkpoint | None, workers: Cluster | None
) -> int:
    """Simulate it, print it, and write it where there is a checkpoint."""
    name = Path(job.file).stem or "of Python"
    total = job.sweep.n_trials
    from rmab.studies.run import run_job

    was_done = checkpoint is not None and checkpoint.n_trials(job) == total
    if checkpoint is not None:  # what draws takes long to load, and may be loaded meanwhile
        Thread(target=import_module, args=["rmab.report.page"]).start()
    with progress(total, name) as advance:
        try:
            done = run_job(job, advance, folder=checkpoint, workers=workers)
        except StorageError:
            raise
        except UnavailableError as error:
            if checkpoint is None:
                raise
            more = f"{_how_to_go_on(checkpoint.folder)} goes on"
            raise type(error)(f"{error}; {more}") from None
        except RmabError as error:
            raise StudyError(f"{options.study or job.file}: {error}") from None
    results = done if job.sweep.values else done[""]
    warnings = [found for each in done.values() if (found := each.study.cost_warning) is not None]
    if warnings:
        others = len(warnings) - 1
        more = f" (and at {others} more point{'s' if others > 1 else ''})" if others else ""
        say(f"warning: {warnings[0]}{more}")
    if checkpoint is not None:
        _write(checkpoint.folder, name, results)
    if options.json:
        print(json.dumps(results.to_json(), allow_nan=False))
    else:
        print(_results_table(done))
    if checkpoint is not None:
        again = "all trials were done before; " if was_done else ""
        data = "sweep.csv, sweep.json, points" if job.sweep.values else "slots.csv, episodes.csv"
        say(f"{again}written to {checkpoint.folder}/: report.html, results.json, {data}, figure")
    if done.interrupted:
        more = "" if checkpoint is None else f"; {_how_to_go_on(checkpoint.folder)} goes on"
        say(f"interrupted: {done.trials} of {total} trials done, results are of those{more}")
        return INTERRUPTED
    return DONE


def _how_to_go_on(out: Path) -> str:
    return shlex.join(["rmab", "run", "--resume", str(out)])


def _write(out: Path, name: str, results: Results | SweepResults) -> None:
    from rmab.report.page import write_report

    try:
        results.write(out)
        write_report(out, name, results)
    except OSError as error:
        raise StorageError(
            f"{error.filename or out}: results cannot be written: {system_reason(error)}; the "
            f"trials are kept, and {_how_to_go_on(out)} writes them"
        ) from None


def _results_table(done: SweepResults) -> str:
    """A row for each policy, of each point."""
    keys = _columns_of(done.sweep)
    rows = [[*keys, "policy", "mean", "se", "final", "episodes", "behind whittle", "se"]]
    for point, results in done.each():
        for name, r in results.items():
            numbers = [r.mean, r.se, r.final, r.episodes, r.behind, r.behind_se]
            digits = [5, 5, 5, 1, 5, 5]
            shown = [f"{x:.{d}f}" for x, d in zip(numbers, digits, strict=True)]
            rows.append([*_settings(done.sweep, point), name, *shown])
    head = f"{_trials_of(done)}; average reward per agent and slot, final: last tenth"
    return head + "\n" + columns(rows, len(keys) + 1)


def _trials_of(done: SweepResults) -> str:
    """Return in words the trials of each point."""
    counts = [each.trials for each in done.values()]
    low, high = min(counts), max(counts)
    several = f"{low} trial{'' if low == high == 1 else 's'}"
    if low < high:
        several = f"{low} to {high} trials"
    return several if not done.sweep.values else f"{several} at each of {_points(len(counts))}"


def _points(n: int) -> str:
    return f"{n} point{'' if n == 1 else 's'}"


def value(options: argparse.Namespace) -> int:
    sweep = _load(options.study)
    from rmab.studies.run import count_values, value_sweep

    try:
        with progress(count_values(sweep), Path(options.study).stem, "value") as advance:
            found = value_sweep(sweep, advance)
    except RmabError as error:
        raise StudyError(f"{options.study}: {error}") from None
    reasons = [f"{n}: {why}" for values in found.values() for n, why in values.reasons.items()]
    for reason in dict.fromkeys(reasons):  # points may share them
        say(reason)
    simulated = _simulated(sweep, found)
    if options.json:
        answers = {
            label: {**values, **({"simulated": _estimates(more)} if more else {})}
            for (label, values), more in zip(found.items(), simulated.values(), strict=True)
        }
        points = [
            {"label": point.label, "settings": point.settings, "values": answers[point.label]}
            for point in sweep.points
        ]
        print(json.dumps({"points": points} if sweep.values else answers[""], allow_nan=False))
    else:
        print(_values_table(sweep, found, simulated))
    return DONE


def _simulated(sweep: Sweep, found: Mapping[str, Values]) -> dict[str, dict[str, SimulatedValue]]:
    """Return simulated estimates for missing values, by the label of a point."""
    from rmab.studies.run import SIMULATED, simulated_values

    missing = {id(values): values for values in found.values() if values.reasons}
    studies = {id(found[point.label]): point.study for point in sweep.points}
    instead: dict[int, dict[str, SimulatedValue]] = {}
    with progress(len(missing) * len(SIMULATED), "simulated", "value") as advance:
        for key, values in missing.items():
            instead[key] = simulated_values(studies[key], values, advance)
    return {label: instead.get(id(values), {}) for label, values in found.items()}


def _estimates(simulated: Mapping[str, SimulatedValue]) -> dict[str, dict[str, float]]:
    return {name: estimate._asdict() for name, estimate in simulated.items()}


def _values_table(
    sweep: Sweep,
    found: Mapping[str, Values],
    simulated: Mapping[str, Mapping[str, SimulatedValue]],
) -> str:
    """A row for each value, of each point."""
    every_best = [values["optimum"] for values in found.values()]
    gains = all(best is None or best > 0 for best in every_best)  # else a share would be of costs
    keys = _columns_of(sweep)
    rows = [[*keys, "", "value", "of optimum" if gains else "below optimum"]]
    for point in sweep.points:
        values, instead = found[point.label], simulated[point.label]
        best = values["optimum"]
        for name, number in values.items():
            apart = ""
            if best is not None and number is not None:
                apart = f"{100 * number / best:.3f} %" if gains else f"{best - number:z.6f}"
            shown = "-" if number is None else f"{number:.6f}"
            if name in instead:
                shown = f"{instead[name].mean:.5f} ± {instead[name].se:.5f}"
            rows.append([*_settings(sweep, point), name, shown, apart])
    head = "long-run average reward per agent and slot, known dynamics"
    if any(simulated.values()):
        from rmab.studies.run import SIMULATED_SLOTS

        head += f"; ±: simulated, the last tenth of {SIMULATED_SLOTS:,} slots, standard error"
    return head + "\n" + columns(rows, len(keys) + 1)


def _columns_of(sweep: Sweep) -> list[str]:
    """Return the heads of columns that identify a point: its label if it has one, or settings."""
    return list(sweep.values) if sweep.labels is None else ["point"]


def _settings(sweep: Sweep, point: Point) -> list[str]:
    from rmab.studies.sweep import value_text

    if sweep.labels is not None:
        return [point.label]
    return [value_text(value) for value in point.settings.values()]


def index(options: argparse.Namespace) -> int:
    study = _load(options.study).study
    max_age, discount = options.max_age, options.discount
    arms = []
    for number, arm in enumerate(study.arms, start=1):
        try:
            arms.append(_arm_indices(arm, max_age, discount))
        except RmabError as error:
            raise StudyError(f"{options.study}: arm {number}: {error}") from None
    if options.json:
        print(json.dumps({"arms": arms}, allow_nan=False))
    else:
        print(_index_table(arms, discount))
    return DONE


def _arm_indices(arm: Arm, max_age: int, discount: float | None = None) -> dict[str, Any]:
    """indexable, index (and never_seen), and where not indexable the reason and the witness.

    A fully observed arm has one index for each state, one observed when played a list by age for
    each state last observed. An infinite index is the text "inf" or "-inf", an unknown one None.

    >>> from rmab import Arm
    >>> _arm_indices(Arm([[0.8, 0.2], [0.2, 0.8]], reward=[0, 1]), max_age=1)["index"]
    [[0.2], [0.8]]
    """
    from rmab.planning.index.api import whittle_indices

    found = whittle_indices(arm, discount, None if arm.observed == "always" else max_age)
    answer: dict[str, Any] = {"indexable": found.indexable}
    if found.never_seen is not None:
        answer["never_seen"] = _plain(found.never_seen)
    answer["index"] = _plain(found.index.tolist())
    if found.indexable is not True:
        answer["reason"] = found.reason
    if found.witness is not None:
        state, low, high = found.witness
        place: dict[str, int | None] = (
            {"last_seen": state[0], "age": state[1]}
            if isinstance(state, tuple)
            else {"state": state}
        )
        answer["witness"] = {**place, "low": low, "high": high}
    return answer


def _plain(value: Any) -> Any:
    """Numbers as JSON has them, at any depth."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if math.isnan(value):
        return None
    return value if math.isfinite(value) else str(value)


def _shown(index: float | str | None) -> str:
    """An index in a table, a dash where it is not known."""
    return "-" if index is None else f"{float(index):z.6f}"


def _index_table(arms: list[dict[str, Any]], discount: float | None) -> str:
    """The indices of all arms in one table, then the verdict on each."""
    rows = [["arm", "seen"]]
    verdicts = []
    for number, arm in enumerate(arms, start=1):
        if "never_seen" in arm:
            lines = [["never", arm["never_seen"]]]
            lines += [[str(state), *ages] for state, ages in enumerate(arm["index"])]
        else:
            lines = [[f"now {state}", index] for state, index in enumerate(arm["index"])]
        for place, (label, *indices) in enumerate(lines):
            first = "" if place else str(number)
            rows.append([first, label, *(_shown(index) for index in indices)])
        verdict = {True: "indexable", False: "not indexable: ", None: "undecided: "}
        verdicts.append(f"arm {number}: {verdict[arm['indexable']]}{arm.get('reason', '')}")
    width = max(map(len, rows))
    rows[0] += [str(age) for age in range(1, width - 1)]
    rows = [[*row, *[""] * (width - len(row))] for row in rows]
    reward = "average reward" if discount is None else f"discount {discount:g}"
    head = f"Whittle index, {reward}, by the state last observed and slots since, or the state now"
    return "\n".join([head, columns(rows), *verdicts])


def reproduce(options: argparse.Namespace) -> int:
    from rmab.experiments.registry import figures, reproduce, summary

    chosen = figures(options.figures, options.trials)
    out = folder(options.out)
    from rmab.report.figures_page import write_paper

    done: list[FigureResult] = []
    interrupted = False
    try:
        for figure in chosen:
            with progress(figure.n_trials, figure.name) as advance:
                result = reproduce(figure, advance)
            if result is not None:
                done.append(result)
                if not options.json:
                    print(f"{figure.name}  {figure.title}")
                    for claim in result.claims:
                        print(f"  {claim.verdict}: {claim.text} Measured: {claim.found}")
            if result is None or result.interrupted:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        if not done:
            raise
        interrupted = True
    report = write_paper(out, done)
    if options.json:
        print(json.dumps({result.name: result.to_json() for result in done}, allow_nan=False))
    else:
        print(f"\n{summary(done)}")
    say(f"report: {report}")
    if interrupted:
        say("interrupted: the report has what was done")
        return INTERRUPTED
    return DONE
