"""Drawings: the results of a study, and the figures of the report.

`study` and `paper` make a matplotlib `Figure`. All drawings share these rules:

    lines     a policy has one style in every drawing, see rmab.report.style
    bands     95 %: 1.96 standard errors to each side
    episodes  those after which at least half of the trials began another
    slots     averaged over bins; slots of one trial are correlated, so the error of a bin's mean is
              taken as the mean of its slots' errors, which it cannot exceed

Regret against the horizon, the agents or the arms has two rows. Above, the regret per agent on
logarithmic axes, where a power law is a straight line: each policy with its band, the law fitted to
it, and a curve that grows as the bound of Theorem 1 does. Below, the regret of learning from
observations at any gap as a share of the paper's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator

from rmab.experiments.figure import FigureResult
from rmab.experiments.powers import PowerLaw
from rmab.experiments.privacy import claims as privacy
from rmab.experiments.privacy_arms.claims import gains
from rmab.experiments.regret_growth import (
    GAP,
    KNOWN,
    MAX_NAMED_PLACES,
    PLAIN,
    GrowthRate,
    Scaling,
    scalings,
)
from rmab.report.canvas import (
    bin_edges,
    binned,
    capital,
    draw_bars,
    draw_legend,
    draw_line,
    lines_of,
    log_ticks,
    log_y,
    panels_of,
    signed_log_y,
)
from rmab.report.style import STYLE, LineStyle, label, line_styles, spare_style
from rmab.studies.results import Curve, Floats, PolicyResult, Results

__all__ = ["paper", "study"]

_MAX_LINEAR_REGRET = 10.0  # larger regrets get a logarithmic axis, linear from -1 to 1
_X_LABELS = {"slot": "Slots T", "agents": "Agents M", "arms": "Arms N"}
_Y_LABELS = {"reward": "Average reward", "regret": "Regret per slot", "error": "MSE"}
_GREY = "#555555"


@dataclass(frozen=True)
class _Column:
    """Study of a figure over slots, with its exact values."""

    title: str
    results: Results
    exact: Mapping[str, float | None] = field(default_factory=dict)


@rc_context(STYLE)
def study(results: Results) -> Figure:
    """Draw average reward and regret against Whittle over the slots, of all policies."""
    return _slots([_Column("", results)])


@rc_context(STYLE)
def paper(done: FigureResult) -> Figure:
    """Draw a figure of the report, as far as it was run."""
    return _KINDS[done.figure.x, done.figure.y](done)


def _rewards(done: FigureResult) -> Figure:
    variants = done.figure.variants
    exact = [*done.values, *({} for _ in variants)]
    return _slots(
        [_Column(v.label, r, x) for v, r, x in zip(variants, done.results, exact, strict=False)]
    )


def _slots(parts: Sequence[_Column]) -> Figure:
    """Draw rewards above and cumulative regrets below, a column for each study."""
    regrets = [r.regret.mean for part in parts for r in part.results.values()]
    rows = 2 if any(regret.any() for regret in regrets) else 1
    figure, panels = panels_of(rows, len(parts))
    for column, part in zip(panels.T, parts, strict=True):
        learning = any(len(r.episode_trials) > 1 for r in part.results.values())
        edges = bin_edges(part.results.study.horizon, learning)
        column[0].set_title(capital(part.title))
        _reward_panel(column[0], part, edges)
        if rows == 2:
            _regret_panel(column[1], part, edges)
        if learning:
            for axes in column:
                axes.set_xscale("log")
                log_ticks(axes.xaxis)
        column[-1].set_xlabel("Slots")
    panels[0, 0].set_ylabel("Average reward")
    if rows == 2:
        if max(float(np.abs(regret).max()) for regret in regrets) > _MAX_LINEAR_REGRET:
            signed_log_y(*panels[1])
        panels[1, 0].set_ylabel("Regret so far against WI policy")
    draw_legend(figure, panels)
    return figure


def _reward_panel(axes: Axes, part: _Column, edges: npt.NDArray[np.int64]) -> None:
    for place, (style, result) in enumerate(lines_of(part.results)):
        x, curve = binned(result.slots, edges)
        draw_line(axes, style, x, curve, place)
    for name, text, dash in (
        ("optimum", "Exact optimum", "-"),
        ("upper_bound", "Lagrangian bound", (0, (8, 3))),
    ):
        level = part.exact.get(name)
        if level is not None:
            axes.axhline(level, color=_GREY, linewidth=0.9, linestyle=dash, label=text)


def _regret_panel(axes: Axes, part: _Column, edges: npt.NDArray[np.int64]) -> None:
    ends = edges[1:] - 1
    for place, (style, result) in enumerate(lines_of(part.results)):
        draw_line(
            axes, style, edges[1:], Curve(result.regret.mean[ends], result.regret.se[ends]), place
        )


def _episodes(done: FigureResult) -> Figure:
    """Draw a line for each variant of one policy, or a panel for each of several."""
    columns = _lines_of_variants(done) if len(done.results[0]) == 1 else _panels_of_policies(done)
    keys: list[Literal["reward", "regret"]] = ["reward", "regret"]
    if len(columns) == 1:
        keys = ["regret" if done.figure.y == "regret" else "reward"]
    figure, panels = panels_of(len(keys), len(columns), share_y="row")
    for row, key in zip(panels, keys, strict=True):
        for axes, (_, lines) in zip(row, columns, strict=True):
            for place, (style, result) in enumerate(lines):
                curve = result.by_episode(key)
                draw_line(axes, style, np.arange(1, len(curve.mean) + 1), curve, place)
        if key == "regret":
            log_y(*row)
        row[0].set_ylabel(_Y_LABELS[key])
    for column, (title, _) in zip(panels.T, columns, strict=True):
        column[0].set_title(capital(title))
        column[-1].set_xlabel("Episodes")
    draw_legend(figure, panels)
    return figure


_Lines = list[tuple[LineStyle, PolicyResult]]


def _lines_of_variants(done: FigureResult) -> list[tuple[str, _Lines]]:
    lines = []
    for place, (variant, results) in enumerate(
        zip(done.figure.variants, done.results, strict=False)
    ):
        ((style, result),) = lines_of(results)
        style = spare_style(variant.label, place) if variant.label else style
        lines.append((style, result))
    return [("", lines)]


def _panels_of_policies(done: FigureResult) -> list[tuple[str, _Lines]]:
    return [
        (variant.label, lines_of(results))
        for variant, results in zip(done.figure.variants, done.results, strict=False)
    ]


def _errors(done: FigureResult) -> Figure:
    """Draw the squared error of the dynamics, a line for each arm."""
    figure, panels = panels_of(1, 1)
    axes = panels[0, 0]
    (result,) = done.results[0].values()
    curve = result.by_episode("error")
    for arm, (mean, se) in enumerate(zip(curve.mean.T, curve.se.T, strict=True)):
        place = np.arange(1, len(mean) + 1)
        draw_line(axes, spare_style(f"Arm {arm + 1}", arm), place, Curve(mean, se), arm)
    log_y(axes)
    axes.set_xlabel("Episodes")
    axes.set_ylabel(_Y_LABELS["error"])
    draw_legend(figure, panels)
    return figure


def _values(done: FigureResult) -> Figure:
    """Draw both value functions and their threshold over the belief, a panel for each arm."""
    arms = done.figure.variants[0].study.arms
    belief = done.series["belief"]
    figure, panels = panels_of(1, len(arms))
    for arm, axes in enumerate(panels[0]):
        axes.plot(
            belief,
            done.series[f"passive {arm}"],
            "--",
            color="#0072b2",
            label="Leave alone, V(b; 0)",
        )
        axes.plot(belief, done.series[f"active {arm}"], "-", color="#d55e00", label="Play, V(b; 1)")
        crossing, above = done.series[f"threshold {arm}"]
        axes.axvline(crossing, color=_GREY, linewidth=0.9)
        sides = ((0.0, crossing, not above), (crossing, 1.0, bool(above)))
        for left, right, played in sides:
            if right > left:
                _region(axes, left, right, "play" if played else "leave alone", played)
        axes.set_title(f"p01 = {arms.p01[arm]:g}, p11 = {arms.p11[arm]:g}: b* = {crossing:.3f}")
        axes.set_xlim(0, 1)
        axes.margins(y=0.15)
        axes.set_xlabel("Belief b")
    panels[0, 0].set_ylabel("Relative value")
    draw_legend(figure, panels)
    return figure


def _region(axes: Axes, left: float, right: float, text: str, shaded: bool) -> None:
    if shaded:
        axes.axvspan(left, right, color="#d55e00", alpha=0.08, linewidth=0)
    axes.text(
        (left + right) / 2,
        0.03,
        text,
        transform=axes.get_xaxis_transform(),
        ha="center",
        va="bottom",
        style="italic",
    )


def _theory(done: FigureResult) -> Figure:
    """Draw episodes beside Lemma 1 and regret beside Theorem 1; without bounds, rewards."""
    if not done.series:
        return _rewards(done)
    figure, panels = panels_of(1, 2)
    episodes, regret = panels[0]
    slot = done.series["slot"]
    ((style, result),) = lines_of(done.results[0])
    bound = {"color": "#000000", "linestyle": "--", "label": "Bound"}
    episodes.step(
        slot, done.series["episodes"], where="post", color=style.colour, label=style.label
    )
    episodes.plot(slot, done.series["episode bound"], **bound)
    episodes.set_title("Lemma 1")
    episodes.set_ylabel("Episodes so far")
    edges = bin_edges(len(slot), logarithmic=True)
    ends = edges[1:] - 1
    draw_line(
        regret,
        replace(style, marker=""),
        edges[1:],
        Curve(result.regret.mean[ends], result.regret.se[ends]),
    )
    regret.plot(slot[ends], done.series["regret bound"][ends], **bound)
    (span,) = done.series["span"]
    regret.set_title(f"Theorem 1, D = {span:.3f}")
    regret.set_ylabel("Regret so far")
    log_y(regret)
    for axes in panels[0]:
        axes.set_xlabel("Slots")
    draw_legend(figure, panels)
    return figure


def _scaling(done: FigureResult) -> Figure:
    """Draw regrets above and shares below, with a column for each K that was run."""
    columns = scalings(done)
    figure, panels = panels_of(2, len(columns), share_y="row")
    for (above, below), scaling in zip(panels.T, columns, strict=True):
        above.set_title(scaling.label)
        above.set_xscale("log")
        _regrets(above, scaling)
        _shares(below, scaling)
        below.set_xlabel(_X_LABELS[done.figure.x])
    curves = [curve.mean for scaling in columns for curve in scaling.regret.values()]
    if all((curve > 0).all() for curve in curves):
        log_y(*panels[0])
    else:
        signed_log_y(*panels[0])
    for (_, below), scaling in zip(panels.T, columns, strict=True):
        _x_ticks(below, scaling.at)
    panels[0, 0].set_ylabel("Regret per agent")
    panels[1, 0].set_ylabel(f"Share of {label(PLAIN)}'s regret")
    draw_legend(figure, panels)
    return figure


def _regrets(axes: Axes, scaling: Scaling) -> None:
    """Draw curves and fitted laws; Theorem 1's growth begins where the last law of PLAIN does."""
    rate, styles = scaling.rate, line_styles(scaling.regret)
    for place, (name, curve) in enumerate(scaling.regret.items()):
        draw_line(axes, styles[name], scaling.at, curve, place)
    for place, name in enumerate(scaling.regret):
        fits = scaling.fits(name)
        for law in fits:
            ends = np.asarray([law.start, law.end])
            axes.plot(ends, law.at(ends), color=styles[name].colour, linestyle="--", linewidth=0.9)
        _slopes(axes, styles[name], rate, fits, place)
    for last in scaling.fits(PLAIN)[-1:]:
        start = np.asarray([last.start])
        at = scaling.at[scaling.at >= start]
        growth = last.at(start) * rate.values(at) / rate.values(start)
        axes.plot(at, growth, color=_GREY, linestyle=":", label=f"As {rate.formula} (Theorem 1)")


