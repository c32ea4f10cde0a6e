"""Page of a fit, fit.html: verdicts, code lengths, and six pictures of trace and twins.

A picture has the trace, and its twins as a band from the lowest to the highest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from rmab.report.canvas import draw_legend, log_ticks, panels_of, save
from rmab.report.html import (
    Markup,
    details,
    drawing,
    escaped,
    file_links,
    join,
    several,
    table,
    tag,
    write_page,
)
from rmab.report.style import STYLE
from rmab.traces.code_length import MODELS
from rmab.traces.fit import Fit, FittedSeries
from rmab.traces.pairs import Floats
from rmab.traces.summaries import SummaryStatistics, lags_of
from rmab.traces.verdicts import FITS, UNKNOWN, Verdict

__all__ = ["PICTURES", "write_fit"]

# An option with its value, a policy of several words, a key with its value (quotes are escaped).
_SETTING = re.compile(
    r"(--[a-z-]+(?: any-bad)?|(?<!\S)(?:fed[a-z-]+)?-robust|\w+ = (?:&\S+?;\S+?&\S+?;|\d+))"
)
_MAX_ROWS = 500  # largest table of arms; fit.json has all
_TRACE = "#1c1c1e"
_TWIN = "#4477aa"
_MODEL = "#d55e00"
_STATES = ("#d55e00", "#e9b872", "#cfe3f2", "#9dc6e4", "#5b9bd0")  # bad to good
_MAX_SLOTS = 300  # longest strip
_MAX_ARMS = 16
_MAX_NAMES = 12  # along an axis


def write_fit(folder: Path, name: str, fit: Fit) -> Path:
    """Write fit.html, fit.json and the pictures; return the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(fit.to_json(), indent=2, ensure_ascii=False, allow_nan=False)
    (folder / "fit.json").write_text(text + "\n", encoding="utf-8")
    drawn = {
        key: drawing(save(_draw_picture(key, fit), folder, key, _CAPTIONS[key]), _CAPTIONS[key])
        for key in PICTURES
    }
    body = [
        tag("h1", f"Does a Markov chain fit {name}?"),
        tag("p", _what_was_read(fit)),
        tag("p", tag("strong", fit.in_short)),
        _verdicts(fit.verdicts),
        tag("h2", "Reward: what the chain would promise, and what the trace pays"),
        *(tag("p", each, kind) for each, kind in _order_of_policies(fit)),
        drawn.pop("rewards"),
        tag("h2", "Bits: what each model predicts"),
        tag("p", _BITS),
        _models(fit),
        tag("h2", "Where trace and twins differ"),
        tag("p", _TWINS),
        *(join(tag("h3", _TITLES[key]), each) for key, each in drawn.items()),
        tag("p", _effective(fit)),
        tag("h2", "The arms"),
        _arms(fit),
        file_links(["fit.json", *(f"{key}.png" for key in PICTURES)]),
    ]
    return write_page(folder, f"Fit of {name}", body, "fit.html")


# -------------------------------------------------------------------------------------------- parts


def _what_was_read(fit: Fit) -> str:
    """Describe the trace."""
    trace = fit.trace
    agents, slots, arms = trace.state.shape
    length = "" if trace.slot_s is None else f" of {trace.slot_s:g} s"
    left_out = len(trace.never_measured)
    levels = "" if trace.states == 2 else f" {trace.states} states, of which the highest is good."
    return (
        f"{several(agents, 'agent')}, {several(slots, 'slot')}{length}, {several(arms, 'arm')}, "
        f"{several(trace.n_segments, 'segment')}; "
        f"{100 * trace.good:.1f} % good, {100 * trace.missing:.1f} % missing.{levels} "
        f"{len(fit.tested)} of {len(fit.series)} series have 100 pairs of neighbouring slots and 8 "
        "changes, and are tested."
        + (f" Never measured and left out: {left_out}." if left_out else "")
        + f" Source: {trace.source}."
    )


