"""Many trials of several policies: batches side by side, one tally.

A batch runs every policy on the same trials, so that policies are compared on the same realisations
trial by trial. Batches run in threads, or in blocks of several in the processes of a cluster. They
are merged in order, and dropped once merged: memory does not grow with the number of trials.

`whittle` with known dynamics is always run beside the policies: regret is measured against it.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from rmab.compilation import kept_compiled
from rmab.engine.environment import truth
from rmab.engine.program import compiled_rule, simulator
from rmab.engine.setting import Outcome, Setting, Simulate
from rmab.engine.tally import REFERENCE_KEY, Batch, Simulated, Units, reduce_batch
from rmab.errors import ModelError, UnreachableError
from rmab.model.arms import Arms
from rmab.policies.constraint import Constraint
from rmab.policies.policy import Policy
from rmab.policies.registry import named
from rmab.rng.variates import seed_words

__all__ = [
    "BLOCK",
    "REFERENCE",
    "Pool",
    "SumsStore",
    "Trials",
    "Watch",
    "Work",
    "Workers",
    "batch_runner",
    "batch_size",
    "block_runner",
    "default_threads",
    "program_for",
    "simulate",
]

REFERENCE = "whittle"
BLOCK = 32  # widths of batches are multiples of this
_MIN_WIDTH = 64  # of batches, unless rewards by slot take too much: each slot has a cost of its own
_CACHED_ELEMENTS = 16384  # arms x agents x trials that nearly keep a slot inside a core's cache
_DEVICE_ELEMENTS = 1 << 24  # the same for an accelerator, which wants many
_SERIES_BYTES = 1 << 26  # the most a batch may keep of rewards by slot
_DEVICE_SERIES_BYTES = 1 << 30  # the same on an accelerator
_SERIAL = Lock()  # of programs that take too much memory side by side
_OUTSIDE = Lock()  # players outside the engine are called by one thread at a time

Progress = Callable[[int], None]
Watch = Callable[[str, int, float], None]  # a policy, trials of a batch, the seconds they took


@dataclass(frozen=True)
class Trials:
    """Trials to simulate: the arms, K, their number and seed."""

    arms: Arms
    plays: int
    setting: Setting
    n_trials: int
    seed: int
    batch: int | None = None  # trials at once; None: what suits the machine
    threads: int | None = None
    margin: float | None = None  # of trials that are stuck, see reduce_batch; None: not counted
    each: tuple[Arms, ...] = ()  # the arms of each agent, where they differ

    @property
    def workers(self) -> int:
        """Batches that run side by side."""
        return self.threads or default_threads()

    @property
    def width(self) -> int:
        """Trials of a batch."""
        width = self.batch or even_width(self.setting, self.n_trials, self.workers)
        if width % BLOCK:
            raise ValueError(f"batch must be a multiple of {BLOCK}, got {width}")
        return width


def batch_size(setting: Setting) -> int:
    """Trials to run at once: a power of two of at least BLOCK."""
    elements, series = (
        (_CACHED_ELEMENTS, _SERIES_BYTES)
        if jax.default_backend() == "cpu"
        else (_DEVICE_ELEMENTS, _DEVICE_SERIES_BYTES)
    )
    wide = max(_MIN_WIDTH, elements // (setting.n_arms * setting.n_agents))
    size = min(wide, series // (4 * setting.horizon))
    return max(BLOCK, 1 << (max(1, size).bit_length() - 1))


def even_width(setting: Setting, n_trials: int, threads: int) -> int:
    """Return the width for a number of trials.

    On a CPU threads get equally many batches, for which one may be half as large again.
    """
    if jax.default_backend() == "cpu":
        batches = threads * max(1, round(n_trials / (threads * batch_size(setting))))
    else:
        batches = -(-n_trials // batch_size(setting))
    return -(-n_trials // (batches * BLOCK)) * BLOCK


def default_threads() -> int:
    """Batches to run side by side: one for each core; a few where an accelerator runs them."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return cores if jax.default_backend() == "cpu" else min(cores, 4)


class SumsStore(Protocol):
    """Store of the sums over the first trials, which outlives the process."""

    @property
    def before(self) -> Batch | None:
        """Sums of an earlier process, whose trials are not run again."""

    def keep(self, done: Simulated, *, last: bool) -> None:
        """Keep the sums after a batch, in one thread at a time; last: after the last batch."""


