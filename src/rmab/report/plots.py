"""Drawing of a study: rewards and regrets of its policies over the slots.

All drawings share these rules:

    lines     a policy has one style in every drawing, see rmab.report.style
    bands     95 %: 1.96 standard errors to each side
    episodes  up to the last that at least half of the trials completed
    slots     averaged over bins; slots of one trial are correlated, so the error of a bin's mean is
              taken as the mean of its slots' errors, which it cannot exceed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
    lines_of,
    log_ticks,
    panels_of,
    signed_log_y,
)
from rmab.report.style import STYLE
from rmab.studies.results import Curve, Results

__all__ = ["GREY", "StudyColumn", "slots", "study"]

_MAX_LINEAR_REGRET = 10.0  # larger regrets get a logarithmic axis, linear from -1 to 1
GREY = "#555555"


@dataclass(frozen=True)
class StudyColumn:
    """Study of a figure over slots, with its exact values."""

    title: str
    results: Results
    exact: Mapping[str, float | None] = field(default_factory=dict)


@rc_context(STYLE)
def study(results: Results) -> Figure:
    """Draw average reward and regret against Whittle over the slots, of all policies."""
    return slots([StudyColumn("", results)])


def slots(parts: Sequence[StudyColumn]) -> Figure:
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


def _reward_panel(axes: Axes, part: StudyColumn, edges: npt.NDArray[np.int64]) -> None:
    for place, (style, result) in enumerate(lines_of(part.results)):
        x, curve = binned(result.slots, edges)
        draw_line(axes, style, x, curve, place)
    for name, text, dash in (
        ("optimum", "Exact optimum", "-"),
        ("upper_bound", "Lagrangian bound", (0, (8, 3))),
    ):
        level = part.exact.get(name)
        if level is not None:
            axes.axhline(level, color=GREY, linewidth=0.9, linestyle=dash, label=text)


def _regret_panel(axes: Axes, part: StudyColumn, edges: npt.NDArray[np.int64]) -> None:
    ends = edges[1:] - 1
    for place, (style, result) in enumerate(lines_of(part.results)):
        draw_line(
            axes, style, edges[1:], Curve(result.regret.mean[ends], result.regret.se[ends]), place
        )
