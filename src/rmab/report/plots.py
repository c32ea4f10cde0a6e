"""Drawings: the results of a study, and the figures of the paper.

`study` and `paper` make a matplotlib `Figure`, `save` writes it as PNG and SVG. Nothing here uses
pyplot, and the same results give the same bytes. What all drawings share:

    lines     a policy has one colour, dash and marker wherever it is drawn; the colours (Okabe and
              Ito, Tol) are told apart by the colour-blind
    bands     95 %: 1.96 standard errors to each side
    episodes  those that at least half of the trials played to the end and went on from
    slots     averaged over bins; slots of one trial are correlated, so the error of a bin's mean is
              taken as the mean of its slots' errors, which it cannot exceed
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from rmab.studies.figure import Drawn
from rmab.studies.results import Curve, Floats, PolicyResult, Results

__all__ = ["BAND", "label", "paper", "save", "study"]

BAND = 1.96  # standard errors to each side
BINS = 48  # along the slots
LARGE = 10.0  # a regret above it gets a logarithmic axis, linear from -1 to 1

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the layout is the same everywhere
    "font.size": 11,
    "axes.labelsize": 11,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "svg.fonttype": "none",  # text stays text: it can be selected and read aloud
    "text.parse_math": False,  # a policy's name may hold a dollar sign
}
BROWSER_FONTS = "'DejaVu Sans', Verdana, sans-serif"  # Verdana is as wide

Dash = str | tuple[int, tuple[int, ...]]


@dataclass(frozen=True)
class Look:
    """How a line is named and drawn."""

    label: str
    colour: str
    dash: Dash = "-"
    marker: str = ""


# Learners have whole lines with markers, policies that know the dynamics have dashes.
LOOKS = {
    "fedtswi": Look("FedTSWI", "#d55e00", "-", "o"),
    "fedts-myopic": Look("FedTS-Myopic", "#0072b2", "-", "s"),
    "feducb-wi": Look("FedUCB-WI", "#e69f00", "-", "^"),
    "feducb-myopic": Look("FedUCB-Myopic", "#56b4e9", "-", "D"),
    "fed1-ucb": Look("Fed1-UCB", "#cc79a7", "-", "v"),
    "optimal": Look("Optimal", "#000000", "-."),
    "whittle": Look("WI policy", "#009e73", "--"),
    "myopic": Look("Myopic policy", "#332288", ":"),
    "fixed": Look("Fixed selection", "#7f7f7f", (0, (6, 2, 1, 2, 1, 2))),
    "fixed-best": Look("Fixed selection, best pay", "#882255", (0, (3, 1, 1, 1))),
    "random": Look("Random selection", "#999933", (0, (1, 2))),
}
# For lines without a look of their own: variants, arms, a user's policies.
SPARE = (
    ("#aa3377", "P"),
    ("#4477aa", "s"),
    ("#228833", "^"),
    ("#997700", "D"),
    ("#ee6677", "v"),
    ("#66ccee", "X"),
)
Y_LABELS = {"reward": "Average reward", "regret": "Regret per slot", "error": "MSE"}


def label(name: str) -> str:
    """What the paper calls a policy; a user's keeps its name."""
    return LOOKS[name].label if name in LOOKS else name


def _spare(text: str, place: int) -> Look:
    colour, marker = SPARE[place % len(SPARE)]
    return Look(text, colour, "-", marker)


def _looks(names: Iterable[str]) -> dict[str, Look]:
    listed = list(names)
    own = [name for name in listed if name not in LOOKS]
    return {name: LOOKS.get(name) or _spare(name, own.index(name)) for name in listed}


