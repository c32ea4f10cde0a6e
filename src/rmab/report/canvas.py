"""Parts of a drawing: panels, lines with bands, legends, axes, files.

Nothing here uses pyplot, and the same results give the same bytes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from rmab.report.style import STYLE, LineStyle, line_styles
from rmab.studies.results import Curve, Floats, PolicyResult

__all__ = [
    "bin_edges",
    "binned",
    "capital",
    "draw_bars",
    "draw_legend",
    "draw_line",
    "lines_of",
    "log_ticks",
    "log_y",
    "panels_of",
    "save",
    "signed_log_y",
]

_BAND_SIGMA = 1.96  # standard errors to each side of a 95 % band
_SLOT_BINS = 48  # along the slots
_BROWSER_FONTS = "'DejaVu Sans', Verdana, sans-serif"  # Verdana has the same widths


def panels_of(
    rows: int, columns: int, share_y: Literal["none", "row"] = "none"
) -> tuple[Figure, Any]:
    """Make a figure and its axes, (rows, columns)."""
    width = {1: 5.8, 2: 10.0}.get(columns, 3.8 * columns)
    height = 3.0 if columns <= 2 else 2.6
    figure = Figure(figsize=(width, 1.0 + height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, sharex="col", sharey=share_y)


def lines_of(results: Mapping[str, PolicyResult]) -> list[tuple[LineStyle, PolicyResult]]:
    """Results by policy, each with its line style."""
    styles = line_styles(results)
    return [(styles[name], result) for name, result in results.items()]


def draw_line(
    axes: Axes, style: LineStyle, x: npt.NDArray[Any], curve: Curve, place: int = 0
) -> None:
    """Draw a mean with its band; place shifts markers, so that equal lines stay visible."""
    step = max(1, len(x) // 8)
    axes.plot(
        x,
        curve.mean,
        color=style.colour,
        linestyle=style.dash,
        marker=style.marker,
        markevery=(place * 2 % step, step),
        label=_listed(style.label),
    )
    reach = _BAND_SIGMA * curve.se
    axes.fill_between(
        x, curve.mean - reach, curve.mean + reach, color=style.colour, alpha=0.16, linewidth=0
    )


def draw_bars(
    axes: Axes, style: LineStyle, x: npt.NDArray[Any], curve: Curve, *, joined: bool
) -> None:
    """Draw means with error bars; one trial has no error."""
    axes.errorbar(
        x,
        curve.mean,
        yerr=_BAND_SIGMA * np.nan_to_num(curve.se),
        color=style.colour,
        linestyle=style.dash if joined else "none",
        marker=style.marker or ("" if joined else "_"),
        markersize=None if joined or style.marker else 14,
        capsize=2,
        elinewidth=1.0,
        label=_listed(style.label),
    )


def _listed(text: str) -> str:
    """Keep a label that legends would leave out: one that is empty or begins with an underscore."""
    return f" {text}" if text[:1] in ("", "_") else text


def draw_legend(figure: Figure, panels: npt.NDArray[Any]) -> None:
    """Draw one legend below all panels."""
    entries = {
        text: handle
        for axes in panels.flat
        for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    if not entries:
        return
    width = 0.7 + 0.08 * max(map(len, entries))  # inches of an entry, about
    fit = max(1, int(figure.get_figwidth() / width))
    rows = -(-len(entries) // fit)
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower center",
        ncols=-(-len(entries) // rows),
    )


def bin_edges(horizon: int, logarithmic: bool) -> npt.NDArray[np.int64]:
    """Edges of bins of slots; bin i has slots edges[i] + 1 to edges[i + 1]."""
    if logarithmic:
        cuts = np.geomspace(1, horizon + 1, _SLOT_BINS + 1) - 1
    else:
        cuts = np.linspace(0, horizon, _SLOT_BINS + 1)
    return np.unique(np.round(cuts).astype(np.int64))


def binned(curve: Curve, edges: npt.NDArray[np.int64]) -> tuple[Floats, Curve]:
    """Middle of each bin, and the curve's mean over it."""
    sizes = np.diff(edges)
    mean, se = (np.add.reduceat(each, edges[:-1]) / sizes for each in (curve.mean, curve.se))
    return (edges[:-1] + 1 + edges[1:]) / 2, Curve(mean, se)


def log_y(*row: Axes) -> None:
    """Make y axes logarithmic, from a little below the lowest mean on."""
    drawn = np.concatenate(
        [np.asarray(line.get_ydata(), float) for axes in row for line in axes.get_lines()]
    )
    positive = drawn[drawn > 0]
    if not positive.size:
        return
    for axes in row:
        axes.set_yscale("log")
        axes.set_ylim(positive.min() / 1.5, positive.max() * 1.5)
        log_ticks(axes.yaxis)


def signed_log_y(*row: Axes) -> None:
    """Make y axes logarithmic to both sides of zero, linear from -1 to 1."""
    for axes in row:
        axes.set_yscale("symlog", linthresh=1)
        axes.margins(y=0.1)
        axes.yaxis.set_major_formatter(FuncFormatter(_plain))


def log_ticks(axis: Axis) -> None:
    """Set ticks at 1, 2, 5, 10, ..., or at powers of ten over many decades."""
    low, high = axis.get_view_interval()
    steps = (1.0, 2.0, 5.0) if high / low < 10**3.5 else (1.0,)
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter(FuncFormatter(_plain))
    axis.set_minor_locator(NullLocator())


def _plain(value: float, _position: int | None = None) -> str:
    """Write a number for an axis."""
    text = f"{value:.10g}" if abs(value) < 10_000 else f"{value:,.0f}"
    return text.replace("-", "\N{MINUS SIGN}")


def capital(text: str) -> str:
    """Capitalise the first letter."""
    return text[:1].upper() + text[1:]


# -------------------------------------------------------------------------------------------- files


def save(figure: Figure, folder: Path, name: str, about: str) -> str:
    """Write name.png and name.svg; return the SVG for a page, with `about` for screen readers."""
    with rc_context({**STYLE, "svg.hashsalt": name}):
        figure.savefig(folder / f"{name}.png", dpi=150, metadata={"Software": None})
        figure.set_layout_engine("none")  # keeps the layout of the PNG, half of the work
        file = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=nothing)
    svg = _in_tags(file.getvalue(), [("'DejaVu Sans'", _BROWSER_FONTS)])
    (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
    return _inline(svg, name, about)


def _inline(svg: str, name: str, about: str) -> str:
    """The SVG without its XML header; its ids begin with `name`, so several can share a page."""
    body = svg[svg.index("<svg ") :]
    marks = ('id="', 'href="#', "url(#")
    body = _in_tags(body, [(mark, f"{mark}{name}-") for mark in marks])
    return body.replace("<svg ", f'<svg role="img" aria-label="{escape(about)}" ', 1).strip()


def _in_tags(svg: str, changes: Iterable[tuple[str, str]]) -> str:
    """Replace only inside tags: the text between them may be a user's."""

    def changed(tag: re.Match[str]) -> str:
        text = tag.group()
        for old, new in changes:
            text = text.replace(old, new)
        return text

    return re.sub(r"<[^>]*>", changed, svg)
