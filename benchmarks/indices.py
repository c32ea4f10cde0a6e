"""What Whittle indices cost, beside markovianbandit-pkg.

CPU seconds on one BLAS thread, average reward, with the test of indexability. Both solve the same
arms, and the best of a few rounds counts; the first call of each, which loads and compiles, is not
counted. Three tables:

1. Dense random arms, always observed. The ratio is our time over theirs.
2. Arms of S states seen only when played, ages to 50, drawn among those whose belief has settled
   by then, so that both solve the same problem. Ours is `whittle_indices`, and
   `information_indices` for a batch; theirs gets the finite arm of 1 + 50 S information states.
   Such arms are full of states that are nearly the same, on which it mostly stops early, with NaN
   for the states not yet reached. So the time it takes for a dense arm of as many states, which it
   solves to the end, stands beside it; the limit is on that time over ours in a batch.
3. A batch of 1,000 arms of 4 states seen only when played, ages to 50, however slow they forget.

Without the package (it is in the `dev` extra) only our own times are printed. The exit status is 1
where a limit is missed.

    python benchmarks/indices.py            all
    python benchmarks/indices.py --json     the same as one JSON object
    python benchmarks/indices.py --quick    without the largest arm
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from rmab.model.arms import Arm
from rmab.model.information import expand, settled_age
from rmab.planning.index.hidden import information_indices
from rmab.planning.index.indices import Indices, whittle_indices

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
ROUNDS = 3
AGES = 50
ALONE, TOGETHER = 5, 1000  # arms solved one by one, and in a batch


@dataclass(frozen=True)
class Dense:
    """Measured on a dense arm: seconds, their ratio, and how far the indices are apart."""

    states: int
    ours: float
    theirs: float | None
    ratio: float | None
    limit: float | None
    apart: float | None

    @property
    def missed(self) -> bool:
        return self.ratio is not None and self.limit is not None and self.ratio > self.limit

    def __str__(self) -> str:
        text = f"  {self.states:5d} states  ours {self.ours:7.3f} s"
        if self.theirs is None:
            return text
        limit = "" if self.limit is None else f" (at most {self.limit:.2f})"
        return (
            f"{text}  theirs {self.theirs:7.3f} s  ratio {self.ratio:.2f}{limit}"
            f"  indices {self.apart:.0e} apart"
        )


@dataclass(frozen=True)
class Played:
    """Measured on arms of S states seen only when played: seconds for each arm.

    theirs: on the information states themselves; right: of how many arms their indices and verdict
    are ours; unfinished: of how many they left NaN; to_the_end: theirs on a dense arm of `rows`.
    """

    states: int
    rows: int
    alone: float
    together: float
    arms: int
    theirs: float | None
    right: int
    unfinished: int
    to_the_end: float | None
    limit: float = 50.0

    @property
    def faster(self) -> float | None:
        """How many times the time of ours in a batch theirs takes for an arm that it solves."""
        return None if self.to_the_end is None else self.to_the_end / self.together

    @property
    def missed(self) -> bool:
        return self.faster is not None and self.faster < self.limit

    def __str__(self) -> str:
        alone, together = 1e3 * self.alone, 1e3 * self.together
        text = (
            f"  S = {self.states}, {self.rows} information states\n"
            f"    ours    {alone:.2f} ms alone, {together:.2f} ms in a batch of {TOGETHER}"
        )
        if self.theirs is None or self.to_the_end is None:
            return text
        theirs, to_the_end = 1e3 * self.theirs, 1e3 * self.to_the_end
        return (
            f"{text}\n"
            f"    theirs  {theirs:.1f} ms, right on {self.right} of {self.arms} arms, stopped with "
            f"NaN on {self.unfinished}; {to_the_end:.1f} ms for a dense arm of {self.rows} states\n"
            f"    theirs / ours  in a batch {theirs / together:.0f}, by its time for the dense arm "
            f"{self.faster:.0f} (at least {self.limit:.0f}); "
            f"alone {theirs / alone:.1f}, by that time {to_the_end / alone:.1f}"
        )


@dataclass(frozen=True)
class Batch:
    """Measured on a batch of arms of S states seen only when played: seconds for all."""

    states: int
    arms: int
    seconds: float
    decided: int
    limit: float = 1.0

    @property
    def missed(self) -> bool:
        return self.seconds > self.limit

    def __str__(self) -> str:
        return (
            f"  {self.arms} arms of {self.states} states  {self.seconds:.2f} s (at most "
            f"{self.limit:.2f}); verdict True or False for {self.decided}"
        )


T = TypeVar("T")
R = TypeVar("R", Dense, Played, Batch)


class Theirs(NamedTuple):
    indices: npt.NDArray[np.float64]
    indexable: bool


def dense_arm(states: int) -> Arm:
    rng = np.random.default_rng(states)
    weights = rng.exponential(size=(2, states, states))
    passive, active = weights / weights.sum(2, keepdims=True)
    unpaid, paid = rng.random((2, states))
    return Arm(passive, active, reward_passive=unpaid, reward_active=paid, observed="always")


def played_arms(states: int) -> Iterator[Arm]:
    """Arms that move alike, played or not: rows uniform on the simplex, rewards on [0, 1]."""
    rng = np.random.default_rng(states)
    while True:
        yield Arm(rng.dirichlet(np.ones(states), states), reward=rng.random(states))


def settled_arms(states: int) -> Iterator[Arm]:
    """Those of which AGES ages are all: cut there, the arm that theirs gets is the same."""
    return (arm for arm in played_arms(states) if settled_age(arm) <= AGES)


def other_package() -> Any | None:
    with np.errstate():  # it changes the settings for all when it is imported
        try:
            return importlib.import_module("markovianbandit")
        except ImportError:
            return None


def theirs(package: Any, arm: Arm) -> Theirs:
    with contextlib.redirect_stdout(io.StringIO()), np.errstate(divide="raise", invalid="raise"):
        model = package.restless_bandit_from_P0P1_R0R1(
            arm.passive, arm.active, arm.reward_passive, arm.reward_active
        )
        index = np.asarray(model.whittle_indices(check_indexability=True, discount=1))
    return Theirs(index, model.indexable > 0)  # -1: stopped, "multichain"


def timed(work: Callable[[], T]) -> tuple[float, T]:
    start = time.process_time()
    answer = work()
    return time.process_time() - start, answer


def best_of(rounds: int, work: Callable[[], T]) -> tuple[float, T]:
    times, answers = zip(*(timed(work) for _ in range(rounds)), strict=True)
    return min(times), answers[0]


def measure_dense(states: int, limit: float | None, package: Any | None) -> Dense:
    arm = dense_arm(states)
    best, other_best, apart = np.inf, np.inf, 0.0
    for _ in range(ROUNDS):
        seconds, found = timed(lambda: whittle_indices(arm))
        assert found.indexable, found.reason
        best = min(best, seconds)
        if package is not None:
            seconds, other = timed(lambda: theirs(package, arm))
            assert other.indexable
            other_best, apart = min(other_best, seconds), np.abs(found.index - other.indices).max()
    if package is None:
        return Dense(states, best, None, None, limit, None)
    return Dense(states, best, other_best, best / other_best, limit, float(apart))


def measure_played(states: int, package: Any | None) -> Played:
    arms = list(islice(settled_arms(states), TOGETHER))
    few, rows = arms[:ALONE], 1 + states * AGES
    batch, _ = best_of(ROUNDS, lambda: information_indices(arms, AGES))
    alone, found = best_of(ROUNDS, lambda: [whittle_indices(arm, max_age=AGES) for arm in few])
    if package is None:
        return Played(states, rows, alone / ALONE, batch / TOGETHER, ALONE, None, 0, 0, None)
    chains = [expand(arm, AGES) for arm in few]
    seconds, others = best_of(ROUNDS, lambda: [theirs(package, chain) for chain in chains])
    to_the_end, _ = best_of(ROUNDS, lambda: theirs(package, dense_arm(rows)))
    return Played(
        states=states,
        rows=rows,
        alone=alone / ALONE,
        together=batch / TOGETHER,
        arms=ALONE,
        theirs=seconds / ALONE,
        right=sum(agree(*pair) for pair in zip(found, others, strict=True)),
        unfinished=sum(bool(np.isnan(other.indices).any()) for other in others),
        to_the_end=to_the_end,
    )


def agree(found: Indices, other: Theirs) -> bool:
    assert found.never_seen is not None
    index = np.append(found.never_seen, found.index.ravel())
    same = bool((np.abs(index - other.indices) < 1e-6).all())  # False where there is NaN
    return same and other.indexable is found.indexable


def measure_batch() -> Batch:
    arms = list(islice(played_arms(4), TOGETHER))
    seconds, found = best_of(ROUNDS, lambda: information_indices(arms, AGES))
    return Batch(4, TOGETHER, seconds, sum(indices.indexable is not None for indices in found))


def main() -> int:
    parser = argparse.ArgumentParser(description="CPU time of index solvers")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="leave out the largest arm")
    options = parser.parse_args()
    if os.environ.get("OPENBLAS_NUM_THREADS") != "1":
        # BLAS reads this when it is loaded, which importing numpy has done.
        environment = os.environ | dict.fromkeys(THREADS, "1")
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    say: Callable[[object], None] = (lambda _: None) if options.json else print
    package = other_package()
    whittle_indices(dense_arm(20))
    information_indices(list(islice(played_arms(2), 2)), AGES)
    if package is not None:
        theirs(package, dense_arm(20))
    else:
        print("markovianbandit-pkg is not installed: no ratios", file=sys.stderr)
    say("Whittle indices with the verdict, average reward, CPU time of one thread")
    say("ours: rmab   theirs: markovianbandit-pkg")
    say("dense random arms, always observed")
    cases = ((100, None), (300, None), (1000, 1.0), (2000, 0.8))
    dense = [
        shown(measure_dense(states, limit, package), say)
        for states, limit in (cases[:-1] if options.quick else cases)
    ]
    say(f"arms seen only when played, settled by age {AGES}, for each arm")
    played = [shown(measure_played(states, package), say) for states in (2, 4, 8)]
    say(f"a batch of arms seen only when played, ages to {AGES}")
    batch = shown(measure_batch(), say)
    if options.json:
        rows = {
            "dense": [asdict(row) for row in dense],
            "when_played": [asdict(row) for row in played],
            "batch": asdict(batch),
        }
        print(json.dumps(rows))
    missed = [row.missed for row in dense] + [row.missed for row in played] + [batch.missed]
    return int(any(missed))


def shown(row: R, say: Callable[[object], None]) -> R:
    say(row)
    return row


if __name__ == "__main__":
    sys.exit(main())
