"""Summary statistics of a trace, which pictures compare with those of its replicates.

Good is the highest state, all others are bad.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rmab.traces.pairs import Floats, Ints, States, by_series, runs_of

__all__ = [
    "N_BLOCKS",
    "SummaryStatistics",
    "correlations",
    "lags_of",
    "mean_correlation",
    "summary_statistics",
]

N_BLOCKS = 48
_MAX_LAG = 512


class SummaryStatistics(NamedTuple):
    """Summary statistics of a trace, or of one replicate."""

    good_runs: Floats  # (lengths,): share of runs of good that are at least 1, 2, 4, ... slots long
    bad_runs: Floats
    blocks: Floats  # (blocks, agents, arms): share of good, NaN where nothing was measured
    since_bad: Floats  # (lags,): share of good k slots after bad
    since_good: Floats
    agents: Floats  # (arms,): mean correlation of two agents on an arm, NaN where there is none
    arms: Floats  # (agents,): mean correlation of two arms of an agent


def summary_statistics(state: States, segment: Ints, states: int = 2) -> SummaryStatistics:
    """Return the summary statistics of states (agents, slots, arms)."""
    good = np.where(state < 0, state, state == states - 1).astype(np.int8)
    series = by_series(good)
    runs = runs_of(series, segment)
    lengths = 2 ** np.arange(int(np.log2(len(segment))) + 1)
    since_bad, since_good = _after(series, segment)
    return SummaryStatistics(
        _longer(runs.length[runs.state == 1], lengths),
        _longer(runs.length[runs.state == 0], lengths),
        _blocks(good),
        since_bad,
        since_good,
        np.array([mean_correlation(*correlations(good[:, :, n].T)) for n in range(good.shape[2])]),
        np.array([mean_correlation(*correlations(each)) for each in good]),
    )


def _longer(found: Ints, lengths: Ints) -> Floats:
    """Return the share of runs that are at least as long as each of `lengths`."""
    return np.asarray((found[:, None] >= lengths).mean(0) if found.size else lengths * np.nan)


def _blocks(good: States) -> Floats:
    """Return the share of good in blocks of equal numbers of slots, (blocks, agents, arms)."""
    slots = good.shape[1]
    starts = np.unique(np.arange(N_BLOCKS) * slots // N_BLOCKS)
    n = np.add.reduceat((good >= 0).astype(np.int64), starts, axis=1)
    n_good = np.add.reduceat((good == 1).astype(np.int64), starts, axis=1)
    return np.moveaxis(np.where(n > 0, n_good / np.maximum(n, 1), np.nan), 1, 0)


def lags_of(slots: int) -> Ints:
    """Return the lags 1, 2, 3, 4, 6, 8, 12, ... slots, up to a quarter of the trace."""
    powers = 2 ** np.arange(int(np.log2(_MAX_LAG)) + 1)
    lags = np.unique(np.concatenate([powers, powers[1:] * 3 // 2]))
    return np.asarray(lags[lags <= max(min(_MAX_LAG, slots // 4), 1)])


def _after(series: States, segment: Ints) -> tuple[Floats, Floats]:
    """Return the share of good k slots after bad and after good, in segments; (lags,) each."""
    found = []
    bad, good = series == 0, series == 1
    for k in lags_of(len(segment)):
        same = segment[k:] == segment[:-k]
        ends = good[:, k:] & same, bad[:, k:] & same
        for begins in (bad[:, :-k], good[:, :-k]):
            n_good, n_bad = ((begins & end).sum() for end in ends)
            found.append(n_good / (n_good + n_bad) if n_good + n_bad else np.nan)
    return np.array(found[0::2]), np.array(found[1::2])


def correlations(good: States) -> tuple[Floats, Floats]:
    """Return correlations (n, n) of columns of (slots, n), and the slots that both have."""
    measured = (good >= 0).astype(np.float64)
    x = np.maximum(good, 0).astype(np.float64)
    n = measured.T @ measured
    at_least = np.maximum(n, 1)
    mean = x.T @ measured / at_least  # of the row's, where the column's is measured too
    covariance = x.T @ x / at_least - mean * mean.T
    variance = mean * (1 - mean)
    spread = np.sqrt(variance * variance.T)
    known = spread > 0
    return np.where(known, covariance / np.where(known, spread, 1), np.nan), n


def mean_correlation(correlation: Floats, n: Floats) -> float:
    """Return the mean correlation of two columns, weighted by common slots, or NaN."""
    weight = np.where(np.isnan(correlation), 0, n)
    np.fill_diagonal(weight, 0)
    total = weight.sum()
    return float((weight * np.nan_to_num(correlation)).sum() / total) if total else float("nan")
