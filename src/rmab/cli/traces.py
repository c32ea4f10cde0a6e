"""The commands on measured data: trace, fit."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmab.cli.console import DONE, Commands, columns, folder, progress, say, whole
from rmab.errors import StudyError, is_lasting, system_reason
from rmab.text import printable

if TYPE_CHECKING:
    from rmab.traces.fit import Fit
    from rmab.traces.recordings import Recording
    from rmab.traces.trace import Trace

__all__ = ["add_choice_of_states", "add_commands", "left_out", "several"]

_INPUTS = """
what is read, by the end of its name:
  .csv, .csv.gz  long: columns time, arm, value, and agent if there are several
                 wide: time, and one column for each arm
                 sweeps of rtl_power and hackrf_sweep, with --bands
  .parquet       as a CSV file, where pandas can read it
  .npz, .npy     (slots, arms) or (agents, slots, arms)
  .mat           the same, up to version 7
  times are seconds, or dates by ISO 8601; without --slot a slot is the median step between times
  empty cells, NaN and Inf are missing, and what --missing names; without --good and --levels
  values are 1, good, 0, bad, or -1, missing

the .npz file that is written has
  state          (agents, slots, arms): 1 good, 0 bad, -1 missing
  seg            (slots,): segments
  level          of --levels, as state in several states
  meta           JSON: slot_s, agents, channels, source, states, level_states
"""


_FIT_JSON = """
with --json, and in fit.json
  series, tested  arms as agents measured them; those with 100 pairs and 8 changes or more
  bits, share     by model iid, order1, order2, ages, regimes, flicker: bits a slot, and what it
                  predicts beyond iid as a share of what the best does
  regimes         median: pieces of a series; changed: share of series with more than one
  flicker         good_when_bad, bad_when_good: fitted errors, medians
  agents          correlation, effective: how many they are worth, pooling_bits_lost: by one law
  twin            by policy: average reward on the trace; on twins the mean, low and high
  verdicts        question, size, answer ("fits" or what is wrong), so: what to set
  arms            agent, arm, p01, p11, good, pairs
what is not known is null
"""


def add_commands(command: Commands) -> None:
    """Add them to the program."""
    trace = command(
        "trace",
        _trace,
        "make a trace of a recording",
        '  rmab trace raw.csv --good "<= -95" --slot 0.1 --out trace.npz\n'
        "  rmab trace sweeps.csv --bands 2.401e9:2.423e9,2.426e9:2.448e9 --good auto "
        "--out trace.npz\n"
        '  rmab trace raw.mat --variable rssi --levels "-95,-80" --out trace.npz\n'
        '  rmab trace plc.csv --decimal , --dates "%d.%m.%Y %H:%M:%S" --missing NA,-9999 '
        '--good "<= 20"\n'
        "  rmab trace trace.npz           says what is in it\n",
        lambda: _INPUTS,
    )
    trace.add_argument("recording", metavar="RECORDING", help="a file, see below")
    trace.add_argument("--out", metavar="TRACE.npz", help="where to write the trace")
    trace.add_argument(
        "--good",
        metavar="RULE",
        help='which values are good: "<= -95", ">= 0.95", "== 1"; or auto, for powers: at most '
        "6 dB above the noise floor, the 10th percentile of each arm and agent",
    )
    trace.add_argument(
        "--levels",
        metavar="CUTS",
        help='several states: "-95,-80" makes 0 below -95, 1 from there, 2 from -80; cuts that '
        "fall, where lower values are better",
    )
    trace.add_argument(
        "--hysteresis",
        metavar="X",
        help="by how much more a value must be good to be so again after bad",
    )
    trace.add_argument("--slot", metavar="SECONDS", help="the length of a slot")
    trace.add_argument(
        "--how",
        metavar="HOW",
        default="first",
        help="of several samples in a slot: any-bad, mean, or first (default)",
    )
    trace.add_argument(
        "--hole",
        metavar="N",
        default="10",
        help="more than N slots without any sample begin a new segment (default 10)",
    )
    trace.add_argument("--sort", action="store_true", help="sort by time, which may go back")
    trace.add_argument(
        "--duplicates",
        metavar="HOW",
        help="of several samples of an arm at one time: first or last, of those measured, or mean "
        "(default: they are refused)",
    )
    trace.add_argument(
        "--decimal", metavar="MARK", default=".", help="decimal mark of a table: . (default) or ,"
    )
    trace.add_argument(
        "--missing",
        metavar="MARK,...",
        action="append",
        default=[],
        help="values that mean missing, as NA,-9999; may be given several times (--missing=-9999)",
    )
    trace.add_argument(
        "--dates",
        metavar="FORMAT",
        help='the form of dates, as strptime of Python has it: "%%d.%%m.%%Y %%H:%%M:%%S" (default: '
        "ISO 8601)",
    )
    for name in ("time", "arm", "value", "agent"):
        trace.add_argument(f"--{name}", metavar="COLUMN", help=f"the column of the {name}")
    trace.add_argument("--bands", metavar="LOW:HIGH,...", help="arms of a sweep, in Hz")
    trace.add_argument("--variable", metavar="NAME", help="which array of a .mat or .npz file")
    trace.add_argument("--json", action="store_true", help="one JSON object on standard output")

    fit = command(
        "fit",
        _fit,
        "say whether a Markov chain is a fair model of a trace",
        "  rmab fit trace.npz --out fitted\n"
        "  rmab fit trace.npz --json\n"
        '  rmab fit trace.npz --good "== 0" --out fitted --study study.toml\n',
        lambda: _FIT_JSON,
    )
    fit.add_argument("trace", metavar="TRACE.npz", help="a trace, as rmab trace writes it")
    fit.add_argument("--out", metavar="DIR", help="write fit.html, fit.json and the pictures")
    fit.add_argument(
        "--study", metavar="STUDY.toml", help="write the fitted arms as a study for rmab run"
    )
    add_choice_of_states(fit)
    fit.add_argument("--json", action="store_true", help="one JSON object on standard output")


def add_choice_of_states(parser: argparse.ArgumentParser) -> None:
    """What is good in a trace that is read."""
    parser.add_argument(
        "--good", metavar="RULE", help='which states are good, as "== 0" (default: the highest)'
    )
    parser.add_argument(
        "--levels", action="store_true", help="in several states, those of the array level"
    )


def _trace(options: argparse.Namespace) -> int:
    slot = _number("--slot", options.slot)
    hysteresis = _number("--hysteresis", options.hysteresis)
    hole = whole("--hole", options.hole, 0)
    if options.out == "":
        raise StudyError("--out must name a file, got ''")
    from rmab.traces.recordings import read_recording

    found = read_recording(
        options.recording,
        good=options.good,
        levels=options.levels,
        hysteresis=0.0 if hysteresis is None else hysteresis,
        slot=slot,
        how=options.how,
        hole=0 if hole is None else hole,
        sort=options.sort,
        time=options.time,
        arm=options.arm,
        value=options.value,
        agent=options.agent,
        bands=options.bands,
        variable=options.variable,
        duplicates=options.duplicates,
        decimal=options.decimal,
        missing=[mark for text in options.missing for mark in text.split(",")],
        dates=options.dates,
    )
    if options.out is not None:
        _save(found, options.out)
    if options.json:
        print(json.dumps(_as_json(found), allow_nan=False))
    else:
        print(_line(found))
        if found.floors:
            print(_floors_table(found))
    for names in left_out(found.trace):
        say(names)
    return DONE


def _number(option: str, text: str | None) -> float | None:
    """An option's number, or None where it was not given."""
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise StudyError(f"{option} must be a number, got {text!r}")
    return number


