"""What the engine costs, as ratios measured in one run.

The yardstick is the time NumPy (SFC64, float64, one thread) needs merely to draw one uniform for
each trial, agent, arm and slot. The engine's time is that of all its threads' batches by the clock,
after compilation, rewards and episodes fetched; `one thread` is the same with a single thread.
Policies that learn from every look are also compared with FedTSWI on the same case: `x FedTSWI`.
Yardstick and engine take turns, and the best of each counts: a shared machine is slow by fits.

    make bench                     all cases
    make bench ARGS=--json         the same as one JSON object
    make bench ARGS=--quick        fewer trials
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from rmab.engine.montecarlo import default_threads, even_width
from rmab.engine.program import simulator
from rmab.engine.setting import Setting, Simulate
from rmab.engine.world import truth
from rmab.model.arms import Arms, channels
from rmab.policies.filling import table_ages
from rmab.policies.registry import named
from rmab.random import seed_words
from rmab.studies.study import load

HORIZON = 1000
ROUNDS = 5


@dataclass(frozen=True)
class Case:
    """A scenario, a policy, and the most its ratio may be; None where nothing is asked.

    against: a policy that it is compared with, and the most that ratio may be.
    """

    name: str
    policy: str
    arms: Arms
    agents: int
    plays: int
    trials: int
    limit: float | None
    against: tuple[str, float] | None = None


@dataclass(frozen=True)
class Row:
    """Measured: seconds, microseconds a trial, and ratios to the yardstick."""

    case: str
    trials: int
    compile_seconds: float
    microseconds: float
    yardstick_microseconds: float
    ratio: float
    ratio_one_thread: float
    limit: float | None
    against: float | None
    against_limit: float | None


def times(most: float) -> tuple[str, float]:
    """Compared with FedTSWI, at most so many times its time."""
    return "fedtswi", most


def cases(quick: bool) -> list[Case]:
    """The paper's case, one of a hundred arms, and channels of four levels."""
    paper = channels([0.20, 0.89, 0.10, 0.90], [0.80, 0.17, 0.90, 0.16], [0.4, 0.9, 0.7, 0.6])
    rng = np.random.default_rng(7)
    p01, p11 = rng.uniform(0.05, 0.95, (2, 100))
    many = channels(p01, p11, rng.uniform(0.1, 1.0, 100))
    trials = 4096 if quick else 10240
    return [
        Case("FedTSWI, M=4 N=4 K=2", "fedtswi", paper, 4, 2, trials, 4),
        Case("Whittle, M=4 N=4 K=2", "whittle", paper, 4, 2, trials, 2),
        Case("FedTSWI, M=16 N=100 K=20", "fedtswi", many, 16, 20, 64 if quick else 128, 20),
        Case("FedTSWI, four levels", "fedtswi", load("catalogue:fading").arms, 4, 2, 512, None),
        Case("FedTSWI-gap, M=4 N=4 K=2", "fedtswi-gap", paper, 4, 2, trials, None, times(8)),
        Case("FedTSWI-gap, M=1 N=4 K=1", "fedtswi-gap", paper, 1, 1, trials, None, times(8)),
    ]


def yardstick(numbers: int) -> float:
    """Seconds to draw that many uniforms, a cache-sized block at a time."""
    rng = np.random.Generator(np.random.SFC64(0))
    block = np.empty(16_000)
    blocks = max(1, min(2000, numbers // block.size))
    begun = time.perf_counter()
    for _ in range(blocks):
        rng.random(out=block)
    return (time.perf_counter() - begun) * numbers / (blocks * block.size)


def measure(case: Case) -> Row:
    """Best of ROUNDS of the engine and of the yardstick."""
    setting = Setting.of(case.arms, case.agents, HORIZON, max_age=table_ages(case.arms))
    width = even_width(setting, case.trials, default_threads())
    begun = time.perf_counter()
    program = simulator(setting, named(case.policy, HORIZON), width)
    compiled = time.perf_counter() - begun
    other = simulator(setting, named(case.against[0], HORIZON), width) if case.against else None
    world = truth(case.arms)

    def batch(program: Simulate, start: int) -> None:
        who = jnp.arange(start, start + width, dtype=jnp.uint32)
        out = program(seed_words(0), who, world, jnp.int32(case.plays), None)
        np.asarray(out.rewards)
        np.asarray(out.episodes)

    def engine(program: Simulate, threads: int) -> float:
        begun = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(partial(batch, program), range(0, case.trials, width)))
        return time.perf_counter() - begun

    engine(program, 1)
    many, one, drawn, others = [], [], [], []
    for _ in range(ROUNDS):
        drawn.append(yardstick(case.trials * case.agents * len(case.arms) * HORIZON))
        many.append(engine(program, default_threads()))
        one.append(engine(program, 1))
        if other is not None:
            others.append(engine(other, default_threads()))
    scale = 1e6 / case.trials
    return Row(
        case=case.name,
        trials=case.trials,
        compile_seconds=compiled,
        microseconds=min(many) * scale,
        yardstick_microseconds=min(drawn) * scale,
        ratio=min(many) / min(drawn),
        ratio_one_thread=min(one) / min(drawn),
        limit=case.limit,
        against=min(many) / min(others) if others else None,
        against_limit=case.against[1] if case.against else None,
    )


def help_seconds() -> float:
    """How long `rmab --help` takes, the best of ROUNDS."""
    took = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        command = [sys.executable, "-c", "from rmab.cli import main; main(['--help'])"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        took.append(time.perf_counter() - begun)
    return min(took)


def shown(value: float | None, form: str) -> str:
    """A number, or a dash where there is none."""
    return "-" if value is None else format(value, form)


def main() -> int:
    """Print the table or the JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    rows = []
    if not options.json:
        device = jax.devices()[0].device_kind
        print(f"JAX {jax.__version__} on {device}, {default_threads()} threads")
        print(
            f"{'case':26}{'trials':>7}{'compile s':>11}{'us/trial':>10}{'yardstick':>11}"
            f"{'ratio':>7}{'1 thread':>10}{'limit':>7}{'x FedTSWI':>11}{'limit':>7}"
        )
    for case in cases(options.quick):
        row = measure(case)
        rows.append(row)
        if not options.json:
            print(
                f"{row.case:26}{row.trials:7}{row.compile_seconds:11.1f}{row.microseconds:10.1f}"
                f"{row.yardstick_microseconds:11.1f}{row.ratio:7.2f}{row.ratio_one_thread:10.2f}"
                f"{shown(row.limit, 'g'):>7}{shown(row.against, '.2f'):>11}"
                f"{shown(row.against_limit, 'g'):>7}",
                flush=True,
            )
    helped = help_seconds()
    if options.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "help_seconds": helped}))
    else:
        print(f"rmab --help takes {helped:.3f} s; the limit is .5 s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
