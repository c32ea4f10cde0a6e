"""Regret against horizon, agents and arms: the files, the fits, the errors, the judges."""

from dataclasses import is_dataclass, replace
from functools import partial

import numpy as np
import pytest

import rmab
from rmab.experiments.figure import Figure, FigureResult
from rmab.experiments.registry import SECTIONS, figures
from rmab.experiments.regret_growth import GAP, KNOWN, PLAIN, scalings, share
from rmab.policies.registry import named
from rmab.studies.results import Curve, PolicyResult, Results
from rmab.studies.study import Study
from tests.experiments.made_up import CONTRADICTED, HELD, NOTED, UNDECIDED, verdicts

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
    assert list(SECTIONS["gaps"]) == NAMES
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
        episode_trials=np.ones(44),
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
    assert verdicts(made) == [HELD, CONTRADICTED, HELD, HELD, NOTED, NOTED] * 2
    lower, plain, gap, *_ = made.claims
    assert "0.126 ± 0.001 at T = 10, 0.032 ± 0.000 at T = 100, " in lower.measured
    assert "44 episodes each" in lower.measured
    for start, end in (("100", "1,000"), ("1,000", "100,000")):
        assert "T^0.900 ± 0.00" in plain.measured
        assert f"from T = {start} to {end}" in plain.measured
    assert "√(T log T) as T^0.5" in plain.measured
    assert "as T^0.300" in gap.measured


def test_a_gain_that_vanishes_is_judged_so():
    made = horizon(0.3, 0.4)
    later = made.results[0]
    made.results[0] = replace(
        later, policies={**later.policies, GAP: replace(later[GAP], final=later[PLAIN].final - 0.1)}
    )
    assert verdicts(made)[:4] == [CONTRADICTED, HELD, HELD, CONTRADICTED]
    assert "Not clearly lower at" in made.claims[0].measured
    assert "and 100,000." in made.claims[0].measured


def test_short_horizons_are_drawn_but_not_judged():
    """Equal until T = 20, then far better."""
    made = horizon(0.9, 0.3)
    for place, results in enumerate(made.results):
        slots = np.arange(1, results.study.horizon + 1)
        plain, gap = (results[name].regret for name in (PLAIN, GAP))
        equal = Curve(np.where(slots <= 20, plain.mean, gap.mean), plain.se)
        made.results[place] = made_up(results.study, plain, equal)
    assert verdicts(made)[0] == HELD
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
    assert verdicts(made)[:4] == [HELD, CONTRADICTED, HELD, HELD]
    measured = made.claims[2].measured
    assert "2.90 ± 0.10 per agent at T = 1,000, -7.00 ± 0.10 at 100,000" in measured
    assert "; then no power to fit" in measured
    assert [key for key in made.fits if key.startswith(GAP)] == [
        f"{GAP}, K = {K}, T = 100 to 1,000" for K in (1, 2)
    ]


def test_what_is_within_the_error_is_not_decided():
    T = np.geomspace(1000, 100_000, 21)
    slope = np.polyfit(np.log(T), np.log(T * np.log(2 * T)) / 2, 1)[0]
    assert verdicts(horizon(slope, slope))[:4] == [HELD, UNDECIDED, UNDECIDED, HELD]
    assert verdicts(horizon(0.9, 0.3, error=0.4))[:3] == [UNDECIDED] * 3


def test_one_trial_proves_nothing():
    made = horizon(0.9, 0.3, error=np.nan)
    assert verdicts(made)[:3] == [UNDECIDED] * 3
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
    assert verdicts(made)[4:6] == [NOTED, NOTED]
    assert made.claims[4].text == "What FedTSWI goes on learning of each arm (K = 1)."
    assert "of the 43 episodes: arm 1: 0.013 to 0.0053, " in made.claims[4].measured
    assert "arm 3: 0.1 to 0.1" in made.claims[4].measured
    assert "arm 3: 0.013 to 0.0053" in made.claims[5].measured


def test_agents_are_judged_for_each_k_and_in_total():
    made = along("regret-agents", -0.1, -0.5)
    assert verdicts(made) == [HELD, CONTRADICTED, UNDECIDED, HELD] * 2  # shares .5, then .095
    assert [claim.text.endswith("(K = 2).") for claim in made.claims] == [False] * 4 + [True] * 4
    assert made.claims[1].measured.startswith(
        "10.00 ± 0.05 per agent at M = 1, 6.60 ± 0.03 at 64 (of all agents 10, 422); as M^-0.100"
    )
    assert made.claims[3].measured.startswith("0.500 ± 0.004 at M = 1 (5.00 ± 0.06 saved per agent")
    assert "0.095 ± 0.001 at M = 64 (5.97 ± 0.03 saved per agent)." in made.claims[3].measured


def test_arms_are_one_curve():
    made = along("regret-arms", 0.8, 1.2)
    assert verdicts(made) == [CONTRADICTED, HELD, CONTRADICTED, CONTRADICTED]
    assert made.claims[0].text.endswith("lowers the regret at every N from 4 to 64.")
    assert "of all agents" not in made.claims[1].measured
    assert "saved per play" in made.claims[3].measured


