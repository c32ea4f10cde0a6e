"""Power laws: found again, with errors that are right, and refused where a line does not fit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import chdtri

from rmab.experiments.powers import fit, slope_of
from rmab.studies.results import Curve

ARMS = np.asarray([4.0, 8, 16, 32, 64])
# Regrets of regret-arms and regret-agents: FedTSWI, and FedTSWI-gap with K = 2.
OF_ARMS = Curve(
    np.asarray([30.37, 33.05, 61.39, 120.06, 251.26]), np.asarray([0.33, 0.27, 0.51, 1.18, 2.53])
)
AGENTS = np.asarray([1.0, 2, 4, 8, 16, 32, 64])
OF_AGENTS = Curve(
    np.asarray([9.587, 5.029, 2.589, 1.442, 0.856, 0.577, 0.614]),
    np.asarray([0.168, 0.130, 0.082, 0.054, 0.052, 0.052, 0.064]),
)


@settings(max_examples=50, deadline=None)
@given(
    st.floats(-2, 2),
    st.floats(0.01, 100),
    st.lists(st.floats(1, 1e5), min_size=3, max_size=9, unique=True),
    st.lists(st.floats(0.01, 0.1), min_size=9, max_size=9),
)
def test_a_power_law_is_found_again(slope, factor, places, errors):
    x = np.sort(np.asarray(places))
    if x[-1] / x[0] < 1.5:
        return
    exact = factor * x**slope
    found = fit(x, Curve(exact, exact * np.asarray(errors[: len(x)])))
    assert found is not None
    assert found.slope == pytest.approx(slope, abs=1e-6)
    np.testing.assert_allclose(found.at(x), exact, rtol=1e-5)
    assert found.fits
    assert found.chi2_per_degree == pytest.approx(0, abs=1e-6)
    assert (found.start, found.end) == (x[0], x[-1])


def test_a_place_that_is_known_well_weighs_more():
    """Of three places the outer ones decide; the middle one has a slope of its own."""
    x, mean = np.asarray([1.0, 10, 100]), np.asarray([1.0, 20, 100])
    left_out = fit(x, Curve(mean, np.asarray([0.01, 5, 1])))
    known = fit(x, Curve(mean, np.asarray([0.01, 0.2, 20])))
    assert left_out is not None
    assert left_out.slope == pytest.approx(1.0, abs=0.001)
    assert known is not None
    assert known.slope == pytest.approx(np.log10(20), abs=0.01)


def curves_of(relative, correlated, n_curves=1600, seed=3):
    """Curves 5 x^.5 with errors that differ from place to place: independent, or along the line."""
    rng = np.random.default_rng(seed)
    x = np.geomspace(10, 1000, 12)
    spread = relative * (np.linspace(-1, 1, 12) if correlated else np.linspace(0.5, 1.5, 12))
    noise = rng.standard_normal((n_curves, 1 if correlated else 12))
    return x, 5 * x**0.5 * (1 + spread * noise), 5 * x**0.5 * np.abs(spread)


@pytest.mark.parametrize("correlated", [False, True])
def test_the_error_of_a_slope_is_that_of_many_curves(correlated):
    """Of independent places, and of places that move together in the worst way."""
    x, curves, se = curves_of(0.02, correlated)
    found = [fit(x, Curve(curve, se), correlated=correlated) for curve in curves]
    slopes = np.asarray([each.slope for each in found if each is not None])
    stated = np.mean([each.slope_se for each in found if each is not None])
    assert len(slopes) == len(curves)
    assert slopes.std(ddof=1) == pytest.approx(stated, rel=0.08)
    assert slopes.mean() == pytest.approx(0.5, abs=4 * slopes.std() / np.sqrt(len(slopes)) + 4e-4)


def test_chi_squared_is_that_of_its_degrees_of_freedom():
    x, curves, se = curves_of(0.02, correlated=False)
    found = [each for each in (fit(x, Curve(curve, se)) for curve in curves) if each is not None]
    assert {each.degrees for each in found} == {10}
    assert np.mean([each.chi2_per_degree for each in found]) == pytest.approx(1, abs=0.05)
    assert np.mean([each.fits for each in found]) == pytest.approx(0.99, abs=0.01)


def test_slots_of_one_run_fit_however_they_are_correlated():
    """All places vary as one, away from the line: the chance of refusal stays below 1 in 100."""
    rng = np.random.default_rng(5)
    x = np.geomspace(10, 1000, 12)
    away = np.where(np.arange(12) % 2, 1, -1) * rng.standard_normal((600, 1))
    curves, se = 5 * x**0.5 * (1 + 0.02 * away), 0.1 * x**0.5
    for correlated, low, high in ((True, 0.98, 1.0), (False, 0.0, 0.9)):
        found = [fit(x, Curve(curve, se), correlated=correlated) for curve in curves]
        assert low <= np.mean([each.fits for each in found if each is not None]) <= high


@pytest.mark.parametrize(
    ("x", "curve", "chi2", "slopes"),
    [
        (ARMS, OF_ARMS, 563, [0.12, 0.89, 0.97, 1.065]),
        (AGENTS, OF_AGENTS, 17, [-0.93, -0.96, -0.84, -0.75, -0.57, 0.09]),
    ],
)
def test_measured_regret_that_follows_no_power_is_refused(x, curve, chi2, slopes):
    found = fit(x, curve)
    assert found is not None
    assert not found.fits
    assert found.chi2_per_degree == pytest.approx(chi2, rel=0.02)
    assert [step.slope for step in found.steps] == pytest.approx(slopes, abs=0.006)
    assert (found.steps[-1].start, found.steps[-1].end) == (x[-2], x[-1])


def test_the_error_of_a_step():
    found = fit(ARMS, OF_ARMS)
    assert found is not None
    assert found.steps[-1].se == pytest.approx(0.020, abs=0.0005)
    one_run = fit(ARMS, OF_ARMS, correlated=True)
    assert one_run is not None
    assert one_run.steps[-1].se == pytest.approx(0.0287, abs=0.0005)  # errors are added


def test_what_is_not_clearly_positive_is_not_fitted():
    x, se = np.asarray([1.0, 2, 3]), np.full(3, 0.1)
    assert fit(x, Curve(np.asarray([1.0, 1, 1]), se)) is not None
    assert fit(x, Curve(np.asarray([1.0, -1, 1]), se)) is None
    assert fit(x, Curve(np.asarray([1.0, 0.19, 1]), se)) is None
    assert fit(x[:1], Curve(np.ones(1), se[:1])) is None


def test_what_is_not_known_is_null_and_fits_nothing():
    one_trial = fit(ARMS, Curve(OF_ARMS.mean, np.full(5, np.nan)))
    assert one_trial is not None
    assert not one_trial.fits
    table = one_trial.to_json()
    assert table["slope_se"] is table["chi2_per_degree"] is table["steps"][0]["se"] is None
    two_places = fit(ARMS[:2], Curve(OF_ARMS.mean[:2], OF_ARMS.se[:2]))
    assert two_places is not None
    assert not two_places.fits  # a line through two places is always there
    assert two_places.to_json()["chi2_per_degree"] is None
    assert two_places.degrees == 0


def test_another_curve_has_the_slope_of_the_same_weights():
    found = fit(ARMS, OF_ARMS)
    assert found is not None
    assert slope_of(ARMS, OF_ARMS, np.log(OF_ARMS.mean)) == pytest.approx(found.slope)
    assert slope_of(ARMS, OF_ARMS, np.log(ARMS**0.5)) == pytest.approx(0.5)


def test_a_logarithm_needs_two_standard_errors_above_zero():
    x, se = np.asarray([1.0, 2, 3]), np.full(3, 0.125)
    assert fit(x, Curve(np.asarray([1.0, 0.25, 1]), se)) is not None
    assert fit(x, Curve(np.asarray([1.0, 0.2499, 1]), se)) is None
    assert fit(x, Curve(np.asarray([1.0, 0.0, 1]), 0 * se)) is None


@pytest.mark.parametrize(("chance", "fits"), [(0.0101, True), (0.0099, False)])
@pytest.mark.parametrize("correlated", [False, True])
def test_a_line_fits_where_chi_squared_has_a_chance_of_one_in_a_hundred(chance, fits, correlated):
    """Of three places with equal errors s, the middle one off by d: chi-squared is 2/3 (d/s)^2."""
    places = 3 if correlated else 1
    off = 0.01 * np.sqrt(1.5 * places * chdtri(1, chance))
    mean = np.exp(np.asarray([0, off, 0]))
    found = fit(np.exp(np.arange(3.0)), Curve(mean, 0.01 * mean), correlated=correlated)
    assert found is not None
    assert found.degrees == 1
    assert found.chi2_per_degree == pytest.approx(places * chdtri(1, chance))
    assert found.fits == fits


def test_one_unknown_error_leaves_all_weights_alike():
    mean, se = OF_ARMS.mean, OF_ARMS.se.copy()
    se[2] = 0.0
    found, plain = fit(ARMS, Curve(mean, se)), fit(ARMS, Curve(mean, 0 * se))
    assert found is not None
    assert plain is not None
    assert found.slope == plain.slope == pytest.approx(np.polyfit(np.log(ARMS), np.log(mean), 1)[0])
    assert not found.fits
    assert plain.slope_se == 0
