"""What policies earn on measured traces: the tables of docs/traces.md.

The traces are not part of this repository. Those that the page tells of are pam25_ping, cml_fade,
smd_health and grenoble_k7; "inspect" is smd_health with good and bad exchanged: which machine to
look at.

    make traces TRACES=DIR                     about 20 minutes on two cores
    make traces TRACES=DIR ARGS='--only pam25_ping --runs 2'

Tables are printed as they come. The page is written where all traces were run as it says.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import rmab
from rmab.policies.registry import POLICIES
from rmab.report.backtest_plots import draw
from rmab.report.canvas import save
from rmab.traces.outcome import Backtest

__all__ = ["Case", "replaced_tables", "table"]

PAGE = Path("docs/traces.md")
RUNS = 8


class Case(NamedTuple):
    """A trace by its name on the page; good: what is so, if not as the file says."""

    name: str
    file: str
    good: str | None = None


CASES = (
    Case("pam25_ping", "pam25_ping"),
    Case("cml_fade", "cml_fade"),
    Case("smd_health", "smd_health"),
    Case("inspect", "smd_health", "== 0"),
    Case("grenoble_k7", "grenoble_k7"),
)
RULES = (
    "random", "round-robin", "fixed-best@pooled", "fixed-best", "stay",
    "myopic", "whittle", "genie",
)  # fmt: skip
SEVERAL = ("stay", "myopic", "whittle", "genie")  # two plays
SEVERAL_ON = ("pam25_ping", "cml_fade")
LEARNERS = (
    "fedtswi", "fedtswi-gap", "fedtswi-robust", "fedts-myopic-robust", "fedce-myopic-robust",
)  # fmt: skip
DRAWN = ("pam25_ping", "grenoble_k7")  # the page has pictures of these
LEARN_ON = ("pam25_ping", "cml_fade", "inspect", "grenoble_k7")
# 19 slots have nothing to forget.
_FORGET_NOTHING = ("grenoble_k7",)


def learners() -> tuple[str, ...]:
    """Those that there are."""
    return tuple(name for name in LEARNERS if name in POLICIES)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", metavar="DIR", type=Path, help="the folder with the traces")
    parser.add_argument("--only", default=",".join(case.name for case in CASES))
    parser.add_argument("--runs", type=int, default=RUNS)
    options = parser.parse_args(words)
    chosen = [case for case in CASES if case.name in options.only.split(",")]
    begun = time.monotonic()
    tables = {}
    rules = {case.name: _run(options.traces, case, RULES, options.runs) for case in chosen}
    tables["rules"] = table(rules, RULES)
    two = [case for case in chosen if case.name in SEVERAL_ON]
    rows = {case.name: _run(options.traces, case, SEVERAL, options.runs, plays=2) for case in two}
    tables["two plays"] = table(rows, SEVERAL)
    fitted = ("whittle", "whittle@pooled", "whittle@segment", "myopic@segment")
    one = [case for case in chosen if case.name == "pam25_ping"]
    rows = {case.name: _run(options.traces, case, fitted, options.runs) for case in one}
    tables["laws"] = table(rows, fitted)
    some = [case for case in chosen if case.name in LEARN_ON]
    learnt = {case.name: _run(options.traces, case, learners(), options.runs) for case in some}
    tables["learners"] = table(learnt, learners(), over_stay=True)
    if len(chosen) == len(CASES) and options.runs == RUNS:
        PAGE.write_text(replaced_tables(PAGE.read_text(encoding="utf-8"), tables), encoding="utf-8")
        for name in DRAWN:
            _draw(name, rules[name], learnt[name])
        print(f"written to {PAGE}", file=sys.stderr)
    for name, text in tables.items():
        print(f"{name}\n{text}\n")
    print(f"{time.monotonic() - begun:.0f} s", file=sys.stderr)
    return 0


def _run(folder: Path, case: Case, policies: Sequence[str], runs: int, plays: int = 1) -> Backtest:
    trace = rmab.load_trace(folder / f"{case.file}.npz")
    if case.good is not None:
        trace = trace.regraded(case.good)
    options: dict[str, Mapping[str, Any]] = {}
    if case.name in _FORGET_NOTHING:
        known = [name for name in policies if name in POLICIES]
        robust = [name for name in known if name.endswith("-robust")]
        options = {name: {"forget": "never"} for name in robust}
    begun = time.monotonic()
    found = rmab.backtest(trace, policies, plays=plays, runs=runs, options=options)
    took = time.monotonic() - begun
    print(f"{case.name}, K = {plays}: {found.mean} in {took:.1f} s", file=sys.stderr, flush=True)
    return found


def _draw(name: str, rules: Backtest, learnt: Backtest) -> None:
    """Differences to stay, of rules and of learners on the same trace."""
    shown = [each for each in rules.earned if each not in ("random", "round-robin", "stay")]
    earned = {**{each: rules.earned[each] for each in shown}, **learnt.earned}
    both = replace(rules, earned=earned)
    with tempfile.TemporaryDirectory() as folder:
        about = f"How much more than stay policies earned on {name}."
        save(draw("differences", both), Path(folder), f"backtest-{name}", about)
        file = f"backtest-{name}.svg"
        (PAGE.parent / "pictures" / file).write_bytes((Path(folder) / file).read_bytes())


def table(
    found: Mapping[str, Backtest], policies: Sequence[str], *, over_stay: bool = False
) -> str:
    """Rows by trace, columns by policy; over_stay: also the difference to stay."""
    head = ["trace", "agent-slots", *(f"`{name}`" for name in policies)]
    lines = [head, ["---"] * len(head)]
    for name, each in found.items():
        cells = [name, f"{each.trace.agent_slots:,}"]
        for policy in policies:
            text = each.mean_text(policy)
            if over_stay:
                apart = each.over(policy, "stay")
                text += f" ({apart.low:+.4f} to {apart.high:+.4f})"
            cells.append(re.sub(r"(?<![0-9])0\.", ".", text))
        lines.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def replaced_tables(page: str, tables: Mapping[str, str]) -> str:
    """The page with these tables where its marks are: <!-- table NAME --> ... <!-- end -->."""
    for name, text in tables.items():
        mark = f"<!-- table {name} -->"
        before, found, rest = page.partition(mark)
        if not found:
            raise ValueError(f"the page has no mark {mark}")
        _, ended, after = rest.partition("<!-- end -->")
        if not ended:
            raise ValueError(f"the page has no end after {mark}")
        page = f"{before}{mark}\n{text}\n{ended}{after}"
    return page


if __name__ == "__main__":
    sys.exit(main())
