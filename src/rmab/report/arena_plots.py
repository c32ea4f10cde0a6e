"""The arena's drawing: regret over the slots, small multiples, a panel for each problem."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rmab.arena.scores import ArenaOutcome, ProblemOutcome
from rmab.report.canvas import draw_legend, draw_line
from rmab.report.style import STYLE, LineStyle, line_styles
from rmab.studies.results import Curve

__all__ = ["highlighted", "regrets"]

_COLUMNS = 3
_PANEL = (3.8, 2.5)  # inches
_FIRST = "fedtswi"  # always among those with colours
_COLOURS = 7  # policies at most that have one
_GREY = "#c4c7cd"


def highlighted(outcome: ArenaOutcome) -> list[str]:
    """The policies that are drawn in colour: FedTSWI, then those that were first most often."""

    def merit(name: str) -> tuple[int, float]:
        places = outcome.of(name).values()
        shares = [each.share for each in places if each.share is not None]
        return len(outcome.places(name)), median(shares) if shares else 0.0

    learners = [n for n in outcome.policies if any(not s.knows for s in outcome.of(n).values())]
    order = sorted(learners, key=merit, reverse=True)
    first = [name for name in order if name == _FIRST]
    return [*first, *(name for name in order if name != _FIRST)][:_COLOURS]


@rc_context(STYLE)
def regrets(outcome: ArenaOutcome) -> Figure:
    """Against `whittle` with known dynamics; all learners, some in colour."""
    problems = outcome.problems
    columns = min(_COLUMNS, len(problems))
    rows = -(-len(problems) // columns)
    size = (max(5.8, _PANEL[0] * columns), 1.0 + _PANEL[1] * rows)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    chosen = highlighted(outcome)
    drawn = line_styles(chosen)
    labels = outcome.policies
    styles = {n: LineStyle(labels[n], s.colour, s.dash, s.marker) for n, s in drawn.items()}
    for place, axes in enumerate(grid.flat):
        if place >= len(problems):
            axes.set_visible(False)
            continue
        _panel(axes, problems[place], chosen, styles)
        if place % columns == 0:
            axes.set_ylabel("Regret")
        if place + columns >= len(problems):
            axes.set_xlabel("Slot")
    draw_legend(figure, grid)
    return figure


def _panel(
    axes: Axes, problem: ProblemOutcome, chosen: Sequence[str], styles: dict[str, LineStyle]
) -> None:
    axes.set_title(problem.name)
    ends = []
    for name, standing in problem.standings.items():
        if standing.knows:
            continue
        slots, regret, se = (np.asarray(standing.curve[key]) for key in ("slot", "regret", "se"))
        if name in chosen:
            draw_line(axes, styles[name], slots, Curve(regret, se), chosen.index(name))
            ends.append(regret)
        else:
            axes.plot(slots, regret, color=_GREY, linewidth=0.9, zorder=1)
    if ends:  # those without colour may leave the panel: they are far behind
        low, high = min(x.min() for x in ends), max(x.max() for x in ends)
        room = 0.08 * max(high - low, 1e-9)
        axes.set_ylim(low - room, high + room)
    axes.set_xlim(left=0)
