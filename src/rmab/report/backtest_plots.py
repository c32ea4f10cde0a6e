"""Drawings of a back-test: differences to `stay`, rewards over time and by agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from rmab.report.canvas import draw_legend, draw_line, panels_of
from rmab.report.style import STYLE, line_styles
from rmab.studies.results import Curve
from rmab.traces.outcome import Backtest

__all__ = ["PICTURES", "draw"]

_BINS = 50  # along the slots
_NAMED_AGENTS = 20  # up to which each has its own place


@rc_context(STYLE)
def draw(key: str, found: Backtest) -> Figure:
    """One of PICTURES."""
    return PICTURES[key](found)


def _differences(found: Backtest) -> Figure:
    """A row for each policy, with its interval."""
    names = [name for name in found.earned if name != "stay"] or list(found.earned)
    styles = line_styles(names)
    figure = Figure(figsize=(7.2, 1.0 + 0.36 * len(names)), layout="constrained")
    axes = figure.subplots()
    for row, name in enumerate(names):
        apart = found.over(name, "stay")
        low, high, middle = apart.low, apart.high, apart.difference
        axes.errorbar(
            [middle],
            [row],
            xerr=None if low is None or high is None else [[middle - low], [high - middle]],
            fillstyle="none" if apart.undecided else "full",
            color=styles[name].colour,
            marker=styles[name].marker or "o",
            capsize=3,
        )
    axes.axvline(0, color="#555555", linewidth=0.9)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("Average reward over that of stay")
    return figure


def _over_time(found: Backtest) -> Figure:
    """Average rewards in bins of slots."""
    figure, panels = panels_of(1, 1)
    axes = panels[0, 0]
    figure.set_figwidth(9.0)
    styles = line_styles(found.earned)
    for place, name in enumerate(found.earned):
        x, mean, se = found.over_time(name, _BINS)
        draw_line(axes, styles[name], x, Curve(mean, se), place)
    axes.set_xlabel("Slots")
    axes.set_ylabel("Average reward")
    draw_legend(figure, panels)
    return figure


def _by_agent(found: Backtest) -> Figure:
    """Average rewards of agents, each policy's in rising order where they are many."""
    figure, panels = panels_of(1, 1)
    axes = panels[0, 0]
    figure.set_figwidth(9.0)
    styles = line_styles(found.earned)
    names = found.trace.agents
    few = len(names) <= _NAMED_AGENTS
    place = np.arange(len(names))
    for name in found.earned:
        style, rewards = styles[name], found.by_agent(name)
        axes.plot(
            place,
            rewards if few else np.sort(rewards),
            color=style.colour,
            marker=(style.marker or "o") if few else "",
            linestyle="none" if few else style.dash,
            label=style.label,
        )
    if few:
        axes.set_xticks(place, names, rotation=30)
    else:
        axes.set_xlabel("Agents, from the one that earned least")
    axes.set_ylabel("Average reward")
    draw_legend(figure, panels)
    return figure


PICTURES: Mapping[str, Callable[[Backtest], Figure]] = {
    "differences": _differences,
    "time": _over_time,
    "agents": _by_agent,
}