def measured(name: str, plain: list[float], gap: list[float], plain_se, gap_se) -> FigureResult:
    """A figure with these final regrets, of one K where K does not grow with N."""
    chosen = figure(name)
    variants = chosen.variants[-len(plain) :]
    results = []
    for i, variant in enumerate(variants):
        size = variant.study.horizon
        curves = [
            Curve(np.full(size, mean[i]), np.full(size, se[i]))
            for mean, se in ((plain, plain_se), (gap, gap_se))
        ]
        results.append(made_up(variant.study, *curves))
    return FigureResult(replace(chosen, variants=variants), results)


def of_arms() -> FigureResult:
    """As it was measured."""
    return measured(
        "regret-arms",
        [30.37, 33.05, 61.39, 120.06, 251.26],
        [3.60, 10.35, 21.39, 44.28, 100.08],
        [0.33, 0.27, 0.51, 1.18, 2.53],
        [0.09, 0.17, 0.40, 0.92, 2.16],
    )


def of_agents() -> FigureResult:
    """As it was measured at K = 2."""
    return measured(
        "regret-agents",
        [20.87, 14.58, 11.26, 8.50, 6.49, 4.76, 3.41],
        [9.587, 5.029, 2.589, 1.442, 0.856, 0.577, 0.614],
        [0.26, 0.23, 0.20, 0.18, 0.23, 0.29, 0.41],
        [0.168, 0.130, 0.082, 0.054, 0.052, 0.052, 0.064],
    )


def test_regret_that_follows_no_power_of_n_grows_no_slower_than_n():
    """From step to step .12, .89, .97 and 1.065 ± .020: the line through them says nothing."""
    made = of_arms()
    assert verdicts(made) == [HELD, UNDECIDED, UNDECIDED, CONTRADICTED]
    found = made.claims[1].found
    assert "no power fits; from point to point 0.12, 0.89, 0.97, 1.07" in found
    assert "the power from N = 32 to 64: 3.2 standard errors from the bound" in found
    fits = made.to_json()["fits"][f"{PLAIN}, N = 4 to 64"]
    assert fits["chi2_per_degree"] == pytest.approx(563, rel=0.02)
    assert fits["fits"] is False
    assert [step["slope"] for step in fits["steps"]] == pytest.approx(
        [0.12, 0.89, 0.97, 1.065], abs=0.006
    )


def test_regret_that_follows_no_power_of_m_does_not_fall_as_fast_as_its_root():
    made = of_agents()
    assert verdicts(made) == [HELD, CONTRADICTED, UNDECIDED, HELD]
    found = made.claims[2].found
    fits = made.to_json()["fits"][f"{GAP}, K = 2, M = 1 to 64"]
    assert fits["chi2_per_degree"] == pytest.approx(17, abs=0.5)
    assert "per degree of freedom: no power fits; from point to point " in found
    assert "-0.93, -0.96, -0.84, -0.75, -0.57, 0.09)" in found


def test_the_last_step_contradicts_a_rate_where_no_power_fits():
    """It grows at first slowly, then clearly faster than N."""
    plain = [30.37, 33.05, 61.39, 120.06, 300.0]
    made = measured("regret-arms", plain, [x / 2 for x in plain], [0.3] * 5, [0.15] * 5)
    assert verdicts(made)[1:3] == [CONTRADICTED, CONTRADICTED]


def test_a_gain_lasts_by_its_share():
    """With 64 agents less is saved than with one, as less regret is left: its share is larger."""
    made = of_agents()
    verdicts(made)
    lasting = made.claims[3]
    assert "share of FedTSWI's regret is smaller at M = 64 than at 1" in lasting.text
    assert "0.459 ± 0.010 at M = 1 (11.28 ± 0.31 saved per agent), 0.180" in lasting.measured
    assert "2.80 ± 0.41 saved per agent" in lasting.measured
    assert lasting.verdict == HELD


def test_what_is_saved_is_paired_trial_by_trial():
    """Of studies; a covariance between the two makes the error of what is saved smaller."""
    made = of_agents()
    covariance = made.results[-1].covariance
    covariance[0, 1] = covariance[1, 0] = 0.9 * np.sqrt(covariance[0, 0] * covariance[1, 1])
    verdicts(made)
    effect = made.claims[0].effects[-1]
    weights = np.asarray([1.0, -1, 0])
    assert effect.se == pytest.approx(1000 * np.sqrt(weights @ covariance @ weights))
    assert effect.se < 0.41
    assert effect.value == pytest.approx(3.41 - 0.614, abs=1e-9)


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

    def parts(part):
        if isinstance(part, partial):
            return part.func, part.args, part.keywords
        return (
            {key: parts(each) for key, each in vars(part).items()} if is_dataclass(part) else part
        )

    assert parts(named(name, 25)) == parts(named(name, 40))
