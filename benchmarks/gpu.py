"""What `rmab.run` costs on a GPU, in seconds by the clock, after compilation.

Python, NumPy and JAX are all it needs. Without a GPU it says so and exits with 2; it exits with 1
where a limit is missed.

    make bench-gpu                                         measures, and writes the page
    PYTHONPATH=src python benchmarks/gpu.py --out FILE     writes the records alone, elsewhere
    make bench ARGS='--add FILE'                           puts them into the page
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # where it is run as a file
from benchmarks.records import NotHere, Part, Row, machine_kind, store

from rmab.model.arms import Arms, channels
from rmab.studies.run import run
from rmab.studies.study import Study, load

__all__ = ["measure"]

PACKAGES = ("numpy", "jax", "jaxlib")
PAPER = channels([0.20, 0.89, 0.10, 0.90], [0.80, 0.17, 0.90, 0.16], [0.4, 0.9, 0.7, 0.6])
LEVELS = load("catalogue:fading").arms
CASES: tuple[tuple[str, str, Arms, int, float | None], ...] = (
    ("FedTSWI", "fedtswi", PAPER, 10_000, 0.2),
    ("FedTSWI", "fedtswi", PAPER, 1_000_000, 2.0),
    ("Whittle with known dynamics", "whittle", PAPER, 1_000_000, 1.0),
    ("FedTSWI-gap", "fedtswi-gap", PAPER, 100_000, 1.2),
    ("FedTSWI, four-level channels", "fedtswi", LEVELS, 8192, None),
)


def measure(quick: bool, say: Callable[[str], None]) -> Part:
    """Seconds of each case; quick: a hundredth of the trials."""
    if jax.default_backend() != "gpu":
        raise NotHere(f"there is no GPU: JAX would compute on {jax.default_backend()}")
    os.environ["RMAB_CACHE"] = "off"  # so that what is called compilation is
    rows = []
    begun = os.getloadavg()[0]
    rounds = 2 if quick else 5
    for name, policy, arms, trials, limit in CASES:
        trials = max(32, trials // 100) if quick else trials
        study = Study(arms=arms, agents=4, plays=2, horizon=1000, trials=trials, policies=[policy])
        try:
            took = [_seconds(study) for _ in range(1 + rounds)]
        except ModuleNotFoundError as error:  # tables of arms of several states take SciPy
            say(f"{name}: left out, as {error.name} is not installed")
            continue
        more = {"trials": trials, "compilation": took[0] - min(took)}
        case = f"{name}, {trials:,} trials"
        rows.append(Row.of(case, took[1:], unit="s", limit=limit, more=more))
        say(f"{case}: {rows[-1].value:.3f} s")
    machine = f"{jax.devices()[0].device_kind} beside {machine_kind()}"
    return Part.now({"gpu": rows}, PACKAGES, begun, machine)


def _seconds(study: Study) -> float:
    begun = time.perf_counter()
    run(study)
    return time.perf_counter() - begun


def main() -> int:
    """Measure, print, and write the records."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", metavar="FILE", help="write the records there")
    parser.add_argument("--quick", action="store_true", help="a hundredth of the trials")
    options = parser.parse_args()
    try:
        part = measure(options.quick, lambda text: print(text, flush=True))
    except NotHere as error:
        print(error, file=sys.stderr)
        return 2
    if options.out:
        store(Path(options.out), {"gpu": part})
    return int(bool(part.missed))


if __name__ == "__main__":
    sys.exit(main())
