"""Growth of the regret with the horizon, the agents and the arms, with and without gaps.

FedTSWI learns from observations in consecutive slots, FedTSWI-gap from every two successive
observations of an arm. Both face the same realisations, and under the `linear` schedule both have
the same episodes, so they differ only in the observations that they use. The schedule does not
depend on the horizon, so one run gives the regret at every T up to its own.

R is the regret of eq. (23), per agent and against Whittle with known dynamics. Whittle is not
optimal and draws may be lucky, so R need not grow and may be negative. With w the mean reward of
Whittle and p, q those of the policies over T slots, R_p = T (w - p), and

    share = R_q / R_p,  var(share) = (var R_q - 2 share cov(R_p, R_q) + share^2 var R_p) / R_p^2,

the variances from the covariance of the three means, which are paired trial by trial. Along the
slots of one run only variances are known; there the errors of R_p and R_q are added, which bounds
the error whatever the correlation. Regret that is saved is paired in the same way.

Power laws are fitted to R where it is clearly positive (rmab.experiments.powers). Theorem 1 has the
regret grow as sqrt(T log T), as 1 / sqrt(M), and as N where N / K is kept. A claim about such a
rate is judged by the fitted power. Where no power fits, it does not hold, and the slope of the last
step, the nearest to larger T, M or N, may contradict it. Where the regret is not clearly positive,
its end is compared with the growth of its start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.experiments.estimates import with_known_error
from rmab.experiments.figure import FigureResult
from rmab.experiments.powers import PowerLaw, Step, fit, slope_of
from rmab.experiments.verdict import Claim, Effect, Estimate, Verdict
from rmab.studies.results import Curve, Floats, Results

__all__ = [
    "GAP",
    "KNOWN",
    "MAX_NAMED_PLACES",
    "PLAIN",
    "GrowthRate",
    "Scaling",
    "judge",
    "scalings",
    "share",
]

PLAIN, GAP, KNOWN = "fedtswi", "fedtswi-gap", "whittle"
MAX_NAMED_PLACES = 8  # of more places only powers of ten are named
_NAMES = {PLAIN: "FedTSWI", GAP: "FedTSWI-gap"}
_DRAWN_DECADES = 4  # decades of slots before the end that are drawn
_JUDGED_DECADES = 3  # decades of slots before the end that claims are about
_FIT_CUTS = (3, 2, 0)  # decades before the end that bound the windows of fits
_POINTS_PER_DECADE = 10


class GrowthRate(NamedTuple):
    """Growth of the regret by Theorem 1 with the quantity on the x axis."""

    symbol: str
    formula: str
    claim: str  # the end of "The regret of NAME ..."
    values: Callable[[Floats], Floats]  # up to a factor


_RATES = {
    "slot": GrowthRate(
        "T",
        "√(T log T)",
        "grows no faster than √(T log T)",
        lambda T: np.sqrt(T * np.log(2 * T)),
    ),
    "agents": GrowthRate("M", "1/√M", "falls as fast as 1/√M", lambda M: 1 / np.sqrt(M)),
    "arms": GrowthRate("N", "N", "grows no faster than N", lambda N: N),
}


@dataclass(frozen=True, eq=False)
class Scaling:
    """Regrets of both policies against one quantity, at P places."""

    label: str  # empty where the figure has one scaling
    rate: GrowthRate
    at: Floats  # (P,) slots, agents or arms
    regret: Mapping[str, Curve]  # (P,) by policy
    share: Curve  # (P,) GAP's regret as a share of PLAIN's
    results: Sequence[Results]  # one for each place, or one for all
    windows: Sequence[tuple[float, float]]  # ranges of `at` in which power laws are fitted

    def fits(self, name: str) -> list[PowerLaw]:
        """Power laws fitted to a policy's regret, one for each window where it is positive."""
        fitted = (self.fitted(self.regret[name], window) for window in self.windows)
        return [law for law in fitted if law is not None]

    def fitted(self, curve: Curve, window: tuple[float, float]) -> PowerLaw | None:
        """Power law fitted to a curve, (P,), in a window."""
        inside = self.inside(window)
        part = Curve(curve.mean[inside], curve.se[inside])
        return fit(self.at[inside], part, correlated=self.is_one_run)

    def inside(self, window: tuple[float, float]) -> npt.NDArray[np.bool_]:
        """Mask of the places in a window, (P,)."""
        return (self.at >= window[0]) & (self.at <= window[1])

    @property
    def is_one_run(self) -> bool:
        """Whether all places are slots of one run, so that their errors are correlated."""
        return len(self.results) < len(self.at)

    @property
    def trials(self) -> int:
        """Trials, the fewest of any place."""
        return min(results.trials for results in self.results)


