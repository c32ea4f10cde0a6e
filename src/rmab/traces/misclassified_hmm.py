"""Two-state hidden Markov model with misclassified observations, fitted by EM.

The hidden state h moves as a channel, p01 and p11, and the recorded state has errors

    Pr(good recorded | h bad) = e0,        Pr(bad recorded | h good) = e1.

An interval, measured slots that follow one another, begins at the stationary distribution. With
M_x[i, j] = Pr(j | i) Pr(x | j), a forward vector a is a M_x^L after a run of L equal records x, and
M_x = l1 P1 + l2 P2 with projectors P1, P2, so

    M_x^L = l1^L P1 + l2^L P2,
    sum over j < L of M_x^j E M_x^(L-1-j) = sum over a, b of s_ab P_a E P_b,

s_aa = L la^(L-1) and s_ab = (la^L - lb^L) / (la - lb): a step of EM costs as much as there are
runs. The runs of all series are one long list. The first slot of an interval has a matrix of rank
one, which forgets everything before it, so products of matrices along that list are the filters of
all intervals; they are computed by doubling, as a parallel prefix.

Both errors stay at or below .45: at 1/2 the records would say nothing about the hidden state, and
above it good and bad would change names. A fitted error near that bound means that the state itself
is flaky.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import numpy as np

from rmab.traces.pairs import Bools, Floats, Ints, Runs, States, joined, runs_of

__all__ = ["MAX_ERROR", "MisclassifiedHmm", "fit_misclassified_hmm"]

MAX_ERROR = 0.45
_LEAST = 1e-6  # of every probability: EM never leaves 0
_STARTS = ((0.05, 0.05), (0.3, 0.05), (0.05, 0.3))  # e0, e1; the likelihood has several summits
_FIRST_STEPS = 10  # from each start, of which the best goes on
_MAX_LEAPS = 50
_LONGEST_LEAP = 100.0
_ENOUGH = 1e-5  # bits a slot that a leap must gain


class MisclassifiedHmm(NamedTuple):
    """Hidden Markov models fitted to several series; all arrays have shape (series,)."""

    p01: Floats
    p11: Floats
    good_when_bad: Floats
    bad_when_good: Floats
    bits: Floats  # - log2 of the likelihood of all next states


class _Parameters(NamedTuple):
    """Parameters of the models; all arrays have shape (series,)."""

    p01: Floats
    p11: Floats
    e0: Floats
    e1: Floats


def fit_misclassified_hmm(state: States, segment: Ints) -> MisclassifiedHmm:
    """Fit a model to each series.

    Parameters
    ----------
    state : ndarray, shape (series, slots)
        States 0 and 1, -1 where nothing was measured; each series has a pair of measured slots.
    segment : ndarray, shape (slots,)
        Segment of each slot.
    """
    runs = _with_first_slots(runs_of(state, segment))
    n_series = len(state)
    n = _sums(runs, np.where(runs.begins, 0.0, runs.length), n_series)
    seen = _chains(state, segment)
    # A chain that is never seen wrongly is one of these models, and EM would not quite reach it.
    honest = _Parameters(*seen, *np.full((2, n_series), _LEAST))
    plain = honest, _step(runs, honest, n_series)[1]
    tried = []
    for errors in _STARTS:
        model = _Parameters(*seen, *(np.full(n_series, e) for e in errors))
        for _ in range(_FIRST_STEPS):
            model, _ = _step(runs, model, n_series)
        tried.append((model, _step(runs, model, n_series)[1]))
    start, _ = reduce(_better, tried)
    model, bits = _better(plain, _climb(runs, n, start))
    return MisclassifiedHmm(*model, bits)


def _better(
    one: tuple[_Parameters, Floats], other: tuple[_Parameters, Floats]
) -> tuple[_Parameters, Floats]:
    """Return, series by series, the parameters that need fewer bits, and these bits."""
    fewer = other[1] < one[1]
    both = zip(one[0], other[0], strict=True)
    return _Parameters(*(np.where(fewer, b, a) for a, b in both)), np.minimum(one[1], other[1])


def _with_first_slots(runs: Runs) -> Runs:
    """Return the runs with the first slot of each interval as a run of its own."""
    length = runs.length - runs.begins
    number = np.repeat(np.arange(len(length)), 1 + (runs.begins & (length > 0)))
    first = runs.begins[number] & (np.diff(number, prepend=-1) > 0)
    return Runs(runs.series[number], runs.state[number], np.where(first, 1, length[number]), first)


def _chains(state: States, segment: Ints) -> tuple[Floats, Floats]:
    """Return p01 and p11 (series,) of the recorded states."""
    follows = joined(state, segment)[:, 1:]
    p = []
    for last in (0, 1):
        from_last = follows & (state[:, :-1] == last)
        n, n_good = from_last.sum(-1), (from_last & (state[:, 1:] == 1)).sum(-1)
        p.append(np.clip(n_good / np.maximum(n, 1), _LEAST, 1 - _LEAST))
    return p[0], p[1]


def _climb(runs: Runs, n: Floats, model: _Parameters) -> tuple[_Parameters, Floats]:
    """Improve parameters by accelerated EM until no series gains; return them and their bits.

    Two steps of EM from x, in log odds, are r = F(x) - x and v = F(F(x)) - F(x) - r. A leap goes to
    x + 2 a r + a^2 v with a = |r| / |v|, and then makes a step (Varadhan and Roland's squared
    extrapolation); where it lands worse than x, it is taken back to F(F(x)).
    """
    best, bits = _Parameters(*(np.array(p) for p in model)), np.full(len(n), np.inf)
    left = np.arange(len(n))  # the series that still gain
    for _ in range(_MAX_LEAPS):
        once, now = _step(runs, model, len(left))
        gains = bits[left] - now >= _ENOUGH * n[left]
        bits[left] = now
        for kept, p in zip(best, model, strict=True):
            kept[left] = p
        if not gains.any():
            break
        left = left[gains]
        model, once = (_Parameters(*(p[gains] for p in each)) for each in (model, once))
        runs = _of_series(runs, gains)
        twice, _ = _step(runs, once, len(left))
        landed, there = _step(runs, _leap(model, once, twice), len(left))
        model, _ = _better((twice, now[gains]), (landed, there))
    return best, bits


def _of_series(runs: Runs, kept: Bools) -> Runs:
    """Return the runs of some series, numbered from 0 again."""
    here = kept[runs.series]
    number = np.cumsum(kept) - 1
    return Runs(number[runs.series[here]], runs.state[here], runs.length[here], runs.begins[here])


def _leap(model: _Parameters, once: _Parameters, twice: _Parameters) -> _Parameters:
    """Return the extrapolation of two steps of EM, within the bounds."""
    x, y, z = (np.log(p) - np.log1p(-p) for p in map(np.stack, (model, once, twice)))  # (4, series)
    r, v = y - x, z - 2 * y + x
    size = np.maximum(np.linalg.norm(v, axis=0), 1e-300)
    a = np.clip(np.linalg.norm(r, axis=0) / size, 1, _LONGEST_LEAP)
    leapt = 1 / (1 + np.exp(-(x + 2 * a * r + a**2 * v)))
    most = np.array([1 - _LEAST, 1 - _LEAST, MAX_ERROR, MAX_ERROR])[:, None]
    return _Parameters(*np.clip(leapt, _LEAST, most))


def _step(runs: Runs, model: _Parameters, n_series: int) -> tuple[_Parameters, Floats]:
    """Return the parameters after one step of EM, and the bits of those before it."""
    moves = np.stack([[1 - model.p01, model.p01], [1 - model.p11, model.p11]])  # (2, 2, series)
    shows = np.stack(
        [[1 - model.e0, model.e1], [model.e0, 1 - model.e1]]
    )  # (record, hidden, series)
    one = moves * shows[:, None]  # (record, 2, 2, series): M_x
    trace, difference = one[:, 0, 0] + one[:, 1, 1], one[:, 0, 0] - one[:, 1, 1]
    root = np.sqrt(difference**2 + 4 * one[:, 0, 1] * one[:, 1, 0])
    high, low = (trace + root) / 2, (trace - root) / 2
    unit = np.eye(2)[:, :, None]
    upper = (one - low[:, None, None] * unit) / root[:, None, None]  # P1
    lower = (high[:, None, None] * unit - one) / root[:, None, None]  # P2
    rest = model.p01 / (model.p01 + 1 - model.p11)
    first = np.stack([1 - rest, rest]) * shows  # (record, hidden, series)

    at = (runs.state, slice(None), slice(None), runs.series)
    P1, P2, M = (np.moveaxis(x[at], 0, -1) for x in (upper, lower, one))  # (2, 2, runs)
    l1, l2 = high[runs.state, runs.series], low[runs.state, runs.series]
    ratio, L = l2 / l1, runs.length
    faded = ratio**L
    enters = np.moveaxis(first[runs.state, :, runs.series], 0, -1)  # (2, runs)
    W = np.where(runs.begins, enters[None], np.maximum(P1 + faded * P2, 0))

    ahead = _prefix(W)[0]  # (2, runs): the filter after each run
    ahead /= ahead.sum(0)
    ago = np.roll(ahead, 1, axis=-1)  # before it; of no matter where an interval begins
    behind = _prefix(W.swapaxes(0, 1)[..., ::-1])[..., ::-1].sum(0)
    behind = np.roll(behind, -1, axis=-1)  # of what comes after each run
    behind[:, -1] = 1
    behind /= behind.sum(0)

    chance = np.einsum("ir,ijr->r", ago, W)
    log2 = np.where(runs.begins, 0, np.log2(chance) + L * np.log2(l1))
    bits = -_sums(runs, log2, n_series)

    a1, a2 = (np.einsum("ir,ijr->jr", ago, P) for P in (P1, P2))
    b1, b2 = (np.einsum("ijr,jr->ir", P, behind) for P in (P1, P2))
    both = (1 - faded) / (1 - ratio)
    inside = L * a1[:, None] * b1 + both * (a1[:, None] * b2 + a2[:, None] * b1)
    inside += L * ratio ** (L - 1) * a2[:, None] * b2
    total = l1 * ((a1 * behind).sum(0) + faded * (a2 * behind).sum(0))
    moved = np.where(runs.begins, 0, M * inside / total)  # (2, 2, runs): expected transitions
    began = ahead * behind / (ahead * behind).sum(0)
    shown = np.where(runs.begins, began, moved.sum(0))  # (2, runs): expected slots in each state

    def share(part: Floats, other: Floats, most: float) -> Floats:
        return np.clip(part / np.maximum(part + other, 1e-300), _LEAST, most)

    n_moved = [[_sums(runs, moved[i, j], n_series) for j in (0, 1)] for i in (0, 1)]
    n_shown = [
        [_sums(runs, shown[h] * (runs.state == x), n_series) for x in (0, 1)] for h in (0, 1)
    ]
    better = _Parameters(
        share(n_moved[0][1], n_moved[0][0], 1 - _LEAST),
        share(n_moved[1][1], n_moved[1][0], 1 - _LEAST),
        share(n_shown[0][1], n_shown[0][0], MAX_ERROR),
        share(n_shown[1][0], n_shown[1][1], MAX_ERROR),
    )
    return better, bits


def _sums(runs: Runs, weights: Floats, n_series: int) -> Floats:
    """Return the sum (series,) of weights over each series' runs."""
    return np.bincount(runs.series, weights, n_series).astype(np.float64)


def _prefix(W: Floats) -> Floats:
    """Return W_1, W_1 W_2, W_1 W_2 W_3, ... (2, 2, n), each divided by the sum of its entries."""
    if W.shape[-1] == 1:
        return np.asarray(W / W.sum((0, 1)))
    pairs = _prefix(_product(W[..., :-1:2], W[..., 1::2]))
    found = np.empty_like(W)
    found[..., 0] = W[..., 0] / W[..., 0].sum()
    found[..., 1::2] = pairs
    odd = W[..., 2::2]
    found[..., 2::2] = _product(pairs[..., : odd.shape[-1]], odd)
    return found


def _product(A: Floats, B: Floats) -> Floats:
    """Return A B of shape (2, 2, n), divided by the sum of its entries."""
    found = np.asarray(A[:, 0, None] * B[0] + A[:, 1, None] * B[1])
    found /= found.sum((0, 1))
    return found
