"""The six pictures of a fit: the trace, and its twins as a band from the lowest to the highest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from rmab.report.canvas import draw_legend, log_ticks, panels_of
from rmab.report.style import STYLE
from rmab.traces.fit import Fit, FittedSeries
from rmab.traces.pairs import Floats
from rmab.traces.summaries import SummaryStatistics, lags_of

__all__ = ["PICTURES", "draw"]

_TRACE = "#1c1c1e"
_TWIN = "#4477aa"
_MODEL = "#d55e00"
_STATES = ("#d55e00", "#e9b872", "#cfe3f2", "#9dc6e4", "#5b9bd0")  # bad to good
_MAX_SLOTS = 300  # of a strip
_MAX_ARMS = 16
_MAX_NAMES = 12  # along an axis


def _rewards(fit: Fit) -> Figure:
    """What policies earn on the trace, beside the band of the twins."""
    figure, panels = panels_of(1, 1)
    axes = panels[0, 0]
    names = list(fit.earned)
    at = np.arange(len(names))
    twins = np.array([fit.earned[name].replicates for name in names])  # (policies, twins)
    middle = twins.mean(1)
    reach = np.maximum([middle - twins.min(1), twins.max(1) - middle], 0)  # rounding aside
    axes.errorbar(
        at - 0.08, middle, yerr=reach, fmt="_", color=_TWIN, capsize=5, elinewidth=5, alpha=0.7,
        markersize=16, label="Twins, lowest to highest",
    )  # fmt: skip
    trace = [fit.earned[name].trace for name in names]
    axes.plot(at + 0.08, trace, "D", color=_TRACE, label="Trace")
    for x, on_trace, on_twins in zip(at, trace, middle, strict=True):
        axes.annotate(
            f"{on_trace:.4f}", (x + 0.16, on_trace), va="center", color=_TRACE, fontsize=9
        )
        axes.annotate(
            f"{on_twins:.4f}",
            (x - 0.18, on_twins),
            va="center",
            ha="right",
            color=_TWIN,
            fontsize=9,
        )
    axes.set_xticks(at, names)
    axes.set_xlim(-0.75, len(names) - 0.3)
    axes.margins(y=0.12)
    axes.set_ylabel("Average reward, K = 1")
    draw_legend(figure, panels)
    return figure


def _strip(fit: Fit) -> Figure:
    """The states of one agent's arms in a window, of the trace and of one twin."""
    agent, start, end = _window(fit)
    figure, panels = panels_of(1, 2)
    colours = [_STATES[round(i * 4 / (fit.trace.states - 1))] for i in range(fit.trace.states)]
    arms = min(len(fit.trace.arms), _MAX_ARMS)
    both = ((fit.trace.state, "Trace"), (fit.replicate_state, "A twin"))
    for axes, (state, title) in zip(panels[0], both, strict=True):
        shown = state[agent, start:end, :arms].T.astype(float)
        shown[shown < 0] = np.nan
        axes.imshow(
            shown,
            aspect="auto",
            interpolation="nearest",
            cmap=ListedColormap(colours),
            vmin=-0.5,
            vmax=fit.trace.states - 0.5,
            extent=(start, end, arms - 0.5, -0.5),
        )
        axes.grid(False)
        axes.set_yticks(np.arange(arms), _short(fit.trace.arms[:arms]))
        axes.set_xlabel("Slot")
        axes.set_title(f"{title}, agent {_short([fit.trace.agents[agent]])[0]}")
    return figure