def scalings(done: FigureResult) -> list[Scaling]:
    """Scalings of a figure: one for each K, or for each variant over the slots."""
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
    return [_along_studies(label, _RATES[x], group) for label, group in groups.items()]


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
    rate = _RATES["slot"]
    return Scaling(label, rate, at.astype(float), regret, Curve(ratio, error), [results], windows)


def _along_studies(label: str, rate: GrowthRate, group: Mapping[int, Results]) -> Scaling:
    each = list(group.values())
    regret = {}
    for name in _NAMES:
        ends = [result[name].regret for result in each]
        regret[name] = _curve([(end.mean[-1], end.se[-1]) for end in ends])
    at = np.asarray(list(group), np.float64)
    shares = _curve([share(results) for results in each])
    return Scaling(label, rate, at, regret, shares, each, [(at.min(), at.max())])


def _curve(pairs: Sequence[tuple[float, float]]) -> Curve:
    mean, se = np.asarray(pairs, np.float64).T
    return Curve(mean, se)


def share(results: Results) -> tuple[float, float]:
    """Regret of GAP over the horizon as a share of PLAIN's, and its standard error; paired."""
    names = list(results)
    places = [names.index(name) for name in (KNOWN, PLAIN, GAP)]
    covariance = results.covariance[np.ix_(places, places)]
    known, plain, gap = (results[name].mean for name in (KNOWN, PLAIN, GAP))
    if known == plain:
        return np.nan, np.nan
    ratio = (known - gap) / (known - plain)
    slope = np.asarray([1 - ratio, ratio, -1.0]) / (
        known - plain
    )  # derivatives of the ratio by the means
    return ratio, float(np.sqrt(np.maximum(slope @ covariance @ slope, 0)))


# ------------------------------------------------------------------------------------------- claims


def judge(done: FigureResult) -> list[Claim]:
    """Judge the claims of a figure, and add its curves and fits to it."""
    claims = []
    for scaling in scalings(done):
        done.series[scaling.rate.symbol] = scaling.at
        _add_curves(done, scaling)
        where = f" ({scaling.label})" if scaling.label else ""
        claims.append(_lower(scaling, where))
        claims += [_growth(scaling, name, where) for name in _NAMES]
        if done.figure.x == "slot":
            claims.append(_lasting(scaling, where))
            claims += [_learnt(scaling, name, where) for name in _NAMES]
        else:
            claims.append(_shrinking(scaling, where))
    return claims


def _add_curves(done: FigureResult, scaling: Scaling) -> None:
    after = f", {scaling.label}" if scaling.label else ""
    curves = {f"regret of {name}": curve for name, curve in scaling.regret.items()}
    for name, curve in {**curves, f"share of {GAP}": scaling.share}.items():
        done.series[f"{name}{after}"] = curve.mean
        done.series[f"{name}{after}, se"] = curve.se
    for name in _NAMES:
        for found in scaling.fits(name):
            between = f"{scaling.rate.symbol} = {found.start:,.0f} to {found.end:,.0f}"
            done.fits[f"{name}{after}, {between}"] = found


