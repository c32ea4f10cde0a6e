"""What simulation costs on processor cores, as ratios to drawing its random numbers.

The yardstick is NumPy (SFC64, one thread) drawing one uniform for each trial, agent, arm and slot,
and doing nothing with it. Both are processor time of a process that has a single core, and take
turns; the best of each counts, as a shared machine is slow by fits.

    run       `rmab.run` as a whole, after compilation
    program   the compiled program alone, its rewards and episodes fetched
    cores     how many times as fast `rmab.run` is by the clock on two cores
    start     seconds by the clock until there is something to run, and of `rmab run` as a whole
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks.apart import Apart, Took, cores, timed
from benchmarks.records import Part, Row, ratios

from rmab.model.arms import Arms, channels
from rmab.studies.study import Study, load

__all__ = [
    "PACKAGES",
    "PAPER_CHANNELS",
    "Case",
    "arms_of",
    "command_seconds",
    "measure",
    "program_once",
    "run_once",
    "yardstick",
]

PAPER_CHANNELS = (  # p01, p11, reward
    (0.20, 0.89, 0.10, 0.90),
    (0.80, 0.17, 0.90, 0.16),
    (0.4, 0.9, 0.7, 0.6),
)
PACKAGES = ("numpy", "scipy", "jax", "jaxlib")
SMALL_STUDY = """\
agents = 4
plays = 2
horizon = 1000
trials = 200
policies = ["fedtswi", "whittle"]
[[arm]]
p01 = 0.20
p11 = 0.80
reward = 0.4
[[arm]]
p01 = 0.89
p11 = 0.17
reward = 0.9
[[arm]]
p01 = 0.10
p11 = 0.90
reward = 0.7
"""


@dataclass(frozen=True)
class Case:
    """A study of one policy; arms: `paper`, a bundled study, or a number of random channels."""

    name: str
    policy: str
    arms: str | int = "paper"
    agents: int = 4
    plays: int = 2
    horizon: int = 1000

    def study(self, trials: int) -> Study:
        """The same with so many trials."""
        return Study(
            arms=arms_of(self.arms),
            agents=self.agents,
            plays=self.plays,
            horizon=self.horizon,
            trials=trials,
            policies=(self.policy,),
        )

    def numbers(self, trials: int) -> int:
        """One for each trial, agent, arm and slot."""
        return trials * self.agents * len(arms_of(self.arms)) * self.horizon


def arms_of(name: str | int) -> Arms:
    """Arms by what a case calls them."""
    if name == "paper":
        return channels(*PAPER_CHANNELS)
    if isinstance(name, str):
        return load(name).arms
    rng = np.random.default_rng(7)
    p01, p11 = rng.uniform(0.05, 0.95, (2, name))
    return channels(p01, p11, rng.uniform(0.1, 1.0, name))


_PAPER = "M = 4, N = 4, K = 2"
FEDTSWI = Case(f"FedTSWI, {_PAPER}", "fedtswi")
WHITTLE = Case(f"Whittle with known dynamics, {_PAPER}", "whittle")
GAP = Case(f"FedTSWI-gap, {_PAPER}", "fedtswi-gap")
GAP_ALONE = Case("FedTSWI-gap, M = 1, N = 4, K = 1", "fedtswi-gap", agents=1, plays=1)
MANY = Case("FedTSWI, M = 16, N = 100, K = 20", "fedtswi", 100, agents=16, plays=20)
LEVELS = Case(f"FedTSWI, four-level channels, {_PAPER}", "fedtswi", "catalogue:fading")


# ------------------------------------------------------------- what runs in processes of their own


def yardstick(numbers: int) -> Took:
    """Time to draw that many uniforms, a cache-sized block at a time."""
    rng = np.random.Generator(np.random.SFC64(0))
    block = np.empty(16_000)
    blocks = max(1, min(4000, numbers // block.size))

    def draw() -> None:
        for _ in range(blocks):
            rng.random(out=block)

    share = numbers / (blocks * block.size)
    took = timed(draw)
    return Took(took.processor * share, took.clock * share)


def run_once(case: Case, trials: int) -> Took:
    """Time of `rmab.run`."""
    from rmab.studies.run import run

    study = case.study(trials)
    return timed(lambda: run(study))


def program_once(case: Case, trials: int) -> Took:
    """Time of the batches of the program alone, one after the other."""
    import jax.numpy as jnp

    from rmab.engine.environment import truth
    from rmab.engine.montecarlo import even_width
    from rmab.engine.program import simulator
    from rmab.engine.setting import Setting
    from rmab.policies.registry import named
    from rmab.policies.rules.dynamics import table_ages
    from rmab.rng.variates import seed_words

    arms = arms_of(case.arms)
    setting = Setting.of(arms, case.agents, case.horizon, max_age=table_ages(arms))
    width = even_width(setting, trials, 1)
    program = simulator(setting, named(case.policy, case.horizon), width)
    world = truth(arms)

    def batches() -> None:
        for start in range(0, trials, width):
            who = jnp.arange(start, start + width, dtype=jnp.uint32)
            out = program(seed_words(0), who, world, jnp.int32(case.plays), None)
            np.asarray(out.rewards)
            np.asarray(out.episodes)

    return timed(batches)


def in_turns(
    once: Callable[[Case, int], Took], case: Case, trials: int, rounds: int
) -> list[tuple[Took, Took]]:
    """The case and the yardstick in turn, after one that compiles."""
    once(case, trials)
    numbers = case.numbers(trials)
    return [(once(case, trials), yardstick(numbers)) for _ in range(rounds)]


def compile_seconds(case: Case) -> float:
    """By how much a first `rmab.run` takes longer than the same again, by the clock."""
    return run_once(case, 32).clock - run_once(case, 32).clock


# ------------------------------------------------------------------------------------ the measures


def measure(quick: bool, say: Callable[[str], None]) -> Part:
    """All tables."""
    load = os.getloadavg()[0]
    rounds = 2 if quick else 5
    whole, part = (2048, 1024) if quick else (20_480, 4096)
    tables = {
        "run": [
            _beside_yardstick(run_once, case, whole, rounds, limit, say)
            for case, limit in ((FEDTSWI, 5.0), (WHITTLE, 1.8))
        ],
        "program": [
            _beside_yardstick(program_once, case, trials, rounds, limit, say)
            for case, trials, limit in (
                (FEDTSWI, whole, 3.2),
                (WHITTLE, whole, None),
                (GAP, part, 30.0),
                (GAP_ALONE, part, None),
                (MANY, 32 if quick else 128, 9.0),
                (LEVELS, 128 if quick else 512, 200.0),
            )
        ],
        "cores": [_two_cores(FEDTSWI, whole, rounds, say)] if cores() > 1 else [],
        "start": _start(1 if quick else 3, say),
    }
    return Part.now(tables, PACKAGES, load)


def _beside_yardstick(
    once: Callable[[Case, int], Took],
    case: Case,
    trials: int,
    rounds: int,
    limit: float | None,
    say: Callable[[str], None],
) -> Row:
    with Apart(1) as process:
        pairs = process(in_turns, once, case, trials, rounds)
    ours, drawn = ([took.processor for took in each] for each in zip(*pairs, strict=True))
    row = ratios(
        case.name,
        ours,
        drawn,
        limit=limit,
        more={
            "trials": trials,
            "microseconds": 1e6 * min(ours) / trials,
            "yardstick_microseconds": 1e6 * min(drawn) / trials,
            "clock": min(took.clock for took, _ in pairs) / min(ours),
        },
    )
    say(f"{once.__name__} {row.case}: {row.value:.2f} ({row.low:.2f} to {row.high:.2f})")
    return row


def _two_cores(case: Case, trials: int, rounds: int, say: Callable[[str], None]) -> Row:
    with Apart(1) as one, Apart(2) as two:
        for process in (one, two):
            process(run_once, case, trials)
        pairs = [
            (one(run_once, case, trials).clock, two(run_once, case, trials).clock)
            for _ in range(rounds)
        ]
    alone, together = zip(*pairs, strict=True)
    faster = [first / second for first, second in pairs]
    value = min(alone) / min(together)
    more = {"trials": trials}
    row = Row(
        case.name, value, min(faster), max(faster), rounds, "", 1.85, sense="least", more=more
    )
    say(f"two cores, {row.case}: {row.value:.2f} times as fast")
    return row


def _start(rounds: int, say: Callable[[str], None]) -> list[Row]:
    rows = []
    for case, limit in ((FEDTSWI, None), (GAP, 8.0), (LEVELS, None)):
        took = []
        for _ in range(rounds):
            with Apart(cores()) as process:
                took.append(process(compile_seconds, case))
        rows.append(Row.of(f"compilation: {case.name}", took, unit="s", limit=limit))
        say(f"{rows[-1].case} {rows[-1].value:.2f} s")
    with tempfile.TemporaryDirectory(prefix="rmab-bench-") as folder:
        for name, limit, text in (
            ("a small study", 3.0, SMALL_STUDY),
            ("the same and FedTSWI-gap", None, SMALL_STUDY.replace('"whittle"', '"fedtswi-gap"')),
        ):
            study = Path(folder) / "study.toml"
            study.write_text(text, encoding="utf-8")
            run = ["run", str(study)]
            places = [Path(folder) / f"cache {name} {n}" for n in range(rounds)]
            first = [command_seconds(run, place) for place in places]
            second = [command_seconds(run, places[0]) for _ in range(rounds)]
            run += ["--out", str(Path(folder) / "out")]
            written = [command_seconds(run, places[0]) for _ in range(rounds)]
            rows += [
                Row.of(f"`rmab run` of {name}, nothing kept yet", first, unit="s"),
                Row.of(f"{name}: again", second, unit="s", limit=limit),
                Row.of(f"{name}: again with `--out`", written, unit="s", limit=limit),
            ]
        helped = [command_seconds(["--help"], places[0]) for _ in range(rounds)]
    rows.append(Row.of("`rmab --help`", helped, unit="s", limit=0.5))
    for row in rows[-7:]:
        say(f"{row.case} {row.value:.2f} s")
    return rows


def command_seconds(arguments: Sequence[str], cache: Path) -> float:
    """Of a command as a whole, by the clock."""
    program = "import sys; from rmab.cli import main; sys.exit(main())"
    begun = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", program, *arguments],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"RMAB_CACHE": str(cache)},
    )
    return time.perf_counter() - begun