# ---------------------------------------------------------------------------- what figures are made


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
    """A figure of the paper, with what there is of it when it was interrupted."""
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
    figure, panels = _panels(rows, len(parts))
    for column, part in zip(panels.T, parts, strict=True):
        learning = any(len(r.episode_trials) > 1 for r in part.results.values())
        edges = _edges(part.results.study.horizon, learning)
        column[0].set_title(_capital(part.title))
        _reward_panel(column[0], part, edges)
        if rows == 2:
            _regret_panel(column[1], part, edges)
        if learning:
            for axes in column:
                axes.set_xscale("log")
                _log_ticks(axes.xaxis)
        column[-1].set_xlabel("Slots")
    panels[0, 0].set_ylabel("Average reward")
    if rows == 2:
        _signed_log_if_large(panels[1], max(float(np.abs(regret).max()) for regret in regrets))
        panels[1, 0].set_ylabel("Regret so far against WI policy")
    _legend(figure, panels)
    return figure


def _reward_panel(axes: Axes, part: Part, edges: npt.NDArray[np.int64]) -> None:
    for place, (look, result) in enumerate(_lines(part.results)):
        x, curve = _binned(result.slots, edges)
        _line(axes, look, x, curve, place)
    for name, text, dash in (
        ("optimum", "Exact optimum", "-"),
        ("upper_bound", "Lagrangian bound", (0, (8, 3))),
    ):
        level = part.exact.get(name)
        if level is not None:
            axes.axhline(level, color="#555555", linewidth=0.9, linestyle=dash, label=text)


def _regret_panel(axes: Axes, part: Part, edges: npt.NDArray[np.int64]) -> None:
    ends = edges[1:] - 1
    for place, (look, result) in enumerate(_lines(part.results)):
        _line(axes, look, edges[1:], Curve(result.regret.mean[ends], result.regret.se[ends]), place)


def _signed_log_if_large(row: Iterable[Axes], largest: float) -> None:
    if largest > LARGE:
        for axes in row:
            axes.set_yscale("symlog", linthresh=1)
            axes.yaxis.set_major_formatter(FuncFormatter(_plain))


def _episodes(drawn: Drawn) -> Figure:
    """One policy: a line for each variant. Several: a panel each; if two, regrets below."""
    columns = (
        _lines_of_variants(drawn) if len(drawn.results[0]) == 1 else _panels_of_policies(drawn)
    )
    keys = ["reward", "regret"] if len(columns) > 1 else [drawn.figure.y]
    figure, panels = _panels(len(keys), len(columns), share_y="row")
    for row, key in zip(panels, keys, strict=True):
        for axes, (_, lines) in zip(row, columns, strict=True):
            for place, line in enumerate(lines):
                kept = _kept(line.result.episode_trials, line.trials)
                curve: Curve = getattr(line.result, f"episode_{key}")
                _line(axes, line.look, kept + 1, Curve(curve.mean[kept], curve.se[kept]), place)
        if key == "regret":
            _log_y(*row)
        row[0].set_ylabel(Y_LABELS[key])
    for column, (title, _) in zip(panels.T, columns, strict=True):
        column[0].set_title(_capital(title))
        column[-1].set_xlabel("Episodes")
    _legend(figure, panels)
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
        ((look, result),) = _lines(results)
        look = _spare(variant.label, place) if variant.label else look
        lines.append(Line(look, result, results.trials))
    return [("", lines)]


def _panels_of_policies(drawn: Drawn) -> list[tuple[str, list[Line]]]:
    """What a variant leaves out is drawn from the first."""
    first = drawn.results[0]
    looks = _looks({name: None for results in drawn.results for name in results})
    columns = []
    for variant, results in zip(drawn.figure.variants, drawn.results, strict=False):
        sources = {**dict.fromkeys(first, first), **dict.fromkeys(results, results)}
        lines = [Line(looks[name], each[name], each.trials) for name, each in sources.items()]
        columns.append((variant.label, lines))
    return columns