def _window(fit: Fit) -> tuple[int, int, int]:
    """The agent, first slot and slot after the last, where most changes are, in one segment."""
    state, segment = fit.trace.state, fit.trace.segment
    changes = np.zeros(state.shape[:2], np.int64)
    changes[:, 1:] = (
        (state[:, 1:] != state[:, :-1]) & (state[:, 1:] >= 0) & (state[:, :-1] >= 0)
    ).sum(-1)
    so_far = np.concatenate([np.zeros((len(state), 1), np.int64), changes.cumsum(1)], axis=1)
    found, most = (0, 0, min(_MAX_SLOTS, len(segment))), -1
    bounds = [*np.flatnonzero(np.diff(segment, prepend=segment[0] - 1)).tolist(), len(segment)]
    for first, last in pairwise(bounds):
        for start in range(first, last, _MAX_SLOTS):
            end = min(start + _MAX_SLOTS, last)
            inside = so_far[:, end] - so_far[:, start]
            if inside.max() > most:
                most = int(inside.max())
                found = int(inside.argmax()), start, end
    return found


def _runs(fit: Fit) -> Figure:
    """How many runs are at least so long."""
    figure, panels = panels_of(1, 2)
    for axes, name, title in (
        (panels[0, 0], "good_runs", "Runs of good"),
        (panels[0, 1], "bad_runs", "Runs of bad"),
    ):
        band = _band(fit, _PARTS[name])
        lengths = np.exp2(np.arange(len(band.trace), dtype=np.float64))
        kept = (band.trace > 0) | (band.high > 0)
        _draw(axes, lengths[kept], _Band(*(np.where(x > 0, x, np.nan)[kept] for x in band)))
        axes.set_xscale("log")
        axes.set_yscale("log")
        log_ticks(axes.xaxis)
        log_ticks(axes.yaxis)
        axes.set_title(title)
        axes.set_xlabel("Slots")
    panels[0, 0].set_ylabel("Share at least so long")
    draw_legend(figure, panels)
    return figure


def _blocks(fit: Fit) -> Figure:
    """Share of good over time: all series, and the one that is best cut into pieces."""
    figure, panels = panels_of(1, 2, share_y="row")
    slots = len(fit.trace.segment)
    middle = (np.arange(len(fit.summary.blocks)) + 0.5) * slots / len(fit.summary.blocks)
    one = _shown_series(fit)

    def of_all(summary: SummaryStatistics) -> Floats:
        return _mean_of(summary.blocks)

    def of_one(summary: SummaryStatistics) -> Floats:
        return np.asarray(summary.blocks[:, one.agent, one.arm])

    agent, arm = _short([fit.trace.agents[one.agent], fit.trace.arms[one.arm]])
    titles = "All series", f"Agent {agent}, arm {arm}"
    for axes, view, title in zip(panels[0], (of_all, of_one), titles, strict=True):
        _draw(axes, middle, _band(fit, view), marker="")
        axes.set_title(title)
        axes.set_xlabel("Slot")
    for piece in one.pieces[1:]:
        panels[0, 1].axvline(piece.start, color=_MODEL, linewidth=0.9, linestyle=":")
    panels[0, 0].set_ylabel("Share of good")
    draw_legend(figure, panels)
    return figure


def _shown_series(fit: Fit) -> FittedSeries:
    """The series where chains on pieces save most; the first where none is tested."""
    if not fit.tested:
        return fit.series[0]
    return max(fit.tested, key=lambda each: each.bits["order1"] - each.bits["regimes"])


def _memory(fit: Fit) -> Figure:
    """Share of good some slots after bad and after good was observed."""
    figure, panels = panels_of(1, 2, share_y="row")
    lags = lags_of(len(fit.trace.segment)).astype(np.float64)
    for axes, last, name, title in (
        (panels[0, 0], 0, "since_bad", "Since bad was observed"),
        (panels[0, 1], 1, "since_good", "Since good was observed"),
    ):
        band = _band(fit, _PARTS[name])
        known = ~np.isnan(band.trace)
        at = lags[known]
        _draw(axes, at, _Band(*(x[known] for x in band)))
        if fit.trace.states == 2:
            axes.plot(
                at, _forgotten(fit, last, at), "--", color=_MODEL, label="Chain, by powers m^k"
            )
        axes.set_xscale("log")
        log_ticks(axes.xaxis)
        axes.set_title(title)
        axes.set_xlabel("Slots k since then")
    panels[0, 0].set_ylabel("Share of good")
    draw_legend(figure, panels)
    return figure