@dataclass(frozen=True)
class Work:
    """Work of a pool: trials of all policies, the reference last, as REFERENCE_KEY.

    known: by the names of policies, their rules' data of known arms, trees of arrays.
    """

    trials: Trials
    policies: Mapping[str, Policy]
    known: Mapping[str, Any]


class PendingBlock(Protocol):
    """Trials under way."""

    def result(self) -> Batch:
        """Their sums, once they are there."""


class Pool(Protocol):
    """Runner of blocks of trials side by side."""

    @property
    def window(self) -> int:
        """Blocks that may be under way, or done and not yet merged."""

    def block(self, left: int) -> int:
        """Return the trials of the next block, of those that are left."""

    def submit(self, start: int, count: int) -> PendingBlock:
        """Run the block that begins with a trial."""


class Workers(Protocol):
    """Source of pools other than the threads of this process."""

    def pool(self, work: Work) -> AbstractContextManager[Pool]:
        """Open a pool for this work."""


def simulate(
    trials: Trials,
    policies: Mapping[str, Policy],
    progress: Progress | None = None,
    kept: SumsStore | None = None,
    workers: Workers | None = None,
    watch: Watch | None = None,
) -> Simulated:
    """Run all trials of all policies; Ctrl-C ends early with the trials done so far.

    watch: called in the threads of this process as each policy is done with a batch.
    """
    everyone = {**policies, REFERENCE_KEY: named(REFERENCE, trials.setting.horizon)}
    result = Simulated(_units(trials), len(everyone))
    try:
        if kept is not None and kept.before is not None:
            result.add(kept.before)
            if progress is not None:
                progress(result.n_trials)
        if result.n_trials < trials.n_trials:
            known = {name: _known(trials, policy) for name, policy in everyone.items()}
            work = Work(trials, everyone, known)
            with _threads(work, watch) if workers is None else workers.pool(work) as pool:
                _run_blocks(trials.n_trials, pool, result, progress, kept)
    except (KeyboardInterrupt, UnreachableError) as ended:
        if kept is not None and result.n_trials:
            kept.keep(result, last=True)
        if result.n_trials == 0 or not isinstance(ended, KeyboardInterrupt):
            raise
        result.interrupted = True
    return result


@dataclass(frozen=True)
class _Threads:
    """A pool of this process: a block is a batch in a thread."""

    executor: ThreadPoolExecutor
    run: Callable[[int, int], Batch]
    width: int
    window: int

    def block(self, left: int) -> int:
        return min(self.width, left)

    def submit(self, start: int, count: int) -> Future[Batch]:
        return self.executor.submit(self.run, start, count)


@contextmanager
def _threads(work: Work, watch: Watch | None) -> Iterator[_Threads]:
    executor = ThreadPoolExecutor(work.trials.workers)
    try:
        with kept_compiled():
            run = batch_runner(work, executor, watch)
            yield _Threads(executor, run, work.trials.width, work.trials.workers)
    finally:
        # A batch under way cannot be stopped; whoever was interrupted should not wait for it.
        executor.shutdown(wait=False, cancel_futures=True)


def batch_runner(
    work: Work, executor: ThreadPoolExecutor, watch: Watch | None = None
) -> Callable[[int, int], Batch]:
    """Return the function that runs the first `count` trials of the batch from a trial on.

    Programs are compiled side by side.
    """
    trials, everyone = work.trials, work.policies
    width, world, units = trials.width, truth(trials.arms, trials.each), _units(trials)
    known = {policy: work.known[name] for name, policy in everyone.items()}

    def build(policy: Policy) -> Simulate | None:
        return None if policy.rule.outside else _program(trials, policy, known[policy])

    programs = dict(zip(known, executor.map(build, known), strict=True))
    # The reference may be one of the policies, too, and is then known by that name.
    names = {policy: name for name, policy in reversed([*everyone.items()])}

    def batch(start: int, count: int) -> Batch:
        who = jnp.arange(start, start + width, dtype=jnp.uint32)
        seed, plays = seed_words(trials.seed), jnp.int32(trials.plays)
        outcomes = {}
        for policy, program in programs.items():
            begun = time.perf_counter()
            if program is None:
                outcomes[policy] = _played_outside(trials, policy, range(start, start + count))
            elif policy.rule.serial:
                with _SERIAL:
                    begun = time.perf_counter()
                    outcome = program(seed, who, world, plays, known[policy])
                    jax.block_until_ready(outcome)  # type: ignore[no-untyped-call]  # untyped
                    outcomes[policy] = outcome
            else:
                outcomes[policy] = program(seed, who, world, plays, known[policy])
            if watch is not None:
                jax.block_until_ready(outcomes[policy])  # type: ignore[no-untyped-call]
                watch(names[policy], count, time.perf_counter() - begun)
        for policy, outcome in outcomes.items():
            if outcome.error.size and bool(jnp.isnan(outcome.error).any()):
                raise ModelError(f"policy {policy.name}: its learner gave dynamics that are NaN")
        mine = {name: outcomes[policy] for name, policy in everyone.items()}
        return reduce_batch(mine, units, count, trials.margin)

    return batch


