"""Drawings of regret against the horizon, the agents and the arms.

Above, the regret per agent on logarithmic axes, where a power law is a straight line: each policy
with its band, the law that was fitted to it, and what grows as the bound of Theorem 1 does. Below,
the share of the regret that is left when every look is learnt from.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator

from rmab.report.canvas import (
    draw_legend,
    draw_line,
    log_ticks,
    log_y,
    panels_of,
    signed_log_y,
)
from rmab.report.style import LOOKS, Look, looks_of
from rmab.studies.figure import Drawn, Fit
from rmab.studies.results import Floats
from rmab.studies.scaling import FEW, GAP, PLAIN, Law, Scaling, scalings

__all__ = ["scaling_figure"]

X_LABELS = {"slot": "Slots T", "agents": "Agents M", "arms": "Arms N"}
GREY = "#555555"


def scaling_figure(drawn: Drawn) -> Figure:
    """Regrets above, shares below, a column for each K; of what there is when interrupted."""
    columns = scalings(drawn)
    figure, panels = panels_of(2, len(columns), share_y="row")
    for (above, below), scaling in zip(panels.T, columns, strict=True):
        above.set_title(scaling.label)
        above.set_xscale("log")
        _regrets(above, scaling)
        _shares(below, scaling)
        below.set_xlabel(X_LABELS[drawn.figure.x])
    curves = [curve.mean for scaling in columns for curve in scaling.regret.values()]
    if all((curve > 0).all() for curve in curves):
        log_y(*panels[0])
    else:
        signed_log_y(*panels[0])
    for (_, below), scaling in zip(panels.T, columns, strict=True):
        _x_ticks(below, scaling.at)
    panels[0, 0].set_ylabel("Regret per agent")
    panels[1, 0].set_ylabel(f"Share of {LOOKS[PLAIN].label}'s regret")
    draw_legend(figure, panels)
    return figure


def _regrets(axes: Axes, scaling: Scaling) -> None:
    """Curves and fitted laws; Theorem 1's growth begins where the last law of PLAIN does."""
    law, looks = scaling.law, looks_of(scaling.regret)
    for place, (name, curve) in enumerate(scaling.regret.items()):
        draw_line(axes, looks[name], scaling.at, curve, place)
    for place, name in enumerate(scaling.regret):
        fits = scaling.fits(name)
        for found in fits:
            ends = np.asarray([found.start, found.end])
            axes.plot(ends, found.at(ends), color=looks[name].colour, linestyle="--", linewidth=0.9)
        _slopes(axes, looks[name], law, fits, place)
    for last in scaling.fits(PLAIN)[-1:]:
        start = np.asarray([last.start])
        at = scaling.at[scaling.at >= start]
        growth = last.at(start) * law.of(at) / law.of(start)
        axes.plot(at, growth, color=GREY, linestyle=":", label=f"As {law.growth} (Theorem 1)")


def _slopes(axes: Axes, look: Look, law: Law, fits: Sequence[Fit], place: int) -> None:
    """The fitted laws in a corner that curves leave free: below falling ones, above the rest."""
    if not fits:
        return
    powers = ", ".join(f"{law.symbol}^{found.slope:.2f}" for found in fits)
    falls = law.of(np.asarray([2.0]))[0] < law.of(np.asarray([1.0]))[0]
    axes.text(
        0.03,
        (0.16 if falls else 0.97) - 0.08 * place,
        f"{look.label}: {powers}".replace("^-", "^\N{MINUS SIGN}"),
        transform=axes.transAxes,
        va="top",
        color=look.colour,
    )


def _shares(axes: Axes, scaling: Scaling) -> None:
    draw_line(axes, looks_of([GAP])[GAP], scaling.at, scaling.share, 1)
    axes.axhline(1, color=LOOKS[PLAIN].colour, linewidth=0.9)
    axes.axhline(0, color=LOOKS["whittle"].colour, linewidth=0.9, linestyle="--")


def _x_ticks(axes: Axes, at: Floats) -> None:
    """At the places themselves where these are few, else at powers of ten."""
    log_ticks(axes.xaxis)
    axes.xaxis.set_major_locator(FixedLocator(list(at)) if len(at) <= FEW else LogLocator())
