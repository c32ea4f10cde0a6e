"""Regret against the horizon, the agents and the arms, and what observations at any gap save.

FedTSWI learns from observations in consecutive slots, FedTSWI-gap from every two successive
observations of an arm. Both face the same realisations, and under the `linear` schedule both have
the same episodes, so they differ only in what they learn from. The schedule does not depend on the
horizon, so one run gives the regret at every T up to its own.

R is the regret of eq. (23), per agent and against Whittle with known dynamics. Whittle is not
optimal and draws may be lucky, so R need not grow and may be negative. With w the mean reward of
Whittle and p, q those of the policies over T slots, R_p = T (w - p), and

    share = R_q / R_p,  var(share) = (var R_q - 2 share cov(R_p, R_q) + share^2 var R_p) / R_p^2,

the variances from the covariance of the three means, which are paired trial by trial. Along the
slots of one run only variances are known; there the errors of R_p and R_q are added, which bounds
the error whatever the correlation.

A power law x^slope is fitted to R by least squares on logarithms: slope = sum of c_i log R_i, where
all R_i are clearly positive. The R_i of one run are correlated, so its error is given as sum of
|c_i| se(R_i) / R_i, an upper bound. Theorem 1 has the regret grow as sqrt(T log T), as 1 / sqrt(M),
and as N where N / K is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rmab.studies.figures import MIN_SIGMA, Claim, FigureResult, Fit, Judge
from rmab.studies.results import Curve, Floats, Results

__all__ = [
    "GAP",
    "JUDGES",
    "KNOWN",
    "MAX_NAMED_PLACES",
    "PLAIN",
    "Law",
    "Scaling",
    "fit",
    "scalings",
    "share",
]

PLAIN, GAP, KNOWN = "fedtswi", "fedtswi-gap", "whittle"
MAX_NAMED_PLACES = 8  # more are named at powers of ten alone
_NAMES = {PLAIN: "FedTSWI", GAP: "FedTSWI-gap"}
_DRAWN_DECADES = 4  # of slots, the last ones
_JUDGED_DECADES = 3  # the last of these, which claims are about
_FIT_CUTS = (3, 2, 0)  # decades before the end between which laws are fitted
_POINTS_PER_DECADE = 10
_MIN_LOG_SIGMA = 2  # standard errors above zero, for a logarithm


class Law(NamedTuple):
    """What the regret is drawn against, and how Theorem 1 has it grow."""

    symbol: str
    growth: str
    claim: str  # of the regret
    of: Callable[[Floats], Floats]  # up to a factor


_LAWS = {
    "slot": Law(
        "T",
        "√(T log T)",
        "grows no faster than √(T log T)",
        lambda T: np.sqrt(T * np.log(2 * T)),
    ),
    "agents": Law("M", "1/√M", "falls as fast as 1/√M", lambda M: 1 / np.sqrt(M)),
    "arms": Law("N", "N", "grows no faster than N", lambda N: N),
}


@dataclass(frozen=True, eq=False)
class Scaling:
    """Regrets of both policies against one quantity, P places."""

    label: str  # empty where the figure has but one
    law: Law
    at: Floats  # (P,) slots, agents or arms
    regret: Mapping[str, Curve]  # (P,) by policy
    share: Curve  # (P,) GAP's regret as a share of PLAIN's
    results: Sequence[Results]  # one for each place, or one for all
    windows: Sequence[tuple[float, float]]  # the places between which laws are fitted

    def fits(self, name: str) -> list[Fit]:
        """The laws fitted to a policy's regret, of the windows where it is clearly positive."""
        found = (self.fitted(self.regret[name], window) for window in self.windows)
        return [each for each in found if each is not None]

    def fitted(self, curve: Curve, window: tuple[float, float]) -> Fit | None:
        """The law of a curve, (P,), in a window."""
        inside = (self.at >= window[0]) & (self.at <= window[1])
        return fit(self.at[inside], Curve(curve.mean[inside], curve.se[inside]))


