"""Drawing of a sweep: small multiples, rewards and regrets against one of the settings.

One setting is the x axis: the number with the most values, or where no number is swept the word
with the most. The settings that then still tell points apart make the panels, each with the average
reward above and the regret over the horizon below, a line for each policy. Bars are 95 %.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from rmab.report import plots
from rmab.report.canvas import draw_bars, draw_legend, log_ticks, log_y, panels_of
from rmab.report.style import STYLE, line_styles
from rmab.studies.results import Curve, Floats, PolicyResult, Results, SweepResults
from rmab.studies.sweep import Point, key_label, settings_label, telling, value_text
from rmab.text import is_number

__all__ = ["left_out", "sweep"]

_MAX_PANELS = 12
_MAX_COLUMNS = 3
_MAX_TICKS = 8  # most values of a number with a tick for each
_LONG_RANGE = 8.0  # least ratio of positive settings with a logarithmic axis
_WIDE_RANGE = 20.0  # least ratio of positive regrets with a logarithmic axis
_TITLE_WIDTH = 38  # characters
_LAST_CHOICES = ("trials", "seed")  # for the x axis: they change only chance
_DODGE = 0.5  # width over which policies are spread at a word, in distances of words


class _Panel(NamedTuple):
    title: str
    places: list[int]  # numbers of its points


class _Layout(NamedTuple):
    x: str  # the key along the x axis
    x_label: str
    panels: list[_Panel]
    columns: int


def _layout(points: Sequence[Point]) -> _Layout:
    settings = [point.settings for point in points]
    counts = {key: len({repr(each[key]) for each in settings}) for key in settings[0]}

    def rank(key: str) -> tuple[bool, bool, bool, int]:
        numbers = all(is_number(each[key]) for each in settings)
        return counts[key] > 1, key not in _LAST_CHOICES, numbers, counts[key]

    x = max(counts, key=rank)
    keys = telling(settings, [x])
    panels: dict[str, _Panel] = {}
    for place, each in enumerate(settings):
        title = settings_label({key: each[key] for key in keys})
        panels.setdefault(title, _Panel(title, [])).places.append(place)
    beside = [key_label(key) for key in counts if counts[key] > 1 and key not in (x, *keys)]
    x_label = key_label(x) + (f" (with it: {', '.join(beside)})" if beside else "")
    # The last key changes fastest: its values stand side by side where they fit.
    values = counts[keys[-1]] if keys else 1
    fit = values <= _MAX_COLUMNS and len(panels) % values == 0
    return _Layout(x, x_label, list(panels.values()), values if fit else _MAX_COLUMNS)


def left_out(points: Sequence[Point]) -> int:
    """Number of panels beyond the largest number that is drawn."""
    return max(0, len(_layout(points).panels) - _MAX_PANELS)


@rc_context(STYLE)
def sweep(results: SweepResults) -> Figure:
    """Draw a sweep, with the points that were run."""
    done = list(results.values())
    if len(done) == 1:
        return plots.study(done[0])
    points = results.sweep.points
    x, x_label, every_panel, columns = _layout(points)
    drawn = [
        _Panel(title, kept)
        for title, places in every_panel[:_MAX_PANELS]
        if (kept := [place for place in places if place < len(done)])
    ]
    axis = _axis([point.settings[x] for point in points])
    # Without the policy that regret is measured against.
    apart = [name for name in done[0] if any(each[name].regret.mean[-1] for each in done)]
    quantities = [_Quantity("Average reward", list(done[0]), lambda r: (r.mean, r.se))]
    if apart:
        quantities.append(_Quantity("Regret against WI policy", apart, _regret))
    rows, columns = len(quantities), min(columns, len(drawn))
    figure, grid = panels_of(rows * -(-len(drawn) // columns), columns)
    for axes in grid.flat:
        axes.set_visible(False)
    for place, panel in enumerate(drawn):
        band, column = divmod(place, columns)
        stack = grid[rows * band : rows * (band + 1), column]
        stack[0].set_title(textwrap.fill(panel.title, _TITLE_WIDTH))
        for axes, quantity in zip(stack, quantities, strict=True):
            axes.set_visible(True)
            axis.mark(axes)
            _lines(axes, axis, panel.places, done, quantity)
            if column == 0:
                axes.set_ylabel(quantity.label)
        stack[-1].set_xlabel(textwrap.fill(x_label, _TITLE_WIDTH))
        stack[-1].tick_params(labelbottom=True)  # below it there may be no panel
    if apart:
        _scale(grid[1::2].ravel())
    draw_legend(figure, grid)
    return figure


class _Quantity(NamedTuple):
    """Quantity of a row of panels, with its policies."""

    label: str
    policies: Sequence[str]
    of: Callable[[PolicyResult], tuple[float, float]]  # mean and standard error


def _regret(result: PolicyResult) -> tuple[float, float]:
    return result.regret.mean[-1], result.regret.se[-1]


class _Axis(NamedTuple):
    """Positions of points along x, with words there, or none for numbers."""

    at: Floats
    words: list[str]

    def mark(self, axes: Axes) -> None:
        """Set scale and ticks."""
        places = np.unique(self.at)
        if self.words:
            axes.set_xticks(range(len(self.words)), self.words)
            axes.set_xlim(-0.5, len(self.words) - 0.5)
            return
        if places[0] > 0 and places[-1] / places[0] >= _LONG_RANGE:
            axes.set_xscale("log")
            axes.set_xlim(places[0] / 1.1, places[-1] * 1.1)
            log_ticks(axes.xaxis)
        if len(places) <= _MAX_TICKS:
            axes.xaxis.set_major_locator(FixedLocator(list(places)))
            axes.xaxis.set_minor_locator(NullLocator())


def _axis(values: Sequence[Any]) -> _Axis:
    if all(map(is_number, values)):
        return _Axis(np.asarray(values, np.float64), [])
    texts = [value_text(value) for value in values]
    words = list(dict.fromkeys(texts))
    return _Axis(np.asarray([words.index(text) for text in texts], np.float64), words)


def _lines(
    axes: Axes, axis: _Axis, places: Sequence[int], done: Sequence[Results], quantity: _Quantity
) -> None:
    """Draw a line for each policy; at a word they stand beside one another."""
    order = sorted(places, key=lambda place: axis.at[place])
    styles = line_styles(done[0])
    for number, (name, style) in enumerate(styles.items()):
        if name in quantity.policies:
            mean, se = np.asarray([quantity.of(done[place][name]) for place in order]).T
            shift = _DODGE * ((number + 0.5) / len(styles) - 0.5) if axis.words else 0.0
            draw_bars(axes, style, axis.at[order] + shift, Curve(mean, se), joined=not axis.words)


def _scale(row: Iterable[Axes]) -> None:
    """Make axes logarithmic for positive regrets of very different sizes."""
    panels = [axes for axes in row if axes.get_visible()]
    drawn = np.concatenate(
        [np.asarray(x.get_ydata(), float) for a in panels for x in a.get_lines()]
    )
    if drawn.min() > 0 and drawn.max() / drawn.min() >= _WIDE_RANGE:
        log_y(*panels)
