"""What indices of dense random arms cost, beside markovianbandit-pkg where that is installed.

CPU seconds, average reward, with the test of indexability, on one BLAS thread; both take turns on
the same arms, and the best of each counts. Its first call compiles and is not counted. Without the
package the ratios are left out.

    python benchmarks/indices.py            all sizes
    python benchmarks/indices.py --json     the same as one JSON object
    python benchmarks/indices.py --quick    without the largest
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rmab.planning.indices import FiniteArm, FloatArray, whittle_indices

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
ROUNDS = 3


@dataclass(frozen=True)
class Case:
    """A number of states, and the most its ratio may be."""

    states: int
    limit: float | None


@dataclass(frozen=True)
class Row:
    """Measured: seconds of both, their ratio, and how far the indices are apart."""

    states: int
    seconds: float
    other_seconds: float | None
    ratio: float | None
    limit: float | None
    apart: float | None


CASES = (Case(100, None), Case(300, None), Case(1000, 1.0), Case(2000, 0.8))


def random_arm(states: int) -> FiniteArm:
    rng = np.random.default_rng(states)
    weights = rng.exponential(size=(2, states, states))
    passive, active = weights / weights.sum(2, keepdims=True)
    unpaid, paid = rng.random((2, states))
    return FiniteArm(passive, active, unpaid, paid)


def other_package() -> Any | None:
    try:
        return importlib.import_module("markovianbandit")
    except ImportError:
        return None


def ours(arm: FiniteArm) -> FloatArray:
    found = whittle_indices(arm)
    assert found.indexable, found.reason
    return found.index


def others(package: Any, arm: FiniteArm) -> FloatArray:
    model = package.restless_bandit_from_P0P1_R0R1(
        arm.passive, arm.active, arm.reward_passive, arm.reward_active
    )
    return np.asarray(model.whittle_indices(check_indexability=True, discount=1))


def timed(work: Callable[[], FloatArray]) -> tuple[float, FloatArray]:
    start = time.process_time()
    answer = work()
    return time.process_time() - start, answer


def measure(case: Case, package: Any | None) -> Row:
    arm = random_arm(case.states)
    best, other_best, apart = np.inf, np.inf, 0.0
    for _ in range(ROUNDS):
        seconds, index = timed(lambda: ours(arm))
        best = min(best, seconds)
        if package is not None:
            seconds, other = timed(lambda: others(package, arm))
            other_best, apart = min(other_best, seconds), float(np.abs(index - other).max())
    if package is None:
        return Row(case.states, best, None, None, case.limit, None)
    return Row(case.states, best, other_best, best / other_best, case.limit, apart)


def line(row: Row) -> str:
    text = f"{row.states:6d} states  {row.seconds:8.3f} s"
    if row.ratio is None:
        return text
    limit = "" if row.limit is None else f"  (at most {row.limit:.2f})"
    return (
        f"{text}  {row.other_seconds:8.3f} s  ratio {row.ratio:.2f}{limit}  {row.apart:.0e} apart"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="CPU time of index solvers on dense random arms")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="leave out the largest arm")
    options = parser.parse_args()
    if os.environ.get("OPENBLAS_NUM_THREADS") != "1":
        # BLAS reads this when it is loaded, which importing numpy has done.
        environment = os.environ | dict.fromkeys(THREADS, "1")
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    package = other_package()
    warm_up = random_arm(20)
    ours(warm_up)
    if package is not None:
        others(package, warm_up)
    elif not options.json:
        print("markovianbandit is not installed: no ratios", file=sys.stderr)
    rows = []
    for case in CASES[:-1] if options.quick else CASES:
        rows.append(measure(case, package))
        if not options.json:
            print(line(rows[-1]), flush=True)
    if options.json:
        print(json.dumps({"indices": [asdict(row) for row in rows]}))
    slow = any(
        row.ratio is not None and row.limit is not None and row.ratio > row.limit for row in rows
    )
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