def scalings(done: FigureResult) -> list[Scaling]:
    """What there is to draw: one for each K of a figure, or for each variant over the slots."""
    x = done.figure.x
    runs = list(zip(done.figure.variants, done.results, strict=False))
    if x == "slot":
        return [_along_slots(variant.label, results) for variant, results in runs]
    groups: dict[str, dict[int, Results]] = {}
    for variant, results in runs:
        study = variant.study
        # Along the arms K grows with N: all of them are one curve.
        label, size = (
            (f"K = {study.plays}", study.agents) if x == "agents" else ("", len(study.arms))
        )
        groups.setdefault(label, {})[size] = results
    return [_along_studies(label, _LAWS[x], group) for label, group in groups.items()]


def _along_slots(label: str, results: Results) -> Scaling:
    T = results.study.horizon
    first = max(1, T // 10**_DRAWN_DECADES)
    count = round(_POINTS_PER_DECADE * np.log10(T / first)) + 1
    at = np.unique(np.round(np.geomspace(first, T, count)).astype(np.int64))
    regret = {}
    for name in _NAMES:
        curve = results[name].regret
        regret[name] = Curve(curve.mean[at - 1], curve.se[at - 1])
    plain, gap = regret[PLAIN], regret[GAP]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = gap.mean / plain.mean
        error = (gap.se + np.abs(ratio) * plain.se) / np.abs(plain.mean)
    cuts = [T / 10**decades for decades in _FIT_CUTS]
    windows = list(pairwise(cuts))
    law = _LAWS["slot"]
    return Scaling(label, law, at.astype(float), regret, Curve(ratio, error), [results], windows)


def _along_studies(label: str, law: Law, group: Mapping[int, Results]) -> Scaling:
    each = list(group.values())
    regret = {}
    for name in _NAMES:
        ends = [result[name].regret for result in each]
        regret[name] = _curve([(end.mean[-1], end.se[-1]) for end in ends])
    at = np.asarray(list(group), np.float64)
    shares = _curve([share(results) for results in each])
    return Scaling(label, law, at, regret, shares, each, [(at.min(), at.max())])


def _curve(pairs: Sequence[tuple[float, float]]) -> Curve:
    mean, se = np.asarray(pairs, np.float64).T
    return Curve(mean, se)


def share(results: Results) -> tuple[float, float]:
    """GAP's regret over the horizon as a share of PLAIN's, and its standard error; paired."""
    names = list(results)
    places = [names.index(name) for name in (KNOWN, PLAIN, GAP)]
    covariance = results.covariance[np.ix_(places, places)]
    known, plain, gap = (results[name].mean for name in (KNOWN, PLAIN, GAP))
    if known == plain:
        return np.nan, np.nan
    ratio = (known - gap) / (known - plain)
    slope = np.asarray([1 - ratio, ratio, -1.0]) / (known - plain)  # of the ratio, by each mean
    return ratio, float(np.sqrt(np.maximum(slope @ covariance @ slope, 0)))


def fit(x: Floats, curve: Curve) -> Fit | None:
    """The power law nearest to the curve, (P,), on logarithms.

    None where it has fewer than two places or is not clearly positive at all of them.

    >>> x = np.asarray([1.0, 10.0, 100.0])
    >>> found = fit(x, Curve(3 * x**0.5, 0.1 * x**0.5))
    >>> round(found.factor, 6), round(found.slope, 6), round(found.slope_se, 6)
    (3.0, 0.5, 0.014476)
    """
    if len(x) < 2 or np.any((curve.mean <= 0) | (curve.mean < _MIN_LOG_SIGMA * curve.se)):
        return None
    at, logarithms = np.log(x), np.log(curve.mean)
    centred = at - at.mean()
    weights = centred / (centred @ centred)
    slope = float(weights @ logarithms)
    factor = float(np.exp(logarithms.mean() - slope * at.mean()))
    error = float(np.abs(weights) @ (curve.se / curve.mean))
    return Fit(factor, slope, error, float(x[0]), float(x[-1]))


# ------------------------------------------------------------------------------------------- claims


def _judge(done: FigureResult) -> list[Claim]:
    """The claims of a figure, after its curves and fits were kept."""
    claims = []
    for scaling in scalings(done):
        done.series[scaling.law.symbol] = scaling.at
        _keep(done, scaling)
        where = f" ({scaling.label})" if scaling.label else ""
        claims.append(_lower(scaling, where))
        claims += [_growth(scaling, name, where) for name in _NAMES]
        if done.figure.x == "slot":
            claims.append(_lasting(scaling, where))
            claims += [_learnt(scaling, name, where) for name in _NAMES]
        else:
            claims.append(_shrinking(scaling, where))
    return claims


def _keep(done: FigureResult, scaling: Scaling) -> None:
    after = f", {scaling.label}" if scaling.label else ""
    curves = {f"regret of {name}": curve for name, curve in scaling.regret.items()}
    for name, curve in {**curves, f"share of {GAP}": scaling.share}.items():
        done.series[f"{name}{after}"] = curve.mean
        done.series[f"{name}{after}, se"] = curve.se
    for name in _NAMES:
        for found in scaling.fits(name):
            between = f"{scaling.law.symbol} = {found.start:,.0f} to {found.end:,.0f}"
            done.fits[f"{name}{after}, {between}"] = found


def _lower(scaling: Scaling, where: str) -> Claim:
    """Errors are added, as the two are of the same trials: whatever their correlation."""
    symbol, at = scaling.law.symbol, scaling.at
    plain, gap = (scaling.regret[name] for name in (PLAIN, GAP))
    margin, error = plain.mean - gap.mean, MIN_SIGMA * (plain.se + gap.se)
    lower, higher = margin > error, -margin > error
    judged = at >= (at[-1] / 10**_JUDGED_DECADES if symbol == "T" else at[0])
    shares = ", ".join(
        f"{_estimate(scaling.share.mean[i], scaling.share.se[i], '.3f')} at {symbol} = {at[i]:,.0f}"
        for i in _named_places(at)
    )
    doubt = ""
    if not lower.all():
        listed = at[~lower]
        doubt = (
            f" Not lower by four standard errors at {len(listed)} of the {len(at)} {symbol} drawn "
            f"from {at[0]:,.0f} on, between {listed.min():,.0f} and {listed.max():,.0f}."
        )
    return Claim(
        f"Learning from observations at any gap lowers the regret at every {symbol} from "
        f"{at[judged][0]:,.0f} to {at[-1]:,.0f}{where}.",
        f"{_NAMES[GAP]}'s regret as a share of {_NAMES[PLAIN]}'s: {shares}; "
        f"{_episodes(scaling.results)}.{doubt}",
        False if higher[judged].any() else bool(lower[judged].all()) or None,
    )


def _estimate(mean: float, se: float, form: str) -> str:
    """A mean and its error, if it has one: a single trial has none."""
    return f"{mean:{form}}" if np.isnan(se) else f"{mean:{form}} ± {se:{form.strip('+')}}"


def _episodes(results: Sequence[Results]) -> str:
    """How often each drew, which should be the same."""
    counts = sorted({each[name].episodes for each in results for name in _NAMES})
    return f"{counts[0]:.0f} episodes each" if len(counts) == 1 else "episodes differ"


def _growth(scaling: Scaling, name: str, where: str) -> Claim:
    """Beside Theorem 1, in the last window: by the fitted power, or where there is none by how the
    regret at its end compares with what its start would have grown to."""
    law, at, regret = scaling.law, scaling.at, scaling.regret[name]
    window = scaling.windows[-1]
    found, bound = scaling.fitted(regret, window), scaling.fitted(_promised(scaling), window)
    start = int(np.searchsorted(at, window[0]))
    values = [_estimate(regret.mean[i], regret.se[i], ".2f") for i in (start, -1)]
    measured = (
        f"{values[0]} per agent at {law.symbol} = {at[start]:,.0f}, {values[1]} at {at[-1]:,.0f}"
    )
    if law.symbol == "M":
        measured += f" (of all agents {regret.mean[start]:.0f}, {at[-1] * regret.mean[-1]:.0f})"
    powers = ", ".join(
        f"as {law.symbol}^{each.slope:.3f}"
        + ("" if np.isnan(each.slope_se) else f" with an error of at most {each.slope_se:.3f}")
        + f" from {law.symbol} = {each.start:,.0f} to {each.end:,.0f}"
        for each in scaling.fits(name)
    )
    held = None
    if found is not None and bound is not None:
        held = _held(bound.slope - found.slope, MIN_SIGMA * found.slope_se)
        powers += f"; {law.growth} as {law.symbol}^{bound.slope:.3f}"
    elif bound is not None:
        growth = float(law.of(at[-1:])[0] / law.of(at[start : start + 1])[0])
        error = MIN_SIGMA * float(growth * regret.se[start] + regret.se[-1])
        held = _held(growth * regret.mean[start] - regret.mean[-1], error)
        powers += f"{'; then' if powers else ''} no power to fit, as it is not clearly positive"
    return Claim(
        f"The regret of {_NAMES[name]} {law.claim}, the rate of Theorem 1{where}.",
        f"{measured}; {powers}.",
        held,
    )


def _promised(scaling: Scaling) -> Curve:
    return Curve(scaling.law.of(scaling.at), np.zeros(len(scaling.at)))


def _lasting(scaling: Scaling, where: str) -> Claim:
    """Whether the gain is still there at the end of the longest horizon."""
    (results,) = scaling.results
    plain, gap, known = (results[name] for name in (PLAIN, GAP, KNOWN))
    late, late_se = gap.final - plain.final, float(np.hypot(gap.final_se, plain.final_se))
    return Claim(
        f"The gain lasts: {_NAMES[GAP]} still earns more in the last tenth of the slots{where}.",
        f"{_estimate(late, late_se, '+.5f')} per slot; FedTSWI earns {plain.final:.5f}, "
        f"FedTSWI-gap {gap.final:.5f}, Whittle with known dynamics {known.final:.5f}.",
        _held(late, MIN_SIGMA * late_se),
    )


def _shrinking(scaling: Scaling, where: str) -> Claim:
    """Regret saved per agent at both ends, for each play where K varies; trials are paired."""
    law, ends = scaling.law, (0, -1)
    unit = "play" if law.symbol == "N" else "agent"
    saved, parts = [], []
    for i in ends:
        results = scaling.results[i]
        study = results.study
        scale = study.horizon / (study.plays if unit == "play" else 1)
        gain, gain_se = results.difference(GAP, PLAIN)
        saved.append((scale * gain, scale * gain_se))
        of = 100 * gain / results[KNOWN].mean
        parts.append(
            f"{_estimate(*saved[-1], '.2f')} ({of:.2f} % of Whittle's reward) at "
            f"{law.symbol} = {scaling.at[i]:,.0f}"
        )
    (few, few_se), (many, many_se) = saved
    return Claim(
        f"The gain lasts: no less regret is saved per {unit} as {law.symbol} grows{where}.",
        f"saved {', '.join(parts)}.",
        _held(many - few, MIN_SIGMA * float(np.hypot(few_se, many_se))),
    )


def _learnt(scaling: Scaling, name: str, where: str) -> Claim:
    """The error of each arm's dynamics, in the second and in the last quarter of the episodes."""
    curve = scaling.results[-1][name].episode_error
    assert curve is not None
    L = len(curve.mean)
    second, last = slice(L // 4, L // 2 + 1), slice(3 * L // 4, L)
    before, after = curve.mean[second].mean(0), curve.mean[last].mean(0)  # (N,)
    arms = ", ".join(
        f"arm {n}: {x:.2g} to {y:.2g}"
        for n, (x, y) in enumerate(zip(before, after, strict=True), start=1)
    )
    return Claim(
        f"What {_NAMES[name]} goes on learning of each arm{where}.",
        f"mean squared error of the dynamics drawn, second to last quarter of the {L} episodes: "
        f"{arms}. An arm that is never worth playing need not be learnt.",
        None,
    )


def _held(margin: float, error: float) -> bool | None:
    """Whether the margin is positive; None where it is within the error, or the error unknown."""
    return bool(margin > 0) if abs(margin) > error else None


def _named_places(at: Floats) -> list[int]:
    """The places that a sentence names: all of a few, of many those at powers of ten."""
    if len(at) <= MAX_NAMED_PLACES:
        return list(range(len(at)))
    powers = np.log10(at)
    return [i for i, x in enumerate(powers) if abs(x - round(x)) < 1e-9]


JUDGES: Mapping[str, Judge] = dict.fromkeys(
    ("regret-horizon", "regret-agents", "regret-arms"), _judge
)