def _save(found: Recording, out: str) -> None:
    from rmab.traces.trace import save_trace

    try:
        save_trace(found.trace, out, found.levels)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and not is_lasting(error):
            raise
        reason = system_reason(error) if isinstance(error, OSError) else error
        raise StudyError(f"--out {out}: must be a file to write to: {reason}") from None


def _line(found: Recording) -> str:
    """What was read."""
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
    """So many of something, in words."""
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


def _fit(options: argparse.Namespace) -> int:
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
        _write_study(found, options.study)
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
    """Refuse what can be no file to write to before the work that would be lost."""
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


def _write_study(found: Fit, path: str) -> None:
    from rmab.traces.fit import study_text

    try:
        Path(path).write_text(study_text(found), encoding="utf-8")
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and not is_lasting(error):
            raise
        reason = system_reason(error) if isinstance(error, OSError) else error
        raise StudyError(f"--study {path}: must be a file to write to: {reason}") from None


def _fit_tables(found: Fit) -> str:
    """Verdicts, models, rewards, and whether policies change places."""
    verdicts = [["question", "verdict", "size"]]
    verdicts += [[v.question, v.answer, _cell(v.size, 3)] for v in found.verdicts]
    models = [["model", "bits a slot", "share"]]
    models += [[m, _cell(bits, 4), _cell(found.share[m], 3)] for m, bits in found.bits.items()]
    rewards = [["reward of", "trace", "twins", "lowest", "highest"]]
    for name, each in found.earned.items():
        numbers = (each.trace, each.twins.mean(), each.twins.min(), each.twins.max())
        rewards.append([name, *(f"{x:.4f}" for x in numbers)])
    tables = [columns(verdicts, 2), columns(models), columns(rewards)]
    head = f"{len(found.tested)} of {len(found.series)} series tested"
    so = [f"{v.question}: {v.sentence} {v.so}" for v in found.verdicts]
    return "\n\n".join([head, *tables, found.order_in_words, "\n".join(so)])


def _cell(number: float | None, digits: int) -> str:
    return "-" if number is None else f"{number:.{digits}f}"