def _forgotten(fit: Fit, last: int, lags: Floats) -> Floats:
    """b0 + m^k (s - b0), the mean over series by how often they were in s."""
    p01, p11, good, n = np.array([[x.p01, x.p11, x.good, x.pairs] for x in fit.series]).T
    weight = n * (good if last else 1 - good)
    rest = (p01 / (p01 + 1 - p11))[:, None]
    after = rest + (p11 - p01)[:, None] ** lags * (last - rest)
    return np.asarray(weight @ after / max(weight.sum(), 1e-300))


def _correlation(fit: Fit) -> Figure:
    """Correlations between agents, arm by arm, and between arms, agent by agent."""
    figure, panels = panels_of(1, 2, share_y="row")
    for axes, name, names, title in (
        (panels[0, 0], "agents", fit.trace.arms, "Between agents, on each arm"),
        (panels[0, 1], "arms", fit.trace.agents, "Between arms, of each agent"),
    ):
        trace, low, high = _band(fit, _PARTS[name])
        at = np.arange(len(trace))
        axes.vlines(at, low, high, color=_TWIN, alpha=0.5, linewidth=5, label="Twins")
        axes.plot(at, trace, "D", color=_TRACE, label="Trace", markersize=4)
        axes.axhline(0, color=_TRACE, linewidth=0.7)
        if len(names) <= _MAX_NAMES:
            axes.set_xticks(at, _short(names), rotation=30 if len(names) > 4 else 0)
        else:
            axes.set_xlabel("Number of the arm" if name == "agents" else "Number of the agent")
        axes.set_title(title)
        if np.isnan(trace).all():
            why = "one agent" if name == "agents" and len(fit.trace.agents) == 1 else "not known"
            axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", style="italic")
    panels[0, 0].set_ylabel("Mean correlation")
    draw_legend(figure, panels)
    return figure


_PICTURES: dict[str, Callable[[Fit], Figure]] = {
    "rewards": _rewards,
    "strip": _strip,
    "runs": _runs,
    "blocks": _blocks,
    "memory": _memory,
    "correlation": _correlation,
}
PICTURES = tuple(_PICTURES)  # their names


@rc_context(STYLE)
def draw(name: str, fit: Fit) -> Figure:
    """The picture of that name."""
    return _PICTURES[name](fit)


class _Band(NamedTuple):
    """What the trace has, and the lowest and the highest of the twins."""

    trace: Floats
    low: Floats
    high: Floats


_PARTS: dict[str, Callable[[SummaryStatistics], Floats]] = {
    name: attrgetter(name)
    for name in ("good_runs", "bad_runs", "since_bad", "since_good", "agents", "arms")
}


def _band(fit: Fit, view: Callable[[SummaryStatistics], Floats]) -> _Band:
    """One view of all portraits; NaN where no twin has a number."""
    twins = np.array([view(each) for each in fit.replicates])
    known = ~np.isnan(twins)
    low = np.where(known, twins, np.inf).min(0)
    high = np.where(known, twins, -np.inf).max(0)
    nothing = ~known.any(0)
    return _Band(view(fit.summary), np.where(nothing, np.nan, low), np.where(nothing, np.nan, high))


def _draw(axes: Axes, x: Floats, band: _Band, marker: str = "o") -> None:
    axes.fill_between(
        x, band.low, band.high, color=_TWIN, alpha=0.35, linewidth=1, label="20 twins"
    )
    axes.plot(x, band.trace, color=_TRACE, marker=marker, markersize=4, label="Trace")


def _mean_of(blocks: Floats) -> Floats:
    """Over agents and arms, of those that are known: (blocks,)."""
    flat = blocks.reshape(len(blocks), -1)
    known = ~np.isnan(flat)
    n = known.sum(1)
    return np.where(n > 0, np.where(known, flat, 0).sum(1) / np.maximum(n, 1), np.nan)


def _short(names: Sequence[str]) -> list[str]:
    return [name if len(name) <= 14 else f"{name[:13]}…" for name in names]
