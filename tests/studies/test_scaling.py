"""Regret against horizon, agents and arms: the files, the fits, the errors, the judges."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rmab
from rmab.policies.registry import named
from rmab.studies import scaling
from rmab.studies.figures import Figure, FigureResult
from rmab.studies.reproduce import FIGURES, figures
from rmab.studies.results import Curve, PolicyResult, Results
from rmab.studies.scaling import GAP, KNOWN, PLAIN, fit, scalings, share
from rmab.studies.study import Study

PAPER = rmab.channels([0.20, 0.89, 0.10, 0.90], [0.80, 0.17, 0.90, 0.16], [0.4, 0.9, 0.7, 0.6])
NAMES = ["regret-horizon", "regret-agents", "regret-arms"]


def figure(name: str) -> Figure:
    (chosen,) = figures([name])
    return chosen


def has_the_papers_arms(study: Study, copies: int = 1) -> bool:
    pairs = zip(study.arms.dynamics, PAPER.dynamics, strict=True)
    return all(np.array_equal(found, np.tile(arms, copies)) for found, arms in pairs)


# ---------------------------------------------------------------------------------------- the files


def test_all_have_both_learners_and_the_same_episodes_for_them():
    assert list(scaling.JUDGES) == NAMES
    for each in figures(NAMES):
        assert each.section == "gaps"
        assert each.y == "regret"
        labels = [variant.label for variant in each.variants]
        assert len(set(labels)) == len(labels)
        for variant in each.variants:
            assert variant.study.policies == (PLAIN, GAP, KNOWN)
            assert variant.study.schedule == "linear"


def test_the_horizon_goes_up_to_100_000():
    studies = [variant.study for variant in figure("regret-horizon").variants]
    assert [(study.plays, study.horizon, study.agents) for study in studies] == [
        (1, 100_000, 4),
        (2, 100_000, 4),
    ]
    assert all(has_the_papers_arms(study) for study in studies)


def test_the_agents_go_from_1_to_64():
    studies = [variant.study for variant in figure("regret-agents").variants]
    shape = [(study.plays, study.agents) for study in studies]
    assert shape == [(K, M) for K in (1, 2) for M in (1, 2, 4, 8, 16, 32, 64)]
    assert all(has_the_papers_arms(study) for study in studies)


def test_the_arms_go_from_4_to_64_with_a_quarter_played():
    studies = [variant.study for variant in figure("regret-arms").variants]
    assert [(len(study.arms), study.plays) for study in studies] == [
        (4 * copies, copies) for copies in (1, 2, 4, 8, 16)
    ]
    assert all(has_the_papers_arms(study, study.plays) for study in studies)


@pytest.mark.parametrize("name", ["regret-agents", "regret-arms"])
def test_studies_of_one_curve_share_no_trials(name):
    """So that their errors are independent."""
    seeds = [variant.study.seed for variant in figure(name).variants]
    assert len(set(seeds)) == len(seeds)


# --------------------------------------------------------------------------------------------- fits


@settings(max_examples=50, deadline=None)
@given(
    st.floats(-2, 2),
    st.floats(0.01, 100),
    st.lists(st.floats(1, 1e5), min_size=3, max_size=9, unique=True),
)
def test_a_power_law_is_found_again(slope, factor, places):
    x = np.sort(np.asarray(places))
    if x[-1] / x[0] < 1.5:
        return
    found = fit(x, Curve(factor * x**slope, np.zeros(len(x))))
    assert found is not None
    assert found.slope == pytest.approx(slope, abs=1e-6)
    np.testing.assert_allclose(found.at(x), factor * x**slope, rtol=1e-5)
    assert found.slope_se == 0
    assert (found.start, found.end) == (x[0], x[-1])


@pytest.mark.parametrize("together", [0.0, 0.5, 1.0])
def test_the_error_of_a_slope_is_bounded_whatever_the_correlation(together):
    """Of curves whose places vary alone, in part together, or along the line, over many drawn."""
    rng = np.random.default_rng(3)
    x = np.geomspace(10, 1000, 12)
    n_curves, relative = 4000, 0.02
    common = np.linspace(-1, 1, 12) * rng.standard_normal((n_curves, 1)) * np.sqrt(together)
    alone = rng.standard_normal((n_curves, 12)) * np.sqrt(1 - together)
    curves = 5 * x**0.5 * (1 + relative * (common + alone))
    se = 5 * x**0.5 * relative * np.sqrt(together * np.linspace(-1, 1, 12) ** 2 + 1 - together)
    found = [fit(x, Curve(curve, se)) for curve in curves]
    slopes = np.asarray([each.slope for each in found if each is not None])
    assert len(slopes) == n_curves
    spread = slopes.std(ddof=1)
    bound = np.mean([each.slope_se for each in found if each is not None])
    assert spread < bound * (1 + 4 / np.sqrt(2 * n_curves))
    assert slopes.mean() == pytest.approx(0.5, abs=4 * spread / np.sqrt(n_curves) + relative**2)
    if together == 1:
        assert spread == pytest.approx(bound, rel=0.06)  # the worst case is met


def test_what_is_not_clearly_positive_is_not_fitted():
    x, se = np.asarray([1.0, 2, 3]), np.full(3, 0.1)
    assert fit(x, Curve(np.asarray([1.0, 1, 1]), se)) is not None
    assert fit(x, Curve(np.asarray([1.0, -1, 1]), se)) is None
    assert fit(x, Curve(np.asarray([1.0, 0.19, 1]), se)) is None
    assert fit(x[:1], Curve(np.ones(1), se[:1])) is None


# ------------------------------------------------------------------------------- results made up


def result(mean: float, regret: Curve) -> PolicyResult:
    """A policy of that mean reward with that regret, whose error falls as 1 / episode."""
    nothing = Curve(np.zeros(1), np.zeros(1))
    error = np.repeat(0.2 / np.arange(1, 45)[:, None], 4, 1)
    return PolicyResult(
        mean=mean,
        se=1e-4,
        final=mean,
        final_se=1e-4,
        episodes=44.0,
        behind=1 - mean,
        behind_se=1e-4,
        slots=Curve(np.full(len(regret.mean), mean), np.full(len(regret.mean), 1e-4)),
        regret=regret,
        episode_trials=np.ones(1),
        episode_length=nothing,
        episode_reward=nothing,
        episode_regret=nothing,
        episode_error=Curve(error, error / 100),
    )


def made_up(study: Study, plain: Curve, gap: Curve) -> Results:
    """The three policies with these regrets, (T,), of independent means."""
    T = study.horizon
    means = {PLAIN: 1 - plain.mean[-1] / T, GAP: 1 - gap.mean[-1] / T, KNOWN: 1.0}
    regrets = {PLAIN: plain, GAP: gap, KNOWN: Curve(np.zeros(T), np.zeros(T))}
    policies = {name: result(means[name], regrets[name]) for name in means}
    covariance = np.diag([(plain.se[-1] / T) ** 2, (gap.se[-1] / T) ** 2, 0])
    return Results(study, study.trials, False, policies, covariance)


def power(study: Study, factor: float, slope: float, error: float = 0.005) -> Curve:
    mean = factor * np.arange(1, study.horizon + 1.0) ** slope
    return Curve(mean, error * mean)


def horizon(plain: float, gap: float, error: float = 0.005) -> FigureResult:
    """Regrets that grow with these powers, and begin at the same height."""
    chosen = figure("regret-horizon")
    results = [
        made_up(v.study, power(v.study, 2, plain, error), power(v.study, 1, gap, error))
        for v in chosen.variants
    ]
    return FigureResult(chosen, results)


def along(name: str, plain: float, gap: float, error: float = 0.005) -> FigureResult:
    """Final regrets that grow with these powers of M or N."""
    chosen = figure(name)
    results = []
    for variant in chosen.variants:
        size = variant.study.agents if name == "regret-agents" else len(variant.study.arms)
        curves = [power(variant.study, 0.01 * size**slope, 1, error) for slope in (plain, gap)]
        results.append(made_up(variant.study, curves[0], Curve(*_half(curves[1]))))
    return FigureResult(chosen, results)


def _half(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    return curve.mean / 2, curve.se / 2


def verdicts(drawn: FigureResult) -> list[bool | None]:
    drawn.claims = FIGURES[drawn.name](drawn)
    return [claim.held for claim in drawn.claims]


# ------------------------------------------------------------------------------------------- shares


def test_the_error_of_a_share_is_that_of_paired_trials():
    """Against the spread over many studies, whose trials are correlated."""
    rng = np.random.default_rng(11)
    n_studies, n_trials = 2000, 200
    mean = np.asarray([0.6, 0.5, 0.56])  # Whittle, plain, gap
    root = 0.05 * np.asarray([[1.0, 0, 0], [0.8, 0.5, 0], [0.9, 0.2, 0.3]])
    draws = mean + rng.standard_normal((n_studies, n_trials, 3)) @ root.T
    study = figure("regret-arms").variants[0].study
    dull = Curve(np.zeros(1), np.zeros(1))
    found = []
    for trials in draws:
        policies = dict(
            zip((KNOWN, PLAIN, GAP), (result(m, dull) for m in trials.mean(0)), strict=True)
        )
        covariance = np.cov(trials.T) / n_trials
        found.append(share(Results(study, n_trials, False, policies, covariance)))
    shares, errors = np.asarray(found).T
    assert shares.mean() == pytest.approx(0.4, abs=4 * shares.std() / np.sqrt(n_studies) + 0.002)
    assert errors.mean() == pytest.approx(shares.std(ddof=1), rel=4 / np.sqrt(2 * n_studies))


def test_a_share_of_no_regret_is_unknown():
    study = figure("regret-arms").variants[0].study
    none = Curve(np.zeros(study.horizon), np.zeros(study.horizon))
    assert np.isnan(share(made_up(study, none, none))).all()


# ------------------------------------------------------------------------------------------- judges


def test_a_gain_that_grows_is_judged_so():
    made = horizon(0.9, 0.3)
    assert verdicts(made) == [True, False, True, True, None, None] * 2
    lower, plain, gap, *_ = made.claims
    assert "0.126 ± 0.001 at T = 10, 0.032 ± 0.000 at T = 100, " in lower.measured
    assert "44 episodes each" in lower.measured
    for start, end in (("100", "1,000"), ("1,000", "100,000")):
        assert "T^0.900 with an error of at most 0.00" in plain.measured
        assert f"from T = {start} to {end}" in plain.measured
    assert "√(T log T) as T^0.5" in plain.measured
    assert "as T^0.300" in gap.measured


def test_a_gain_that_vanishes_is_judged_so():
    made = horizon(0.3, 0.4)
    later = made.results[0]
    made.results[0] = replace(
        later, policies={**later.policies, GAP: replace(later[GAP], final=later[PLAIN].final - 0.1)}
    )
    assert verdicts(made)[:4] == [False, True, True, False]
    assert "Not lower by four standard errors at" in made.claims[0].measured
    assert "and 100,000." in made.claims[0].measured


def test_short_horizons_are_drawn_but_not_judged():
    """Equal until T = 20, then far better."""
    made = horizon(0.9, 0.3)
    for place, results in enumerate(made.results):
        slots = np.arange(1, results.study.horizon + 1)
        plain, gap = (results[name].regret for name in (PLAIN, GAP))
        equal = Curve(np.where(slots <= 20, plain.mean, gap.mean), plain.se)
        made.results[place] = made_up(results.study, plain, equal)
    assert verdicts(made)[0] is True
    assert made.claims[0].text.startswith(
        "Learning from observations at any gap lowers the regret at every T from 100 to 100,000"
    )
    assert "at 4 of the 41 T drawn from 10 on, between 10 and 20." in made.claims[0].measured


def test_regret_that_turns_negative_grows_no_faster():
    made = horizon(0.9, 0.3)
    for place, results in enumerate(made.results):
        slots = np.arange(1, results.study.horizon + 1)
        falls = Curve(3 - slots / 1e4, np.full(len(slots), 0.1))
        made.results[place] = made_up(results.study, results[PLAIN].regret, falls)
    assert verdicts(made)[:4] == [True, False, True, True]
    measured = made.claims[2].measured
    assert "2.90 ± 0.10 per agent at T = 1,000, -7.00 ± 0.10 at 100,000" in measured
    assert "from T = 100 to 1,000; then no power to fit" in measured
    assert [key for key in made.fits if key.startswith(GAP)] == [
        f"{GAP}, K = {K}, T = 100 to 1,000" for K in (1, 2)
    ]


def test_what_is_within_the_error_is_not_decided():
    T = np.geomspace(1000, 100_000, 21)
    slope = np.polyfit(np.log(T), np.log(T * np.log(2 * T)) / 2, 1)[0]
    assert verdicts(horizon(slope, slope))[:4] == [True, None, None, True]
    assert verdicts(horizon(0.9, 0.3, error=0.4))[:3] == [None, None, None]


def test_one_trial_proves_nothing():
    made = horizon(0.9, 0.3, error=np.nan)
    assert verdicts(made)[:3] == [None, None, None]
    assert not any("nan" in claim.measured for claim in made.claims)
    fits = made.to_json()["fits"]
    assert fits[f"{PLAIN}, K = 1, T = 1,000 to 100,000"]["slope_se"] is None


def test_what_is_learnt_of_each_arm_is_noted():
    made = horizon(0.9, 0.3)
    plain = made.results[0][PLAIN]
    assert plain.episode_error is not None
    stuck = plain.episode_error.mean.copy()
    stuck[:, 2] = 0.1
    policies = {
        **made.results[0].policies,
        PLAIN: replace(plain, episode_error=Curve(stuck, stuck / 100)),
    }
    made.results[0] = replace(made.results[0], policies=policies)
    assert verdicts(made)[4:6] == [None, None]
    assert made.claims[4].text == "What FedTSWI goes on learning of each arm (K = 1)."
    assert "of the 44 episodes: arm 1: 0.012 to 0.0052, " in made.claims[4].measured
    assert "arm 3: 0.1 to 0.1" in made.claims[4].measured
    assert "arm 3: 0.012 to 0.0052" in made.claims[5].measured


def test_agents_are_judged_for_each_k_and_in_total():
    made = along("regret-agents", -0.1, -0.5)
    assert verdicts(made) == [True, False, None, True] * 2  # saved: 5, then 6.6 - 0.6
    assert [claim.text.endswith("(K = 2).") for claim in made.claims] == [False] * 4 + [True] * 4
    assert made.claims[1].measured.startswith(
        "10.00 ± 0.05 per agent at M = 1, 6.60 ± 0.03 at 64 (of all agents 10, 422); as M^-0.100"
    )
    assert "saved 5.00 ± " in made.claims[3].measured
    assert "(0.60 % of Whittle's reward) at M = 64." in made.claims[3].measured


def test_arms_are_one_curve():
    made = along("regret-arms", 0.8, 1.2)
    assert verdicts(made) == [False, True, False, False]
    assert made.claims[0].text.endswith("lowers the regret at every N from 4 to 64.")
    assert "of all agents" not in made.claims[1].measured
    assert "per play" in made.claims[3].text


def test_curves_and_fits_are_kept():
    made = along("regret-agents", -0.1, -0.5)
    verdicts(made)
    assert made.series["M"].tolist() == [1, 2, 4, 8, 16, 32, 64]
    assert made.series[f"regret of {PLAIN}, K = 1"][0] == pytest.approx(10)
    assert made.series[f"regret of {GAP}, K = 2, se"][0] == pytest.approx(0.025)
    assert made.series[f"share of {GAP}, K = 2"][-1] == pytest.approx(0.5 * 64**-0.4)
    assert len({len(curve) for curve in made.series.values()}) == 1
    fits = made.to_json()["fits"]
    names = [f"{name}, K = {K}, M = 1 to 64" for K in (1, 2) for name in (PLAIN, GAP)]
    assert list(fits) == names
    assert fits[names[0]]["slope"] == pytest.approx(-0.1)
    assert fits[names[1]]["end"] == 64


def test_an_interrupted_figure_has_the_curves_there_are():
    made = along("regret-agents", -0.1, -0.5)
    made.results = made.results[:8]
    first, second = scalings(made)
    assert (len(first.at), len(second.at)) == (7, 1)
    assert second.fits(PLAIN) == []


def test_few_slots_are_all_drawn():
    made = horizon(0.9, 0.3)
    study = replace(made.figure.variants[0].study, horizon=5)
    short = made_up(study, power(study, 2, 0.9), power(study, 1, 0.3))
    (drawn,) = scalings(
        FigureResult(replace(made.figure, variants=made.figure.variants[:1]), [short])
    )
    assert drawn.at.tolist() == [1, 2, 3, 4, 5]


# ----------------------------------------------------------------------------------------- one run


@pytest.mark.slow
def test_one_run_has_the_regret_at_every_horizon():
    """The slots of a shorter run are those of a longer: under this schedule nothing looks ahead."""
    study = figure("regret-horizon").variants[1].study
    study = replace(study, policies=[PLAIN], trials=32, horizon=40)
    long, short = rmab.run(study), rmab.run(replace(study, horizon=25))
    np.testing.assert_array_equal(long[PLAIN].regret.mean[:25], short[PLAIN].regret.mean)
    assert long[PLAIN].episodes == 8  # of 2, 3, ... slots


@pytest.mark.parametrize("name", [PLAIN, GAP])
def test_a_learner_does_not_know_the_horizon(name):
    """What differs between a policy for one horizon and for another: nothing but identity."""

    def parts(policy):
        return [
            (part.func, part.args, part.keywords) if isinstance(part, partial) else part
            for part in vars(policy).values()
        ]

    assert parts(named(name, 25)) == parts(named(name, 40))
