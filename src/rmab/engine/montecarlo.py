"""Many trials of several policies: batches side by side, one tally.

A batch runs every policy on the same trials, so that policies are compared on the same channels
trial by trial. Batches run in threads, are merged in order, and are dropped once merged: memory
does not grow with the number of trials.

`whittle` with known dynamics is always run beside the policies: regret is measured against it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from rmab.engine.program import simulator
from rmab.engine.setting import Ahead, Guide, Joint, Lookup, Outcome, Setting, Simulate
from rmab.engine.tally import BLOCK, CoMoments, Moments, Summary, summary
from rmab.engine.world import truth
from rmab.errors import ModelError
from rmab.markov import period
from rmab.model.arms import Arms
from rmab.model.information import settled_age
from rmab.planning.exact.chain import Layout
from rmab.planning.exact.optimum import Optimum
from rmab.planning.lookahead.tables import fill_lookahead, known_wraps
from rmab.planning.tables import Model
from rmab.policies.lookahead import check_depth
from rmab.policies.registry import Policy, named
from rmab.random import seed_words

__all__ = [
    "REFERENCE",
    "Tally",
    "Trials",
    "batch_size",
    "default_threads",
    "final_slots",
    "simulate",
    "table_ages",
]

REFERENCE = "whittle"
ELEMENTS = 16384  # arms x agents x trials that nearly keep a slot inside a core's cache
DEVICE_ELEMENTS = 1 << 24  # the same for an accelerator, which wants many
KNOWN_TOLERANCE, MOST_KNOWN_AGES = 1e-6, 512
LEARNT_TOLERANCE, MOST_LEARNT_AGES = 1e-2, 64  # tables filled anew in every episode
SERIES_BYTES = 1 << 26  # the most a batch may keep of rewards by slot

Floats = npt.NDArray[np.float64]
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Trials:
    """What is simulated: the arms, K, how often and from which seed."""

    arms: Arms
    plays: int
    setting: Setting
    n_trials: int
    seed: int
    batch: int | None = None  # trials at once; None: what suits the machine
    threads: int | None = None


class Tally:
    """One policy's results over trials; rewards are per agent and slot."""

    def __init__(self, horizon: int, most: int, n_arms: int) -> None:
        self.reward = Moments(horizon)  # by slot
        self.regret = Moments(horizon)  # cumulative, against the reference
        self.final = Moments()  # over the last tenth of the slots
        self.episodes = Moments()  # how many there were
        self.length = Moments(most)  # by episode
        self.episode_reward = Moments(most)
        self.episode_regret = Moments(most)  # per slot
        self.error = Moments(most, n_arms)  # squared error of the dynamics


def final_slots(horizon: int) -> int:
    """How many slots the last tenth has; at least one."""
    return max(1, round(horizon / 10))


