"""`rmab.run` beside a public simulator of restless bandits: SMPyBandits.

It installs from PyPI, on NumPy before 1.24 and SciPy before 1.14, into an environment that is
removed afterwards. Both run UCB1 with one agent that plays one of the paper's four channels, which
both have, on one core; ours also runs the reference policy, as always.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.apart import Apart
from benchmarks.engine import PACKAGES, PAPER_CHANNELS, Case, run_once
from benchmarks.records import Part, Row

__all__ = ["measure"]

WHEELS = ("SMPyBandits==0.9.7", "numpy<1.24", "scipy<1.14", "six")
CASE = Case("UCB1, M = 1, N = 4, K = 1", "ucb", agents=1, plays=1)


def mean_reward(trials: int) -> float:
    """A slot, by `rmab.run`."""
    from rmab.studies.run import run

    return float(run(CASE.study(trials)).mean["ucb"])


def measure(quick: bool, say: Callable[[str], None]) -> Part:
    """Times for each slot and arm, and their ratio."""
    load = os.getloadavg()[0]
    rounds = 3
    ours_trials, their_trials = (2048, 5) if quick else (20_480, 20)
    theirs, reward, found = _theirs(their_trials, say)
    with Apart(1) as process:
        process(run_once, CASE, ours_trials)
        ours = [process(run_once, CASE, ours_trials).processor for _ in range(rounds)]
        our_reward = process(mean_reward, ours_trials)
    steps = CASE.numbers(1)
    mine = Row.of(
        "`rmab.run`",
        [1e9 * took / (steps * ours_trials) for took in ours],
        unit="ns",
        more={"trials": ours_trials, "reward": our_reward},
    )
    other = Row.of(
        "SMPyBandits",
        [1e9 * took / steps for took in theirs],
        unit="ns",
        more={"trials": their_trials, "reward": reward},
    )
    ratio = Row(
        "SMPyBandits / `rmab.run`",
        other.value / mine.value,
        other.low / mine.high,
        other.high / mine.low,
        rounds,
    )
    say(f"{ratio.case}: {ratio.value:.0f}")
    part = Part.now({"simulators": [mine, other, ratio]}, PACKAGES, load)
    return Part(part.measured, part.machine, {**part.versions, **found}, part.tables, part.load)


def _theirs(trials: int, say: Callable[[str], None]) -> tuple[list[float], float, dict[str, str]]:
    """Seconds of each trial, the mean reward a slot, and the versions of theirs."""
    with tempfile.TemporaryDirectory(prefix="rmab-bench-") as folder:
        say("installing SMPyBandits")
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = str(Path(folder) / "bin" / "python")
        # They want matplotlib, which looks for a place of its own.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        environment |= {"MPLBACKEND": "agg", "MPLCONFIGDIR": folder, "OPENBLAS_NUM_THREADS": "1"}
        install = [python, "-m", "pip", "install", "--quiet", "--quiet", *WHEELS]
        subprocess.run(install, check=True, env=environment)
        script = str(Path(__file__).with_name("their_simulator.py"))
        numbers = [",".join(map(str, values)) for values in PAPER_CHANNELS]
        command = [python, script, str(trials), str(CASE.horizon), *numbers]
        done = subprocess.run(command, check=True, env=environment, capture_output=True, text=True)
        asked = "from importlib.metadata import version as v; print(v('SMPyBandits'), v('numpy'))"
        said = subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    package, numpy = said.stdout.split()
    return found["seconds"], found["reward"], {"SMPyBandits": f"{package} with NumPy {numpy}"}
