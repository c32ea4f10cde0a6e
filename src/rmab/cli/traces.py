"""Commands on measured data: trace, fit."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmab.cli.console import DONE, columns, folder, progress, say
from rmab.errors import StudyError, is_lasting, system_reason
from rmab.text import printable

if TYPE_CHECKING:
    from rmab.traces.fit import Fit
    from rmab.traces.recordings import Recording
    from rmab.traces.trace import Trace

__all__ = ["fit", "left_out", "several", "trace"]


def trace(options: argparse.Namespace) -> int:
    if options.out == "":
        raise StudyError("--out must name a file, got ''")
    from rmab.traces.readers.options import RecordingOptions
    from rmab.traces.recordings import read_recording

    given = {field.name: getattr(options, field.name) for field in fields(RecordingOptions)}
    given["missing"] = [mark for text in options.missing for mark in text.split(",")]
    found = read_recording(options.recording, **given)
    if options.out is not None:
        from rmab.traces.trace import save_trace

        with _writing("--out", options.out):
            save_trace(found.trace, options.out, found.levels)
    if options.json:
        print(json.dumps(_as_json(found), allow_nan=False))
    else:
        print(_line(found))
        if found.floors:
            print(_floors_table(found))
    for names in left_out(found.trace):
        say(names)
    return DONE


@contextmanager
def _writing(option: str, path: str) -> Iterator[None]:
    """Turn lasting errors of writing a file into one that names the option."""
    try:
        yield
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and not is_lasting(error):
            raise
        reason = system_reason(error) if isinstance(error, OSError) else error
        raise StudyError(f"{option} {path}: must be a file to write to: {reason}") from None


def _line(found: Recording) -> str:
    """Return one line about a recording."""
    trace = found.trace
    size = trace.summary()
    parts = [
        several(size["agents"], "agent"),
        several(size["slots"], "slot"),
        several(size["arms"], "arm"),
        "slot length unknown" if trace.slot_s is None else f"slot {trace.slot_s:g} s",
        f"{size['good']:.2%} good".replace("%", " %"),
        f"{size['missing']:.2%} missing".replace("%", " %"),
        several(size["segments"], "segment"),
    ]
    most = trace if found.levels is None else found.levels
    if most.states > 2:
        highest = ", the highest good" if most is trace else ""
        parts.append(f"{most.states} states{highest}")
    if found.not_finite:
        parts.append(f"{several(found.not_finite, 'value')} NaN or Inf, read as missing")
    return ", ".join(parts)


def several(n: int, what: str) -> str:
    """Return a number of things in words."""
    return f"{n} {what}{'' if n == 1 else 's'}"


def left_out(trace: Trace) -> list[str]:
    """A line for each agent that never measured some arms."""
    arms: dict[int, list[str]] = {}
    for agent, arm in trace.never_measured:
        arms.setdefault(agent, []).append(trace.arms[arm])
    return [
        f"agent {trace.agents[agent]}: never measured and left out: arm {', '.join(names)}"
        for agent, names in arms.items()
    ]


def _floors_table(found: Recording) -> str:
    rows = [["agent", "arm", "noise floor", "good up to"]]
    rows += [[f.agent, f.arm, f"{f.floor:.2f}", f"{f.good_up_to:.2f}"] for f in found.floors]
    return columns(rows, 2)


def _as_json(found: Recording) -> dict[str, Any]:
    trace = found.trace
    return {
        **trace.summary(),
        "slot_s": trace.slot_s,
        "states": trace.states,
        "levels": None if found.levels is None else found.levels.states,
        "not_finite": found.not_finite,
        "agent_names": list(trace.agents),
        "arm_names": list(trace.arms),
        "left_out": [
            {"agent": trace.agents[m], "arm": trace.arms[n]} for m, n in trace.never_measured
        ],
        "noise_floors": [floor._asdict() for floor in found.floors],
        "source": trace.source,
    }


def fit(options: argparse.Namespace) -> int:
    from rmab.traces.trace import load_trace

    if options.study is not None:
        _check_file("--study", options.study)
    trace = load_trace(options.trace, levels=options.levels)
    if options.good is not None:
        trace = trace.regraded(options.good)
    out = None if options.out is None else folder(options.out)
    from rmab.traces.fit import fit_trace, steps_of

    with progress(steps_of(trace), "fit", unit="step") as advance:
        found = fit_trace(trace, advance)
    if options.study is not None:
        from rmab.traces.fit import study_text

        with _writing("--study", options.study):
            Path(options.study).write_text(study_text(found), encoding="utf-8")
    written = [] if options.study is None else [options.study]
    if out is not None:
        from rmab.report.fit_page import write_fit

        write_fit(out, printable(Path(options.trace).stem), found)
        written.append(f"{out}/: fit.html, fit.json, pictures")
    if options.json:
        print(json.dumps(found.to_json(), allow_nan=False))
    else:
        print(_fit_tables(found))
    for names in left_out(trace):
        say(names)
    if written:
        say(f"written to {' and '.join(written)}")
    return DONE


def _check_file(option: str, path: str) -> None:
    """Refuse a path that cannot be written to before the long work begins."""
    if not path:
        raise StudyError(f"{option} must name a file, got ''")
    why = ""
    try:
        if Path(path).is_dir():
            why = "it is a folder"
        elif not Path(path).parent.is_dir():
            why = "there is no such folder"
    except (OSError, ValueError) as error:  # a name that is none
        why = str(error)
    if why:
        raise StudyError(f"{option} {path}: must be a file to write to: {why}")


def _fit_tables(found: Fit) -> str:
    """Verdicts, models, rewards, and whether policies change places."""
    verdicts = [["question", "verdict", "size"]]
    verdicts += [[v.question, v.answer, _cell(v.size, 3)] for v in found.verdicts]
    models = [["model", "bits a slot", "share"]]
    models += [[m, _cell(bits, 4), _cell(found.share[m], 3)] for m, bits in found.bits.items()]
    rewards = [["reward of", "trace", "twins", "lowest", "highest"]]
    for name, each in found.earned.items():
        numbers = (each.trace, each.replicates.mean(), each.replicates.min(), each.replicates.max())
        rewards.append([name, *(f"{x:.4f}" for x in numbers)])
    tables = [columns(verdicts, 2), columns(models), columns(rewards)]
    head = f"{len(found.tested)} of {len(found.series)} series tested"
    so = [f"{v.question}: {v.sentence} {v.so}" for v in found.verdicts]
    return "\n\n".join([head, *tables, found.order_in_words, "\n".join(so)])


def _cell(number: float | None, digits: int) -> str:
    return "-" if number is None else f"{number:.{digits}f}"
