"""Words for learners: by shares with errors and failed trials, against plain arithmetic."""

import json
import math

import numpy as np
import pytest
from scipy.stats import norm, t

from rmab.arena.verdicts import RULES, UNDECIDED, Score, word_of


def scores(*shares: float, se: float | None = 0.001, trials: int = 400) -> list[Score]:
    return [Score(share, se, trials) for share in shares]


@pytest.mark.parametrize(
    ("shares", "word"),
    [
        ([0.95, 0.91, 0.51], "good"),
        ([0.95, 0.91, 0.49], "uneven"),
        ([0.51, 0.89, 0.1], "fair"),
        ([0.49, 0.2], "weak"),
        ([0.09, -0.3], "no better than chance"),
    ],
)
def test_a_word_follows_its_rule(shares, word):
    found = word_of(scores(*shares))
    assert found.word == found.best == found.worst == word
    assert found.middle.value == pytest.approx(np.median(shares))
    assert found.least.value == min(shares)
    assert word in [each for each, _ in RULES]


def test_failed_trials_make_a_good_share_uneven():
    fails = [each._replace(failed=0.2) for each in scores(0.95, 0.95)]
    assert word_of(fails).word == "uneven"
    by_chance = [each._replace(chance=0.18) for each in fails]
    found = word_of(by_chance)
    assert found.word == "good"
    assert found.failed.value == pytest.approx(0.02)
    # Failures on one problem of three count by its trials.
    some = [*scores(0.95, 0.95), Score(0.95, 0.001, 400, failed=0.6)]
    assert word_of(some).failed.value == pytest.approx(0.2)


@pytest.mark.parametrize("border", [0.9, 0.5, 0.1])
def test_near_a_border_nothing_is_decided(border):
    """Four standard errors to each side; a share within them has two words."""
    far, near = 4.2 * 0.01, 3.9 * 0.01
    for share in (border - far, border + far):
        assert word_of(scores(share, se=0.01)).word != UNDECIDED
    for share in (border - near, border, border + near):
        found = word_of(scores(share, se=0.01))
        assert found.word == UNDECIDED
        assert found.best != found.worst


def test_noise_gives_no_better_word():
    """The same shares with larger errors: the word stays, or nothing is decided."""
    for share in (0.95, 0.7, 0.3, 0.0):
        sharp = word_of(scores(share)).word
        for se in (0.02, 0.1, 0.5, 5.0):
            assert word_of(scores(share, se=se)).word in (sharp, UNDECIDED)
        assert word_of(scores(share, se=5.0)).word == UNDECIDED


def test_sixteen_trials_are_too_few_for_a_good_word():
    """Without an error of the share, as nothing failed in sixteen trials tells little."""
    for trials, word in ((16, UNDECIDED), (128, UNDECIDED), (160, "good")):
        assert word_of(scores(0.99, se=0.0, trials=trials)).word == word
    assert word_of(scores(0.99, se=0.0, trials=16)).worst == "uneven"


def test_bounds_are_students_and_wilsons():
    n, se = 16, 0.02
    found = word_of([Score(0.7, se, n, failed=0.25)])
    reach = t.isf(norm.sf(4.0), n - 1) * se
    assert reach > 5 * se  # and not four
    assert found.middle == pytest.approx((0.7, 0.7 - reach, 0.7 + reach))
    for bound in (found.failed.low, found.failed.high):  # where the score test says four
        assert abs(0.25 - bound) / math.sqrt(bound * (1 - bound) / n) == pytest.approx(4.0)
    wide = word_of(scores(0.7, se=0.02, trials=100_000))
    assert wide.middle.high == pytest.approx(0.78, abs=1e-4)


def test_the_median_and_the_smallest_are_of_bounds():
    found = word_of([Score(0.9, 0.0, 99), Score(0.6, 0.1, 10**6), Score(0.7, 0.0, 99)])
    assert found.middle == pytest.approx((0.7, 0.7, 0.9), abs=1e-3)
    assert found.least == pytest.approx((0.6, 0.2, 0.7), abs=1e-3)


@pytest.mark.parametrize("score", [Score(0.99, None, 400), Score(0.99, 0.0, 1)])
def test_an_unknown_error_decides_nothing(score):
    found = word_of([score])
    assert (found.word, found.best, found.worst) == (UNDECIDED, "good", "no better than chance")
    told = found.to_json()
    assert told["middle"] == {"value": 0.99, "low": None, "high": None}
    json.dumps(told, allow_nan=False)


def test_unknown_failures_are_not_taken_for_none():
    found = word_of([Score(0.99, 0.0, 10**6, failed=None)])
    assert (found.word, found.best, found.worst) == (UNDECIDED, "good", "uneven")
    assert found.to_json()["failed"] == {"value": None, "low": 0.0, "high": 1.0}