def _slopes(
    axes: Axes, style: LineStyle, rate: GrowthRate, fits: Sequence[PowerLaw], place: int
) -> None:
    """Write the fitted laws into a free corner: below falling curves, above others."""
    if not fits:
        return
    powers = ", ".join(
        f"{rate.symbol}^{law.slope:.2f}{'' if law.fits else ' (no fit)'}" for law in fits
    )
    falls = rate.values(np.asarray([2.0]))[0] < rate.values(np.asarray([1.0]))[0]
    axes.text(
        0.03,
        (0.16 if falls else 0.97) - 0.08 * place,
        f"{style.label}: {powers}".replace("^-", "^\N{MINUS SIGN}"),
        transform=axes.transAxes,
        va="top",
        color=style.colour,
    )


def _shares(axes: Axes, scaling: Scaling) -> None:
    styles = line_styles([PLAIN, GAP, KNOWN])
    draw_line(axes, styles[GAP], scaling.at, scaling.share, 1)
    axes.axhline(1, color=styles[PLAIN].colour, linewidth=0.9)
    axes.axhline(0, color=styles[KNOWN].colour, linewidth=0.9, linestyle="--")


def _x_ticks(axes: Axes, at: Floats) -> None:
    """Set ticks at the places if they are few, else at powers of ten."""
    log_ticks(axes.xaxis)
    axes.xaxis.set_major_locator(
        FixedLocator(list(at)) if len(at) <= MAX_NAMED_PLACES else LogLocator()
    )