def _errors(drawn: Drawn) -> Figure:
    """Squared error of the dynamics: a line for each arm."""
    figure, panels = _panels(1, 1)
    axes = panels[0, 0]
    results = drawn.results[0]
    (result,) = results.values()
    assert result.episode_error is not None
    kept = _kept(result.episode_trials, results.trials)
    for arm in range(len(results.study.arms)):
        curve = Curve(result.episode_error.mean[kept, arm], result.episode_error.se[kept, arm])
        _line(axes, _spare(f"Arm {arm + 1}", arm), kept + 1, curve, arm)
    _log_y(axes)
    axes.set_xlabel("Episodes")
    axes.set_ylabel(Y_LABELS["error"])
    _legend(figure, panels)
    return figure


def _values(drawn: Drawn) -> Figure:
    """Both value functions over the belief, the threshold between them: a panel for each arm."""
    arms = drawn.figure.variants[0].study.arms
    belief = drawn.series["belief"]
    figure, panels = _panels(1, len(arms))
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
    _legend(figure, panels)
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
    figure, panels = _panels(1, 2)
    episodes, regret = panels[0]
    slot = drawn.series["slot"]
    ((look, result),) = _lines(drawn.results[0])
    bound = {"color": "#000000", "linestyle": "--", "label": "Bound"}
    episodes.step(slot, drawn.series["episodes"], where="post", color=look.colour, label=look.label)
    episodes.plot(slot, drawn.series["episode bound"], **bound)
    episodes.set_title("Lemma 1")
    episodes.set_ylabel("Episodes so far")
    edges = _edges(len(slot), logarithmic=True)
    ends = edges[1:] - 1
    _line(
        regret,
        replace(look, marker=""),
        edges[1:],
        Curve(result.regret.mean[ends], result.regret.se[ends]),
    )
    regret.plot(slot[ends], drawn.series["regret bound"][ends], **bound)
    (span,) = drawn.series["span"]
    regret.set_title(f"Theorem 1, D = {span:.3f}")
    regret.set_ylabel("Regret so far")
    _log_y(regret)
    for axes in panels[0]:
        axes.set_xlabel("Slots")
    _legend(figure, panels)
    return figure


KINDS: dict[tuple[str, str], Callable[[Drawn], Figure]] = {
    ("episode", "reward"): _episodes,
    ("episode", "regret"): _episodes,
    ("episode", "error"): _errors,
    ("slot", "reward"): _rewards,
    ("slot", "theory"): _theory,
    ("belief", "value"): _values,
}


# ------------------------------------------------------------------------------ what they draw with


