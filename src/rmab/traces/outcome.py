"""What a back-test came to: rewards by window, agent and run, and what is made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.traces.trace import Trace

__all__ = ["Backtest", "Difference", "Earned", "Timeline"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_BLOCKS = 50  # of a trace that has one segment
_WINDOWS = 200  # about so many points has a curve over time
_RESAMPLES = 4000
_INTERVAL = (2.5, 97.5)  # percent
_MAX_WEIGHTS = 1 << 22  # of blocks in resamples, at once


@dataclass(frozen=True, eq=False)
class Timeline:
    """The slots in windows, of which blocks are made; no window crosses a segment or a block.

    window: (T,) the window of each slot; first: (W,) its first slot; block: (W,) its block, 0..B-1;
    slots: (W, M) how many slots of it an agent had an arm measured in.
    """

    window: Ints
    first: Ints
    block: Ints
    slots: Ints

    @classmethod
    def of(cls, starts: npt.NDArray[Any], measured: npt.NDArray[np.bool_]) -> Timeline:
        """starts: the first slot of each segment; measured: (T, M) whether an agent can play."""
        horizon = len(measured)

        def even(parts: int) -> Ints:
            return np.unique(np.arange(parts) * horizon // parts)

        blocks = starts if len(starts) > 1 else even(_BLOCKS)
        first = np.union1d(blocks, even(_WINDOWS))
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
        """B."""
        return int(self.block[-1]) + 1

    def by_block(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """(W, ...) added up to (B, ...)."""
        edges = np.flatnonzero(np.r_[True, np.diff(self.block) > 0])
        return np.add.reduceat(values, edges, axis=0)


class Earned(NamedTuple):
    """What a policy earned, (W, M, runs); one run where all are the same.

    learns: whether it learns; fitted: whether it knew the trace; drawn: whether runs differ.
    """

    rewards: Floats
    learns: bool
    fitted: bool
    drawn: bool


class Difference(NamedTuple):
    """Of two policies' average rewards, with a 95 % interval."""

    difference: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Backtest:
    """What policies earned on a trace, by name.

    references: what differences are to, "stay" and "fixed", which is the best fixed choice;
    interrupted: some policies are missing.
    """

    trace: Trace
    plays: int
    runs: int
    seed: int
    timeline: Timeline
    earned: Mapping[str, Earned]
    references: Mapping[str, Earned]
    interrupted: bool = False

    @property
    def mean(self) -> dict[str, float]:
        """The average reward of each policy."""
        return {name: float(self._by_run(each).mean()) for name, each in self.earned.items()}

    @property
    def se(self) -> dict[str, float]:
        """Its standard error over runs: 0 where they do not differ, NaN where one was drawn."""
        return {name: self._se(each) for name, each in self.earned.items()}

    def note(self, name: str) -> str:
        """What a table says beside a policy that saw more than it could have; else nothing."""
        if name == "genie":
            return "sees the states"
        return "fitted to this trace" if self.earned[name].fitted else ""

    def mean_text(self, name: str) -> str:
        """The average reward for people, with its standard error where runs differ."""
        se = self.se[name]
        plain = f"{self.mean[name]:.4f}"
        return plain if np.isnan(se) or not self.earned[name].drawn else f"{plain} ± {se:.4f}"

    @property
    def in_short(self) -> str:
        """Which policy would have earned most, and whether learning would have paid."""
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
            apart = self.over(best, "stay")
            ahead = abs(apart.difference)
            if apart.low > 0:
                said.append(f"Learning paid: {best} earned {ahead:.4f} more than stay.")
            elif apart.high < 0:
                said.append(f"Learning did not pay: {best} earned {ahead:.4f} less than stay.")
            else:
                said.append(
                    f"Learning changed little: between {best} and stay, the difference of "
                    f"{apart.difference:+.4f} may be luck."
                )
        return " ".join(said)

    def by_agent(self, name: str) -> Floats:
        """(M,), NaN for an agent that could never play."""
        rewards = self.earned[name].rewards.mean(-1).sum(0)
        return _ratio(rewards, self.timeline.slots.sum(0))

    def by_block(self, name: str) -> Floats:
        """(B,), NaN where nobody could play."""
        return _ratio(self._block_rewards(self.earned[name]), self._block_slots)

    def over_time(self, name: str, bins: int | None = None) -> tuple[Ints, Floats, Floats]:
        """By window: the first slot, the average reward, and its standard error over runs.

        bins: so many windows at most, several together where there are more.
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
        """The average reward less that of "stay", or of the best "fixed" choice."""
        other = self.references[reference]
        apart = self._block_rewards(self.earned[name]) - self._block_rewards(other)
        slots = self._block_slots
        there = slots > 0
        drawn = apart[there] @ self._weights.T / (slots[there] @ self._weights.T)
        low, high = np.percentile(drawn, _INTERVAL)
        return Difference(float(apart.sum() / slots.sum()), float(low), float(high))

    def to_json(self) -> dict[str, Any]:
        """What the command gives with --json."""
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

    def _by_run(self, each: Earned) -> Floats:
        return np.asarray(each.rewards.sum((0, 1)) / self.timeline.slots.sum())

    def _se(self, each: Earned) -> float:
        runs = self._by_run(each)
        if len(runs) > 1:
            return float(runs.std(ddof=1) / np.sqrt(len(runs)))
        return float("nan") if each.drawn else 0.0

    def _block_rewards(self, each: Earned) -> Floats:
        return self.timeline.by_block(each.rewards.mean(-1).sum(1))

    @cached_property
    def _block_slots(self) -> Floats:
        return self.timeline.by_block(self.timeline.slots.sum(1)).astype(np.float64)

    @cached_property
    def _weights(self) -> Floats:
        """How often each block that counts is in each resample."""
        blocks = int((self._block_slots > 0).sum())
        rng = np.random.default_rng(self.seed)
        resamples = max(200, min(_RESAMPLES, _MAX_WEIGHTS // blocks))
        return rng.multinomial(blocks, np.full(blocks, 1 / blocks), resamples).astype(np.float64)


def _ratio(rewards: Floats, slots: npt.NDArray[Any]) -> Floats:
    return np.asarray(np.where(slots > 0, rewards / np.maximum(slots, 1), np.nan))


def _plain(numbers: Floats) -> list[float | None]:
    return [None if np.isnan(each) else float(each) for each in numbers]