def _lower(scaling: Scaling, where: str) -> Claim:
    """Claim that the regret is lower at every place that is judged."""
    symbol, at, share = scaling.rate.symbol, scaling.at, scaling.share
    saved = [_saved(scaling, i) for i in range(len(at))]
    clear = np.asarray([effect.verdict() == Verdict.HELD for effect in saved])
    judged = at >= (at[-1] / 10**_JUDGED_DECADES if symbol == "T" else at[0])
    shares = ", ".join(
        f"{with_known_error(share.mean[i], share.se[i], '.3f')} at {symbol} = {at[i]:,.0f}"
        for i in _named_places(at)
    )
    doubt = ""
    if not clear.all():
        listed = at[~clear]
        doubt = (
            f" Not clearly lower at {len(listed)} of the {len(at)} {symbol} drawn from "
            f"{at[0]:,.0f} on, between {listed.min():,.0f} and {listed.max():,.0f}."
        )
    return Claim(
        f"Learning from observations at any gap lowers the regret at every {symbol} from "
        f"{at[judged][0]:,.0f} to {at[-1]:,.0f}{where}.",
        f"{_NAMES[GAP]}'s regret as a share of {_NAMES[PLAIN]}'s: {shares}; "
        f"{_episodes(scaling.results)}.{doubt}",
        [effect for effect, counts in zip(saved, judged, strict=True) if counts],
    )


def _saved(scaling: Scaling, place: int) -> Effect:
    """Regret per agent that observations at any gap save.

    Studies are paired trial by trial. Along a run errors are added, as the correlation is unknown.
    """
    at = f"regret saved at {scaling.rate.symbol} = {scaling.at[place]:,.0f}"
    if scaling.is_one_run:
        plain, gap = (
            Estimate(float(curve.mean[place]), float(curve.se[place]))
            for curve in (scaling.regret[PLAIN], scaling.regret[GAP])
        )
        saved = plain.less(gap)
    else:
        results = scaling.results[place]
        saved = Estimate(*results.difference(GAP, PLAIN)).times(results.study.horizon)
    return Effect(at, *saved, trials=scaling.trials)


def _episodes(results: Sequence[Results]) -> str:
    """Write the number of episodes, which should be equal for both learners."""
    counts = sorted({each[name].episodes for each in results for name in _NAMES})
    return f"{counts[0]:.0f} episodes each" if len(counts) == 1 else "episodes differ"


def _growth(scaling: Scaling, name: str, where: str) -> Claim:
    """Claim that the regret grows as in Theorem 1, in the last window."""
    rate, at, regret = scaling.rate, scaling.at, scaling.regret[name]
    window = scaling.windows[-1]
    found = scaling.fitted(regret, window)
    start = int(np.searchsorted(at, window[0]))
    values = [with_known_error(regret.mean[i], regret.se[i], ".2f") for i in (start, -1)]
    measured = (
        f"{values[0]} per agent at {rate.symbol} = {at[start]:,.0f}, {values[1]} at {at[-1]:,.0f}"
    )
    if rate.symbol == "M":
        measured += f" (of all agents {regret.mean[start]:.0f}, {at[-1] * regret.mean[-1]:.0f})"
    powers = [_power(rate.symbol, each) for each in scaling.fits(name)]
    if found is None:
        effect = _grown(scaling, name, start)
        powers.append(f"{'then ' if powers else ''}no power to fit, as it is not clearly positive")
    else:
        inside = scaling.inside(window)
        promised = slope_of(
            at[inside],
            Curve(regret.mean[inside], regret.se[inside]),
            np.log(rate.values(at[inside])),
        )
        powers.append(f"{rate.formula} as {rate.symbol}^{promised:.3f}")
        effect = _power_effect(rate, found, promised, scaling.trials)
    return Claim(
        f"The regret of {_NAMES[name]} {rate.claim}, the rate of Theorem 1{where}.",
        f"{measured}; {'; '.join(powers)}.",
        [effect],
        fits=found is None or found.fits,
    )


def _power_effect(rate: GrowthRate, found: PowerLaw, promised: float, trials: int) -> Effect:
    """Compare the fitted power, or the last step's where no power fits, with Theorem 1's."""
    if found.fits:
        return Effect("the power", found.slope, found.slope_se, promised, "below", None, trials)
    step = found.steps[-1]
    between = f"the power from {rate.symbol} = {step.start:,.0f} to {step.end:,.0f}"
    return Effect(between, step.slope, step.se, _promised(rate, step), "below", None, trials)