def _panels(
    rows: int, columns: int, share_y: Literal["none", "row"] = "none"
) -> tuple[Figure, Any]:
    """A figure and its axes, (rows, columns)."""
    width = 5.8 if columns == 1 else 5.0 * columns
    figure = Figure(figsize=(width, 1.0 + 3.0 * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, sharex="col", sharey=share_y)


def _lines(results: Mapping[str, PolicyResult]) -> list[tuple[Look, PolicyResult]]:
    looks = _looks(results)
    return [(looks[name], result) for name, result in results.items()]


def _line(axes: Axes, look: Look, x: npt.NDArray[Any], curve: Curve, place: int = 0) -> None:
    """A mean with its band; place keeps the markers of lines that coincide apart."""
    step = max(1, len(x) // 8)
    axes.plot(
        x,
        curve.mean,
        color=look.colour,
        linestyle=look.dash,
        marker=look.marker,
        markevery=(place * 2 % step, step),
        label=_listed(look.label),
    )
    reach = BAND * curve.se
    axes.fill_between(
        x, curve.mean - reach, curve.mean + reach, color=look.colour, alpha=0.16, linewidth=0
    )


def _listed(text: str) -> str:
    """Legends leave out labels that begin with an underscore or are empty: a space keeps them."""
    return f" {text}" if text[:1] in ("", "_") else text


def _legend(figure: Figure, panels: npt.NDArray[Any]) -> None:
    """One legend below all panels, where it covers no curve."""
    entries = {
        text: handle
        for axes in panels.flat
        for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    width = 0.7 + 0.08 * max(map(len, entries))  # inches of an entry, about
    fit = max(1, int(figure.get_figwidth() / width))
    rows = -(-len(entries) // fit)
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower center",
        ncols=-(-len(entries) // rows),
    )


def _edges(horizon: int, logarithmic: bool) -> npt.NDArray[np.int64]:
    """Bins of slots, bin i has slots edges[i] + 1 to edges[i + 1]."""
    if logarithmic:
        cuts = np.geomspace(1, horizon + 1, BINS + 1) - 1
    else:
        cuts = np.linspace(0, horizon, BINS + 1)
    return np.unique(np.round(cuts).astype(np.int64))


def _binned(curve: Curve, edges: npt.NDArray[np.int64]) -> tuple[Floats, Curve]:
    """The middle of each bin and the curve's mean over it."""
    sizes = np.diff(edges)
    mean, se = (np.add.reduceat(each, edges[:-1]) / sizes for each in (curve.mean, curve.se))
    return (edges[:-1] + 1 + edges[1:]) / 2, Curve(mean, se)


def _kept(reached: Floats, trials: int) -> npt.NDArray[np.intp]:
    """The episodes to draw: half of the trials went on to the next. Always the first."""
    went_on = np.append(reached[1:], 0)
    keep = went_on >= trials / 2
    keep[0] = True
    return np.flatnonzero(keep)


def _log_y(*row: Axes) -> None:
    """Logarithmic y axes that end a little below the lowest mean, whatever the bands do."""
    drawn = np.concatenate(
        [np.asarray(line.get_ydata(), float) for axes in row for line in axes.get_lines()]
    )
    positive = drawn[drawn > 0]
    if not positive.size:
        return
    for axes in row:
        axes.set_yscale("log")
        axes.set_ylim(positive.min() / 1.5, positive.max() * 1.5)
        _log_ticks(axes.yaxis)


def _log_ticks(axis: Axis) -> None:
    """1, 2, 5, 10, ... as plain numbers; powers of ten alone over many decades."""
    low, high = axis.get_view_interval()
    steps = (1.0, 2.0, 5.0) if high / low < 10**3.5 else (1.0,)
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter(FuncFormatter(_plain))
    axis.set_minor_locator(NullLocator())


def _plain(value: float, _position: int | None = None) -> str:
    text = f"{value:.10g}" if abs(value) < 10_000 else f"{value:,.0f}"
    return text.replace("-", "\N{MINUS SIGN}")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


# -------------------------------------------------------------------------------------------- files


def save(figure: Figure, folder: Path, name: str, about: str) -> str:
    """Write name.png and name.svg; returns the SVG for a page, said aloud as `about`."""
    with rc_context({**STYLE, "svg.hashsalt": name}):
        figure.savefig(folder / f"{name}.png", dpi=150, metadata={"Software": None})
        file = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=nothing)
    svg = _in_tags(file.getvalue(), [("'DejaVu Sans'", BROWSER_FONTS)])
    (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
    return _inline(svg, name, about)


def _inline(svg: str, name: str, about: str) -> str:
    """The SVG without its XML header; its ids begin with `name`, so several can share a page."""
    body = svg[svg.index("<svg ") :]
    marks = ('id="', 'href="#', "url(#")
    body = _in_tags(body, [(mark, f"{mark}{name}-") for mark in marks])
    return body.replace("<svg ", f'<svg role="img" aria-label="{escape(about)}" ', 1).strip()


def _in_tags(svg: str, changes: Iterable[tuple[str, str]]) -> str:
    """Replace inside tags alone: the text between them may be anybody's."""

    def changed(tag: re.Match[str]) -> str:
        text = tag.group()
        for old, new in changes:
            text = text.replace(old, new)
        return text

    return re.sub(r"<[^>]*>", changed, svg)
