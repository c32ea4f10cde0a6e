"""The command backtest: what policies would have earned on a trace."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmab.cli.console import DONE, INTERRUPTED, Commands, columns, folder, progress, say, whole
from rmab.cli.traces import add_choice_of_states, left_out, several
from rmab.errors import ModelError, StudyError, TraceError
from rmab.text import option_value, printable

if TYPE_CHECKING:
    from rmab.traces.outcome import Backtest

__all__ = ["add_commands"]

_POLICIES = "stay,fixed-best,fedtswi-gap,myopic,whittle,genie"
_HELP = """
policies are those of rmab run --help but optimal, and genie, which sees the states
  whittle, myopic, lookahead, fixed, fixed-best  know the trace: they are fitted to all of it
  whittle@pooled   fitted to all agents together
  whittle@segment  fitted for each segment by itself

rules
  agent m plays on recording m; an arm can be played where it was measured; with fewer than K such
  arms all are played, and with none the slot is skipped
  at the first slot of a segment every arm is never observed; what was learnt stays
  average reward: all rewards / all (agent, slot) with an arm measured

with --json, and in backtest.json
  trace     agents, slots, arms, agent_slots, segments, missing, good
  plays, runs, seed
  policies  by name: mean, se over runs, by_agent, by_block, learns, fitted, over_stay and
            over_fixed (fixed-best): difference, low and high of a 95 % interval, null where
            there is none; blocks, over how many; undecided, why there is none
"""


def add_commands(command: Commands) -> None:
    """Add it to the program."""
    backtest = command(
        "backtest",
        _backtest,
        "say what policies would have earned on a trace",
        "  rmab backtest trace.npz --plays 1 --policies stay,fedtswi-gap,whittle --out tested\n"
        "  rmab backtest trace.npz --same 0 --agents 8 --policies stay,fedtswi-gap\n"
        "  rmab backtest trace.npz --levels --reward 0,0.5,1 --policies stay,myopic,genie\n",
        lambda: _HELP,
    )
    backtest.add_argument("trace", metavar="TRACE.npz", help="a trace, as rmab trace writes it")
    backtest.add_argument(
        "--plays", metavar="K", default="1", help="arms that each agent plays in a slot (default 1)"
    )
    backtest.add_argument(
        "--policies", metavar="A,B,...", default=_POLICIES, help=f"default: {_POLICIES}"
    )
    backtest.add_argument(
        "--runs", metavar="R", default="8", help="runs of policies that draw (default 8)"
    )
    backtest.add_argument("--seed", metavar="S", default="0", help="of all draws (default 0)")
    backtest.add_argument(
        "--out", metavar="DIR", help="write backtest.html, backtest.json, CSV files and pictures"
    )
    backtest.add_argument(
        "--same", metavar="A", help="all agents play on recording A, by its number from 0 or name"
    )
    backtest.add_argument("--agents", metavar="M", help="how many agents play on it (default 1)")
    add_choice_of_states(backtest)
    backtest.add_argument(
        "--reward",
        metavar="R,...",
        help="of good (default 1), or of every state, from the lowest",
    )
    backtest.add_argument(
        "--schedule", metavar="NAME", help="how episodes grow: linear (default), paper, doubling"
    )
    backtest.add_argument("--longest", metavar="L", help="no episode has more slots")
    backtest.add_argument("--draws", metavar="NAME", help="shared (default), per-agent or own")
    backtest.add_argument(
        "--aggregation", metavar="NAME", help="what agents share, as in a study (default sum)"
    )
    backtest.add_argument(
        "--set",
        metavar="POLICY.OPTION=VALUE",
        action="append",
        default=[],
        help="an option of a policy, as fedtswi-gap.gaps=64; may be given several times",
    )
    backtest.add_argument("--json", action="store_true", help="one JSON object on standard output")


def _backtest(options: argparse.Namespace) -> int:
    numbers = {
        "plays": whole("--plays", options.plays, 1),
        "runs": whole("--runs", options.runs, 1),
        "seed": whole("--seed", options.seed, 0),
        "agents": whole("--agents", options.agents, 1),
        "longest": whole("--longest", options.longest, 1),
    }
    words = {key: getattr(options, key) for key in ("schedule", "draws", "aggregation")}
    asked = [name for name in options.policies.split(",") if name]
    settings, rewards = _settings(options.set), _rewards(options.reward)
    from rmab.traces.trace import load_trace

    trace = load_trace(options.trace, levels=options.levels)
    if options.good is not None:
        trace = trace.regraded(options.good)
    out = None if options.out is None else folder(options.out)
    from rmab.traces.backtest import backtest, steps

    name, runs = printable(Path(options.trace).stem), numbers["runs"] or 1
    with progress(steps(asked, runs), name, "run") as advance:
        try:
            found = backtest(
                trace,
                asked,
                reward=rewards,
                same=options.same,
                options=settings,
                progress=advance,
                **{key: value for key, value in {**numbers, **words}.items() if value is not None},
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
    """A row for each policy, then what is meant."""
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
