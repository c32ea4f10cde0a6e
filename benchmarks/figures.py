"""The figures of the page, from the records."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from benchmarks.page import FIGURES, asked, number
from benchmarks.records import Part, Row
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rmab.report.canvas import draw_legend, log_ticks, panels_of, save
from rmab.report.style import STYLE

__all__ = ["draw"]

Floats = npt.NDArray[np.float64]

OURS, BESIDE, LIMIT, FLOOR = "#0072b2", "#d55e00", "#aa3377", "#7f7f7f"


def draw(parts: Mapping[str, Part], folder: Path) -> list[Path]:
    """Write benchmark-*.svg of the parts that there are."""
    written = []
    with rc_context(STYLE), tempfile.TemporaryDirectory() as scratch:
        for name, figure_of in DRAWN.items():
            if name not in parts:
                continue
            stem = f"benchmark-{name}"
            save(figure_of(parts[name]), Path(scratch), stem, FIGURES[name])
            shutil.copy(Path(scratch) / f"{stem}.svg", folder)
            written.append(folder / f"{stem}.svg")
    return written


def engine(part: Part) -> Figure:
    """Ratios to the yardstick as dots with their ranges, limits as ticks."""
    rows = [
        *((f"rmab.run: {row.case}", row) for row in part.tables["run"]),
        *((f"program: {row.case}", row) for row in part.tables["program"]),
    ]
    figure = Figure(figsize=(9.5, 0.9 + 0.42 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, (_, row) in enumerate(reversed(rows)):
        axes.plot(
            [row.low, row.high], [place, place], color=OURS, linewidth=4, alpha=0.35, label="range"
        )
        axes.plot(row.value, place, "o", color=OURS, markersize=7, label="measured")
        if row.limit is not None:
            axes.plot(row.limit, place, "|", color=LIMIT, markersize=16, mew=2.5, label="at most")
        end = max(row.high, row.limit or 0)
        axes.text(1.12 * end, place, number(row.value), fontsize=9, va="center")
    axes.set_yticks(range(len(rows)), [name for name, _ in reversed(rows)])
    axes.set_ylim(-0.6, len(rows) - 0.3)
    axes.set_xscale("log")
    axes.set_xlim(0.8, None)
    log_ticks(axes.xaxis)
    axes.set_xlabel("times the yardstick, one core")
    draw_legend(figure, np.array([axes]))
    return figure


def growth(part: Part) -> Figure:
    """Time for each trial against three sizes, and memory against the trials."""
    figure = Figure(figsize=(10, 7), layout="constrained")
    panels = figure.subplots(2, 2)
    names = {"arms": "N arms (K = N / 10)", "agents": "M agents", "slots": "T slots"}
    slopes = dict(zip(names, part.tables["slopes"], strict=True))
    for axes, (name, label) in zip(panels.flat, names.items(), strict=False):
        rows = part.tables[name]
        size, value = _points(rows)
        value = value / 1000
        axes.plot(size, value, "o", color=OURS, label="rmab.run")
        _log_axes(axes)
        _measured_ticks(axes, size)
        b = slopes[name].value
        a = np.exp(np.mean(np.log(value) - b * np.log(size)))
        axes.plot(size, a * size**b, color=FLOOR, linestyle="--", label="fitted")
        axes.set_title(f"slope {number(b)}, {asked(slopes[name])}")
        axes.set_xlabel(label)
        axes.set_ylabel("ms a trial")
    axes = panels.flat[3]
    size, value = _points(part.tables["memory"])
    axes.plot(size, value, "o-", color=OURS)
    axes.set_xscale("log")
    _measured_ticks(axes, size)
    axes.margins(x=0.1)
    axes.set_ylim(0, 1.2 * value.max())
    axes.set_title("memory")
    axes.set_xlabel("trials")
    axes.set_ylabel("MB")
    draw_legend(figure, panels)
    return figure


def indices(part: Part) -> Figure:
    """Time for a dense arm against its states."""
    figure, panels = panels_of(1, 1)
    axes = panels.flat[0]
    rows = part.tables["dense"]
    for key, label, colour in (
        ("ours_ms", "rmab", OURS),
        ("theirs_ms", "markovianbandit-pkg", BESIDE),
    ):
        size = [row.number("states") for row in rows]
        axes.plot(size, [row.number(key) for row in rows], "o-", color=colour, label=label)
    _log_axes(axes)
    axes.set_xlabel("states n")
    axes.set_ylabel("ms, processor time")
    draw_legend(figure, panels)
    return figure


def draws(part: Part) -> Figure:
    """Time of a draw by the number of states, three ways."""
    figure, panels = panels_of(1, 1)
    axes = panels.flat[0]
    plain, walked = part.tables["conjugate"], part.tables["metropolis"]
    for shift, (rows, key, label, colour) in enumerate(
        (
            (plain, "conjugate_us", "conjugate", FLOOR),
            (plain, "ours_us", "rmab", OURS),
            (walked, "metropolis_us", "Metropolis", BESIDE),
        )
    ):
        place = np.arange(len(rows)) + 0.27 * (shift - 1)
        bars = axes.bar(place, [row.number(key) for row in rows], 0.25, color=colour, label=label)
        axes.bar_label(bars, [number(row.number(key)) for row in rows], fontsize=9)
    axes.set_xticks(range(len(plain)), [row.case for row in plain])
    axes.set_yscale("log")
    axes.margins(y=0.15)
    log_ticks(axes.yaxis)
    axes.set_ylabel("µs a draw, one core")
    draw_legend(figure, panels)
    return figure


DRAWN: Mapping[str, Callable[[Part], Figure]] = {
    "engine": engine,
    "growth": growth,
    "indices": indices,
    "draws": draws,
}


def _points(rows: Sequence[Row]) -> tuple[Floats, Floats]:
    return np.array([row.number("size") for row in rows]), np.array([row.value for row in rows])


def _log_axes(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.margins(0.08)
    log_ticks(axes.xaxis)
    log_ticks(axes.yaxis)


def _measured_ticks(axes: Axes, size: Floats) -> None:
    """The sizes that were measured, and no others, along x."""
    axes.set_xticks(size, [f"{each:,.0f}" for each in size])
    axes.set_xticks([], minor=True)