def _power(symbol: str, found: PowerLaw) -> str:
    """Describe a fitted power and how well it fits."""
    bound = "" if np.isnan(found.slope_se) else f" ± {found.slope_se:.3f}"
    text = f"as {symbol}^{found.slope:.3f}{bound} from {symbol} = {found.start:,.0f} to "
    text += f"{found.end:,.0f}"
    if np.isnan(found.chi2_per_degree):
        return text
    text += f" (chi-squared {found.chi2_per_degree:.1f} per degree of freedom"
    if not found.fits:
        text += ": no power fits"
    if len(found.steps) < MAX_NAMED_PLACES:
        text += f"; from point to point {', '.join(f'{step.slope:.2f}' for step in found.steps)}"
    else:
        slopes = [step.slope for step in found.steps]
        text += f"; from point to point {min(slopes):.2f} to {max(slopes):.2f}"
    return f"{text})"


def _promised(rate: GrowthRate, step: Step) -> float:
    """Power of Theorem 1 between two places."""
    start, end = np.log(rate.values(np.asarray([step.start, step.end])))
    return float((end - start) / np.log(step.end / step.start))


def _grown(scaling: Scaling, name: str, start: int) -> Effect:
    """Regret at the end less the regret that growth from a start would give."""
    rate, at, regret = scaling.rate, scaling.at, scaling.regret[name]
    growth = float(rate.values(at[-1:])[0] / rate.values(at[start : start + 1])[0])
    first, last = (Estimate(float(regret.mean[i]), float(regret.se[i])) for i in (start, -1))
    more = last.less(first.times(growth))
    return Effect("regret more than its start grows to", *more, 0.0, "below", None, scaling.trials)


def _lasting(scaling: Scaling, where: str) -> Claim:
    """Claim that the gain is still there at the end of the longest horizon."""
    (results,) = scaling.results
    plain, gap, known = (results[name] for name in (PLAIN, GAP, KNOWN))
    late = Estimate(gap.final, gap.final_se).less(Estimate(plain.final, plain.final_se))
    return Claim(
        f"The gain lasts: {_NAMES[GAP]} still earns more in the last tenth of the slots{where}.",
        f"{with_known_error(*late, '+.5f')} per slot; FedTSWI earns {plain.final:.5f}, "
        f"FedTSWI-gap {gap.final:.5f}, Whittle with known dynamics {known.final:.5f}.",
        [Effect("more in the last tenth", *late, trials=results.trials)],
    )


def _shrinking(scaling: Scaling, where: str) -> Claim:
    """Claim that the share of the regret that is left is smaller at the far end.

    The amount would say nothing: less is saved where less is left to save. Both ends are
    independent studies.
    """
    symbol, at, share = scaling.rate.symbol, scaling.at, scaling.share
    unit = "play" if symbol == "N" else "agent"
    parts = []
    for i in (0, -1):
        results = scaling.results[i]
        study = results.study
        scale = study.horizon / (study.plays if unit == "play" else 1)
        saved = Estimate(*results.difference(GAP, PLAIN)).times(scale)
        parts.append(
            f"{with_known_error(share.mean[i], share.se[i], '.3f')} at {symbol} = {at[i]:,.0f} "
            f"({with_known_error(*saved, '.2f')} saved per {unit})"
        )
    first, last = (Estimate(float(share.mean[i]), float(share.se[i])) for i in (0, -1))
    more = last.apart(first)
    return Claim(
        f"The gain lasts: {_NAMES[GAP]}'s share of {_NAMES[PLAIN]}'s regret is smaller at "
        f"{symbol} = {at[-1]:,.0f} than at {at[0]:,.0f}{where}.",
        f"{', '.join(parts)}.",
        [Effect("the last share less the first", *more, 0.0, "below", None, scaling.trials)],
    )


def _learnt(scaling: Scaling, name: str, where: str) -> Claim:
    """Note the error of each arm's dynamics in the second and the last quarter of the episodes."""
    curve = scaling.results[-1][name].by_episode("error")
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
    )


def _named_places(at: Floats) -> list[int]:
    """Places that a sentence names: all of a few, and of many the powers of ten."""
    if len(at) <= MAX_NAMED_PLACES:
        return list(range(len(at)))
    powers = np.log10(at)
    return [i for i, x in enumerate(powers) if abs(x - round(x)) < 1e-9]
