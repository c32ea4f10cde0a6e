"""Outcome of a back-test: rewards by window, agent and run, with means and intervals.

A difference D of average rewards has a 95 % interval by Student's t over blocks of slots. With x_b
a block's difference of rewards, n_b its slots and B blocks,

    D = sum x / sum n,    e_b = x_b - D n_b,
    se^2 = B / (B - 1) * (sum e_b^2 + 2 max(0, sum e_b e_(b+1))) / (sum n)^2

A block is about a fiftieth of the trace and lies within a segment. The error is too small where
blocks are correlated. With a correlation time tau (the sum of all autocorrelations, in windows) a
block of L windows misses about (tau - 1 / tau) / (2 L) of the variance. So blocks are joined,
across segments too, until each has tau windows and 2 (tau - 1 / tau); the correlation that
neighbours then keep, a quarter at most, is in the last sum. The luck of draws, which may last for a
whole run, is added: the variance of D over runs. Where fewer than eight blocks are left, or one run
was drawn, there is no interval, and nothing is decided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from rmab.traces.trace import Trace

__all__ = [
    "FEWEST_BLOCKS",
    "Backtest",
    "Difference",
    "PolicyRewards",
    "Timeline",
    "correlation_time",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_BLOCKS = 50  # about so many has a trace; segments that are shorter have one each
_WINDOWS = 200  # about so many points has a curve over time
FEWEST_BLOCKS = 8  # of which there is an interval
_TAIL = 0.975  # of a 95 % interval
_LAGS = 5.0  # correlation times over which autocorrelations are added up (Sokal)


@dataclass(frozen=True, eq=False)
class Timeline:
    """Slots in windows, which form blocks; neither crosses a segment.

    window: (T,) the window of each slot; first: (W,) its first slot; block: (W,) its block, 0..B-1;
    slots: (W, M) the number of its slots in which an agent had an arm measured.
    """

    window: Ints
    first: Ints
    block: Ints
    slots: Ints

    @classmethod
    def of(cls, starts: npt.NDArray[Any], measured: npt.NDArray[np.bool_]) -> Timeline:
        """Cut a horizon into windows and blocks.

        starts: the first slot of each segment; measured: (T, M) whether an agent can play.
        """
        horizon = len(measured)
        blocks = _cut(starts, horizon, _BLOCKS)
        first = _cut(blocks, horizon, _WINDOWS)
        opens = np.zeros(horizon, np.int64)
        opens[first[1:]] = 1
        return cls(
            window=np.cumsum(opens),
            first=first,
            block=np.searchsorted(blocks, first, side="right") - 1,
            slots=np.add.reduceat(measured, first, axis=0, dtype=np.int64),
        )

    @property
    def n_blocks(self) -> int:
        """Number of blocks B."""
        return int(self.block[-1]) + 1

    def by_block(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the sums (B, ...) of (W, ...)."""
        edges = np.flatnonzero(np.r_[True, np.diff(self.block) > 0])
        return np.add.reduceat(values, edges, axis=0)


