"""What Whittle indices cost, beside markovianbandit-pkg.

Processor time on one core, average reward, with the test of indexability. Both solve the same arms,
in turn, and the best of a few rounds counts; the first call of each, which loads and compiles, is
not counted.

    dense    random arms, always observed: our time over theirs
    played   arms of S states seen only when played, ages to 50, drawn among those whose belief has
             settled by then, so that both solve the same problem. Ours is `information_indices` for
             a batch, and `whittle_indices` for one arm; theirs gets the finite arm of 1 + 50 S
             information states. Such arms are full of states that are nearly the same, on which it
             mostly stops early, with NaN for the states not yet reached. So its time for a dense
             arm of as many states, which it solves to the end, is what ours is compared with
    batch    seconds for 1,000 arms of 4 states seen only when played, however slow they forget
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from benchmarks.apart import Apart
from benchmarks.records import Part, Row, ratios

from rmab.model.arms import Arm
from rmab.model.expansion import expand, settled_age
from rmab.planning.index.api import Indices, whittle_indices
from rmab.planning.index.hidden import information_indices

__all__ = ["measure"]

PACKAGES = ("numpy", "scipy", "markovianbandit-pkg", "numba")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
DENSE = ((100, None), (300, None), (1000, 1.0), (2000, 0.8))  # states, and the most of the ratio
FASTER = 50.0  # at least, in a batch, by their time for the dense arm
BATCH_SECONDS = 1.0
AGES = 50
ALONE, TOGETHER = 5, 1000  # arms solved one by one, and in a batch

T = TypeVar("T")


class Theirs(NamedTuple):
    """What the other package says of an arm."""

    indices: npt.NDArray[np.float64]
    indexable: bool


# -------------------------------------------------------------------------------------- the arms


def dense_arm(states: int) -> Arm:
    """Rows uniform on the simplex, rewards on [0, 1]."""
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


# ------------------------------------------------------------------- what runs on a core of its own


def other_package() -> Any:
    """markovianbandit-pkg; it changes NumPy's settings for all when it is imported."""
    with np.errstate():
        return importlib.import_module("markovianbandit")


def theirs(arm: Arm) -> Theirs:
    """Its indices and verdict."""
    package = other_package()
    with contextlib.redirect_stdout(io.StringIO()), np.errstate(divide="raise", invalid="raise"):
        model = package.restless_bandit_from_P0P1_R0R1(
            arm.passive, arm.active, arm.reward_passive, arm.reward_active
        )
        index = np.asarray(model.whittle_indices(check_indexability=True, discount=1))
    return Theirs(index, model.indexable > 0)  # -1: stopped, "multichain"


def warm_up() -> None:
    """What is loaded and compiled at the first call is, after this."""
    whittle_indices(dense_arm(20))
    information_indices(list(islice(played_arms(2), 2)), AGES)
    theirs(dense_arm(20))


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Processor seconds, and what it gives."""
    start = time.process_time()
    answer = work()
    return time.process_time() - start, answer


def dense_row(states: int, limit: float | None, rounds: int) -> Row:
    """Ours and theirs in turn on a dense arm."""
    arm = dense_arm(states)
    ours, others, apart = [], [], 0.0
    for _ in range(rounds):
        seconds, found = timed(lambda: whittle_indices(arm))
        assert found.indexable, found.reason
        ours.append(seconds)
        seconds, other = timed(lambda: theirs(arm))
        assert other.indexable
        others.append(seconds)
        apart = float(np.abs(found.index - other.indices).max())
    more = {"states": states, "ours_ms": 1e3 * min(ours), "theirs_ms": 1e3 * min(others)}
    more["apart"] = apart
    return ratios(f"n = {states:,}", ours, others, limit=limit, more=more)


def played_row(states: int, rounds: int) -> Row:
    """How many times the time of ours in a batch theirs takes for an arm that it solves."""
    arms = list(islice(settled_arms(states), TOGETHER))
    few, rows = arms[:ALONE], 1 + states * AGES
    chains, dense = [expand(arm, AGES) for arm in few], dense_arm(rows)
    batch, alone, seconds, to_the_end = [], [], [], []
    for _ in range(rounds):
        batch.append(timed(lambda: information_indices(arms, AGES))[0] / TOGETHER)
        took, found = timed(lambda: [whittle_indices(arm, max_age=AGES) for arm in few])
        alone.append(took / ALONE)
        took, others = timed(lambda: [theirs(chain) for chain in chains])
        seconds.append(took / ALONE)
        to_the_end.append(timed(lambda: theirs(dense))[0])
    return ratios(
        f"S = {states}",
        to_the_end,
        batch,
        limit=FASTER,
        sense="least",
        more={
            "batch_ms": 1e3 * min(batch),
            "alone_ms": 1e3 * min(alone),
            "alone_ratio": min(to_the_end) / min(alone),
            "theirs_ms": 1e3 * min(seconds),
            "arms": ALONE,
            "right": sum(agree(*pair) for pair in zip(found, others, strict=True)),
            "unfinished": sum(bool(np.isnan(other.indices).any()) for other in others),
        },
    )


def agree(found: Indices, other: Theirs) -> bool:
    """Whether theirs are ours to 1e-6, with the same verdict."""
    assert found.never_seen is not None
    index = np.append(found.never_seen, found.index.ravel())
    same = bool((np.abs(index - other.indices) < 1e-6).all())  # False where there is NaN
    return same and other.indexable is found.indexable


def batch_row(rounds: int) -> Row:
    """Arms that may forget slowly."""
    arms = list(islice(played_arms(4), TOGETHER))
    times = [timed(lambda: information_indices(arms, AGES)) for _ in range(rounds)]
    decided = sum(indices.indexable is not None for indices in times[0][1])
    return Row.of(
        f"{TOGETHER:,} arms of 4 states",
        [seconds for seconds, _ in times],
        unit="s",
        limit=BATCH_SECONDS,
        more={"decided": decided},
    )


def measure(quick: bool, say: Callable[[str], None]) -> Part:
    """All tables; without the largest dense arm if quick."""
    load = os.getloadavg()[0]
    rounds = 2 if quick else 3
    tables: dict[str, list[Row]] = {"dense": [], "played": [], "batch": []}

    def done(table: str, row: Row) -> None:
        tables[table].append(row)
        say(f"{table} {row.case}: {row.value:.2f} ({row.low:.2f} to {row.high:.2f})")

    with Apart(1, ONE_THREAD) as process:
        process(warm_up)
        for states, limit in DENSE[:-1] if quick else DENSE:
            done("dense", process(dense_row, states, limit, rounds))
        for states in (2, 4, 8):
            done("played", process(played_row, states, rounds))
        done("batch", process(batch_row, rounds))
    return Part.now(tables, PACKAGES, load)
