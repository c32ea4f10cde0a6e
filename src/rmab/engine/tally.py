"""What trials came to: means and standard errors of arrays over trials, added up batch by batch.

Welford's update in the form of Chan, Golub and LeVeque: two sets of trials with their means and
sums of squared deviations merge into one without losing digits. Trials are always merged in blocks
of BLOCK in their order, so the result does not depend on how they were batched, to the last bit.
Values may be missing (NaN): a trial without a twentieth episode says nothing about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.engine.setting import Outcome

__all__ = [
    "BLOCK",
    "REFERENCE_KEY",
    "Batch",
    "CoMoments",
    "Moments",
    "Simulated",
    "Summary",
    "Tally",
    "final_slots",
    "reduce_batch",
    "summary",
]

Floats = npt.NDArray[np.float64]

BLOCK = 32


class Summary(NamedTuple):
    """Blocks of trials: each (..., blocks)."""

    trials: Floats
    mean: Floats
    squares: Floats  # sums of squared deviations from the block's mean


def summary(values: Floats) -> Summary:
    """`values` (..., trials) by blocks of BLOCK trials; the last block may be smaller."""
    whole = values.shape[-1] // BLOCK * BLOCK
    parts = [values[..., :whole].reshape(*values.shape[:-1], -1, BLOCK)] if whole else []
    if whole < values.shape[-1]:
        parts.append(values[..., None, whole:])
    each = [_summary(part) for part in parts]
    return Summary(*(np.concatenate(x, axis=-1) for x in zip(*each, strict=True)))


def _summary(blocks: Floats) -> Summary:
    """`blocks` (..., blocks, trials of a block)."""
    mean = blocks.mean(-1)
    if not np.isnan(mean).any():
        rest = blocks - mean[..., None]
        squares = np.einsum("...i,...i->...", rest, rest)
        return Summary(np.full(mean.shape, float(blocks.shape[-1])), mean, squares)
    there = ~np.isnan(blocks)
    count = there.sum(-1).astype(np.float64)
    mean = np.where(there, blocks, 0).sum(-1) / np.maximum(count, 1)
    rest = np.where(there, blocks - mean[..., None], 0)
    return Summary(count, mean, np.einsum("...i,...i->...", rest, rest))


class Moments:
    """Count, mean and standard error of each entry of an array over trials."""

    def __init__(self, *shape: int) -> None:
        self.count: Floats = np.zeros(shape)
        self.mean: Floats = np.zeros(shape)
        self._squares: Floats = np.zeros(shape)

    def add(self, blocks: Summary) -> None:
        """Add blocks of trials of the array, or of its first rows."""
        rows = slice(blocks.mean.shape[0]) if self.mean.ndim else ...
        for place in range(blocks.mean.shape[-1]):
            count, mean, squares = (x[..., place] for x in blocks)
            total = self.count[rows] + count
            share = count / np.maximum(total, 1)
            step = mean - self.mean[rows]
            self._squares[rows] += squares + step**2 * self.count[rows] * share
            self.mean[rows] += step * share
            self.count[rows] = total

    @property
    def se(self) -> Floats:
        """Standard error of the mean; NaN where fewer than two trials gave a value."""
        many = self.count > 1
        safe = np.where(many, self.count, 2)
        return np.where(many, np.sqrt(self._squares / (safe - 1) / safe), np.nan)


class CoMoments:
    """Means of several quantities of the same trials and the covariance of those means."""

    def __init__(self, size: int) -> None:
        self.count = 0
        self.mean: Floats = np.zeros(size)
        self._products: Floats = np.zeros((size, size))

    def add(self, values: Floats) -> None:
        """Add trials: `values` is (size, trials)."""
        for start in range(0, values.shape[1], BLOCK):
            block = values[:, start : start + BLOCK]
            count = block.shape[1]
            mean = block.mean(1)
            rest = block - mean[:, None]
            total = self.count + count
            step = mean - self.mean
            # A matrix product would round an entry differently in other company.
            products = np.einsum("ik,jk->ij", rest, rest)
            self._products += products + np.outer(step, step) * self.count * count / total
            self.mean += step * count / total
            self.count = total

    @property
    def covariance(self) -> Floats:
        """(size, size) covariance of the means; NaN for fewer than two trials."""
        if self.count < 2:
            return np.full_like(self._products, np.nan)
        return self._products / (self.count - 1) / self.count


# ---------------------------------------------------------------------------- results of policies

REFERENCE_KEY = ""  # of the reference policy among those of a batch


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


class Batch(NamedTuple):
    """A batch reduced to what the tallies take."""

    n_trials: int
    means: Floats  # (policies + 1, trials) average rewards
    sizes: dict[str, tuple[int, int, int]]  # slots, a bound on episodes, arms
    parts: dict[str, dict[str, Summary]]  # by policy and by attribute of Tally


def reduce_batch(outcomes: dict[str, Outcome], n_agents: int, count: int) -> Batch:
    """Moments of the first `count` trials of a batch; the reference comes last, as
    REFERENCE_KEY."""
    horizon = next(iter(outcomes.values())).rewards.shape[0]
    last = horizon - final_slots(horizon)
    totals = {}
    parts: dict[str, dict[str, Summary]] = {}
    for name, out in outcomes.items():
        rewards = np.asarray(out.rewards)[:, :count] / np.float64(n_agents)
        total = np.zeros((horizon + 1, count))  # earned before each slot, and in all
        np.cumsum(rewards, axis=0, out=total[1:])
        totals[name] = total
        parts[name] = {"reward": summary(rewards)}
    against = totals[REFERENCE_KEY]
    del parts[REFERENCE_KEY]
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
    sizes = {n: (horizon, o.lengths.shape[0], o.error.shape[1]) for n, o in outcomes.items()}
    return Batch(count, means, sizes, parts)


@dataclass
class Simulated:
    """What `simulate` returns: tallies by policy, and the policies' joint moments."""

    n_trials: int
    tallies: dict[str, Tally]
    means: CoMoments  # average rewards of the policies in order, then of the reference
    interrupted: bool = False

    def add(self, batch: Batch) -> None:
        """One more batch."""
        for name, part in batch.parts.items():
            if name not in self.tallies:
                self.tallies[name] = Tally(*batch.sizes[name])
            for key, blocks in part.items():
                getattr(self.tallies[name], key).add(blocks)
        self.means.add(batch.means)
        self.n_trials += batch.n_trials