def _cut(starts: npt.NDArray[Any], horizon: int, parts: int) -> Ints:
    """Return the first slots of parts of about one length, within segments.

    starts: the first slot of each segment; parts: their number if there were one segment.
    """
    found = []
    for start, end in zip(starts, [*starts[1:], horizon], strict=True):
        inside = min(max(1, round((end - start) * parts / horizon)), end - start)
        found.append(start + np.arange(inside) * (end - start) // inside)
    return np.concatenate(found).astype(np.int64)


class PolicyRewards(NamedTuple):
    """Rewards of a policy, (W, M, runs); one run if all are alike.

    learns: whether it learns; fitted: whether it knew the trace; drawn: whether runs differ.
    """

    rewards: Floats
    learns: bool
    fitted: bool
    drawn: bool


class Difference(NamedTuple):
    """Difference of two policies' average rewards, with a 95 % interval.

    blocks: number of blocks that are as long as rewards are correlated; undecided: the reason if
    there is no interval, and so no low and no high, else empty.
    """

    difference: float
    low: float | None
    high: float | None
    blocks: int
    undecided: str

    @property
    def interval(self) -> str:
        """Interval for people."""
        if self.low is None or self.high is None:
            return f"undecided: {self.undecided}"
        return f"{self.low:+.4f} to {self.high:+.4f}"


@dataclass(frozen=True, eq=False)
class Backtest:
    """Rewards of policies on a trace, by name.

    references: policies that differences refer to, "stay" and "fixed", the best fixed choice;
    interrupted: some policies are missing.
    """

    trace: Trace
    plays: int
    runs: int
    seed: int
    timeline: Timeline
    earned: Mapping[str, PolicyRewards]
    references: Mapping[str, PolicyRewards]
    interrupted: bool = False

    @property
    def mean(self) -> dict[str, float]:
        """Average reward of each policy."""
        return {name: float(self._by_run(each).mean()) for name, each in self.earned.items()}

    @property
    def se(self) -> dict[str, float]:
        """Standard error over runs: 0 if runs are alike, NaN with one run of draws."""
        return {name: self._se(each) for name, each in self.earned.items()}

    def note(self, name: str) -> str:
        """Return the remark on a policy that saw more than a player can see, else nothing."""
        if name == "genie":
            return "sees the states"
        return "fitted to this trace" if self.earned[name].fitted else ""

    def mean_text(self, name: str) -> str:
        """Return the average reward for people, with its standard error if runs differ."""
        se = self.se[name]
        plain = f"{self.mean[name]:.4f}"
        return plain if np.isnan(se) or not self.earned[name].drawn else f"{plain} ± {se:.4f}"

    @property
    def in_short(self) -> str:
        """Best policy, and whether learning would have paid, in a sentence or two."""
        honest = [name for name in self.earned if not self.note(name)]
        said = []
        if honest:
            best = max(honest, key=self.mean.__getitem__)
            said.append(
                f"Of what could have been played, {best} earned most: {self.mean_text(best)}."
            )
        learners = [name for name in honest if self.earned[name].learns]
        if learners:
            best = max(learners, key=self.mean.__getitem__)
            said.append(_paid(best, self.over(best, "stay")))
        return " ".join(said)

    def by_agent(self, name: str) -> Floats:
        """Return average rewards (M,), NaN for an agent that could never play."""
        rewards = self.earned[name].rewards.mean(-1).sum(0)
        return _ratio(rewards, self.timeline.slots.sum(0))

    def by_block(self, name: str) -> Floats:
        """Return average rewards (B,), NaN where no agent could play."""
        rewards = self.timeline.by_block(self.earned[name].rewards.mean(-1).sum(1))
        return _ratio(rewards, self.timeline.by_block(self.timeline.slots.sum(1)))

    def over_time(self, name: str, bins: int | None = None) -> tuple[Ints, Floats, Floats]:
        """Return by window the first slot, the average reward, and its standard error over runs.

        bins: largest number of windows, which are joined where there are more.
        """
        slots, rewards = self.timeline.slots.sum(1), self.earned[name].rewards.sum(1)
        first = self.timeline.first
        if bins is not None and bins < len(first):
            edges = np.arange(bins) * len(first) // bins
            slots, rewards = (np.add.reduceat(x, edges, axis=0) for x in (slots, rewards))
            first = first[edges]
        there = slots > 0
        means = rewards[there] / slots[there][:, None]
        runs = means.shape[1]
        se = means.std(1, ddof=1) / np.sqrt(runs) if runs > 1 else np.zeros(len(means))
        return first[there], means.mean(1), se

    def over(self, name: str, reference: str) -> Difference:
        """Return the average reward less that of "stay", or of the best "fixed" choice."""
        mine, other = self.earned[name], self.references[reference]
        apart = mine.rewards.mean(-1).sum(1) - other.rewards.mean(-1).sum(1)
        slots = self.timeline.slots.sum(1).astype(np.float64)
        there = slots > 0
        luck = self._se(mine)
        return _difference(apart[there], slots[there], self.timeline.block[there], luck)

    def to_json(self) -> dict[str, Any]:
        """Return the object that the command prints with --json."""
        policies = {}
        for name, each in self.earned.items():
            se = self._se(each)
            policies[name] = {
                "mean": self.mean[name],
                "se": None if np.isnan(se) else se,
                "by_agent": _plain(self.by_agent(name)),
                "by_block": _plain(self.by_block(name)),
                "learns": each.learns,
                "fitted": each.fitted,
                "over_stay": self.over(name, "stay")._asdict(),
                "over_fixed": self.over(name, "fixed")._asdict(),
            }
        return {
            "trace": self.trace.summary(),
            "plays": self.plays,
            "runs": self.runs,
            "seed": self.seed,
            "policies": policies,
        }

    def _by_run(self, each: PolicyRewards) -> Floats:
        return np.asarray(each.rewards.sum((0, 1)) / self.timeline.slots.sum())

    def _se(self, each: PolicyRewards) -> float:
        runs = self._by_run(each)
        if len(runs) > 1:
            return float(runs.std(ddof=1) / np.sqrt(len(runs)))
        return float("nan") if each.drawn else 0.0


def _paid(best: str, apart: Difference) -> str:
    """Return a sentence on whether the best learner earned more than stay, if significant."""
    ahead = abs(apart.difference)
    if apart.low is None or apart.high is None:
        return (
            f"Undecided whether learning paid: the difference of {apart.difference:+.4f} between "
            f"{best} and stay has no interval ({apart.undecided})."
        )
    if apart.low > 0:
        return f"Learning paid: {best} earned {ahead:.4f} more than stay."
    if apart.high < 0:
        return f"Learning did not pay: {best} earned {ahead:.4f} less than stay."
    return (
        f"Undecided whether learning paid: the difference of {apart.difference:+.4f} between "
        f"{best} and stay ({apart.interval}) may be luck."
    )


def _difference(apart: Floats, slots: Floats, block: Ints, luck: float) -> Difference:
    """The difference and its interval.

    apart, slots, block: (W,) of windows with slots; luck: the standard error over runs, NaN if it
    is unknown.
    """
    total = slots.sum()
    difference = float(apart.sum() / total)
    rest = apart - difference * slots
    time = correlation_time(rest)
    names, place = np.unique(block, return_inverse=True)
    windows = len(block) / len(names)  # of a block
    joined = math.ceil(max(time, 2 * (time - 1 / time)) / windows)
    blocks = max(1, len(names) // joined)
    if blocks < FEWEST_BLOCKS:
        few = f"{blocks} block{'' if blocks == 1 else 's'}, {FEWEST_BLOCKS} needed"
        return Difference(difference, None, None, blocks, few)
    if math.isnan(luck):
        return Difference(difference, None, None, blocks, "one run of draws")
    sums = np.bincount(np.minimum(place // joined, blocks - 1), weights=rest)
    square = float(sums @ sums) + 2 * max(0.0, float(sums[1:] @ sums[:-1]))
    se = math.hypot(math.sqrt(blocks / (blocks - 1) * square) / total, luck)
    reach = float(stdtrit(blocks - 1, _TAIL)) * se
    return Difference(difference, difference - reach, difference + reach, blocks, "")


def correlation_time(rest: Floats) -> float:
    """The integrated autocorrelation time of a series of mean 0, at least 1, in its steps.

    1 + 2 sum of autocorrelations, up to the first lag of five times that (A. Sokal, Monte Carlo
    methods in statistical mechanics, 1997), with a correction for the mean that was taken out
    (U. Wolff, Comput. Phys. Commun. 156, 2004).
    """
    n = len(rest)
    variance = float(rest @ rest)
    if n < 2 or variance <= 0:
        return 1.0
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(rest, size)
    correlation = np.fft.irfft(spectrum * spectrum.conj(), size)[:n] / variance
    times = 1 + 2 * np.cumsum(correlation[1:])
    lags = np.arange(1, n)
    last = int(np.argmax(lags >= _LAGS * times)) if np.any(lags >= _LAGS * times) else n - 2
    return max(1.0, float(times[last] * (1 + (2 * lags[last] + 1) / n)))


def _ratio(rewards: Floats, slots: npt.NDArray[Any]) -> Floats:
    return np.asarray(np.where(slots > 0, rewards / np.maximum(slots, 1), np.nan))


def _plain(numbers: Floats) -> list[float | None]:
    return [None if np.isnan(each) else float(each) for each in numbers]
