"""Scores, ranks and ties, against plain arithmetic."""

from dataclasses import replace

import numpy as np
import pytest

from rmab.arena.scores import Standing, standings
from rmab.studies.results import Curve, PolicyResult, Results
from tests.studies.small import STUDY

NAMES = ["whittle", "random", "quick", "slow", "other"]
KNOWS = ["whittle", "random"]


def results_of(by_trial: np.ndarray) -> Results:
    """As if these rewards, (policies, trials), were those of NAMES."""
    n = by_trial.shape[1]
    slots = Curve(np.ones(100), np.ones(100))
    regret = Curve(np.linspace(0, 5, 100), np.full(100, 0.5))
    one = PolicyResult(
        0.0,
        0.1,
        0.0,
        0.1,
        1.0,
        0.0,
        0.0,
        slots,
        regret,
        np.ones(1),
        slots,
        slots,
        slots,
        None,
        0.25,
    )
    means, errors = by_trial.mean(1), by_trial.std(1, ddof=1) / np.sqrt(n)
    policies = {
        name: replace(one, mean=float(m), se=float(e))
        for name, m, e in zip(NAMES, means, errors, strict=True)
    }
    return Results(STUDY, n, False, policies, np.cov(by_trial) / n)


@pytest.fixture(scope="module")
def rewards() -> np.ndarray:
    """Paired: a trial that is good for one is good for all."""
    rng = np.random.default_rng(5)
    luck = rng.normal(0, 0.2, 400)
    means = np.array([1.0, 0.2, 0.8, 0.799, 0.4])[:, None]
    return means + luck + rng.normal(0, 0.02, (5, 400))


def stands(rewards: np.ndarray) -> dict[str, Standing]:
    labels = {name: name.title() for name in NAMES}
    return standings(results_of(rewards), KNOWS, labels, {"quick": 0.5})


def test_shares_are_of_the_distance_from_random_to_the_best_known(rewards):
    found = stands(rewards)
    mean = dict(zip(NAMES, rewards.mean(1), strict=True))
    for name in NAMES:
        due = (mean[name] - mean["random"]) / (mean["whittle"] - mean["random"])
        assert found[name].score == pytest.approx(due, abs=1e-12)
    assert found["whittle"].score_se == found["random"].score_se == 0
    # The error is that of the paired trials, by a bootstrap.
    rng = np.random.default_rng(6)
    drawn = rewards[:, rng.integers(0, 400, (2000, 400))].mean(-1)
    shares = (drawn[2] - drawn[1]) / (drawn[0] - drawn[1])
    assert found["quick"].score_se == pytest.approx(shares.std(), rel=0.1)


def test_ranks_are_among_learners_and_ties_are_paired(rewards):
    found = stands(rewards)
    # Apart by .001, which luck of .2 hides alone, and .02 does between these two.
    assert found["quick"].rank == found["slow"].rank == 1
    assert found["quick"].tied == ["slow"]
    assert found["other"].rank == 3
    assert found["other"].tied == []
    assert [found[name].rank for name in KNOWS] == [None, None]
    assert next(iter(found)) == "whittle"
    assert list(found)[-1] == "random"
    assert (found["quick"].seconds, found["slow"].seconds) == (0.5, None)
    assert found["quick"].failed == 0.25
    # Without the pairs, the luck of 400 trials would tie what .05 is apart.
    shifted = rewards + np.array([0, 0, 0, -0.05, 0])[:, None]
    assert stands(shifted)["slow"].rank == 2


def test_ties_end_at_four_standard_errors(rewards):
    apart = rewards[2] - rewards[3]
    se = apart.std(ddof=1) / np.sqrt(len(apart))
    for sigma, rank in ((3.9, 1), (4.1, 2)):
        level = rewards.copy()
        level[3] += apart.mean() - sigma * se
        found = stands(level)["slow"]
        assert (found.rank, found.tied == ["quick"]) == (rank, rank == 1)


def test_one_trial_tells_nothing_apart(rewards):
    found = standings(
        replace(results_of(rewards), covariance=np.full((5, 5), np.nan)),
        KNOWS,
        dict(zip(NAMES, NAMES, strict=True)),
        {},
    )
    assert [found[name].rank for name in ("quick", "slow", "other")] == [1, 1, 1]
    assert found["quick"].score_se is None


def test_nothing_to_gain_has_no_share(rewards):
    level = rewards.copy()
    level[0] = level[1]
    assert all(each.score is None for each in stands(level).values())


def test_a_curve_has_its_first_and_last_slot(rewards):
    curve = stands(rewards)["quick"].curve
    assert (curve["slot"][0], curve["slot"][-1]) == (1, 100)
    assert curve["regret"][-1] == 5
    assert len(set(map(len, curve.values()))) == 1


def test_a_band_of_regret_is_that_of_95_per_cent(rewards):
    found = stands(rewards)["quick"]
    assert (found.regret, found.regret_low, found.regret_high) == pytest.approx((5, 4.02, 5.98))


def test_the_best_known_is_the_yardstick_that_earned_most(rewards):
    """Not the first one, and not chance, even where that earned more."""
    for better in (0, 2):
        level = rewards.copy()
        level[1], level[better] = rewards[1] - 0.1, level[better] + 0.5
        knows = ["whittle", "random", "quick"]
        labels = dict(zip(NAMES, NAMES, strict=True))
        found = standings(results_of(level), knows, labels, {})
        assert found[NAMES[better]].score == 1
        assert (found["quick"].rank, found["slow"].rank) == (None, 1)
        mean = level.mean(1)
        due = (mean[4] - mean[1]) / (mean[better] - mean[1])
        assert found["other"].score == pytest.approx(due)
    level[1] = 9.0
    found = standings(results_of(level), KNOWS, labels, {})
    assert all(each.score is None for each in found.values())


@pytest.mark.parametrize(("slots", "points"), [(1, 1), (39, 39), (40, 40), (41, 40), (1000, 40)])
def test_a_curve_has_at_most_forty_points(rewards, slots, points):
    made = results_of(rewards)
    regret = Curve(np.arange(1.0, slots + 1), np.full(slots, np.nan))
    policies = {name: replace(each, regret=regret) for name, each in made.policies.items()}
    found = standings(
        replace(made, policies=policies), KNOWS, dict(zip(NAMES, NAMES, strict=True)), {}
    )["quick"]
    assert len(found.curve["slot"]) == points
    assert found.curve["slot"] == found.curve["regret"]
    assert (found.curve["slot"][0], found.curve["slot"][-1]) == (1, slots)
    assert set(found.curve["se"]) == {0.0}  # not known, so no band is drawn
    assert (found.regret_low, found.regret_high) == (None, None)
