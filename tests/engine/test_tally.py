"""Means and standard errors added up block by block, against NumPy on all the data at once."""

import numpy as np
import pytest

from rmab.engine.tally import BLOCK, CoMoments, Moments, summary

TRIALS = [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK, 5 * BLOCK + 7]


def some_data(n_trials: int, *, missing: float = 0.0) -> np.ndarray:
    """(6, 3, trials) far from zero, so that naive sums of squares would lose digits."""
    rng = np.random.default_rng(n_trials)
    data = 1e4 + rng.normal(size=(6, 3, n_trials)) * np.arange(1, 19).reshape(6, 3, 1)
    data[rng.random(data.shape) < missing] = np.nan
    return data


def moments_of(data: np.ndarray, *batches: int) -> Moments:
    """Added in batches of these sizes by turns."""
    result = Moments(*data.shape[:-1])
    start = turn = 0
    while start < data.shape[-1]:
        size = batches[turn % len(batches)]
        result.add(summary(data[..., start : start + size]))
        start, turn = start + size, turn + 1
    return result


@pytest.mark.parametrize("missing", [0.0, 0.3, 0.97], ids=["whole", "gaps", "sparse"])
@pytest.mark.parametrize("n_trials", TRIALS)
def test_moments_are_those_of_all_the_data(n_trials, missing):
    data = some_data(n_trials, missing=missing)
    got = moments_of(data, 2 * BLOCK)
    count = (~np.isnan(data)).sum(-1)
    np.testing.assert_array_equal(got.count, count)
    for place in np.ndindex(count.shape):
        there = data[place][~np.isnan(data[place])]
        if there.size:
            assert got.mean[place] == pytest.approx(there.mean(), rel=1e-13)
        if there.size > 1:
            error = there.std(ddof=1) / np.sqrt(there.size)
            assert got.se[place] == pytest.approx(error, rel=1e-9)
        else:
            assert np.isnan(got.se[place])


@pytest.mark.parametrize("missing", [0.0, 0.02, 0.3], ids=["whole", "a-few-gaps", "gaps"])
def test_moments_do_not_depend_on_batches(missing):
    data = some_data(20 * BLOCK + 5, missing=missing)
    whole = moments_of(data, data.shape[-1])
    for batches in ([BLOCK], [2 * BLOCK], [3 * BLOCK], [BLOCK, 4 * BLOCK, 2 * BLOCK]):
        parts = moments_of(data, *batches)
        for name in ("count", "mean", "se"):
            np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))


def test_batches_with_fewer_rows_fill_the_first_rows():
    """A batch whose longest trial has four episodes says nothing about the fifth."""
    data = some_data(3 * BLOCK)
    data[4:, :, :BLOCK] = np.nan
    data[5:, :, 2 * BLOCK :] = np.nan
    short = Moments(6, 3)
    for rows, start in ((4, 0), (6, BLOCK), (5, 2 * BLOCK)):
        short.add(summary(data[:rows, :, start : start + BLOCK]))
    whole = moments_of(data, 3 * BLOCK)
    for name in ("count", "mean", "se"):
        np.testing.assert_array_equal(getattr(short, name), getattr(whole, name))
    assert short.count[:, 0].tolist() == [96, 96, 96, 96, 64, 32]


def test_moments_of_one_number_per_trial():
    data = some_data(100)[0, 0]
    got = Moments()
    got.add(summary(data))
    assert got.mean == pytest.approx(data.mean(), rel=1e-14)
    assert got.se == pytest.approx(data.std(ddof=1) / 10, rel=1e-10)


@pytest.mark.parametrize("n_trials", TRIALS[1:])
def test_covariance_of_means(n_trials):
    data = some_data(n_trials)[0] + some_data(n_trials)[1, :1]  # three that go together
    got = CoMoments(3)
    got.add(data)
    np.testing.assert_allclose(got.mean, data.mean(1), rtol=1e-13)
    np.testing.assert_allclose(got.covariance, np.cov(data) / n_trials, rtol=1e-8)


def test_covariance_does_not_depend_on_batches_or_company():
    data = some_data(10 * BLOCK + 3).reshape(18, -1)
    whole = CoMoments(18)
    whole.add(data)
    parts = CoMoments(18)
    for start in range(0, data.shape[1], 2 * BLOCK):
        parts.add(data[:, start : start + 2 * BLOCK])
    np.testing.assert_array_equal(parts.mean, whole.mean)
    np.testing.assert_array_equal(parts.covariance, whole.covariance)
    for some in ([3], [0, 17], [2, 5, 7], list(range(9)), list(range(1, 14))):
        alone = CoMoments(len(some))
        alone.add(data[some])
        np.testing.assert_array_equal(alone.mean, whole.mean[some])
        np.testing.assert_array_equal(alone.covariance, whole.covariance[np.ix_(some, some)])


def test_one_trial_has_no_covariance():
    got = CoMoments(2)
    got.add(np.ones((2, 1)))
    assert np.isnan(got.covariance).all()
