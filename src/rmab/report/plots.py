"""Drawings: the results of a study, and the figures of the report.

`study` and `paper` make a matplotlib `Figure`. What all drawings share:

    lines     a policy looks the same wherever it is drawn, see rmab.report.style
    bands     95 %: 1.96 standard errors to each side
    episodes  those that at least half of the trials played to the end and went on from
    slots     averaged over bins; slots of one trial are correlated, so the error of a bin's mean is
              taken as the mean of its slots' errors, which it cannot exceed
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rmab.report.canvas import (
    bin_edges,
    binned,
    capital,
    draw_legend,
    draw_line,
    kept_episodes,
    lines_of,
    log_ticks,
    log_y,
    panels_of,
    signed_log_y,
)
from rmab.report.regret_plots import scaling_figure
from rmab.report.style import STYLE, Look, looks_of, spare
from rmab.studies.figure import Drawn
from rmab.studies.results import Curve, PolicyResult, Results

__all__ = ["paper", "study"]

LARGE = 10.0  # a regret above it gets a logarithmic axis, linear from -1 to 1
Y_LABELS = {"reward": "Average reward", "regret": "Regret per slot", "error": "MSE"}


@dataclass(frozen=True)
class Part:
    """One study of a figure over slots, with the exact values to draw beside it."""

    title: str
    results: Results
    exact: Mapping[str, float | None] = field(default_factory=dict)


@rc_context(STYLE)
def study(results: Results) -> Figure:
    """Average reward against slots, and the regret against Whittle, of all policies."""
    return _slots([Part("", results)])


@rc_context(STYLE)
def paper(drawn: Drawn) -> Figure:
    """A figure of the report, with what there is of it when it was interrupted."""
    return KINDS[drawn.figure.x, drawn.figure.y](drawn)


def _rewards(drawn: Drawn) -> Figure:
    variants = drawn.figure.variants
    exact = [*drawn.values, *({} for _ in variants)]
    return _slots(
        [Part(v.label, r, x) for v, r, x in zip(variants, drawn.results, exact, strict=False)]
    )


def _slots(parts: Sequence[Part]) -> Figure:
    """Rewards above, cumulative regrets below, a column for each part."""
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
        if max(float(np.abs(regret).max()) for regret in regrets) > LARGE:
            signed_log_y(*panels[1])
        panels[1, 0].set_ylabel("Regret so far against WI policy")
    draw_legend(figure, panels)
    return figure


def _reward_panel(axes: Axes, part: Part, edges: npt.NDArray[np.int64]) -> None:
    for place, (look, result) in enumerate(lines_of(part.results)):
        x, curve = binned(result.slots, edges)
        draw_line(axes, look, x, curve, place)
    for name, text, dash in (
        ("optimum", "Exact optimum", "-"),
        ("upper_bound", "Lagrangian bound", (0, (8, 3))),
    ):
        level = part.exact.get(name)
        if level is not None:
            axes.axhline(level, color="#555555", linewidth=0.9, linestyle=dash, label=text)


def _regret_panel(axes: Axes, part: Part, edges: npt.NDArray[np.int64]) -> None:
    ends = edges[1:] - 1
    for place, (look, result) in enumerate(lines_of(part.results)):
        draw_line(
            axes, look, edges[1:], Curve(result.regret.mean[ends], result.regret.se[ends]), place
        )


def _episodes(drawn: Drawn) -> Figure:
    """One policy: a line for each variant. Several: a panel each; if two, regrets below."""
    columns = (
        _lines_of_variants(drawn) if len(drawn.results[0]) == 1 else _panels_of_policies(drawn)
    )
    keys = ["reward", "regret"] if len(columns) > 1 else [drawn.figure.y]
    figure, panels = panels_of(len(keys), len(columns), share_y="row")
    for row, key in zip(panels, keys, strict=True):
        for axes, (_, lines) in zip(row, columns, strict=True):
            for place, line in enumerate(lines):
                kept = kept_episodes(line.result.episode_trials, line.trials)
                curve: Curve = getattr(line.result, f"episode_{key}")
                draw_line(axes, line.look, kept + 1, Curve(curve.mean[kept], curve.se[kept]), place)
        if key == "regret":
            log_y(*row)
        row[0].set_ylabel(Y_LABELS[key])
    for column, (title, _) in zip(panels.T, columns, strict=True):
        column[0].set_title(capital(title))
        column[-1].set_xlabel("Episodes")
    draw_legend(figure, panels)
    return figure


class Line(NamedTuple):
    """A policy's results over the episodes, and of how many trials they are."""

    look: Look
    result: PolicyResult
    trials: int