def _losses(done: FigureResult) -> Figure:
    """Draw loss against epsilon, a line for each M: the learner, and beside it the baseline."""
    named = [name for name in (privacy.LEARNER, privacy.BASELINE) if privacy.curves(done, name)]
    figure, panels = panels_of(1, len(named))
    for axes, name in zip(panels[0], named, strict=True):
        curves, learner = privacy.curves(done, name), name == privacy.LEARNER
        for place, (agents, (at, curve)) in enumerate(curves.items()):
            style = spare_style(f"M = {agents}", place)
            draw_bars(axes, style, np.asarray(at), curve, joined=True)
            level = privacy.levels(done).get(f"M = {agents}, no noise")
            if learner and level is not None:
                axes.axhline(level[0], color=style.colour, linewidth=1.1, linestyle=":")
        alone = privacy.levels(done).get("alone")
        if learner and alone is not None:
            axes.axhline(alone[0], color=_GREY, linewidth=0.9, label="Alone")
        axes.set_title(label(name))
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        _x_ticks(axes, np.asarray(at))
        axes.set_xlabel("epsilon")
    panels[0, 0].set_ylabel("Loss per slot against WI policy")
    draw_legend(figure, panels)
    return figure


def _gains(done: FigureResult) -> Figure:
    """Draw gains over isolated agents, from the least to the most."""
    figure, panels = panels_of(1, 1)
    (axes,) = panels.flat
    gain = gains(done)
    order = gain.mean.argsort()
    style = line_styles([privacy.LEARNER])[privacy.LEARNER]
    places = np.arange(1, len(order) + 1)
    draw_bars(axes, style, places, Curve(gain.mean[order], gain.se[order]), joined=False)
    axes.axhline(0, color=_GREY, linewidth=0.9, label="Alone")
    axes.set_xlabel("Draws of channels, by gain")
    axes.set_ylabel("Gain per slot over learning alone")
    draw_legend(figure, panels)
    return figure


_KINDS: dict[tuple[str, str], Callable[[FigureResult], Figure]] = {
    ("episode", "reward"): _episodes,
    ("episode", "regret"): _episodes,
    ("episode", "error"): _errors,
    ("slot", "reward"): _rewards,
    ("slot", "theory"): _theory,
    ("belief", "value"): _values,
    ("slot", "regret"): _scaling,
    ("agents", "regret"): _scaling,
    ("arms", "regret"): _scaling,
    ("epsilon", "loss"): _losses,
    ("draw", "gain"): _gains,
}