def _verdicts(verdicts: list[Verdict]) -> Markup:
    rows = [
        [v.question, _mark(v), v.sentence.replace(" %", "\N{NO-BREAK SPACE}%"), _settings(v.so)]
        for v in verdicts
    ]
    return table("Verdicts", ["Question", "Verdict", "What was found", "So"], rows)


def _settings(text: str) -> Markup:
    """Mark options and settings in a text, so that lines do not break them."""
    return Markup(_SETTING.sub(r'<code class="whole">\1</code>', escaped(text)))


def _mark(verdict: Verdict) -> Markup:
    kind, mark = _MARKS.get(verdict.answer, ("broken", "✗"))
    return Markup(
        f'<span class="verdict {kind}"><span aria-hidden="true">{mark}</span> '
        f"{escaped(verdict.answer)}</span>"
    )


def _order_of_policies(fit: Fit) -> list[tuple[str, str]]:
    """Describe the order of policies in the first picture; a reversal is a note."""
    if fit.reversal_matters:
        more = (
            " A study of these chains would recommend the wrong one: back-test before you choose."
        )
        said = [(fit.order_in_words + more, "note")]
    else:
        said = [(fit.order_in_words, "")]
    outside = [
        f"{name} {'more' if each.trace > each.replicates.max() else 'less'}"
        for name, each in fit.earned.items()
        if not each.replicates.min() <= each.trace <= each.replicates.max()
    ]
    if outside:
        text = "Outside the band of the twins, the trace pays: " + ", ".join(outside) + "."
        said.append((text, ""))
    return said


def _models(fit: Fit) -> Markup:
    rows = []
    for model in MODELS:
        bits, share = fit.bits[model], fit.share[model]
        rows.append(
            [
                Markup(f"{escaped(_MODELS[model])} <code>{model}</code>"),
                "" if bits is None else f"{bits:.4f}",
                "" if share is None else f"{100 * share:.0f} %",
            ]
        )
    head = ["Model of the next state", "Bits a slot", "Share of the best's"]
    return table("Bits by model", head, rows, numbers_from=1)


def _effective(fit: Fit) -> str:
    """Describe the correlation of agents."""
    if fit.correlation is None:
        return ""
    mean = f"a mean correlation rho = {fit.correlation:z.2f} between agents"
    worth = f"M = {several(fit.n_agents, 'agent')} are worth"
    if fit.correlation <= 0:
        return f"With {mean}, {worth} {fit.effective:.1f}: none is lost where rho is not above 0."
    return f"With {mean}, {worth} M / (1 + (M - 1) rho) = {fit.effective:.1f}."


def _arms(fit: Fit) -> Markup:
    agents, arms = fit.trace.agents, fit.trace.arms
    rows = [
        [
            agents[x.agent],
            arms[x.arm],
            f"{x.p01:.4f}",
            f"{x.p11:.4f}",
            f"{x.good:.4f}",
            f"{x.pairs:,}",
        ]
        for x in fit.series[:_MAX_ROWS]
    ]
    more = len(fit.series) - len(rows)
    head = ["Agent", "Arm", "p01", "p11", "Good", "Pairs"]
    return details(
        f"Fitted dynamics of {len(fit.series)} series",
        table("Arms", head, rows, numbers_from=2),
        tag("p", f"{more} more are in fit.json.") if more else Markup(""),
    )


# ----------------------------------------------------------------------------------------- pictures


def _rewards(fit: Fit) -> Figure:
    """Draw rewards of policies on the trace, beside the band of the twins."""
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
    """Draw the states of one agent's arms in a window, of the trace and of one twin."""
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
    """Agent, first slot and slot after the last of the window with most changes in one segment."""
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
    """Draw the share of runs of at least each length."""
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
    """Draw the share of good over time, of all series and of the one that pieces fit best."""
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
    """Series where chains on pieces save most bits; the first where none is tested."""
    if not fit.tested:
        return fit.series[0]
    return max(fit.tested, key=lambda each: each.bits["order1"] - each.bits["regimes"])