def _played_outside(trials: Trials, policy: Policy, numbers: range) -> Outcome:
    """Return the outcome of these trials, in the shape of a batch."""
    horizon, width = trials.setting.horizon, trials.width
    rewards = np.zeros((horizon, width), np.float32)
    with _OUTSIDE:
        rewards[:, : len(numbers)] = policy.rule.play(trials, numbers)
    return Outcome(
        rewards=jnp.asarray(rewards),
        episodes=jnp.ones(width, jnp.int32),
        lengths=jnp.full((1, width), horizon, jnp.int32),
        error=jnp.zeros((0, trials.setting.n_arms, width), jnp.float32),
    )


def _program(trials: Trials, policy: Policy, known: Any) -> Simulate:
    setting = policy.sharing.applied(trials.setting)
    return simulator(setting, policy, trials.width, known, _fixed_plays(trials, policy))


def _fixed_plays(trials: Trials, policy: Policy) -> int | None:
    """Return K where sets of K arms are part of the program; else it is an argument."""
    return trials.plays if policy.rule.fixes_plays else None


def _known(trials: Trials, policy: Policy) -> Any:
    """Return the data that a policy's rule makes of known arms, None if it makes none."""
    if policy.rule.outside:
        return None
    rule = compiled_rule(trials.setting, policy, _fixed_plays(trials, policy))
    return rule.known(trials.each or (trials.arms,), Constraint(trials.plays))


def program_for(trials: Trials, policy: Policy) -> Simulate:
    """Return the compiled program of a policy, which running these trials finds again."""
    with kept_compiled():
        return _program(trials, policy, _known(trials, policy))


def block_runner(work: Work) -> Callable[[int, int], Batch]:
    """Return the function that runs a block of any size, batch by batch, in this thread."""
    with ThreadPoolExecutor(1) as executor:
        batch = batch_runner(work, executor)
    width, size = work.trials.width, len(work.policies)

    def block(start: int, count: int) -> Batch:
        sums = Simulated(_units(work.trials), size)
        for done in range(0, count, width):
            sums.add(batch(start + done, min(width, count - done)))
        return sums.as_batch()

    return block


def _units(trials: Trials) -> Units:
    """Return the units of rewards, from the most that a slot may pay all agents."""
    everyones = trials.each or (trials.arms,)
    active = max(float(np.abs(arms.reward_active).max()) for arms in everyones)
    passive = max(float(np.abs(arms.reward_passive).max()) for arms in everyones)
    horizon, n_agents, n_arms = trials.setting.horizon, trials.setting.n_agents, len(trials.arms)
    return Units.of(horizon, n_agents, n_agents * (trials.plays * active + n_arms * passive))


def _run_blocks(
    n_trials: int,
    pool: Pool,
    result: Simulated,
    progress: Progress | None,
    kept: SumsStore | None,
) -> None:
    """Run the blocks of all trials that are not in the result yet, merged in order."""
    waiting: deque[PendingBlock] = deque()
    # Only the main thread sees Ctrl-C, so a merge in another is done whole or not at all.
    with ThreadPoolExecutor(1) as merger:

        def merge(reduced: Batch) -> None:
            result.add(reduced)
            if kept is not None:
                kept.keep(result, last=result.n_trials == n_trials)

        def merge_next() -> None:
            reduced = waiting.popleft().result()
            merger.submit(merge, reduced).result()
            if progress is not None:
                progress(reduced.n_trials)

        start = result.n_trials
        while start < n_trials:
            count = pool.block(n_trials - start)
            waiting.append(pool.submit(start, count))
            start += count
            while len(waiting) > pool.window:
                merge_next()
        while waiting:
            merge_next()