def _lines_of_variants(drawn: Drawn) -> list[tuple[str, list[Line]]]:
    lines = []
    for place, (variant, results) in enumerate(
        zip(drawn.figure.variants, drawn.results, strict=False)
    ):
        ((look, result),) = lines_of(results)
        look = spare(variant.label, place) if variant.label else look
        lines.append(Line(look, result, results.trials))
    return [("", lines)]


def _panels_of_policies(drawn: Drawn) -> list[tuple[str, list[Line]]]:
    """What a variant leaves out is drawn from the first."""
    first = drawn.results[0]
    looks = looks_of({name: None for results in drawn.results for name in results})
    columns = []
    for variant, results in zip(drawn.figure.variants, drawn.results, strict=False):
        sources = {**dict.fromkeys(first, first), **dict.fromkeys(results, results)}
        lines = [Line(looks[name], each[name], each.trials) for name, each in sources.items()]
        columns.append((variant.label, lines))
    return columns


def _errors(drawn: Drawn) -> Figure:
    """Squared error of the dynamics: a line for each arm."""
    figure, panels = panels_of(1, 1)
    axes = panels[0, 0]
    results = drawn.results[0]
    (result,) = results.values()
    assert result.episode_error is not None
    kept = kept_episodes(result.episode_trials, results.trials)
    for arm in range(len(results.study.arms)):
        curve = Curve(result.episode_error.mean[kept, arm], result.episode_error.se[kept, arm])
        draw_line(axes, spare(f"Arm {arm + 1}", arm), kept + 1, curve, arm)
    log_y(axes)
    axes.set_xlabel("Episodes")
    axes.set_ylabel(Y_LABELS["error"])
    draw_legend(figure, panels)
    return figure


def _values(drawn: Drawn) -> Figure:
    """Both value functions over the belief, the threshold between them: a panel for each arm."""
    arms = drawn.figure.variants[0].study.arms
    belief = drawn.series["belief"]
    figure, panels = panels_of(1, len(arms))
    for arm, axes in enumerate(panels[0]):
        axes.plot(
            belief,
            drawn.series[f"passive {arm}"],
            "--",
            color="#0072b2",
            label="Leave alone, V(b; 0)",
        )
        axes.plot(
            belief, drawn.series[f"active {arm}"], "-", color="#d55e00", label="Play, V(b; 1)"
        )
        crossing, above = drawn.series[f"threshold {arm}"]
        axes.axvline(crossing, color="#555555", linewidth=0.9)
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


def _theory(drawn: Drawn) -> Figure:
    """Episodes beside Lemma 1, regret beside Theorem 1; before these are known, what was run."""
    if not drawn.series:
        return _rewards(drawn)
    figure, panels = panels_of(1, 2)
    episodes, regret = panels[0]
    slot = drawn.series["slot"]
    ((look, result),) = lines_of(drawn.results[0])
    bound = {"color": "#000000", "linestyle": "--", "label": "Bound"}
    episodes.step(slot, drawn.series["episodes"], where="post", color=look.colour, label=look.label)
    episodes.plot(slot, drawn.series["episode bound"], **bound)
    episodes.set_title("Lemma 1")
    episodes.set_ylabel("Episodes so far")
    edges = bin_edges(len(slot), logarithmic=True)
    ends = edges[1:] - 1
    draw_line(
        regret,
        replace(look, marker=""),
        edges[1:],
        Curve(result.regret.mean[ends], result.regret.se[ends]),
    )
    regret.plot(slot[ends], drawn.series["regret bound"][ends], **bound)
    (span,) = drawn.series["span"]
    regret.set_title(f"Theorem 1, D = {span:.3f}")
    regret.set_ylabel("Regret so far")
    log_y(regret)
    for axes in panels[0]:
        axes.set_xlabel("Slots")
    draw_legend(figure, panels)
    return figure


KINDS: dict[tuple[str, str], Callable[[Drawn], Figure]] = {
    ("episode", "reward"): _episodes,
    ("episode", "regret"): _episodes,
    ("episode", "error"): _errors,
    ("slot", "reward"): _rewards,
    ("slot", "theory"): _theory,
    ("belief", "value"): _values,
    ("slot", "regret"): scaling_figure,
    ("agents", "regret"): scaling_figure,
    ("arms", "regret"): scaling_figure,
}
