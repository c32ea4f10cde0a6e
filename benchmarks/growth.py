"""How time and memory grow: with the arms, the agents, the slots, the trials.

Time is that of `rmab.run` with FedTSWI (and the reference policy) after compilation, for each
trial, on one core; the slope is b of time ~ size^b, fitted to the logarithms. Memory is the largest
resident set of a process that runs so many trials, after compilation, which takes more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.apart import Apart, cores
from benchmarks.engine import PACKAGES, Case, arms_of, run_once
from benchmarks.records import Part, Row, slope

__all__ = ["measure"]

NUMBERS = 16_000_000  # trials x agents x arms x slots of a run, or one batch where that is more
STEEPEST = 1.1
MOST_GROWTH = 1.1  # of memory, from the fewest trials to the most
MEMORY_HORIZON = 250


@dataclass(frozen=True)
class Direction:
    """One thing that grows, and the cases it goes through."""

    name: str
    about: str
    sizes: Sequence[int]
    case: Callable[[int], Case]


DIRECTIONS = (
    Direction(
        "arms",
        "N from 10 to 1,000, K = N / 10; M = 4, T = 1000",
        (10, 30, 100, 300, 1000),
        lambda n: Case("arms", "fedtswi", n, plays=n // 10),
    ),
    Direction(
        "agents",
        "M from 1 to 256; N = 4, K = 2, T = 1000",
        (1, 4, 16, 64, 256),
        lambda m: Case("agents", "fedtswi", agents=m),
    ),
    Direction(
        "slots",
        "T from 1,000 to 100,000; M = 4, N = 4, K = 2",
        (1000, 3000, 10_000, 30_000, 100_000),
        lambda t: Case("slots", "fedtswi", horizon=t),
    ),
)


def trials_for(case: Case) -> int:
    """Whole batches, as many as make a run long enough to be timed."""
    from rmab.engine.montecarlo import batch_size
    from rmab.engine.setting import Setting

    arms = arms_of(case.arms)
    batch = batch_size(Setting.of(arms, case.agents, case.horizon))
    return batch * max(1, round(NUMBERS / case.numbers(batch)))


def microseconds_a_trial(case: Case, rounds: int) -> tuple[dict[str, float], list[float]]:
    """The trials of a run and the episodes of one, and the processor time for each trial.

    A run that compiles is not timed.
    """
    from rmab.studies.run import run

    trials = trials_for(case)
    episodes = run(case.study(trials))[case.policy].episodes
    took = [1e6 * run_once(case, trials).processor / trials for _ in range(rounds)]
    return {"trials": trials, "episodes": episodes}, took


def peak_megabytes(case: Case, trials: int) -> float:
    """The largest resident set while it runs, compiled."""
    run_once(case, trials)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak begins here
    run_once(case, trials)
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name == "VmHWM":
            return int(value.split()[0]) / 1024
    raise OSError("/proc/self/status has no VmHWM")


def measure(quick: bool, say: Callable[[str], None]) -> Part:
    """A table of each direction with its slope, and one of memory."""
    load = os.getloadavg()[0]
    rounds = 2 if quick else 4
    tables: dict[str, list[Row]] = {"slopes": []}
    for way in DIRECTIONS:
        sizes, times = way.sizes[: 3 if quick else None], []
        rows = tables[way.name] = []
        for size in sizes:
            case = way.case(size)
            with Apart(1) as process:
                found, took = process(microseconds_a_trial, case, rounds)
            times.append(took)
            more = {"size": size, **found}
            rows.append(Row.of(f"{way.name} {size}", took, unit="µs", more=more))
            say(f"{rows[-1].case}: {rows[-1].value:.0f} µs a trial")
        episodes = {"fewest": rows[0].number("episodes"), "most": rows[-1].number("episodes")}
        tables["slopes"].append(slope_row(way.about, sizes, times, episodes))
        say(f"slope of {way.name}: {tables['slopes'][-1].value:.2f}")
    # The fewest are several batches for each thread: from there on as many are under way.
    numbers = (8000, 32_000) if quick else (8000, 32_000, 128_000)
    tables["memory"] = _memory(numbers, rounds, say)
    return Part.now(tables, PACKAGES, load)


def slope_row(
    case: str,
    sizes: Sequence[int],
    times: Sequence[Sequence[float]],
    more: Mapping[str, float] | None = None,
) -> Row:
    """The slope of the best times, and the range of those of each round; times by size, round."""
    value = slope(sizes, [min(each) for each in times])
    by_round = [slope(sizes, each) for each in zip(*times, strict=True)]
    return Row(
        case, value, min(by_round), max(by_round), len(by_round), limit=STEEPEST, more=more or {}
    )


def _memory(numbers: Sequence[int], rounds: int, say: Callable[[str], None]) -> list[Row]:
    """The least of several processes, as the heap lies differently in each."""
    case = Case("memory", "fedtswi", horizon=MEMORY_HORIZON)
    rows: list[Row] = []
    for trials in numbers:
        peaks = []
        for _ in range(rounds):
            with Apart(cores()) as process:
                peaks.append(process(peak_megabytes, case, trials))
        limit = float(round(MOST_GROWTH * rows[0].value)) if rows else None
        more = {"size": trials}
        rows.append(Row.of(f"{trials:,} trials", peaks, unit="MB", limit=limit, more=more))
        say(f"{rows[-1].case}: {rows[-1].value:.0f} MB")
    return rows
