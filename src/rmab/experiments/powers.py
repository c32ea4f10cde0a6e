"""Power laws fitted to curves, with a test of the fit.

The law log R = a + s log x is fitted to the means R_i of P places by least squares on logarithms,
with the weights w_i = (R_i / e_i)^2, the inverse variances of log R_i. So the slope s is sum of c_i
log R_i with c_i = w_i (log x_i - m) / sum of w_j (log x_j - m)^2, m the weighted mean of log x.

    chi-squared = sum of w_i (log R_i - a - s log x_i)^2,   P - 2 degrees of freedom

is near its degrees where a line fits. Beside it stand the slopes from point to point,
log(R_i+1 / R_i) / log(x_i+1 / x_i).

Places may be independent studies. Then the variance of s is sum of (c_i e_i / R_i)^2, and chi-
squared has its law. Or they are slots of one run and correlated in a manner that is not known. Then
the error of s is given as sum of |c_i| e_i / R_i, its largest value, and chi-squared is largest, in
its tail, where all places vary together: as P times the square of one normal number.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.special import chdtrc

from rmab.studies.results import Curve, Floats, without_nan

__all__ = ["PowerLaw", "Step", "fit", "slope_of"]

_MIN_LOG_SIGMA = 2.0  # least standard errors above zero of a value whose logarithm is taken
_MIN_CHANCE = 0.01  # least probability of as large a chi-squared where a line fits


@dataclass(frozen=True)
class Step:
    """Slope from one place to the next, with its standard error."""

    start: float
    end: float
    slope: float
    se: float


@dataclass(frozen=True)
class PowerLaw:
    """Power law factor x^slope, fitted to a curve."""

    factor: float
    slope: float
    slope_se: float  # an upper bound where places are correlated
    start: float  # smallest x of the fit
    end: float  # largest x of the fit
    chi2_per_degree: float  # NaN without a degree of freedom or with an unknown error
    degrees: int
    fits: bool  # chi-squared is not too large to be chance
    steps: tuple[Step, ...]  # from point to point

    def at(self, x: Floats) -> Floats:
        """Evaluate the law at x; the result has the shape of x."""
        return self.factor * x**self.slope

    def to_json(self) -> dict[str, Any]:
        """Numbers of the law; an unknown one (the error of a single trial) is null."""
        table = {**asdict(self), "steps": [without_nan(asdict(step)) for step in self.steps]}
        return without_nan(table)


def fit(x: Floats, curve: Curve, *, correlated: bool = False) -> PowerLaw | None:
    """Fit a power law to a curve, (P,), on logarithms.

    None for fewer than two places, or if the curve is not clearly positive at every place. Where
    errors are not known, of a single trial, all places have one weight. correlated: the places are
    slots of one run.

    >>> x = np.asarray([1.0, 10.0, 100.0])
    >>> found = fit(x, Curve(3 * x**0.5, 0.1 * x**0.5))
    >>> round(found.factor, 6), round(found.slope, 6), round(found.slope_se, 6), found.fits
    (3.0, 0.5, 0.010236, True)
    """
    if len(x) < 2 or np.any((curve.mean <= 0) | (curve.mean < _MIN_LOG_SIGMA * curve.se)):
        return None
    at, logarithms, errors = np.log(x), np.log(curve.mean), curve.se / curve.mean
    slope = float(slope_of(x, curve, logarithms))
    parts = np.abs(_coefficients(at, _weights(errors))) * errors
    middle, height = (np.average(each, weights=_weights(errors)) for each in (at, logarithms))
    factor = float(np.exp(height - slope * middle))
    apart = logarithms - height - slope * (at - middle)
    degrees = len(x) - 2
    known = degrees > 0 and bool(np.all(errors > 0))
    chi2 = float(np.sum((apart / errors) ** 2)) if known else math.nan
    return PowerLaw(
        factor=factor,
        slope=slope,
        slope_se=float(parts.sum() if correlated else np.hypot.reduce(parts)),
        start=float(x[0]),
        end=float(x[-1]),
        chi2_per_degree=chi2 / degrees if known else math.nan,
        degrees=degrees,
        fits=known and _chance(chi2, degrees, len(x) if correlated else None) >= _MIN_CHANCE,
        steps=_steps(x, curve, correlated),
    )


def slope_of(x: Floats, curve: Curve, logarithms: Floats) -> float:
    """Slope of other logarithms, (P,), fitted with the weights of a curve."""
    return float(_coefficients(np.log(x), _weights(curve.se / curve.mean)) @ logarithms)


def _weights(errors: Floats) -> Floats:
    return 1 / errors**2 if np.all(errors > 0) else np.ones(len(errors))


def _coefficients(at: Floats, weights: Floats) -> Floats:
    """Coefficients of the logarithms in the slope, (P,)."""
    centred = at - np.average(at, weights=weights)
    return np.asarray(weights * centred / (weights @ centred**2))


def _chance(chi2: float, degrees: int, together: int | None) -> float:
    """Probability of as large a chi-squared; together: places that may all vary as one."""
    return float(chdtrc(degrees, chi2) if together is None else chdtrc(1, chi2 / together))


def _steps(x: Floats, curve: Curve, correlated: bool) -> tuple[Step, ...]:
    logs, errors = np.log(curve.mean), curve.se / curve.mean
    steps = []
    for i, j in pairwise(range(len(x))):
        width = float(np.log(x[j] / x[i]))
        error = errors[i] + errors[j] if correlated else np.hypot(errors[i], errors[j])
        slope = float(logs[j] - logs[i]) / width
        steps.append(Step(float(x[i]), float(x[j]), slope, float(error) / width))
    return tuple(steps)