def _memory(fit: Fit) -> Figure:
    """Draw the share of good by slots since bad and since good was observed."""
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
    """Mean of b0 + m^k (s - b0) over series, weighted by their number of slots in s."""
    p01, p11, good, n = np.array([[x.p01, x.p11, x.good, x.pairs] for x in fit.series]).T
    weight = n * (good if last else 1 - good)
    rest = (p01 / (p01 + 1 - p11))[:, None]
    after = rest + (p11 - p01)[:, None] ** lags * (last - rest)
    return np.asarray(weight @ after / max(weight.sum(), 1e-300))


def _correlation(fit: Fit) -> Figure:
    """Draw correlations between agents, by arm, and between arms, by agent."""
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
PICTURES = tuple(_PICTURES)


@rc_context(STYLE)
def _draw_picture(name: str, fit: Fit) -> Figure:
    return _PICTURES[name](fit)


class _Band(NamedTuple):
    """Values of the trace, and the lowest and the highest of the twins."""

    trace: Floats
    low: Floats
    high: Floats


_PARTS: dict[str, Callable[[SummaryStatistics], Floats]] = {
    name: attrgetter(name)
    for name in ("good_runs", "bad_runs", "since_bad", "since_good", "agents", "arms")
}


def _band(fit: Fit, view: Callable[[SummaryStatistics], Floats]) -> _Band:
    """Take one view of all portraits; NaN where no twin has a number."""
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
    """Mean over agents and arms with a known value, (blocks,)."""
    flat = blocks.reshape(len(blocks), -1)
    known = ~np.isnan(flat)
    n = known.sum(1)
    return np.where(n > 0, np.where(known, flat, 0).sum(1) / np.maximum(n, 1), np.nan)


def _short(names: Sequence[str]) -> list[str]:
    return [name if len(name) <= 14 else f"{name[:13]}…" for name in names]


# -------------------------------------------------------------------------------------------- text

_MARKS = {FITS: ("held", "✓"), UNKNOWN: ("noted", "•")}
_MODELS = {
    "iid": "The share of good",
    "order1": "The chain",
    "order2": "The last two states",
    "ages": "The state and how long it has lasted",
    "regimes": "Chains on pieces of time",
    "flicker": "A hidden chain, seen wrongly",
}
_BITS = (
    "How many bits it takes to say the next state, a slot: fewer is better, and a model pays half "
    "of log2 n for each parameter. Shares are of what the best model saves beyond the share of "
    "good."
)
_TWINS = (
    "A twin has the trace's segments and holes, and in them the chains that were fitted, arms and "
    "agents independent. Bands go from the lowest to the highest of 20 twins. Where the trace "
    "leaves the band, the chain is wrong about that."
)
_TITLES = {
    "strip": "States",
    "runs": "How long good and bad last",
    "blocks": "Good over time",
    "memory": "How fast an observation goes stale",
    "correlation": "Agents and arms together",
}
_CAPTIONS = {
    "rewards": "Average reward of four rules that do not learn; myopic and whittle know the "
    "dynamics fitted to what they play on, genie sees the states.",
    "strip": "The agent and the window with most changes; blue is good, orange is bad, shades "
    "between are states between, and white was not measured.",
    "runs": "Share of runs that last at least so many slots. Of a chain the logarithm falls in "
    "proportion to the length; a trace above the band has longer runs than any chain of its law.",
    "blocks": "Share of good in 48 blocks of time: all series, and the one where pieces save most "
    "bits, with dotted lines where its law is cut.",
    "memory": "Share of good k slots after an observation. Dashed: what the chain predicts, "
    "b0 + m^k (s - b0). A trace that comes back more slowly has a longer memory than the chain.",
    "correlation": "Mean correlation of two agents on one arm, and of two arms of one agent. Arms "
    "that go bad together leave less to choose from than the chain promises.",
}