def batch_size(setting: Setting) -> int:
    """Trials to run at once: a power of two of at least BLOCK."""
    wide = ELEMENTS if jax.default_backend() == "cpu" else DEVICE_ELEMENTS
    size = min(wide // (setting.n_arms * setting.n_agents), SERIES_BYTES // (4 * setting.horizon))
    return max(BLOCK, 1 << (max(1, size).bit_length() - 1))


def even_width(setting: Setting, n_trials: int, threads: int) -> int:
    """The same for a number of trials; on a CPU threads get as many batches each, for which one may
    be half as large again."""
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


@dataclass
class Simulated:
    """What `simulate` returns: tallies by policy, and the policies' joint moments."""

    n_trials: int
    tallies: dict[str, Tally]
    means: CoMoments  # average rewards of the policies in order, then of the reference
    interrupted: bool = False


def simulate(
    trials: Trials,
    policies: Mapping[str, Policy],
    optimum: Optimum | None = None,
    progress: Progress | None = None,
) -> Simulated:
    """Run all trials of all policies; Ctrl-C ends early with the trials done so far."""
    setting = trials.setting
    threads = trials.threads or default_threads()
    width = trials.batch or even_width(setting, trials.n_trials, threads)
    if width % BLOCK:
        raise ValueError(f"batch must be a multiple of {BLOCK}, got {width}")
    reference = named(REFERENCE, setting.horizon)
    everyone = {**policies, "": reference}
    world = truth(trials.arms)
    guides = {policy: _guide(trials, policy, optimum) for policy in everyone.values()}

    result = Simulated(0, {}, CoMoments(len(everyone)))
    pool = ThreadPoolExecutor(threads)
    try:
        build = partial(_program, trials, width)
        programs = dict(zip(guides, pool.map(build, guides, guides.values()), strict=True))

        def batch(start: int) -> _Batch:
            who = jnp.arange(start, start + width, dtype=jnp.uint32)
            seed, plays = seed_words(trials.seed), jnp.int32(trials.plays)
            outcomes = {
                policy: program(seed, who, world, plays, guides[policy])
                for policy, program in programs.items()
            }
            mine = {name: outcomes[policy] for name, policy in everyone.items()}
            return _reduce(trials, mine, min(width, trials.n_trials - start))

        waiting: deque[Future[_Batch]] = deque()
        starts = iter(range(0, trials.n_trials, width))
        # Ctrl-C reaches the main thread alone, so a merge in another is done whole or not at all.
        with ThreadPoolExecutor(1) as merger:

            def merge_next() -> None:
                reduced = waiting.popleft().result()
                merger.submit(_merge, result, trials, reduced).result()
                if progress is not None:
                    progress(reduced.n_trials)

            for start in starts:
                waiting.append(pool.submit(batch, start))
                if len(waiting) > threads:
                    merge_next()
            while waiting:
                merge_next()
    except KeyboardInterrupt:
        if result.n_trials == 0:
            raise
        result.interrupted = True
    finally:
        # A batch under way cannot be stopped; whoever was interrupted should not wait for it.
        pool.shutdown(wait=False, cancel_futures=True)
    return result


def _program(trials: Trials, width: int, policy: Policy, guide: Guide) -> Simulate:
    shapes: tuple[int, ...] | None = None
    if isinstance(guide, Joint):
        shapes = guide.actions.size, guide.subsets.shape[0]
    elif isinstance(guide, Lookup):
        shapes = (guide.table.shape[1],)
    elif policy.depth:  # the sets of K arms are part of the program
        rows = (guide.tables.gains[0].shape[1],) if isinstance(guide, Ahead) else ()
        shapes = (trials.plays, *rows)
    return simulator(trials.setting, policy, width, shapes)


def _guide(trials: Trials, policy: Policy, optimum: Optimum | None) -> Guide:
    """What a policy that knows the dynamics looks up; None where it needs nothing."""
    if policy.joint:
        assert optimum is not None
        caps, wraps, strides = (jnp.asarray(x, jnp.int32) for x in optimum.layout[:3])
        layout = Layout(caps, wraps, strides, jnp.asarray(optimum.layout.always, bool))
        return Joint(
            jnp.asarray(optimum.actions, jnp.int32), jnp.asarray(optimum.subsets, bool), layout
        )
    if policy.depth:
        return _ahead(trials, policy)
    formula = trials.setting.channels and policy.planner is not None
    unplanned = policy.planner is None and policy.table is None and policy.exact is None
    if formula or unplanned or not policy.estimates:
        return None
    if policy.table is None and (policy.exact is None or policy.learner is not None):
        raise ModelError(
            f"policy {policy.name} is for channels alone; for these arms it needs a table, see "
            "docs/own-policy.md"
        )
    if policy.learner is not None:
        return None
    arms = trials.arms
    max_age = table_ages(arms, KNOWN_TOLERANCE, MOST_KNOWN_AGES)
    if policy.exact is not None:
        index = policy.exact(arms, max_age)
    else:
        assert policy.table is not None
        index = np.asarray(policy.table(Model.of(arms), max_age))[:, :, 0]
    falls = known_wraps(arms, max_age)
    return Lookup(jnp.asarray(index, jnp.float32), jnp.asarray(falls, jnp.int32))


def _ahead(trials: Trials, policy: Policy) -> Ahead | None:
    """The tables of a lookahead that knows arms which are not all channels."""
    arms, plays = trials.arms, trials.plays
    check_depth(arms.kinds, plays, policy.depth)
    if trials.setting.channels or policy.learner is not None:
        return None
    max_age = table_ages(arms, KNOWN_TOLERANCE, MOST_KNOWN_AGES)
    wraps = known_wraps(arms, max_age)
    filled = fill_lookahead(Model.of(arms), max_age, plays, policy.depth, wraps)
    tables = jax.tree.map(lambda x: jnp.asarray(x[..., 0], jnp.float32), filled)
    return Ahead(tables, jnp.asarray(wraps, jnp.int32))


def table_ages(
    arms: Arms, tolerance: float = LEARNT_TOLERANCE, most: int = MOST_LEARNT_AGES
) -> int:
    """Ages that tables of these arms tell apart: until beliefs are within the tolerance, and one
    period more where they go on swinging."""
    ages = (
        settled_age(arm, tolerance, most) + period(arm.passive) - 1
        for arm in arms
        if arm.observed == "when_played"
    )
    return max(ages, default=1)


class _Batch(NamedTuple):
    """A batch reduced to what the tallies take."""

    n_trials: int
    means: Floats  # (policies + 1, trials) average rewards
    most: dict[str, int]  # bound on episodes
    parts: dict[str, dict[str, Summary]]  # by policy and by attribute of Tally


def _reduce(trials: Trials, outcomes: dict[str, Outcome], count: int) -> _Batch:
    """Moments of the first `count` trials of a batch."""
    horizon = trials.setting.horizon
    last = horizon - final_slots(horizon)
    totals = {}
    parts: dict[str, dict[str, Summary]] = {}
    for name, out in outcomes.items():
        rewards = np.asarray(out.rewards)[:, :count] / np.float64(trials.setting.n_agents)
        total = np.zeros((horizon + 1, count))  # earned before each slot, and in all
        np.cumsum(rewards, axis=0, out=total[1:])
        totals[name] = total
        parts[name] = {"reward": summary(rewards)}
    against = totals[""]
    del parts[""]
    for name, part in parts.items():
        out, total = outcomes[name], totals[name]
        behind = against - total
        part["regret"] = summary(behind[1:])
        part["final"] = summary((total[-1] - total[last]) / (horizon - last))
        episodes = np.asarray(out.episodes)[:count]
        part["episodes"] = summary(episodes.astype(np.float64))
        lengths = np.asarray(out.lengths)[: episodes.max(), :count]  # 0 past the last episode
        ends = np.cumsum(lengths, axis=0)
        starts = ends - lengths
        lasted = np.where(lengths > 0, lengths, np.nan)
        part["length"] = summary(lasted)
        for key, series in (("episode_reward", total), ("episode_regret", behind)):
            earned = np.take_along_axis(series, ends, 0) - np.take_along_axis(series, starts, 0)
            part[key] = summary(earned / lasted)
        if out.error.shape[0]:
            error = np.asarray(out.error)[: episodes.max(), :, :count].astype(np.float64)
            part["error"] = summary(np.where(lengths[:, None] > 0, error, np.nan))
    means = np.stack([total[-1] / horizon for total in totals.values()])
    return _Batch(count, means, {n: o.lengths.shape[0] for n, o in outcomes.items()}, parts)


def _merge(result: Simulated, trials: Trials, batch: _Batch) -> None:
    """Add one batch to the tallies."""
    for name, part in batch.parts.items():
        if name not in result.tallies:
            shape = trials.setting.horizon, batch.most[name], len(trials.arms)
            result.tallies[name] = Tally(*shape)
        for key, blocks in part.items():
            getattr(result.tallies[name], key).add(blocks)
    result.means.add(batch.means)
    result.n_trials += batch.n_trials
