"""Command `backtest`: rewards that policies would have earned on a trace."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmab.cli.console import DONE, INTERRUPTED, columns, folder, progress, say
from rmab.cli.traces import left_out, several
from rmab.errors import ModelError, StudyError, TraceError
from rmab.text import option_value, printable

if TYPE_CHECKING:
    from rmab.traces.outcome import Backtest

__all__ = ["backtest"]


def backtest(options: argparse.Namespace) -> int:
    numbers = ("plays", "runs", "seed", "same", "agents", "longest")
    given = {
        name: getattr(options, name) for name in (*numbers, "schedule", "draws", "aggregation")
    }
    given = {name: value for name, value in given.items() if value is not None}
    asked = [name for name in options.policies.split(",") if name]
    settings, rewards = _settings(options.set), _rewards(options.reward)
    from rmab.traces.trace import load_trace

    trace = load_trace(options.trace, levels=options.levels)
    if options.good is not None:
        trace = trace.regraded(options.good)
    out = None if options.out is None else folder(options.out)
    from rmab.traces.backtest import backtest, steps

    name = printable(Path(options.trace).stem)
    with progress(steps(asked, options.runs), name, "run") as advance:
        try:
            found = backtest(
                trace, asked, progress=advance, reward=rewards, options=settings, **given
            )
        except (ModelError, StudyError, TraceError) as error:
            raise type(error)(f"{options.trace}: {error}") from None
    if out is not None:
        from rmab.report.backtest_page import write_backtest

        write_backtest(out, name, found)
    print(json.dumps(found.to_json(), allow_nan=False) if options.json else _table(found))
    for line in left_out(found.trace):
        say(line)
    if out is not None:
        say(f"written to {out}/: backtest.html, backtest.json, time.csv, agents.csv, pictures")
    if found.interrupted:
        say(f"interrupted: {len(found.earned)} of {len(asked)} policies done, results are of those")
        return INTERRUPTED
    return DONE


def _settings(given: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Options by policy, from POLICY.OPTION=VALUE; a value is as in TOML, or a word."""
    settings: dict[str, dict[str, Any]] = {}
    for text in given:
        where, is_set, value = text.partition("=")
        policy, _, option = where.strip().rpartition(".")
        if not (is_set and policy and option):
            raise StudyError(f"--set must be POLICY.OPTION=VALUE, got {text!r}")
        settings.setdefault(policy, {})[option] = option_value(value)
    return settings


def _rewards(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(each) for each in text.split(",")]
    except ValueError:
        raise TraceError(f"--reward must be numbers with commas between, got {text!r}") from None


def _table(found: Backtest) -> str:
    """Return a row for each policy, then the meaning in words."""
    size = found.trace.summary()
    keys = ("agents", "slots", "arms", "segments")
    read = ", ".join(several(size[key], key.removesuffix("s")) for key in keys)
    head = (
        f"{read}; {several(found.plays, 'arm')} played in a slot; average reward of the "
        f"{size['agent_slots']} (agent, slot) with an arm measured"
    )
    rows = [["policy", "", "mean", "se", "over stay", "95 %", "over fixed-best", "95 %"]]
    for name in found.earned:
        se = found.se[name]
        drawn = found.earned[name].drawn and not math.isnan(se)
        cells = [f"{found.mean[name]:.4f}", f"{se:.4f}" if drawn else "-"]
        for reference in ("stay", "fixed"):
            apart = found.over(name, reference)
            cells += [f"{apart.difference:+.4f}", apart.interval]
        rows.append([name, found.note(name), *cells])
    blocks = (
        f"over {several(found.runs, 'run')}; intervals over "
        f"{several(found.timeline.n_blocks, 'block')} of slots, fewer where rewards are correlated "
        "for longer"
    )
    return "\n".join([head, columns(rows, 2), f"se: {blocks}", found.in_short])
