"""The hidden chain: its likelihood against a sum over all paths, and what EM finds."""

from itertools import product

import numpy as np
import pytest

from rmab.traces.misclassified_hmm import (
    MAX_ERROR,
    _Parameters,
    _step,
    _with_first_slots,
    fit_misclassified_hmm,
)
from rmab.traces.pairs import runs_of
from tests.traces.made import chain, misclassified

LAW = {"p01": 0.2, "p11": 0.7, "e0": 0.15, "e1": 0.3}


def by_paths(records, p01, p11, e0, e1):
    """Probability of a stretch, summed over all hidden paths, and expected moves given it."""
    rest = p01 / (p01 + 1 - p11)
    moves = np.array([[1 - p01, p01], [1 - p11, p11]])
    shows = np.array([[1 - e0, e0], [e1, 1 - e1]])
    total, moved, shown = 0.0, np.zeros((2, 2)), np.zeros((2, 2))
    for path in product((0, 1), repeat=len(records)):
        chance = (1 - rest, rest)[path[0]]
        steps, sights = np.zeros((2, 2)), np.zeros((2, 2))
        for t, (h, x) in enumerate(zip(path, records, strict=True)):
            chance *= shows[h, x]
            sights[h, x] += 1
            if t:
                chance *= moves[path[t - 1], h]
                steps[path[t - 1], h] += 1
        total += chance
        moved += chance * steps
        shown += chance * sights
    return total, moved / total, shown / total


def step(series, segment, **law):
    runs = _with_first_slots(runs_of(np.array(series, np.int8), np.array(segment)))
    return _step(runs, _Parameters(*(np.full(len(series), p) for p in law.values())), len(series))


def test_a_step_is_that_of_all_paths():
    """Two series, of stretches that a hole and a segment's end cut."""
    series = [[1, 1, 1, 0, 0, -1, 0, 1, 1, 1], [0, 1, 0, 0, 0, 0, 0, 1, 1, -1]]
    segment = [0] * 7 + [1] * 3
    stretches = [[[1, 1, 1, 0, 0], [0], [1, 1, 1]], [[0, 1, 0, 0, 0, 0, 0], [1, 1]]]
    better, bits = step(series, segment, **LAW)
    for n, found in enumerate(stretches):
        whole = [by_paths(stretch, **LAW) for stretch in found]
        firsts = [by_paths(stretch[:1], **LAW)[0] for stretch in found]
        expected = -sum(np.log2(w[0] / f) for w, f in zip(whole, firsts, strict=True))
        assert bits[n] == pytest.approx(expected)
        moved = sum(w[1] for w in whole)
        shown = sum(w[2] for w in whole)
        assert better.p01[n] == pytest.approx(moved[0, 1] / moved[0].sum())
        assert better.p11[n] == pytest.approx(moved[1, 1] / moved[1].sum())
        assert better.e0[n] == pytest.approx(shown[0, 1] / shown[0].sum())
        assert better.e1[n] == pytest.approx(min(shown[1, 0] / shown[1].sum(), MAX_ERROR))


def test_long_runs_neither_underflow_nor_slow_it():
    records = np.repeat([[1, 0, 1]], [20_000, 5_000, 20_000], axis=1)
    better, bits = step(records, np.zeros(45_000, int), **LAW)
    assert np.isfinite(bits).all()
    assert all(0 < p[0] < 1 for p in better)


def fitted(state):
    series = state.swapaxes(1, 2).reshape(-1, state.shape[1]).astype(np.int8)
    return fit_misclassified_hmm(series, np.zeros(state.shape[1], int))


def test_errors_are_found():
    found = fitted(misclassified(0.15, 0.1))
    assert np.median(found.good_when_bad) == pytest.approx(0.15, abs=0.02)
    assert np.median(found.bad_when_good) == pytest.approx(0.1, abs=0.02)
    assert np.median(found.p01) == pytest.approx(0.03, abs=0.01)
    assert np.median(found.p11) == pytest.approx(0.97, abs=0.01)


def test_a_chain_has_no_errors():
    """And no more bits than it needs as a chain."""
    state = chain(0.1, 0.9)
    found = fitted(state)
    assert found.good_when_bad.max() < 0.02
    assert found.bad_when_good.max() < 0.02
    for bits, row in zip(found.bits, state.swapaxes(1, 2).reshape(4, -1), strict=True):
        p01, p11 = (row[1:][row[:-1] == last].mean() for last in (0, 1))
        p = np.where(row[:-1] == 1, p11, p01)
        assert bits <= -np.log2(np.where(row[1:] == 1, p, 1 - p)).sum() + 0.1


def test_an_alternating_chain_is_one():
    found = fitted(chain(0.9, 0.1, agents=1, arms=1, slots=1000))
    assert found.p01.min() > 0.85
    assert found.p11.max() < 0.15


def test_a_flaky_state_ends_at_the_bound():
    assert np.median(fitted(misclassified(0.5, 0.02)).good_when_bad) > 0.44
